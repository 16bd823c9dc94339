"""Version 1 of the protocol between a parity run and a side: a JSON line each way (docs/sides.md).

Reading is strict on both ends: whatever isn't exactly one of `messages` is a `SideError` of kind "garbage".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from itertools import pairwise
from typing import Any, Final, TypeVar

from pytest_llmbench.errors import SideError
from pytest_llmbench.sides import reading
from pytest_llmbench.sides.messages import (
    CAPABILITIES,
    MOST_MARGINS,
    PROTOCOL,
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

LONGEST_HELLO: Final = 2**16
"""Bytes. The record of each section has it."""
T = TypeVar("T")


def encode_request(request: Request) -> bytes:
    """The request's line."""
    return _line({"op": request.op, **_members(request)})


def encode_answer(answer: Answer) -> bytes:
    """The answer's line. ValueError for what JSON can't say: NaN, an infinity."""
    return _line({"error" if isinstance(answer, Refusal) else "ok": _members(answer)})


def parse_request(line: bytes) -> Request:
    """What a side reads. SideError: kind "refused", refusal "unsupported" for an unknown `op`; else "garbage"."""

    def read(value: object) -> Request:
        op = reading.text(reading.mapping(value, "the request").get("op"), "op")
        if op not in _REQUESTS:
            raise SideError(f"unknown op {reading.one_line(op)!r}", kind="refused", refusal="unsupported")
        return _REQUESTS[op](value)

    return _parse(line, read)


def parse_hello(line: bytes) -> Hello:
    """SideError of kind "version", too, for another protocol than ours."""
    if len(line) > LONGEST_HELLO:
        raise SideError(f"broke the protocol: its hello has more than {LONGEST_HELLO} bytes", kind="garbage")
    return _answer(line, HelloRequest.op, _read_hello)


def parse_loaded(line: bytes) -> Loaded:
    return _answer(line, LoadRequest.op, _read_loaded)


def parse_generated(line: bytes) -> Generated:
    return _answer(line, GenerateRequest.op, _read_generated)


def parse_batched(line: bytes) -> Batched:
    return _answer(line, BatchRequest.op, _read_batched)


def parse_margins(line: bytes) -> Margins:
    return _answer(line, MarginsRequest.op, _read_margins)


def parse_reset(line: bytes) -> Reset:
    return _answer(line, ResetRequest.op, _read_reset)


def parse_memory(line: bytes) -> MemoryUse:
    return _answer(line, MemoryRequest.op, _read_memory)


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def _members(message: Request | Answer) -> dict[str, Any]:
    return {field.name: getattr(message, field.name) for field in fields(message)}


def _parse(line: bytes, read: Callable[[object], T]) -> T:
    try:
        return read(reading.load(line))
    except reading.Malformed as error:
        raise SideError(f"broke the protocol: {error}: {reading.shown(line)}", kind="garbage") from error


def _answer(line: bytes, op: str, read: Callable[[object], T]) -> T:
    """The answer's content. A refusal is raised as a SideError of kind "refused"."""

    def choose(value: object) -> T:
        outer = reading.mapping(value, "the answer")
        if list(outer) == ["ok"]:
            return read(outer["ok"])
        if list(outer) == ["error"]:
            refusal = _read_refusal(outer["error"])
            reason = f"refused {op}: {refusal.kind}: {reading.one_line(refusal.message)}"
            raise SideError(reason, kind="refused", refusal=refusal.kind)
        raise reading.Malformed('neither {"ok": …} nor {"error": …}')

    return _parse(line, choose)


def _read_refusal(value: object) -> Refusal:
    got = reading.members(value, "error", ("kind", "message"))
    kind = reading.text(got["kind"], "error.kind")
    if kind not in REFUSALS:
        raise reading.Malformed(f"error.kind is none of {', '.join(REFUSALS)}")
    return Refusal(kind=kind, message=reading.text(got["message"], "error.message"))


def _read_hello(value: object) -> Hello:
    # Another version's other members are none of our business.
    protocol = reading.whole(reading.mapping(value, "ok").get("protocol"), "protocol")
    if protocol != PROTOCOL:
        raise SideError(f"wrong version: speaks protocol {protocol}, this is {PROTOCOL}", kind="version")
    got = reading.members(value, "ok", ("protocol", "name", "version", "facts", "capabilities"))
    capabilities = tuple(reading.text(c, "a capability") for c in reading.array(got["capabilities"], "capabilities"))
    if not set(capabilities) <= set(CAPABILITIES):
        raise reading.Malformed(f"capabilities are {', '.join(CAPABILITIES)}")
    return Hello(
        name=reading.label(got["name"], "name"),
        version=reading.label(got["version"], "version"),
        facts=reading.facts(got["facts"], "facts"),
        capabilities=capabilities,
    )


def _read_loaded(value: object) -> Loaded:
    got = reading.members(value, "ok", ("started_ns", "ready_ns", "first_token_ns"))
    return Loaded(
        started_ns=reading.whole(got["started_ns"], "started_ns"),
        ready_ns=reading.whole(got["ready_ns"], "ready_ns"),
        first_token_ns=reading.optional(reading.whole, got["first_token_ns"], "first_token_ns"),
    )


def _read_generated(value: object) -> Generated:
    got = reading.members(value, "ok", ("started_ns", "token_ns", "tokens"))
    return Generated(
        started_ns=reading.whole(got["started_ns"], "started_ns"),
        token_ns=reading.wholes(got["token_ns"], "token_ns"),
        tokens=reading.ids(got["tokens"], "tokens"),
    )


def _read_batched(value: object) -> Batched:
    got = reading.members(value, "ok", ("started_ns", "token_ns", "tokens"))
    return Batched(
        started_ns=reading.whole(got["started_ns"], "started_ns"),
        token_ns=tuple(reading.wholes(row, "token_ns") for row in reading.array(got["token_ns"], "token_ns")),
        tokens=tuple(reading.ids(row, "tokens") for row in reading.array(got["tokens"], "tokens")),
    )


def _read_margins(value: object) -> Margins:
    top = reading.array(reading.members(value, "ok", ("top",))["top"], "top")
    if not 2 <= len(top) <= MOST_MARGINS:
        raise reading.Malformed(f"top doesn't have two to {MOST_MARGINS} entries")
    best = [reading.logit(pair, "top") for pair in top]
    if len({token for token, _ in best}) < len(best) or any(a < b for (_, a), (_, b) in pairwise(best)):
        raise reading.Malformed("top isn't different tokens, the better one first")
    return Margins(top=tuple(best))


def _read_reset(value: object) -> Reset:
    reading.members(value, "ok", ())
    return Reset()


def _read_memory(value: object) -> MemoryUse:
    required = ("peak_bytes", "active_bytes", "os_peak_rss_bytes")
    got = reading.members(value, "ok", required, optional=("os_peak_footprint_bytes",))
    return MemoryUse(
        peak_bytes=reading.optional(reading.whole, got["peak_bytes"], "peak_bytes"),
        active_bytes=reading.optional(reading.whole, got["active_bytes"], "active_bytes"),
        os_peak_rss_bytes=reading.whole(got["os_peak_rss_bytes"], "os_peak_rss_bytes"),
        os_peak_footprint_bytes=reading.optional(
            reading.whole, got.get("os_peak_footprint_bytes"), "os_peak_footprint_bytes"
        ),
    )


def _read_load(value: object) -> LoadRequest:
    got = reading.members(value, "load", ("op", "path"), optional=("first_prompt",))
    return LoadRequest(
        path=reading.text(got["path"], "path"),
        first_prompt=reading.optional(reading.prompt, got.get("first_prompt"), "first_prompt"),
    )


def _read_generate(value: object) -> GenerateRequest:
    got = reading.members(value, "generate", ("op", "prompt", "max_tokens"))
    return GenerateRequest(
        prompt=reading.prompt(got["prompt"], "prompt"), max_tokens=reading.count(got["max_tokens"], "max_tokens")
    )


def _read_batch(value: object) -> BatchRequest:
    got = reading.members(value, "batch", ("op", "prompts", "max_tokens"))
    prompts = tuple(reading.prompt(row, "prompts") for row in reading.array(got["prompts"], "prompts"))
    if not prompts:
        raise reading.Malformed("prompts is empty")
    return BatchRequest(prompts=prompts, max_tokens=reading.count(got["max_tokens"], "max_tokens"))


def _read_margins_request(value: object) -> MarginsRequest:
    got = reading.members(value, "margins", ("op", "prompt"))
    return MarginsRequest(prompt=reading.prompt(got["prompt"], "prompt"))


def _bare(make: Callable[[], Request], op: str) -> Callable[[object], Request]:
    def read(value: object) -> Request:
        reading.members(value, op, ("op",))
        return make()

    return read


_REQUESTS: Final[Mapping[str, Callable[[object], Request]]] = {
    HelloRequest.op: _bare(HelloRequest, HelloRequest.op),
    LoadRequest.op: _read_load,
    GenerateRequest.op: _read_generate,
    BatchRequest.op: _read_batch,
    MarginsRequest.op: _read_margins_request,
    ResetRequest.op: _bare(ResetRequest, ResetRequest.op),
    MemoryRequest.op: _bare(MemoryRequest, MemoryRequest.op),
}
