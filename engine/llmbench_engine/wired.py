"""On Metal, keep the weights wired while something is generated, so that they aren't paged out between two tokens."""

from __future__ import annotations

import threading

import mlx.core as mx


class WiredLimit:
    """Raised while at least one holder is there, then put back.

    The limit is the process's, not an engine's: engines that each put back what they found would undo each other, or
    leave it raised. So there is one counter a process, too.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders = 0
        self._before = 0

    def acquire(self) -> None:
        with self._lock:
            self._holders += 1
            if self._holders == 1 and mx.metal.is_available():
                self._before = mx.set_wired_limit(int(mx.device_info()["max_recommended_working_set_size"]))

    def release(self) -> None:
        with self._lock:
            self._holders -= 1
            if self._holders == 0 and mx.metal.is_available():
                mx.synchronize()
                mx.set_wired_limit(self._before)

    def __enter__(self) -> WiredLimit:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


WIRED_LIMIT = WiredLimit()
