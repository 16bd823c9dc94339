"""Looking at processes from tests, and waiting for what they do."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil

PATIENCE_S = 30.0


def is_running(pid: int) -> bool:
    """Whether `pid` exists and isn't merely waiting to be reaped."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(true: Callable[[], bool], what: str, *, patience_s: float = PATIENCE_S) -> None:
    """Wait for `true()`; after a generous time the test fails with `what`."""
    deadline = time.monotonic() + patience_s
    while not true():
        if time.monotonic() > deadline:
            raise AssertionError(f"still not so after {patience_s:g} s: {what}")
        time.sleep(0.02)
