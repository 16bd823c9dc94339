"""The protocol's lines: what is written is read again, and nothing else is."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_llmbench.errors import SideError
from pytest_llmbench.sides import wire
from pytest_llmbench.sides.messages import (
    CAPABILITIES,
    MOST_MARGINS,
    REFUSALS,
    Answer,
    Batched,
    BatchRequest,
    Generated,
    GenerateRequest,
    Hello,
    HelloRequest,
    Loaded,
    LoadRequest,
    Margins,
    MarginsRequest,
    MemoryRequest,
    MemoryUse,
    Refusal,
    Request,
    Reset,
    ResetRequest,
)

PARSERS: tuple[Callable[[bytes], Answer], ...] = (
    wire.parse_hello,
    wire.parse_loaded,
    wire.parse_generated,
    wire.parse_batched,
    wire.parse_margins,
    wire.parse_reset,
    wire.parse_memory,
)

words = st.text(st.characters(exclude_categories=["Cs"]))
labels = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=120)
wholes = st.integers(0, 2**63 - 1)
ids = st.lists(st.integers(0, 2**31 - 1), max_size=5).map(tuple)
prompts = ids.filter(bool)
counts = st.integers(1, 10**6)
finite = st.floats(allow_nan=False, allow_infinity=False)
facts = st.dictionaries(words, words | st.integers() | finite | st.booleans() | st.none(), max_size=4)

requests = st.one_of(
    st.builds(HelloRequest),
    st.builds(LoadRequest, path=words, first_prompt=st.none() | prompts),
    st.builds(GenerateRequest, prompt=prompts, max_tokens=counts),
    st.builds(BatchRequest, prompts=st.lists(prompts, min_size=1, max_size=3).map(tuple), max_tokens=counts),
    st.builds(MarginsRequest, prompt=prompts),
    st.builds(ResetRequest),
    st.builds(MemoryRequest),
)


@st.composite
def margins(draw: st.DrawFn) -> Margins:
    tokens = draw(st.lists(st.integers(0, 199), min_size=2, max_size=MOST_MARGINS, unique=True))
    values = draw(st.lists(finite, min_size=len(tokens), max_size=len(tokens)))
    return Margins(top=tuple(zip(tokens, sorted(values, reverse=True), strict=True)))


capabilities = st.lists(st.sampled_from(CAPABILITIES)).map(tuple)
rows = st.lists(ids, max_size=3).map(tuple)
ANSWERS: tuple[st.SearchStrategy[Any], ...] = (
    st.builds(Hello, protocol=st.just(1), name=labels, version=labels, facts=facts, capabilities=capabilities),
    st.builds(Loaded, started_ns=wholes, ready_ns=wholes, first_token_ns=st.none() | wholes),
    st.builds(Generated, started_ns=wholes, token_ns=st.lists(wholes).map(tuple), tokens=ids),
    st.builds(Batched, started_ns=wholes, token_ns=rows, tokens=rows),
    margins(),
    st.builds(Reset),
    st.builds(
        MemoryUse,
        peak_bytes=st.none() | wholes,
        active_bytes=st.none() | wholes,
        os_peak_rss_bytes=wholes,
        os_peak_footprint_bytes=st.none() | wholes,
    ),
)
answers = st.one_of(*(st.tuples(st.just(p), a) for p, a in zip(PARSERS, ANSWERS, strict=True)))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(requests)
def test_a_request_is_one_line_and_is_read_as_it_was_written(request: Request) -> None:
    line = wire.encode_request(request)
    assert line.count(b"\n") == 1
    assert wire.parse_request(line) == request


@given(answers)
def test_an_answer_is_one_line_and_is_read_again(
    pair: tuple[Callable[[bytes], Answer], Any],
) -> None:
    parse, answer = pair
    line = wire.encode_answer(answer)
    assert line.count(b"\n") == 1
    assert parse(line) == answer


@given(st.sampled_from(PARSERS), st.sampled_from(REFUSALS), words)
def test_a_refusal_is_an_error_of_one_line(parse: Callable[[bytes], Answer], kind: str, message: str) -> None:
    with pytest.raises(SideError) as caught:
        parse(wire.encode_answer(Refusal(kind=kind, message=message)))
    assert (caught.value.kind, caught.value.refusal) == ("refused", kind)
    assert caught.value.reason.isprintable()


def check_refusal(parse: Callable[[bytes], object], line: bytes) -> None:
    """Where the line isn't taken, then with a SideError whose reason fits a record; anything else fails the test."""
    found: SideError | None = None
    try:
        parse(line)
    except SideError as error:
        found = error
    if found is not None:
        assert found.kind in ("garbage", "refused", "version")
        assert found.reason.isprintable()
        assert len(found.reason) < 500


@given(st.sampled_from((*PARSERS, wire.parse_request)), st.binary())
@example(wire.parse_reset, b"[" * 100_000)
@example(wire.parse_reset, b"\xff\xfe{\x00}\x00")
@example(wire.parse_memory, b'{"ok":{"peak_bytes":' + b"9" * 5000 + b"}}")
@example(wire.parse_request, b'{"op":["load"]}')
@example(wire.parse_hello, b"")
def test_no_bytes_raise_anything_else(parse: Callable[[bytes], object], line: bytes) -> None:
    check_refusal(parse, line)


@given(st.sampled_from((*PARSERS, wire.parse_request)), values)
def test_no_json_raises_anything_else(parse: Callable[[bytes], object], value: object) -> None:
    for whole in (value, {"ok": value}, {"error": value}, {"op": value}):
        check_refusal(parse, json.dumps(whole).encode())


@given(answers, st.data())
def test_no_damage_to_an_answer_raises_anything_else(
    pair: tuple[Callable[[bytes], Answer], Any], data: st.DataObject
) -> None:
    parse, answer = pair
    line = bytearray(wire.encode_answer(answer))
    for _ in range(data.draw(st.integers(1, 3))):
        line[data.draw(st.integers(0, len(line) - 1))] = data.draw(st.integers(0, 255))
    check_refusal(parse, bytes(line))


@pytest.mark.parametrize(
    ("parse", "line", "reason"),
    [
        (wire.parse_reset, b"{}", 'neither {"ok": …} nor {"error": …}'),
        (wire.parse_reset, b'{"ok":{},"error":{}}', 'neither {"ok": …} nor {"error": …}'),
        (wire.parse_reset, b'{"ok":{},"ok":{}}', "a key stands twice in one object"),
        (wire.parse_reset, b'{"ok":{"done":true}}', "ok has unknown keys: done"),
        (wire.parse_reset, b'{"ok":null}', "ok isn't an object"),
        (wire.parse_reset, b'{"error":{"kind":"tired","message":""}}', "error.kind is none of"),
        (wire.parse_memory, b'{"ok":{"peak_bytes":1}}', "ok lacks active_bytes, os_peak_rss_bytes"),
        (wire.parse_memory, b'{"ok":{"peak_bytes":-1,"active_bytes":1,"os_peak_rss_bytes":1}}', "peak_bytes isn't a"),
        (wire.parse_memory, b'{"ok":{"peak_bytes":1.0,"active_bytes":1,"os_peak_rss_bytes":1}}', "peak_bytes isn't a"),
        (wire.parse_memory, b'{"ok":{"peak_bytes":1,"active_bytes":1,"os_peak_rss_bytes":true}}', "rss_bytes isn't"),
        (wire.parse_generated, b'{"ok":{"started_ns":1,"token_ns":[1],"tokens":[true]}}', "tokens isn't token"),
        (wire.parse_generated, b'{"ok":{"started_ns":1,"token_ns":[1],"tokens":[4294967296]}}', "tokens isn't token"),
        (wire.parse_generated, b'{"ok":{"started_ns":1,"token_ns":{},"tokens":[]}}', "token_ns isn't an array"),
        (wire.parse_margins, b'{"ok":{"top":[[1,2.0]]}}', "top doesn't have two to 8 entries"),
        (wire.parse_margins, b'{"ok":{"top":[[1,2.0],[1,1.0]]}}', "top isn't different tokens, the better one first"),
        (wire.parse_margins, b'{"ok":{"top":[[1,1.0],[2,2.0]]}}', "top isn't different tokens, the better one first"),
        (wire.parse_margins, b'{"ok":{"top":[[1,NaN],[2,1.0]]}}', "NaN isn't a JSON number"),
        (wire.parse_margins, b'{"ok":{"top":[[1,1e999],[2,1.0]]}}', "a number beyond a double's range"),
        (wire.parse_hello, b'{"ok":{"protocol":1}}', "ok lacks name, version, facts, capabilities"),
        (wire.parse_hello, b'{"ok":{"protocol":"1"}}', "protocol isn't a whole number"),
        (wire.parse_request, b'{"op":"hello","more":1}', "hello has unknown keys: more"),
        (wire.parse_request, b'{"op":"generate","prompt":[],"max_tokens":1}', "prompt isn't token ids, at least one"),
        (wire.parse_request, b'{"op":"generate","prompt":[1],"max_tokens":0}', "max_tokens isn't 1 or more"),
        (wire.parse_request, b'{"op":"batch","prompts":[],"max_tokens":1}', "prompts is empty"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(parse: Callable[[bytes], object], line: bytes, reason: str) -> None:
    with pytest.raises(SideError) as caught:
        parse(line)
    assert caught.value.kind == "garbage"
    assert caught.value.reason.startswith("broke the protocol: ")
    assert reason in caught.value.reason


def test_facts_are_scalars() -> None:
    hello = {"protocol": 1, "name": "n", "version": "1", "facts": {"a": [1]}, "capabilities": []}
    with pytest.raises(SideError, match="facts: a isn't text, a number, true, false or null"):
        wire.parse_hello(json.dumps({"ok": hello}).encode())
    with pytest.raises(SideError, match="capabilities are margins, batch"):
        wire.parse_hello(json.dumps({"ok": {**hello, "facts": {}, "capabilities": ["telepathy"]}}).encode())


@pytest.mark.parametrize("member", ["name", "version"])
@pytest.mark.parametrize("text", ["", " ", "1.0\n", "\x1b[31m1.0", "1" * 121], ids=repr)
def test_what_a_side_is_called_is_one_line(member: str, text: str) -> None:
    hello = {"protocol": 1, "name": "n", "version": "1", "facts": {}, "capabilities": []} | {member: text}
    with pytest.raises(SideError, match=f"{member} isn't one line of 1 to 120 printable characters") as caught:
        wire.parse_hello(json.dumps({"ok": hello}).encode())
    assert caught.value.kind == "garbage"


def test_facts_are_no_archive() -> None:
    hello = {"protocol": 1, "name": "n", "version": "1", "facts": {"log": "x" * 2**16}, "capabilities": []}
    with pytest.raises(SideError, match="broke the protocol: its hello has more than 65536 bytes"):
        wire.parse_hello(json.dumps({"ok": hello}).encode())


def test_an_unknown_op_is_unsupported() -> None:
    with pytest.raises(SideError, match="unknown op 'sing'") as caught:
        wire.parse_request(b'{"op":"sing"}')
    assert (caught.value.kind, caught.value.refusal) == ("refused", "unsupported")


def test_an_answer_that_json_cant_hold_isnt_written() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        wire.encode_answer(Margins(top=((1, float("nan")), (2, 0.0))))
