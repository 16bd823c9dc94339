"""One measurement at a time on a host: a lock that every pytest process of the machine respects.

`flock` is released by the kernel when its holder dies, so nothing stale is ever left behind.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pytest_llmbench.errors import UsageError

LOCK_PATH = Path("/tmp/llmbench-accelerator.lock")
POLL_S = 0.1


class Accelerator:
    """The host's accelerator, as a lock that can be held again and again, also by the thread that holds it."""

    def __init__(self, path: Path = LOCK_PATH) -> None:
        self._path = path
        self._owner: int | None = None
        self._held = 0
        self._descriptor = -1

    @contextmanager
    def hold(self, report: Callable[[str], None]) -> Iterator[None]:
        """Wait until nobody on this host measures, then keep it so. `report` is told who is waited for."""
        if self._owner != threading.get_ident():
            self._descriptor = self._locked(report)
            self._owner = threading.get_ident()
        self._held += 1
        try:
            yield
        finally:
            # The last one out lets go, whoever that is: fixtures don't end in the order of a stack.
            self._held -= 1
            if not self._held:
                self._owner = None
                os.close(self._descriptor)

    def _locked(self, report: Callable[[str], None]) -> int:
        """A descriptor that holds the lock."""
        descriptor, waiting = self._open(), False
        try:
            while not _try_lock(descriptor):
                if not waiting:
                    report(f"waiting for the accelerator: {self._holder(descriptor)} is measuring")
                waiting = True
                time.sleep(POLL_S)
        except BaseException:
            os.close(descriptor)
            raise
        _write_holder(descriptor)
        return descriptor

    def _open(self) -> int:
        # fs.protected_regular: another user's file in a sticky folder can be opened and locked, but not with O_CREAT.
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        for attempt in (flags, flags | os.O_CREAT, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW):
            try:
                return os.open(self._path, attempt, 0o666)
            except OSError as error:
                last = error
        raise UsageError(
            f"{self._path}: can't be opened as the accelerator's lock ({last.strerror}); remove it"
        ) from last

    @staticmethod
    def _holder(descriptor: int) -> str:
        text = os.pread(descriptor, 100, 0).decode(errors="replace").strip()
        return f"process {text}" if text.isdigit() else "another process"


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write_holder(descriptor: int) -> None:
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except OSError:
        # Opened read-only: another user's file. The lock holds all the same, only its holder stays unnamed.
        return
