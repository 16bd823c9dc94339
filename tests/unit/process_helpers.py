"""Small programs that play servers, and waiting for what they do."""

from __future__ import annotations

import sys
from pathlib import Path

from processes import is_running, wait_until

REPOSITORY = Path(__file__).resolve().parents[2]

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


def wait_gone(pid: int) -> None:
    """Wait until process `pid` runs no more."""
    wait_until(lambda: not is_running(pid), f"process {pid} is gone")


def wait_text(path: Path, text: str = "\n") -> str:
    """Wait until file `path` holds `text`; its content."""
    wait_until(lambda: path.exists() and text in path.read_text(), f"{path} holds {text!r}")
    return path.read_text()
