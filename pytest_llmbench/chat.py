"""Talk to an OpenAI-compatible chat server, and stamp what comes back with our clock.

The servers differ in small ways; what is common to all of them is settled here (comments, role-only and keep-alive
chunks, `reasoning` or `reasoning_content` or both, usage once, twice or never, errors as HTTP status, as a chunk or as
a page). What is one server's own stays with its backend, which reads `Reply.usage` and `Reply.timings`.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_llmbench.chat_tools import ToolCall, ToolCalls
from pytest_llmbench.errors import RequestError, ServerTimeout
from pytest_llmbench.ports import is_loopback
from pytest_llmbench.sample import Delta, Kind
from pytest_llmbench.sse import OPENAI, Event, Wire

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")

CHAT_PATH = "/v1/chat/completions"
CONNECT_TIMEOUT_S = 5.0
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


class ChatClient:
    """One server's HTTP client: loopback without proxies, no redirects, the key only in the header."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        timeout_s: float = 600.0,
        path: str = CHAT_PATH,
        wire: Wire = OPENAI,
    ) -> None:
        import httpx

        self.base_url = base_url.rstrip("/")
        self.timeout_s = timeout_s
        self._path = path
        self._wire = wire
        # Stamps are of the bytes as they come: a compressed stream would arrive in the compressor's pieces.
        headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {})
        # A connection for each request: servers close kept ones when they please (llama-server after 5 s or 100
        # requests), and one that is closed while we send would look like a crash. Connecting isn't timed.
        self._http = httpx.Client(
            headers=headers,
            trust_env=not is_loopback(self.base_url),
            timeout=httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S),
            limits=httpx.Limits(max_keepalive_connections=0),
        )

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> ChatClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def json(self, method: str, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float = 30.0) -> Any:
        """One plain JSON exchange, None for 202 without a body; RequestError for any other answer than 200 and JSON."""
        with _translate_errors(f"{method} {self.base_url}{path}", timeout_s):
            response = self._http.request(method, self.base_url + path, json=body, timeout=timeout_s)
            if response.status_code == 202 and not response.content:
                return None
            if response.status_code != 200:
                raise _status_error(response.status_code, response.text, path)
            try:
                return response.json()
            except ValueError as error:
                raise RequestError(f"{path}: HTTP 200 whose body is not JSON: {response.text[:200]!r}") from error

    def stream(self, body: Mapping[str, Any], *, timeout_s: float | None = None) -> Reply:
        """Send a streaming request and read it to its end.

        RequestError for an error in any of its forms and for a stream that ends without a finish; ServerTimeout when
        no text comes for `timeout_s` (the client's own where it is None): keep-alives alone don't count.
        """
        import httpx

        clock = _Clock()
        patience_s = self.timeout_s if timeout_s is None else timeout_s
        url = self.base_url + self._path
        with (
            _translate_errors(f"POST {url}", patience_s),
            self._http.stream(
                "POST",
                url,
                json={**body, "stream": True},
                timeout=httpx.Timeout(patience_s, connect=min(CONNECT_TIMEOUT_S, patience_s)),
                extensions={"trace": clock.trace},
            ) as response,
        ):
            if response.status_code != 200:
                raise _status_error(response.status_code, response.read().decode(errors="replace"), self._path)
            return _read(response, self._wire, clock, patience_s)


class _Clock:
    """Nanoseconds since the request's first byte went out; connecting before it isn't counted."""

    def __init__(self) -> None:
        self.start_ns = time.monotonic_ns()

    def trace(self, event: str, _: Mapping[str, Any]) -> None:
        if event.endswith("send_request_headers.started"):
            self.start_ns = time.monotonic_ns()

    def now_ns(self) -> int:
        return time.monotonic_ns() - self.start_ns


class _ReplyBuilder:
    """Puts a reply together from the events of its stream."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.deltas: list[Delta] = []
        self.finish_reason: str | None = None
        self.usage: Mapping[str, Any] = {}
        self.timings: Mapping[str, Any] = {}
        self.model: str | None = None
        self.fingerprint: str | None = None
        self.done = False
        self._tool_calls = ToolCalls()

    def take(self, event: Event, at_ns: int) -> None:
        if event.data.strip() == "[DONE]":
            self.done = True
            return
        if not event.data.strip():
            return
        chunk = self._wire.chunk(_parse_chunk(event))
        self.done = self.done or chunk.get("done") is True
        self.usage = _part(chunk, "usage", dict) or self.usage
        self.timings = _part(chunk, "timings", dict) or self.timings
        self.fingerprint = _part(chunk, "system_fingerprint", str) or self.fingerprint
        for choice in _part(chunk, "choices", list) or ():
            self._take_choice(choice, _part(chunk, "model", str), at_ns)

    def _take_choice(self, choice: Any, model: str | None, at_ns: int) -> None:
        if not isinstance(choice, dict):
            raise RequestError(f"the stream holds a choice that is no JSON object: {choice!r:.200}")
        self.finish_reason = _part(choice, "finish_reason", str) or self.finish_reason
        delta = _part(choice, "delta", dict) or {}
        self._tool_calls.take(delta)
        new = list(_deltas(delta, at_ns))
        self.deltas.extend(new)
        # A keep-alive chunk names a model of its own: a chunk with text tells who answers, else the last one does.
        if new or not self.deltas:
            self.model = model or self.model

    def build(self, end_ns: int) -> Reply:
        if not self.done and self.finish_reason is None:
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


def _read(response: httpx.Response, wire: Wire, clock: _Clock, patience_s: float) -> Reply:
    decoder, builder = wire.decoder(), _ReplyBuilder(wire)
    for piece in response.iter_raw():
        at_ns = clock.now_ns()
        for event in decoder.feed(piece):
            builder.take(event, at_ns)
        _check_progress(builder, at_ns, patience_s)
    end_ns = clock.now_ns()
    for event in decoder.end():
        builder.take(event, end_ns)
    return replace(builder.build(end_ns), sent_ns=clock.start_ns)


def _check_progress(builder: _ReplyBuilder, at_ns: int, patience_s: float) -> None:
    """A server that is stuck may send keep-alives for ever."""
    last_ns = builder.deltas[-1].at_ns if builder.deltas else 0
    if not builder.done and at_ns - last_ns > patience_s * 1e9:
        raise ServerTimeout(f"nothing but keep-alives came for {patience_s:g} s; a larger server_timeout may help")


def _parse_chunk(event: Event) -> dict[str, Any]:
    try:
        chunk = json.loads(event.data, parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the stream holds an event that is not JSON: {event.data[:200]!r}") from error
    if not isinstance(chunk, dict):
        raise RequestError(f"the stream holds an event that is no JSON object: {event.data[:200]!r}")
    if chunk.get("error") or event.name.endswith("error"):
        raise RequestError(f"the server reported an error in its stream: {_error_text(chunk)}", status=200)
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


def _error_text(body: Any) -> str:
    """The message inside the shapes that servers put errors in: `error`, `detail`, `message`, nested or flat."""
    while isinstance(body, dict):
        inner = next((body[key] for key in ("error", "detail", "message") if body.get(key)), None)
        if inner is None:
            break
        body = inner
    return _encodable(body if isinstance(body, str) else json.dumps(body))[:500]


def _status_error(status: int, body: str, path: str) -> RequestError:
    try:
        text = _error_text(json.loads(body))
    except (ValueError, RecursionError):
        text = " ".join(body.split())[:300]
    return RequestError(f"{path}: HTTP {status}: {text or '(empty body)'}", status=status)


@contextmanager
def _translate_errors(what: str, timeout_s: float) -> Iterator[None]:
    import httpx

    try:
        yield
    except httpx.TimeoutException as error:
        raise ServerTimeout(
            f"{what}: nothing came for {timeout_s:g} s ({type(error).__name__}); a larger server_timeout may help"
        ) from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise RequestError(f"{what}: {type(error).__name__}: {error}") from error
