"""Lines to and from a child through its stdin and stdout, none of which may take longer than it is given."""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable

# A side that has begun an answer of this size isn't going to end it.
LONGEST_LINE = 64 * 2**20
_CHUNK = 2**20
# How often it is asked whether the child has ended: its own children may keep the pipe open.
_CHECK_S = 0.25


class Silent(Exception):
    """Nothing came, or nothing was taken, in time."""


class Closed(Exception):
    """The other end is closed, or the child has ended."""


class TooLong(Exception):
    """More than LONGEST_LINE without an end of line."""


class LinePipes:
    """The parent's ends. `theirs`: the child's (stdin, stdout), to be closed here once it has them."""

    def __init__(self) -> None:
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        self.theirs = (theirs_in, theirs_out)
        self._open = {*self.theirs, self._in, self._out}
        self._buffer = bytearray()
        for fd in (self._in, self._out):
            os.set_blocking(fd, False)

    def close_theirs(self) -> None:
        self._close(*self.theirs)

    def close_out(self) -> None:
        """The child's stdin ends."""
        self._close(self._out)

    def close(self) -> None:
        self._close(*self._open)

    def send(self, line: bytes, deadline: float) -> None:
        """Write a line. Silent after `deadline` (of `time.monotonic`), Closed where nobody reads any more."""
        left = memoryview(line)
        while left:
            if not _wait(self._out, selectors.EVENT_WRITE, deadline - time.monotonic()):
                if time.monotonic() >= deadline:
                    raise Silent
                continue
            try:
                left = left[os.write(self._out, left) :]
            except BlockingIOError:
                continue
            except BrokenPipeError as error:
                raise Closed from error

    def receive(self, deadline: float, ended: Callable[[], bool]) -> bytes:
        """The next line without its end. Also asks `ended()` at times; a line that came before the end is still given.

        Silent after `deadline`; Closed where the child has closed its end or has ended; TooLong.
        """
        searched = 0
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            if searched > LONGEST_LINE:
                raise TooLong
            self._read_more(deadline, ended)
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line

    def unasked(self) -> bool:
        """Whether anything came behind the last line that was taken."""
        if _wait(self._in, selectors.EVENT_READ, 0.0):
            self._buffer += os.read(self._in, _CHUNK)
        return bool(self._buffer)

    def pending(self) -> bytes:
        """What has come and wasn't a whole line."""
        return bytes(self._buffer)

    def _read_more(self, deadline: float, ended: Callable[[], bool]) -> None:
        has_ended = False
        while not _wait(self._in, selectors.EVENT_READ, min(_CHECK_S, deadline - time.monotonic())):
            # Only a look after the end sees everything that was written before it.
            if has_ended:
                raise Closed
            has_ended = ended()
            if not has_ended and time.monotonic() >= deadline:
                raise Silent
        data = os.read(self._in, _CHUNK)
        if not data:
            raise Closed
        self._buffer += data

    def _close(self, *fds: int) -> None:
        for fd in fds:
            if fd in self._open:
                self._open.discard(fd)
                os.close(fd)


def _wait(fd: int, event: int, longest_s: float) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(fd, event)
        return bool(selector.select(max(0.0, longest_s)))
