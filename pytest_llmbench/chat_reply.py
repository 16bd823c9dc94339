"""A streamed answer, put together from the chunks of its stream, whose form and figures are checked on the way."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pytest_llmbench.chat_tools import ToolCall, ToolCalls
from pytest_llmbench.errors import RequestError
from pytest_llmbench.sample import Delta, Kind
from pytest_llmbench.sse import Event, Wire

T = TypeVar("T")

PIECES_PER_TOKEN = 16
SPARE_PIECES = 1024
"""How far an answer may go beyond what was asked for, in pieces: a piece may be one character of a long token."""

LARGEST = 2**53
SMALLEST = 1e-9
"""Beyond these no figure of a server means anything, and arithmetic with it may overflow."""

_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens", "reasoning_tokens")
_DETAILS = ("prompt_tokens_details", "completion_tokens_details")
_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A whole streamed answer. Stamps count from the request's start on an open connection."""

    deltas: tuple[Delta, ...]
    end_ns: int
    finish_reason: str | None
    usage: Mapping[str, Any]
    timings: Mapping[str, Any]
    model: str | None
    fingerprint: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    sent_ns: int | None = None
    """That start on the monotonic clock."""


class ReplyBuilder:
    """Puts a reply together from the events of its stream. RequestError for what breaks the protocol.

    `max_tokens`: what was asked for; an answer with far more pieces of text than that is taken for an endless one.
    """

    def __init__(self, wire: Wire, *, max_tokens: int | None = None) -> None:
        self._wire = wire
        self._max_tokens = max_tokens
        self.deltas: list[Delta] = []
        self.finish_reason: str | None = None
        self.usage: Mapping[str, Any] = {}
        self.timings: Mapping[str, Any] = {}
        self.model: str | None = None
        self.fingerprint: str | None = None
        self.done_ns: int | None = None
        self._tool_calls = ToolCalls()

    def take(self, event: Event, at_ns: int) -> None:
        if event.data.strip() == "[DONE]":
            self._end(at_ns)
            return
        if not event.data.strip():
            return
        chunk = self._wire.chunk(_parse_chunk(event))
        if chunk.get("done") is True:
            self._end(at_ns)
        self.usage = counts(_part(chunk, "usage", dict) or {}) or self.usage
        self.timings = figures(_part(chunk, "timings", dict) or {}) or self.timings
        self.fingerprint = _part(chunk, "system_fingerprint", str) or self.fingerprint
        for choice in _part(chunk, "choices", list) or ():
            self._take_choice(choice, _part(chunk, "model", str), at_ns)

    def _end(self, at_ns: int) -> None:
        self.done_ns = at_ns if self.done_ns is None else self.done_ns

    def _take_choice(self, choice: Any, model: str | None, at_ns: int) -> None:
        if not isinstance(choice, dict):
            raise RequestError(f"the stream holds a choice that is no JSON object: {choice!r:.200}")
        self.finish_reason = _part(choice, "finish_reason", str) or self.finish_reason
        delta = _part(choice, "delta", dict) or {}
        self._tool_calls.take(delta)
        new = list(_deltas(delta, at_ns))
        self.deltas.extend(new)
        self._check_length()
        # A keep-alive chunk names a model of its own: a chunk with text tells who answers, else the last one does.
        if new or not self.deltas:
            self.model = model or self.model

    def _check_length(self) -> None:
        asked = self._max_tokens
        if asked is not None and len(self.deltas) > PIECES_PER_TOKEN * asked + SPARE_PIECES:
            raise RequestError(
                f"asked for {asked} tokens at most, the server goes on after {len(self.deltas)} pieces of text: "
                "it doesn't keep to max_tokens",
                status=200,
            )

    def build(self, end_ns: int) -> Reply:
        if self.done_ns is None and self.finish_reason is None:
            got = f"{len(self.deltas)} deltas" if self.deltas else "no text"
            raise RequestError(f"the stream ended without a finish reason or [DONE], after {got}")
        return Reply(
            deltas=tuple(self.deltas),
            end_ns=end_ns,
            finish_reason=self.finish_reason,
            usage=self.usage,
            timings=self.timings,
            model=self.model,
            fingerprint=self.fingerprint,
            tool_calls=self._tool_calls.build(),
        )


def counts(usage: Mapping[str, Any]) -> dict[str, Any]:
    """A usage with counts of tokens that are counts, and otherwise figures alone; RequestError for one that is none."""
    found = figures(usage)
    for name in _COUNTS:
        value = usage.get(name)
        if value is not None and found.get(name) != value:
            raise RequestError(f"the usage has a {name} that counts nothing: {value!r:.200}", status=200)
        if isinstance(value, float):
            if not value.is_integer():
                raise RequestError(f"the usage has a {name} that is no whole number: {value!r}", status=200)
            found[name] = int(value)  # some languages write whole numbers as 12.0
    return found | {name: counts(_part(usage, name, dict) or {}) for name in _DETAILS if name in usage}


def figures(given: Mapping[str, Any]) -> dict[str, Any]:
    """What of a server's own figures are figures: no text, nothing below 0 or out of every measure."""
    return {name: value for name, value in given.items() if _is_figure(value)}


def _is_figure(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return value == 0 or SMALLEST <= value <= LARGEST


def _parse_chunk(event: Event) -> dict[str, Any]:
    try:
        chunk = json.loads(event.data, parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the stream holds an event that is not JSON: {event.data[:200]!r}") from error
    if not isinstance(chunk, dict):
        raise RequestError(f"the stream holds an event that is no JSON object: {event.data[:200]!r}")
    if chunk.get("error") or event.name.endswith("error"):
        raise RequestError(f"the server reported an error in its stream: {error_text(chunk)}", status=200)
    return chunk


def _finite(text: str) -> float | None:
    """Some servers divide by nothing and write NaN or Infinity, which JSON doesn't have: not measured."""
    value = float(text)
    return value if math.isfinite(value) else None


def _part(data: Mapping[str, Any], key: str, kind: type[T]) -> T | None:
    """`data[key]`, which may be missing or null; RequestError if it is of another kind than the protocol says."""
    value = data.get(key)
    if value is None or isinstance(value, kind):
        return value
    raise RequestError(f"the stream holds {key!r} that is no {kind.__name__}: {value!r:.200}")


def _deltas(delta: Mapping[str, Any], at_ns: int) -> Iterator[Delta]:
    """A role-only or empty delta is no token; a server may name the same reasoning twice."""
    reasoning = next((delta[key] for key in _REASONING_KEYS if delta.get(key)), None)
    pieces: tuple[tuple[Kind, Any], ...] = (("reasoning", reasoning), ("content", delta.get("content")))
    for kind, text in pieces:
        if isinstance(text, str) and text:
            yield Delta(at_ns=at_ns, kind=kind, text=_encodable(text))


def _encodable(text: str) -> str:
    """JSON can spell half a surrogate pair, which no tokenizer or file takes: it becomes U+FFFD, pairs are joined."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def error_text(body: Any) -> str:
    """The message inside the shapes that servers put errors in: `error`, `detail`, `message`, nested or flat."""
    while isinstance(body, dict):
        inner = next((body[key] for key in ("error", "detail", "message") if body.get(key)), None)
        if inner is None:
            break
        body = inner
    return _encodable(body if isinstance(body, str) else json.dumps(body))[:500]
