"""Server-sent events from bytes, as the HTML standard's "event stream interpretation" parses them; JSON lines; bodies.

Lines end on CR LF, LF or CR only: a JSON string may hold U+2028 or U+0085, at which `str.splitlines` (and so
`httpx.Response.iter_lines`) would cut it in two.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_llmbench.errors import RequestError

_BOM = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n|\n|\r")
_NEWLINE = re.compile(rb"\n")

LONGEST_LINE = 64 * 1024**2
"""Bytes. No server writes longer ones, unless it has lost its way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One dispatched event; `name` is `message` unless the stream says otherwise."""

    data: str
    name: str = "message"


class _Lines:
    """Cuts a stream into lines. A long one is joined once, when it ends."""

    def __init__(self, end: re.Pattern[bytes]) -> None:
        self._end = end
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """The lines that `piece` completes. RequestError for one that is longer than LONGEST_LINE."""
        first, *more = self._end.split(piece)
        self._keep(first)
        if not more:
            return []
        lines = [self.rest(), *more[:-1]]
        self._keep(more[-1])
        return lines

    def rest(self) -> bytes:
        """What no line end has ended."""
        rest = b"".join(self._parts)
        self._parts, self._size = [], 0
        return rest

    def _keep(self, part: bytes) -> None:
        self._parts.append(part)
        self._size += len(part)
        if self._size > LONGEST_LINE:
            raise RequestError(f"the stream holds a line of more than {LONGEST_LINE} bytes", status=200)


class EventDecoder:
    """Feed it bytes as they arrive, in pieces of any size; comments and unknown fields are passed over."""

    def __init__(self) -> None:
        self._lines = _Lines(_LINE_END)
        self._held = b""
        self._data: list[str] = []
        self._name = ""
        self._at_start = True

    def feed(self, piece: bytes) -> Iterator[Event]:
        """Yield each event that `piece` completes."""
        piece = self._held + piece
        self._held = b""
        if self._at_start:
            if len(piece) < len(_BOM) and _BOM.startswith(piece):
                self._held = piece
                return
            piece = piece.removeprefix(_BOM)
            self._at_start = False
        # A CR at the very end may be half of a CR LF: it waits for the next piece.
        if piece.endswith(b"\r"):
            piece, self._held = piece[:-1], b"\r"
        for line in self._lines.feed(piece):
            yield from self._take(line)

    def end(self) -> Iterator[Event]:
        """Yield what the stream left unfinished: some servers close without the last blank line."""
        last = self._lines.rest() + self._held.rstrip(b"\r")
        self._held = b""
        yield from self._take(last)
        yield from self._take(b"")

    def _take(self, line: bytes) -> Iterator[Event]:
        if not line:
            if self._data:
                yield Event(data="\n".join(self._data), name=self._name or "message")
            self._data, self._name = [], ""
            return
        field, _, value = line.decode("utf-8", errors="replace").partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._name = value


class LineDecoder:
    """As `EventDecoder`, for newline-delimited JSON: each line that isn't empty is an event."""

    def __init__(self) -> None:
        self._lines = _Lines(_NEWLINE)

    def feed(self, piece: bytes) -> Iterator[Event]:
        """Yield each line that `piece` completes."""
        yield from _events(self._lines.feed(piece))

    def end(self) -> Iterator[Event]:
        """Yield a last line that no newline ended."""
        yield from _events([self._lines.rest()])


def read_within(pieces: Iterable[bytes], *, most: int, patience_s: float) -> bytes:
    """A body, or what of it came within `most` bytes and `patience_s`: some never end."""
    data, deadline = bytearray(), time.monotonic() + patience_s
    for piece in pieces:
        data += piece
        if len(data) > most or time.monotonic() > deadline:
            break
    return bytes(data[:most])


def _events(lines: list[bytes]) -> Iterator[Event]:
    return (Event(data=line.decode("utf-8", errors="replace")) for line in lines if line.strip())


def _as_it_is(chunk: Mapping[str, Any]) -> Mapping[str, Any]:
    return chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """How a server writes its streams: where one chunk ends, and how each reads as a chunk of OpenAI's chat.

    `done: true` in a chunk ends the answer, as OpenAI's `[DONE]` does.
    """

    decoder: Callable[[], EventDecoder | LineDecoder] = EventDecoder
    chunk: Callable[[Mapping[str, Any]], Mapping[str, Any]] = _as_it_is


OPENAI = Wire()
