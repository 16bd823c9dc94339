"""One server as a child process: started, watched, described when it fails, and stopped whatever happens.

The server itself is a child of a small supervisor (see `supervise`), so that it is stopped too when this process
ends without any chance to clean up.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

from pytest_llmbench.errors import (
    RequestError,
    ServerCrashed,
    ServerError,
    ServerStartError,
    ServerTimeout,
)
from pytest_llmbench.ports import Listener, check_port_free, free_port, listening_ports, port_owner
from pytest_llmbench.secrets import argument_secrets, environment_secrets, hide_command, hide_secrets
from pytest_llmbench.supervisor import Supervisor
from pytest_llmbench.units import plain

__all__ = [
    "Listener",
    "ServerProcess",
    "check_port_free",
    "describe_exit",
    "free_port",
    "port_owner",
    "server_environment",
]

TAIL_LINES = 40
_TAIL_BYTES = 256 * 1024
_ONE_LINE = b"(one line of more than %d bytes)" % _TAIL_BYTES
_LONGEST_LINE = 2000
_SHORTEST_INHERITED = 8
# Variables of the pytest run (a server that is itself a Python program would act on them), and the one with
# which macOS framework builds of Python pass their own path on to every interpreter below them.
_DROPPED_PREFIXES = ("PYTEST_", "COV_CORE_", "LLMBENCH_")
_DROPPED_NAMES = frozenset({"__PYVENV_LAUNCHER__"})


def describe_exit(code: int) -> str:
    """`1` → "exit 1", `-11` → "killed by SIGSEGV" (negative as in `subprocess`)."""
    if code >= 0:
        return f"exit {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def server_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """`os.environ` less what belongs to the pytest run, plus `extra`."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in _DROPPED_NAMES and not name.startswith(_DROPPED_PREFIXES)
    }
    return {**kept, **extra}


class ServerProcess:
    """A running server. Use it as a context manager: leaving the block stops the server.

    Attributes: `pid`; `spawned_ns`, our monotonic clock just before the spawn; `log_path`, the file that gets stdout
    and stderr; `command_line`, as a shell would take it, secrets hidden.
    """

    def __init__(self, supervisor: Supervisor, *, log_path: Path, command_line: str, secrets: Collection[str]) -> None:
        """Use `start`."""
        self._supervisor = supervisor
        self._secrets = frozenset(secrets)
        self._log_start = supervisor.log_start
        self._stopped = False
        self.pid = supervisor.pid
        self.spawned_ns = supervisor.spawned_ns
        self.log_path = log_path
        self.command_line = command_line

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        log_path: Path,
        secrets: Collection[str] = (),
        grace_s: float = 10.0,
        cwd: Path | None = None,
        stdio: tuple[int, int] | None = None,
    ) -> Self:
        """Spawn `command` in its own process group, stdin empty, output appended to `log_path` (made, mode 0600).

        `stdio`: descriptors for its stdin and stdout instead; the log then gets stderr alone. The caller closes them.

        `env` is added to this process's environment. Hidden from every text are `secrets`, the values behind flags
        such as --api-key, and variables with a secret's name. `grace_s` lies between TERM and KILL.
        ServerStartError where the program is missing or can't be executed.
        """
        full_env = server_environment(env)
        hidden = {*secrets, *argument_secrets(command), *environment_secrets(env)}
        hidden |= environment_secrets(full_env, shortest=_SHORTEST_INHERITED)
        command_line = hide_command(command, hidden)
        log_path.parent.mkdir(parents=True, exist_ok=True)
        supervisor = Supervisor(command, env=full_env, cwd=cwd, log_path=log_path, grace_s=grace_s, stdio=stdio)
        try:
            supervisor.launch()
        except OSError as error:
            raise _not_started(command, command_line, error, hidden) from error
        return cls(supervisor, log_path=log_path, command_line=command_line, secrets=hidden)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def poll(self) -> int | None:
        """The exit code, negative for a signal, or None while the server runs. Doesn't block."""
        return self._supervisor.poll()

    def wait_exit(self, timeout_s: float) -> int | None:
        """As `poll`, but waits up to `timeout_s` for the end."""
        self._supervisor.wait_exit(timeout_s)
        return self.poll()

    def check_alive(self, *, within_s: float = 0.0) -> None:
        """ServerCrashed, with command, exit code and last output, where the server has ended or does so `within_s`."""
        self._supervisor.wait_exit(within_s)
        code = self.poll()
        if code is not None:
            raise ServerCrashed(self._failure(f"server ended while in use: {self._exit_text(code)}"))

    def processes(self) -> tuple[int, ...]:
        """Pids of the live tree, the server first: its process group and its descendants; () once it has ended."""
        return self._supervisor.processes()

    def owns_port(self, port: int) -> bool:
        """Whether one of our server's processes listens on TCP `port`."""
        return any(port in listening_ports(pid) for pid in self.processes())

    def hide(self, text: str) -> str:
        """`text` with the server's secrets replaced by `***`."""
        return hide_secrets(text, self._secrets)

    def explain(self, what: str) -> str:
        """A whole error message for `what`: with command, log and last output, secrets hidden."""
        return self._failure(self.hide(what))

    def log_tail(self, lines: int = TAIL_LINES) -> str:
        """The last lines of this start's output: secrets hidden, bytes that aren't UTF-8 replaced."""
        text = self.hide(self._recent_output())
        return "\n".join(_shown_line(line) for line in text.splitlines()[-lines:]) if lines > 0 else ""

    def wait_ready(
        self,
        probe: Callable[[float], bool],
        *,
        timeout_s: float,
        poll_s: float = 0.1,
        report: Callable[[str], None] | None = None,
        report_every_s: float = 5.0,
    ) -> None:
        """Call `probe(seconds left)` until it says True.

        `report` gets a line of progress every `report_every_s`. ServerStartError as soon as the server exits, or
        where the probe raises RequestError; ServerTimeout after `timeout_s`.
        """
        start = time.monotonic()
        reported = start
        while (left := start + timeout_s - time.monotonic()) > 0:
            self._check_started()
            if self._probe(probe, left):
                return
            if report is not None and time.monotonic() - reported >= report_every_s:
                reported = time.monotonic()
                report(f"waiting for the server, {reported - start:.0f} s: {self.log_tail(1)}")
            self._supervisor.wait_exit(min(poll_s, left))
        self._check_started()
        self._raise_not_ready(timeout_s)

    def stop(self) -> None:
        """TERM to the server's own process group, KILL after the grace time; returns when it is gone. Idempotent.

        ServerError where even KILL didn't end it (a process stuck in the kernel).
        """
        if self._stopped:
            return
        if not self._supervisor.stop():
            raise ServerError(self._failure("server didn't end within the grace time, nor after SIGKILL"))
        self._stopped = True

    def _probe(self, probe: Callable[[float], bool], left: float) -> bool:
        try:
            return probe(left)
        except RequestError as error:
            # A server that dies breaks its protocol as well: its exit is the better explanation.
            self._supervisor.wait_exit(0.2)
            self._check_started(error)
            raise ServerStartError(self.explain(f"server runs but isn't usable: {error}")) from error

    def _check_started(self, cause: BaseException | None = None) -> None:
        code = self.poll()
        if code is not None:
            text = f"server ended before it was ready: {self._exit_text(code)}"
            raise ServerStartError(self._failure(text)) from cause

    def _raise_not_ready(self, timeout_s: float) -> NoReturn:
        ports = sorted({port for pid in self.processes() for port in listening_ports(pid)})
        listens = f"listens on {', '.join(map(str, ports))}" if ports else "listens on no port"
        raise ServerTimeout(
            self._failure(
                f"server not ready after {timeout_s:g} s: process {self.pid} is running and {listens}",
                hint="raise server_timeout if the model is still loading, else see why in the log",
            )
        )

    def _exit_text(self, code: int) -> str:
        lost = "; its supervisor was killed, and the server stopped with it" if self._supervisor.lost else ""
        return describe_exit(code) + lost

    def _failure(self, what: str, *, hint: str = "run the command by hand, or see the whole log") -> str:
        tail = self.log_tail()
        shown = f"last {len(tail.splitlines())} lines:\n{tail}" if tail else "it printed nothing"
        return f"{what}\ncommand: {self.command_line}\nlog: {self.log_path}\nwhat to do: {hint}\n{shown}"

    def _recent_output(self) -> str:
        with contextlib.suppress(FileNotFoundError), self.log_path.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            start = max(self._log_start, end - _TAIL_BYTES)
            log.seek(start)
            data = log.read(end - start)
            if start > self._log_start:
                # The first line is cut, and a secret cut in half would not be recognised.
                data = data.partition(b"\n")[2] or _ONE_LINE
            return data.decode("utf-8", "replace")
        return ""


def _shown_line(line: str) -> str:
    line = plain(line)
    return line if len(line) <= _LONGEST_LINE else line[:_LONGEST_LINE] + " …"


def _not_started(
    command: Sequence[str], command_line: str, error: OSError, secrets: Collection[str]
) -> ServerStartError:
    program = hide_secrets(str(error.filename or command[0]), secrets)
    return ServerStartError(
        f"server couldn't be started: {program}: {error.strerror}\ncommand: {command_line}\n"
        "what to do: install it, or give the path of an executable as the entry's server_binary"
    )
