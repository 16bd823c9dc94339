"""Talk to an OpenAI-compatible chat server, and stamp what comes back with our clock.

The servers differ in small ways; what is common to all of them is settled here (comments, role-only and keep-alive
chunks, `reasoning` or `reasoning_content` or both, usage once, twice or never, errors as HTTP status, as a chunk or as
a page). What is one server's own stays with its backend, which reads `Reply.usage` and `Reply.timings`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_llmbench.chat_reply import Reply, ReplyBuilder, error_text
from pytest_llmbench.errors import RequestError, ServerTimeout
from pytest_llmbench.ports import is_loopback
from pytest_llmbench.sse import OPENAI, Wire, read_within

if TYPE_CHECKING:
    import httpx

__all__ = ["CHAT_PATH", "ChatClient", "Reply"]

CHAT_PATH = "/v1/chat/completions"
CONNECT_TIMEOUT_S = 5.0
MOST_JSON_BYTES = 64 * 1024**2
MOST_ERROR_BYTES = 64 * 1024


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
            return self._exchange(method, path, body, timeout_s)

    def stream(
        self, body: Mapping[str, Any], *, max_tokens: int | None = None, timeout_s: float | None = None
    ) -> Reply:
        """Send a streaming request and read it to its end.

        RequestError for an error in any of its forms, for a stream that ends without a finish and for one that goes
        far beyond `max_tokens`; ServerTimeout when no text comes for `timeout_s` (the client's own where it is None):
        keep-alives alone don't count.
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
                said = read_within(response.iter_bytes(), most=MOST_ERROR_BYTES, patience_s=patience_s)
                raise _status_error(response.status_code, said.decode(errors="replace"), self._path)
            return _read(response, ReplyBuilder(self._wire, max_tokens=max_tokens), self._wire, clock, patience_s)

    def _exchange(self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float) -> Any:
        with self._http.stream(method, self.base_url + path, json=body, timeout=timeout_s) as response:
            deadline = time.monotonic() + timeout_s
            said = read_within(response.iter_bytes(), most=MOST_JSON_BYTES, patience_s=timeout_s)
            status = response.status_code
        if status == 202 and not said:
            return None
        text = said.decode(errors="replace")
        if status != 200:
            raise _status_error(status, text, path)
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            if time.monotonic() > deadline:
                raise ServerTimeout(f"{path}: the answer didn't end in {timeout_s:g} s: {text[:200]!r}") from error
            raise RequestError(f"{path}: HTTP 200 whose body is not JSON: {text[:200]!r}") from error


class _Clock:
    """Nanoseconds since the request's first byte went out; connecting before it isn't counted."""

    def __init__(self) -> None:
        self.start_ns = time.monotonic_ns()

    def trace(self, event: str, _: Mapping[str, Any]) -> None:
        if event.endswith("send_request_headers.started"):
            self.start_ns = time.monotonic_ns()

    def now_ns(self) -> int:
        return time.monotonic_ns() - self.start_ns


def _read(response: httpx.Response, builder: ReplyBuilder, wire: Wire, clock: _Clock, patience_s: float) -> Reply:
    decoder = wire.decoder()
    for piece in _pieces(response, builder):
        at_ns = clock.now_ns()
        for event in decoder.feed(piece):
            builder.take(event, at_ns)
        if _lingers(builder, at_ns, patience_s):
            break
        _check_progress(builder, at_ns, patience_s)
    end_ns = clock.now_ns()
    if builder.done_ns is not None and _lingers(builder, end_ns, patience_s):
        end_ns = builder.done_ns
    for event in decoder.end():
        builder.take(event, end_ns)
    return replace(builder.build(end_ns), sent_ns=clock.start_ns)


def _pieces(response: httpx.Response, builder: ReplyBuilder) -> Iterator[bytes]:
    """What comes, until the connection ends, or is silent behind the answer's end."""
    import httpx

    try:
        yield from response.iter_raw()
    except httpx.ReadTimeout:
        if builder.done_ns is None:
            raise


def _lingers(builder: ReplyBuilder, at_ns: int, patience_s: float) -> bool:
    """Whether a server keeps the connection after its answer has ended."""
    return builder.done_ns is not None and at_ns - builder.done_ns > patience_s * 1e9


def _check_progress(builder: ReplyBuilder, at_ns: int, patience_s: float) -> None:
    """A server that is stuck may send keep-alives for ever."""
    last_ns = builder.deltas[-1].at_ns if builder.deltas else 0
    if builder.done_ns is None and at_ns - last_ns > patience_s * 1e9:
        raise ServerTimeout(f"nothing but keep-alives came for {patience_s:g} s; a larger server_timeout may help")


def _status_error(status: int, body: str, path: str) -> RequestError:
    try:
        text = error_text(json.loads(body))
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
