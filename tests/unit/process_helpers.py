"""Small programs that play servers, and waiting for what they do."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

REPOSITORY = Path(__file__).resolve().parents[2]
PATIENCE_S = 30.0

SLEEP = "import time; time.sleep(300)"
IGNORE_TERM = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(300)"
)
# Listens on the port of argv[1] and says so.
LISTEN = """
import socket, sys, time
s = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("listening", flush=True)
while True:
    connection, _ = s.accept()
    connection.close()
"""
# Prints a child's pid, then waits. argv[1] is the child's program.
PARENT_OF = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(300)
"""


def python(program: str, *arguments: str) -> list[str]:
    """A command that runs `program`; -I -S only for a fast start."""
    return [sys.executable, "-I", "-S", "-c", program, *arguments]


def is_running(pid: int) -> bool:
    """Whether `pid` exists and isn't merely waiting to be reaped."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(true: Callable[[], bool], what: str) -> None:
    """Wait for `true()`; after a generous time the test fails with `what`."""
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        if time.monotonic() > deadline:
            raise AssertionError(f"still not so after {PATIENCE_S:g} s: {what}")
        time.sleep(0.02)


def wait_gone(pid: int) -> None:
    """Wait until process `pid` runs no more."""
    wait_until(lambda: not is_running(pid), f"process {pid} is gone")


def wait_text(path: Path, text: str = "\n") -> str:
    """Wait until file `path` holds `text`; its content."""
    wait_until(lambda: path.exists() and text in path.read_text(), f"{path} holds {text!r}")
    return path.read_text()
