"""Call a function of Python source that a model wrote, in a separate interpreter with limits; never in this process.

The limits hold for an endless loop, a memory hog, a fork bomb, writing, and the network, and each is tried by a test.
They are made for the mistakes and odd ideas of a model, not for somebody who knows a hole in Python or in the kernel.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_llmbench.errors import MeasurementError
from pytest_llmbench.memory import process_memory
from pytest_llmbench.process import describe_exit

CHILD = Path(__file__).with_name("sandbox_child.py")
LOOK_S = 0.05
END_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one run may use. `output_bytes`: of what the function returned, as JSON."""

    wall_s: float = 10.0
    cpu_s: int = 5
    memory_bytes: int = 512 * 1024**2
    source_bytes: int = 64 * 1024
    output_bytes: int = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """What one call gave: a value in JSON's types (a tuple is a list), or the error that it raised."""

    value: Any = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One run: a result for each call, or the `problem` that left none. `guards`: see `sandbox_child`."""

    returned: tuple[Returned, ...] = ()
    problem: str | None = None
    guards: tuple[str, ...] = ()


def run_function(source: str, function: str, calls: Sequence[Sequence[Any]], limits: Limits | None = None) -> Outcome:
    """Define what `source` says, then call `function` with each of `calls`; arguments in JSON's types.

    MeasurementError where the interpreter itself can't be started.
    """
    limits = limits or Limits()
    # Half a surrogate pair is no text: it becomes "?".
    encoded = source.encode("utf-8", "replace")
    if len(encoded) > limits.source_bytes:
        return Outcome(problem=f"the source is longer than {limits.source_bytes} bytes")
    order = {
        "source": encoded.decode(),
        "function": function,
        "calls": [list(arguments) for arguments in calls],
        "cpu_s": limits.cpu_s,
        "memory_bytes": limits.memory_bytes,
    }
    with tempfile.TemporaryDirectory(prefix="llmbench-sandbox-") as folder, _started(folder) as child:
        # A child that has ended already is described by its exit.
        with contextlib.suppress(BrokenPipeError):
            _send(child, json.dumps(order).encode())
        data, problem = _read(child, limits)
        if problem is not None:
            return Outcome(problem=problem)
        return _outcome(data, child, calls=len(calls), limits=limits)


@contextlib.contextmanager
def _started(folder: str) -> Iterator[subprocess.Popen[bytes]]:
    try:
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", str(CHILD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={"PATH": "/usr/bin:/bin"},
            start_new_session=True,
        )
    except OSError as error:
        raise MeasurementError(f"the sandbox's interpreter couldn't be started: {sys.executable}: {error}") from error
    try:
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def _send(child: subprocess.Popen[bytes], data: bytes) -> None:
    assert child.stdin is not None
    child.stdin.write(data)
    child.stdin.close()


def _read(child: subprocess.Popen[bytes], limits: Limits) -> tuple[bytes, str | None]:
    """All that it writes, and why it was given up, if it was."""
    assert child.stdout is not None
    fd = child.stdout.fileno()
    data, deadline = b"", time.monotonic() + limits.wall_s
    while time.monotonic() < deadline:
        if select.select([fd], [], [], LOOK_S)[0]:
            piece = os.read(fd, 65536)
            if not piece:
                return data, None
            data += piece
            if len(data) > limits.output_bytes:
                return b"", f"it returned more than {limits.output_bytes} bytes"
        used = process_memory(child.pid)
        # Not every system keeps a process below its limit of address space.
        if used is not None and used.current_bytes > limits.memory_bytes:
            return b"", f"it used more than {limits.memory_bytes // 1024**2} MiB of memory"
    return b"", f"it didn't end within {limits.wall_s:g} s"


def _outcome(data: bytes, child: subprocess.Popen[bytes], *, calls: int, limits: Limits) -> Outcome:
    try:
        found = json.loads(data)
        guards = tuple(map(str, found["guards"]))
        if "problem" in found:
            return Outcome(problem=str(found["problem"]), guards=guards)
        returned = tuple(Returned(value=r.get("value"), error=r.get("error")) for r in found["results"])
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return Outcome(problem=_why_silent(child, limits))
    if len(returned) != calls:
        return Outcome(problem=f"it gave {len(returned)} results for {calls} calls", guards=guards)
    return Outcome(returned=returned, guards=guards)


def _why_silent(child: subprocess.Popen[bytes], limits: Limits) -> str:
    try:
        code = child.wait(END_S)
    except subprocess.TimeoutExpired:
        return "it closed its output and went on"
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"it was stopped: more than {limits.cpu_s} s of CPU time, or of memory than there is"
    return f"it ended without an answer: {describe_exit(code)}"
