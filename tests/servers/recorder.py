"""Run a server as a child and write down when it started and when it had ended.

Usage: recorder.py RECORD PROGRAM…; the record gets a JSON line with the child's pid and two stamps of the monotonic
clock. It outlives TERM until its child has ended.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def note(record: Path, **facts: object) -> None:
    """One line in one write, so that two recorders can share the file."""
    with record.open("ab", buffering=0) as file:
        file.write(json.dumps(facts).encode() + b"\n")


def main(argv: list[str]) -> int:
    """The child's exit code."""
    record = Path(argv[0])
    if "--version" in argv:
        return subprocess.call(argv[1:])  # a question, no server
    signal.signal(signal.SIGTERM, lambda *_: None)
    start_ns = time.monotonic_ns()
    child = subprocess.Popen(argv[1:])
    note(record, event="start", pid=child.pid, recorder=os.getpid(), ns=start_ns)
    code = child.wait()
    note(record, event="stop", pid=child.pid, recorder=os.getpid(), ns=time.monotonic_ns())
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
