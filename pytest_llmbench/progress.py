"""Says what is being done while a measurement runs: a live line on a terminal, else a line every 30 s."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

LIVE_EVERY_S = 1.0
PLAIN_EVERY_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Where the session is: tests done of all, and the part of the current one."""

    what: str = ""
    fraction: float = 0.0


def eta_s(elapsed_s: float, done: int, total: int, fraction: float) -> float | None:
    """Seconds to go if the rest is as quick as what is done; None before anything is."""
    finished = done + fraction
    return None if finished <= 0 or total <= 0 else max(0.0, elapsed_s / finished * (total - finished))


def clock(seconds: float) -> str:
    """`75` → `1:15`, `3700` → `1:01:40`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Progress:
    """A thread that writes the current step to `descriptor`; a descriptor of None makes it silent."""

    def __init__(self, descriptor: int | None, *, live: bool, every_s: float | None = None) -> None:
        self._descriptor = descriptor
        self._live = live
        self._every_s = every_s or (LIVE_EVERY_S if live else PLAIN_EVERY_S)
        self._step = Step()
        self._started = time.monotonic()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._shown = False
        self.done = 0
        self.total = 0

    def __enter__(self) -> Self:
        self._started = time.monotonic()
        if self._descriptor is not None:
            self._thread = threading.Thread(target=self._run, name="llmbench-progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self.clear()

    def say(self, what: str, *, fraction: float = 0.0) -> None:
        """What is being done from now on; `fraction` of the current test is behind us."""
        self._step = Step(what=what, fraction=fraction)

    def announce(self, what: str) -> None:
        """As `say`, but shown at once: for what may take long without any news."""
        self.say(what)
        if self._descriptor is not None:
            self._show()

    def for_entry(self, entry_id: str) -> Callable[[int, int, str], None]:
        """A function for `measure` that names the entry."""
        return lambda done, total, what: self.say(f"{entry_id}: {what}", fraction=done / max(1, total))

    def finish_test(self) -> None:
        """A test ended: clear its live line."""
        self.done += 1
        self._step = Step()
        self.clear()

    def clear(self) -> None:
        """Take the live line away, so that the report starts on a clean one."""
        with self._lock:
            if self._live and self._shown:
                self._write("\r\x1b[2K")
                self._shown = False

    def line(self) -> str:
        """The current step as one line."""
        step = self._step
        left = eta_s(time.monotonic() - self._started, self.done, self.total, step.fraction)
        rest = "" if left is None else f", about {clock(left)} to go"
        total = max(self.total, 1)
        return f"llmbench: test {min(self.done + 1, total)}/{total}, {step.what}{rest}"

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            self._show()

    def _show(self) -> None:
        with self._lock:
            if self._step.what:
                self._write(self._text())
                self._shown = True

    def _text(self) -> str:
        """The live line has a row of its own: what pytest wrote on the one above has to stay."""
        if not self._live:
            return f"\n{self.line()}\n"
        return f"\r\x1b[2K{self.line()}" if self._shown else f"\n{self.line()}"

    def _write(self, text: str) -> None:
        if self._descriptor is not None:
            try:
                os.write(self._descriptor, text.encode())
            except OSError:
                # The terminal is gone: measuring goes on without it.
                self._descriptor = None
