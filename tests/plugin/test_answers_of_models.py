"""`--llmbench-tools` and `--llmbench-quality` add tests to each entry; here a server answers by a script."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lab import Lab, properties

SERVER = Path(__file__).parents[1] / "servers" / "fake_server.py"
RIGHT = '{"city": "Paris", "unit": "celsius"}'
MERGE = """```python
def merge_ranges(ranges):
    found = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1][1] = max(found[-1][1], end)
        else:
            found.append([start, end])
    return found
```"""
BOTH = ("--llmbench-tools", "--llmbench-quality")


def call(name: str = "get_weather", arguments: str = RIGHT) -> list[dict[str, Any]]:
    return [{"index": 0, "type": "function", "function": {"name": name, "arguments": arguments}}]


@pytest.fixture
def scripted(lab: Lab, tiny_checkpoints: Path) -> Callable[..., pytest.RunResult]:
    """Runs the tests of one entry on a fake server with that plan."""

    def run(*args: str, **plan: Any) -> pytest.RunResult:
        plan_path = lab.path / "plan.json"
        plan_path.write_text(json.dumps({"record": str(lab.path / "record.jsonl"), **plan}), encoding="utf-8")
        program = lab.path / "server"
        command = shlex.join([sys.executable, "-I", "-S", str(SERVER), str(plan_path)])
        program.write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
        program.chmod(0o755)
        entry = {"id": "a", "backend": "mlx-lm", "model_id": str(tiny_checkpoints / "tiny-scripted")}
        lab.matrix(entry | {"server_binary": str(program)}, settings={"server_timeout": 20, "max_tokens": 64})
        return lab.run("matrix.yaml", f"--llmbench-out={lab.out}", "--junitxml=junit.xml", *args)

    return run


def asked(lab: Lab) -> list[dict[str, Any]]:
    lines = (lab.path / "record.jsonl").read_text(encoding="utf-8").splitlines()
    return [event["body"] for event in map(json.loads, lines) if event["event"] == "chat"]


def recorded(lab: Lab, test: str) -> dict[str, Any]:
    (found,) = [r for r in lab.run_json()["results"] if test in r["nodeid"]]
    result: dict[str, Any] = found
    return result


def test_the_tests_are_there_only_when_asked_for(lab: Lab) -> None:
    lab.matrix({"id": "a"}, {"id": "b"}, prompts=["short"])
    names = [item.name for item in lab.select("matrix.yaml")]
    assert names == ["test_throughput[a-short]", "test_throughput[b-short]"]
    names = [item.name for item in lab.select("matrix.yaml", *BOTH)]
    assert names == [
        *("test_throughput[a-short]", "test_tools[a]", "test_quality[a]"),
        *("test_throughput[b-short]", "test_tools[b]", "test_quality[b]"),
    ]
    assert [item.name for item in lab.select("matrix.yaml::test_quality[b]", *BOTH)] == ["test_quality[b]"]


def test_an_entry_is_opened_once_for_all_of_its_tests(lab: Lab) -> None:
    lab.matrix({"id": "a"}, {"id": "b"}, prompts=["short"])
    lab.run("matrix.yaml", *BOTH)
    assert lab.opened() == ["a", "b"]


def test_a_model_that_calls_the_right_tool_passes(lab: Lab, scripted: Callable[..., pytest.RunResult]) -> None:
    scripted("-k", "test_tools", "--llmbench-tools", calls=[call(), call("", "")]).assert_outcomes(passed=1)
    found = recorded(lab, "test_tools")
    assert found["extra"].pop("tool_call_s") > 0
    assert found["extra"] == {"tool_call_valid": True, "tool_name": "get_weather", "tool_arguments": RIGHT}
    assert properties(lab.junit()["a"])["llmbench.tool_call_valid"] == "True"
    tools = asked(lab)[-1]["tools"]
    assert [tool["function"]["name"] for tool in tools] == ["get_weather", "get_time"]


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"calls": [call("get_time")]}, "*it called 'get_time', not 'get_weather'*"),
        ({"calls": [call(arguments="{")]}, "*arguments are not JSON: '{'*"),
        ({"says": "It is sunny."}, "*called no tool; it said: 'It is sunny.'*"),
        ({"says": "Hm", "finish": "length"}, "*called no tool (cut at max_tokens 64)*"),
        ({"calls": [[call()[0], call("get_time")[0] | {"index": 1}]]}, "*2 calls for one question*"),
    ],
)
def test_a_model_that_calls_it_wrongly_fails(
    lab: Lab, scripted: Callable[..., pytest.RunResult], plan: dict[str, Any], message: str
) -> None:
    result = scripted("-k", "test_tools", "--llmbench-tools", **plan)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([message])
    assert recorded(lab, "test_tools")["extra"]["tool_call_valid"] is False


def test_a_stream_that_breaks_the_protocol_is_an_error(scripted: Callable[..., pytest.RunResult]) -> None:
    result = scripted("-k", "test_tools", "--llmbench-tools", calls=["call"])
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*a tool call that is none: 'call'*"])


def test_a_target_without_tools_is_skipped_or_an_error_if_it_is_required(lab: Lab) -> None:
    lab.matrix({"id": "a"})
    lab.run("matrix.yaml", "--llmbench-tools", "-k", "test_tools").assert_outcomes(skipped=1)
    lab.run("matrix.yaml", "--llmbench-tools", "-k", "test_tools", "--llmbench-require").assert_outcomes(errors=1)


def test_a_function_that_works_passes(lab: Lab, scripted: Callable[..., pytest.RunResult]) -> None:
    scripted("-k", "test_quality", "--llmbench-quality", says=MERGE).assert_outcomes(passed=1)
    extra = recorded(lab, "test_quality")["extra"]
    assert (extra["quality_pass"], extra["quality_passed"], extra["quality_cases"]) == (True, 7, 7)
    assert extra["quality_s"] > 0
    assert "audit" in extra["quality_sandbox"]


@pytest.mark.parametrize(
    ("says", "message"),
    [
        (
            MERGE.replace("<=", "<"),
            "merge_ranges(*1, 3], *3, 5]]) gave *3], *5]], not *1, 5]]",
        ),
        ("def merge_ranges(ranges):\n    import os; os.remove('x')", "*the sandbox refuses os.remove*"),
        ("Sorry.", "*the answer holds no function merge_ranges: 'Sorry.'*"),
        ("```python\ndef merge_ranges(ranges:\n```", "*SyntaxError*"),
    ],
)
def test_a_function_that_does_not_fails(
    lab: Lab, scripted: Callable[..., pytest.RunResult], says: str, message: str
) -> None:
    result = scripted("-k", "test_quality", "--llmbench-quality", says=says)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([message])
    assert recorded(lab, "test_quality")["extra"]["quality_pass"] is False


def test_a_server_that_does_not_answer_is_an_error(scripted: Callable[..., pytest.RunResult]) -> None:
    result = scripted("-k", "test_tools or test_quality", *BOTH, faults=["cut"])
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["*the stream ended without a finish reason*"])


def test_what_was_judged_is_not_asked_again(lab: Lab, scripted: Callable[..., pytest.RunResult]) -> None:
    only = ("-k", "test_tools or test_quality", *BOTH)
    scripted(*only, calls=[call()], says=MERGE).assert_outcomes(passed=2)
    (lab.path / "record.jsonl").unlink()
    result = lab.run("matrix.yaml", f"--llmbench-out={lab.out}", f"--llmbench-resume={lab.out}", *only)
    result.assert_outcomes(skipped=2)
    assert not (lab.path / "record.jsonl").exists()
    assert set(lab.outcomes().values()) == {"passed"}
