"""A small process between pytest and one server: the server never outlives it.

Run by path (`python -I -S supervise.py`), standard library only, in a session of its own. Protocol, JSON lines:

    stdin   {"argv": […], "env": {…}, "cwd": str | null, "log": path, "grace_s": float, "parent": pid,
             "stdin": int, "stdout": int}                 the last two only for a server that is talked to through
                                                          pipes: descriptors that the supervisor inherited
            then "stop", or end of file when pytest has ended by whatever means
    stdout  {"pid": int, "guard": int, "spawned_ns": int}     monotonic clock, just before fork and exec
            {"exit": int}                                     negative: the signal that ended the server
            or, in place of both, {"error": str, "errno": int, "filename": str}

Three processes share the work. The *supervisor* starts the server as the leader of its own process group, waits
for it, and stops it. The *guard* is a fork of the supervisor that sits in the server's group: while it's there
the group's number can't be given to anybody else, so a signal to the group can only reach what we started, and
should the supervisor be killed with SIGKILL the guard sees its pipe end and stops the group instead. What leaves the
group, as a daemon does, is found by the supervisor on Linux, where it adopts orphans.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import Any, NoReturn

PARENT_CHECK_S = 0.5
KILL_WAIT_S = 10.0
POLL_S = 0.02
STOP_SIGNALS = frozenset({signal.SIGTERM, signal.SIGHUP})
_FIRST_FREE_FD = 256
_PR_SET_CHILD_SUBREAPER = 36


class Group:
    """The server's process group. It is signalled only while one of our unreaped children pins its number."""

    def __init__(self, leader: int, guard: int) -> None:
        self.leader = leader
        self._pins = {leader, guard}
        self.ended = False

    def reap(self) -> None:
        """Collect every child that has ended; tell the leader's exit code at once."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._pins.clear()
                return
            if pid == 0:
                return
            self._pins.discard(pid)
            if pid == self.leader:
                self.ended = True
                say({"exit": os.waitstatus_to_exitcode(status)})

    def signal(self, number: int) -> None:
        """Send `number` to every member, or to nobody where the group's number may be somebody else's by now."""
        if self._pins:
            # PermissionError is what macOS answers for a group of zombies.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.leader, number)

    def gone(self) -> bool:
        """Whether the last member has ended."""
        self.reap()
        if self._pins:
            return False
        try:
            os.killpg(self.leader, 0)
        except (ProcessLookupError, PermissionError):
            return True
        return False


def main() -> int:
    """Serve one server's life; 0 after it was stopped or ended, 127 where it couldn't be started."""
    wake = _route_signals()
    _adopt_orphans()
    line, control = _read_line(0)
    if not line:
        return 0
    spec = json.loads(line)
    try:
        server, spawned_ns = _spawn(spec)
    except OSError as error:
        say({"error": error.strerror or str(error), "errno": error.errno, "filename": str(error.filename or "")})
        return 127
    guard = _fork_guard(server.pid, spec["grace_s"])
    group = Group(server.pid, guard)
    say({"pid": server.pid, "guard": guard, "spawned_ns": spawned_ns})
    _watch(group, wake, spec["parent"], control)
    _stop(group, wake, spec["grace_s"])
    server.returncode = 0  # reaped by us: keeps Popen's destructor from complaining
    return 0


def say(message: dict[str, Any]) -> None:
    """One JSON line on stdout; nothing where nobody reads any more."""
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(message).encode() + b"\n")


def _route_signals() -> int:
    """Signals become bytes in a pipe whose reading end is returned.

    SIGINT is handled, not ignored: an ignored signal would stay ignored in the server after exec.
    """
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in (signal.SIGINT, signal.SIGCHLD, *STOP_SIGNALS):
        signal.signal(number, lambda *_: None)
    return reading


def _adopt_orphans() -> None:
    """On Linux: orphans of the server become our children, so that they are reaped where no init does it."""
    if sys.platform != "linux":
        return
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _read_line(fd: int) -> tuple[bytes, bytes]:
    """The first line and what was read behind it; b"" for a line that the end of file cut short."""
    data = bytearray()
    while b"\n" not in data:
        chunk = os.read(fd, 65536)
        if not chunk:
            return b"", b""
        data += chunk
    line, _, rest = bytes(data).partition(b"\n")
    return line, rest


def _spawn(spec: dict[str, Any]) -> tuple[subprocess.Popen[bytes], int]:
    log = os.open(spec["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    pipes = [spec[name] for name in ("stdin", "stdout") if name in spec]
    try:
        spawned_ns = time.monotonic_ns()
        server = subprocess.Popen(
            spec["argv"],
            stdin=spec.get("stdin", subprocess.DEVNULL),
            stdout=spec.get("stdout", log),
            stderr=log,
            env=spec["env"],
            cwd=spec["cwd"],
            process_group=0,
        )
    finally:
        # The pipes are the server's alone: their other ends must see its end.
        for fd in (log, *pipes):
            os.close(fd)
    return server, spawned_ns


def _fork_guard(pgid: int, grace_s: float) -> int:
    """Fork the guard and return its pid. The pipe's writing end stays open here until we end."""
    reading, _writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _guard(pgid, reading, grace_s)
    os.close(reading)
    with contextlib.suppress(OSError):  # the guard does it as well: whoever comes first
        os.setpgid(pid, pgid)
    return pid


def _guard(pgid: int, pipe: int, grace_s: float) -> NoReturn:
    """Wait in the server's group for the supervisor's end, then stop the group: TERM, `grace_s`, KILL."""
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, *STOP_SIGNALS):
            signal.signal(number, signal.SIG_IGN)
        os.setpgid(0, pgid)
        os.dup2(pipe, 0)
        os.closerange(1, _FIRST_FREE_FD)
        os.read(0, 1)
        os.killpg(0, signal.SIGTERM)
        time.sleep(grace_s)
        os.killpg(0, signal.SIGKILL)
    finally:
        os._exit(0)


def _watch(group: Group, wake: int, parent: int, control: bytes) -> None:
    """Return when the server has ended or has to be stopped; `control` is what stdin has said so far."""
    while not group.ended and b"stop" not in control:
        ready, _, _ = select.select([0, wake], [], [], PARENT_CHECK_S)
        if wake in ready and STOP_SIGNALS & set(_drain(wake)):
            return
        if 0 in ready:
            data = os.read(0, 512)
            if not data:
                return
            control += data
        # Another process may hold the pipe's other end open, so that its end is never seen.
        if os.getppid() != parent:
            return
        group.reap()


def _stop(group: Group, wake: int, grace_s: float) -> None:
    """TERM, up to `grace_s` for the leader, KILL for whoever is left (the guard among them), reap."""
    group.reap()
    if not group.ended:
        group.signal(signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while not group.ended and time.monotonic() < deadline:
            _pause(wake, deadline - time.monotonic())
            group.reap()
    group.signal(signal.SIGKILL)
    deadline = time.monotonic() + KILL_WAIT_S
    while not group.gone() and time.monotonic() < deadline:
        _pause(wake, POLL_S)
    while (left := _adopted()) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        _pause(wake, POLL_S)
        group.reap()


def _adopted() -> list[int]:
    """On Linux: what has left the server's group and, now that its parent is gone, is a child of ours.

    A child keeps its number until it is reaped, which nobody but us does.
    """
    found = []
    for name in os.listdir("/proc") if sys.platform == "linux" else ():  # noqa: PTH208 - pathlib isn't loaded here
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
            # "pid (name) state parent …", and the name may hold anything.
            if name.isdecimal() and int(file.read().rpartition(b")")[2].split()[1]) == os.getpid():
                found.append(int(name))
    return found


def _pause(wake: int, longest_s: float) -> None:
    select.select([wake], [], [], max(0.0, longest_s))
    _drain(wake)


def _drain(wake: int) -> bytes:
    try:
        return os.read(wake, 512)
    except BlockingIOError:
        return b""


if __name__ == "__main__":
    sys.exit(main())
