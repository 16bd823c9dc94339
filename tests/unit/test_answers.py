"""Judging what models answer: tool calls in each form that servers stream, and functions by what they do."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.chat_tools import ToolCall, ToolCalls
from pytest_llmbench.errors import RequestError
from pytest_llmbench.quality import CASES, FUNCTION, extract, judge
from pytest_llmbench.sandbox import Outcome, Returned, run_function
from pytest_llmbench.tools import judge as judge_call

RIGHT = '{"city": "Paris", "unit": "celsius"}'
MERGE = f"""
def {FUNCTION}(ranges):
    found = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1][1] = max(found[-1][1], end)
        else:
            found.append([start, end])
    return found
"""


def call(**function: Any) -> dict[str, Any]:
    return {"type": "function", "function": function}


def collected(*deltas: dict[str, Any]) -> tuple[ToolCall, ...]:
    calls = ToolCalls()
    for delta in deltas:
        calls.take(delta)
    return calls.build()


@given(st.lists(st.text(), max_size=5))
def test_arguments_that_come_in_pieces_are_put_together(pieces: list[str]) -> None:
    head = {"tool_calls": [{"index": 0, "id": "1"} | call(name="f", arguments="")]}
    rest = [{"tool_calls": [{"index": 0, "function": {"arguments": piece}}]} for piece in pieces]
    assert collected(head, *rest) == (ToolCall(name="f", arguments="".join(pieces)),)


def test_calls_of_two_indices_are_two() -> None:
    deltas = [{"tool_calls": [{"index": at} | call(name=f"f{at}", arguments="{}")]} for at in (0, 1)]
    assert [found.name for found in collected(*deltas)] == ["f0", "f1"]


def test_whole_calls_without_an_index_are_taken_one_by_one() -> None:
    delta = {"tool_calls": [call(name="f", arguments={"a": 1}), call(name="g", arguments={})]}
    assert collected(delta) == (ToolCall(name="f", arguments='{"a": 1}'), ToolCall(name="g", arguments="{}"))


@pytest.mark.parametrize("delta", [{}, {"tool_calls": None}, {"tool_calls": []}, {"content": "x"}])
def test_most_deltas_have_none(delta: dict[str, Any]) -> None:
    assert collected(delta) == ()


@pytest.mark.parametrize("piece", ["f", 3, None, [], {"function": "f"}])
def test_something_else_in_its_place_breaks_the_protocol(piece: object) -> None:
    with pytest.raises(RequestError, match="a tool call that is none"):
        collected({"tool_calls": [piece]})


@pytest.mark.parametrize("city", ["Paris", "paris", "Paris, France"])
def test_the_right_call_is_right(city: str) -> None:
    assert judge_call(ToolCall(name="get_weather", arguments=json.dumps({"unit": "celsius", "city": city}))) is None


@pytest.mark.parametrize(
    ("name", "arguments", "problem"),
    [
        ("get_time", RIGHT, "it called 'get_time'"),
        ("", RIGHT, "it called ''"),
        ("get_weather", "", "not JSON"),
        ("get_weather", RIGHT[:-1], "not JSON"),
        ("get_weather", "[" * 100_000, "not JSON"),
        ("get_weather", "[1]", "not city and unit"),
        ("get_weather", '{"city": "Paris"}', "not city and unit"),
        ("get_weather", RIGHT[:-1] + ', "more": 1}', "not city and unit"),
        ("get_weather", json.dumps(RIGHT), "not city and unit"),
        ("get_weather", RIGHT.replace("Paris", "Rome"), "not Paris"),
        ("get_weather", '{"city": ["Paris"], "unit": "celsius"}', "not Paris"),
        ("get_weather", RIGHT.replace("celsius", "C"), "not celsius"),
    ],
)
def test_a_wrong_call_is_told_apart(name: str, arguments: str, problem: str) -> None:
    found = judge_call(ToolCall(name=name, arguments=arguments))
    assert found is not None
    assert problem in found
    assert len(found) < 400


@pytest.mark.parametrize(
    "text",
    [
        MERGE,
        f"```python\n{MERGE}```",
        f"Here:\n```py\n{MERGE}\n```\nIt works.",
        f"```\n{MERGE}",
        f"```python\nprint(1)\n```\n```python\n{MERGE}\n```\n```python\nprint({FUNCTION}([]))\n```",
        f"<think>```python\ndef {FUNCTION}(x): return 1\n```</think>```python\n{MERGE}```",
        f"```python\ndef {FUNCTION}(x): return 1\n```\nNo, better:\n```python\n{MERGE}```",
    ],
    ids=["bare", "block", "short name", "not closed", "three blocks", "after a thought", "the last one"],
)
def test_the_function_is_found_and_works(text: str) -> None:
    source = extract(text)
    assert source is not None
    outcome = run_function(source, FUNCTION, [(ranges,) for ranges, _ in CASES])
    assert judge(outcome) == (len(CASES), None)


@pytest.mark.parametrize("text", ["", "I can't.", f"Call {FUNCTION}(ranges).", f"<think>{MERGE}</think>No."])
def test_an_answer_without_the_function_holds_no_code(text: str) -> None:
    assert extract(text) is None


@pytest.mark.parametrize(
    ("old", "new", "passed"),
    [
        ("start <= found", "start < found", len(CASES) - 2),
        ("max(found[-1][1], end)", "end", len(CASES) - 1),
        ("sorted(ranges)", "ranges", len(CASES) - 1),
        ("return found", "return [[float(n) for n in pair] for pair in found]", 1),
        ("return found", "return None", 0),
        ("found = []", "1 / len(ranges); found = []", len(CASES) - 1),
    ],
)
def test_a_function_that_does_something_else_is_told_with_the_case(old: str, new: str, passed: int) -> None:
    outcome = run_function(MERGE.replace(old, new), FUNCTION, [(ranges,) for ranges, _ in CASES])
    found, problem = judge(outcome)
    assert found == passed
    assert problem is not None
    assert problem.startswith(f"{FUNCTION}([")


def test_a_run_that_gave_nothing_passes_nothing() -> None:
    assert judge(Outcome(problem="it didn't end")) == (0, "it didn't end")


def test_true_is_no_one() -> None:
    good = [Returned(value=expected) for _, expected in CASES]
    assert judge(Outcome(returned=tuple(good))) == (len(CASES), None)
    good[2] = Returned(value=[[True, 5]])
    assert judge(Outcome(returned=tuple(good)))[0] == len(CASES) - 1
