"""This process's end of the line to `supervise`: starts it, reads what it says, tells it to stop."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

START_TIMEOUT_S = 60.0
_SCRIPT = Path(__file__).with_name("supervise.py")
# What the supervisor needs after the grace time: it waits 10 s for a killed process to be gone.
_STOP_MARGIN_S = 15.0


class Supervisor:
    """A supervisor child and the server below it. `launch` before anything else.

    `stdio`: open descriptors that become the server's stdin and stdout; without it stdin is empty, stdout the log.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path | None,
        log_path: Path,
        grace_s: float,
        stdio: tuple[int, int] | None = None,
    ) -> None:
        self.pid = 0
        self.spawned_ns = 0
        self.log_start = 0
        self.lost = False
        self._guard = 0
        self._grace_s = grace_s
        self._log_path = log_path
        self._stdio = stdio or ()
        self._spec = {
            "argv": [os.fspath(part) for part in command],
            "env": dict(env),
            "cwd": None if cwd is None else str(cwd),
            "log": str(log_path),
            "grace_s": grace_s,
            "parent": os.getpid(),
            **dict(zip(("stdin", "stdout"), self._stdio, strict=False)),
        }
        self._lock = threading.Lock()
        self._buffer = b""
        self._eof = False
        self._exit: int | None = None

    def launch(self) -> None:
        """Start the supervisor and wait until it has spawned the server. OSError where it couldn't."""
        self._child = self._start_child()
        try:
            self._send(json.dumps(self._spec).encode() + b"\n")
            self._take_greeting(self._first_message())
        except BaseException:
            self.stop()
            raise

    def poll(self) -> int | None:
        """The server's exit code, or None while it runs. Safe to call from several threads."""
        with self._lock:
            if self._exit is None:
                for message in self._messages(0.0):
                    self._exit = message.get("exit", self._exit)
                if self._eof and self._exit is None:
                    self._note_lost()
            return self._exit

    def wait_exit(self, timeout_s: float) -> int | None:
        """As `poll`, but waits up to `timeout_s` for the end."""
        if self._exit is None and not self._eof:
            select.select([self._out], [], [], timeout_s)
        return self.poll()

    def processes(self) -> tuple[int, ...]:
        """The server, then its other live group members and descendants. The supervisor's guard isn't one."""
        import psutil

        if self.poll() is not None:
            return ()
        members = {pid for pid in psutil.pids() if _group_of(pid) == self.pid}
        with contextlib.suppress(psutil.Error):
            members |= {child.pid for child in psutil.Process(self.pid).children(recursive=True)}
        others = sorted(members - {self.pid, self._guard})
        return (self.pid, *(pid for pid in others if _is_live(pid)))

    def stop(self) -> bool:
        """Have the server stopped and wait for the supervisor's end; False where it outlasts every limit."""
        with contextlib.suppress(OSError, ValueError):
            self._send(b"stop\n")
        with contextlib.suppress(OSError):
            self._child.stdin.close()  # type: ignore[union-attr]
        try:
            self._child.wait(self._grace_s + _STOP_MARGIN_S)
        except subprocess.TimeoutExpired:
            return False
        self.poll()
        if self._child.stdout is not None:
            self._child.stdout.close()
        return not self.lost or self._wait_group_gone()

    def _start_child(self) -> subprocess.Popen[bytes]:
        utf8 = f"utf8={sys.flags.utf8_mode}"
        log = os.open(self._log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            self.log_start = os.fstat(log).st_size
            child = subprocess.Popen(
                [sys.executable, "-I", "-S", "-X", utf8, str(_SCRIPT)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                pass_fds=self._stdio,
            )
        finally:
            os.close(log)
        assert child.stdout is not None
        self._out = child.stdout.fileno()
        os.set_blocking(self._out, False)
        return child

    def _send(self, data: bytes) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(data)
        self._child.stdin.flush()

    def _first_message(self) -> dict[str, Any]:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._eof and (left := deadline - time.monotonic()) > 0:
            for message in self._messages(left, limit=1):
                return message
        raise OSError(0, f"the supervisor process said nothing (exit {self._child.poll()}); see {self._log_path}")

    def _take_greeting(self, message: dict[str, Any]) -> None:
        if "error" in message:
            raise OSError(message["errno"], message["error"], message["filename"] or None)
        self.pid = message["pid"]
        self.spawned_ns = message["spawned_ns"]
        self._guard = message["guard"]

    def _messages(self, timeout_s: float, *, limit: int = 100) -> Iterator[dict[str, Any]]:
        """Messages that have come, up to `limit`; waits for one if there is none yet."""
        if b"\n" not in self._buffer and not self._eof and not self._child_closed():
            select.select([self._out], [], [], timeout_s)
            self._read_available()
        for _ in range(limit):
            line, newline, rest = self._buffer.partition(b"\n")
            if not newline:
                return
            self._buffer = rest
            yield json.loads(line)

    def _child_closed(self) -> bool:
        return self._child.stdout is None or self._child.stdout.closed

    def _read_available(self) -> None:
        try:
            data = os.read(self._out, 65536)
        except BlockingIOError:
            return
        self._buffer += data
        self._eof = not data

    def _note_lost(self) -> None:
        """The supervisor ended without a word: killed. Its guard is stopping the server now."""
        self.lost = True
        self._exit = -signal.SIGKILL

    def _wait_group_gone(self) -> bool:
        deadline = time.monotonic() + self._grace_s + _STOP_MARGIN_S
        while time.monotonic() < deadline:
            # The guard goes last.
            if _group_of(self._guard) != self.pid or not _is_live(self._guard):
                return True
            time.sleep(0.05)
        return False


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except (ProcessLookupError, PermissionError):
        return None


def _is_live(pid: int) -> bool:
    """Whether `pid` runs, and isn't only waiting to be reaped."""
    import psutil

    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
