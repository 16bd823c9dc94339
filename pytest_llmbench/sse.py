"""Server-sent events from bytes, as the HTML standard's "event stream interpretation" parses them; and JSON lines.

Lines end on CR LF, LF or CR only: a JSON string may hold U+2028 or U+0085, at which `str.splitlines` (and so
`httpx.Response.iter_lines`) would cut it in two.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_BOM = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One dispatched event; `name` is `message` unless the stream says otherwise."""

    data: str
    name: str = "message"


class EventDecoder:
    """Feed it bytes as they arrive, in pieces of any size; comments and unknown fields are passed over."""

    def __init__(self) -> None:
        self._buffer = b""
        self._data: list[str] = []
        self._name = ""
        self._at_start = True

    def feed(self, piece: bytes) -> Iterator[Event]:
        """Yield each event that `piece` completes."""
        self._buffer += piece
        if self._at_start and not self._strip_bom():
            return
        for line in self._complete_lines():
            yield from self._take(line)

    def end(self) -> Iterator[Event]:
        """Yield what the stream left unfinished: some servers close without the last blank line."""
        last, self._buffer = self._buffer.rstrip(b"\r"), b""
        yield from self._take(last)
        yield from self._take(b"")

    def _strip_bom(self) -> bool:
        if len(self._buffer) < len(_BOM) and _BOM.startswith(self._buffer):
            return False
        self._buffer = self._buffer.removeprefix(_BOM)
        self._at_start = False
        return True

    def _complete_lines(self) -> list[bytes]:
        # A CR at the very end may be half of a CR LF: it waits for the next piece.
        held = b"\r" if self._buffer.endswith(b"\r") else b""
        *lines, rest = _LINE_END.split(self._buffer.removesuffix(held))
        self._buffer = rest + held
        return lines

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
        self._buffer = b""

    def feed(self, piece: bytes) -> Iterator[Event]:
        """Yield each line that `piece` completes."""
        *lines, self._buffer = (self._buffer + piece).split(b"\n")
        yield from _lines(lines)

    def end(self) -> Iterator[Event]:
        """Yield a last line that no newline ended."""
        last, self._buffer = self._buffer, b""
        yield from _lines([last])


def _lines(lines: list[bytes]) -> Iterator[Event]:
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
