"""Server processes: start, failure texts, readiness, stop, and no orphan whatever ends the parent."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from process_helpers import (
    IGNORE_TERM,
    LISTEN,
    PARENT_OF,
    REPOSITORY,
    SLEEP,
    python,
    wait_gone,
    wait_text,
)

from processes import is_running, wait_until
from pytest_llmbench.errors import PortInUse, RequestError, ServerCrashed, ServerStartError, ServerTimeout
from pytest_llmbench.ports import FOREIGN
from pytest_llmbench.process import ServerProcess, check_port_free, describe_exit, free_port, port_owner

SECRET = "correct-horse-battery"


def start(folder: Path, program: str, *arguments: str, **changes: Any) -> ServerProcess:
    keywords: dict[str, Any] = {"env": {}, "log_path": folder / "logs" / "server.log", **changes}
    return ServerProcess.start(python(program, *arguments), **keywords)


def never(_left: float) -> bool:
    return False


@pytest.fixture
def listener() -> Iterator[tuple[int, int]]:
    """A process that isn't ours to stop: (pid, port)."""
    port = free_port()
    with subprocess.Popen(python(LISTEN, str(port)), stdout=subprocess.PIPE) as foreign:
        assert foreign.stdout is not None
        foreign.stdout.readline()
        yield foreign.pid, port
        foreign.kill()


# --- start


def test_start_gives_pid_log_and_a_session_of_its_own(tmp_path: Path) -> None:
    with start(tmp_path, "import os, time; print(os.getpid(), flush=True); time.sleep(300)") as server:
        assert int(wait_text(server.log_path)) == server.pid
        assert server.poll() is None
        assert os.getsid(server.pid) != os.getsid(0)
        assert os.getpgid(server.pid) == server.pid
        server.check_alive()


@pytest.mark.parametrize("made", ["missing", "not executable", "no program"])
def test_a_program_that_cant_be_executed_is_named(tmp_path: Path, made: str) -> None:
    program = tmp_path / "llama-server"
    if made != "missing":
        program.write_bytes(b"\0\0 not a program")
        program.chmod(0o755 if made == "no program" else 0o644)
    with pytest.raises(ServerStartError, match="server_binary") as caught:
        ServerProcess.start([str(program), "--api-key", SECRET], env={}, log_path=tmp_path / "log")
    assert str(program) in str(caught.value)
    assert SECRET not in str(caught.value)


def test_variables_of_the_pytest_run_stay_out_and_given_ones_come_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", "-x")
    monkeypatch.setenv("LLMBENCH_RUNS", "3")
    monkeypatch.setenv("KEPT", "kept")
    program = "import os; print(*(os.environ.get(n) for n in ('PYTEST_ADDOPTS', 'LLMBENCH_RUNS', 'KEPT', 'NEW')))"
    with start(tmp_path, program, env={"NEW": "näw"}) as server:
        assert wait_text(server.log_path) == "None None kept näw\n"


def test_a_second_start_appends_and_shows_its_own_output_only(tmp_path: Path) -> None:
    for text in ("first", "second"):
        with start(tmp_path, f"print({text!r})") as server:
            wait_text(server.log_path, text)
            assert server.log_tail() == text
    assert server.log_path.read_text() == "first\nsecond\n"


# --- what is said about failures


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (0, "exit 0"),
        (3, "exit 3"),
        (-11, "killed by SIGSEGV"),
        (-9, "killed by SIGKILL"),
        (-300, "killed by signal 300"),
    ],
)
def test_exit_codes_are_put_in_words(code: int, text: str) -> None:
    assert describe_exit(code) == text


def test_a_crash_during_start_is_noticed_with_command_code_and_last_40_lines(tmp_path: Path) -> None:
    program = "import sys\nfor n in range(100): print(f'line {n};')\nsys.exit(3)"
    with start(tmp_path, program, "--model", "tiny") as server, pytest.raises(ServerStartError) as caught:
        server.wait_ready(never, timeout_s=300)
    text = str(caught.value)
    assert "ended before it was ready: exit 3" in text
    assert "--model tiny" in text
    assert str(server.log_path) in text
    assert text.endswith("line 99;")
    assert "line 60;" in text
    assert "line 59;" not in text


def test_a_crash_by_signal_is_named(tmp_path: Path) -> None:
    program = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    with start(tmp_path, program) as server, pytest.raises(ServerStartError, match="killed by SIGSEGV"):
        server.wait_ready(never, timeout_s=300)


def test_the_end_of_a_server_in_use_is_a_crash(tmp_path: Path) -> None:
    with start(tmp_path, SLEEP) as server:
        os.kill(server.pid, signal.SIGKILL)
        wait_until(lambda: server.poll() is not None, "the exit is noticed")
        with pytest.raises(ServerCrashed, match="killed by SIGKILL"):
            server.check_alive()
        assert server.processes() == ()


def test_no_secret_is_in_any_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_inherited0123")
    program = "import os, sys; print(sys.argv, os.environ['MY_API_KEY'], os.environ['HF_TOKEN'], 'given-one'); 1 / 0"
    arguments = ("--api-key", SECRET, "--token=abcd-efgh", "OTHER_KEY=ijkl-mnop")
    with (
        start(tmp_path, program, *arguments, env={"MY_API_KEY": "from-env"}, secrets=["given-one"]) as server,
        pytest.raises(ServerStartError) as caught,
    ):
        server.wait_ready(never, timeout_s=300)
    text = str(caught.value) + server.command_line + server.log_tail()
    for secret in (SECRET, "abcd-efgh", "ijkl-mnop", "from-env", "hf_inherited0123", "given-one"):
        assert secret in server.log_path.read_text() + " ".join(arguments)
        assert secret not in text
    assert "ZeroDivisionError" in text


def test_half_a_secret_is_not_shown_where_a_long_log_is_cut(tmp_path: Path) -> None:
    secret = "s3cret-" * 60_000
    with start(tmp_path, "print('s3cret-' * 60_000); print('end')", secrets=[secret]) as server:
        wait_text(server.log_path, "end")
        assert server.log_tail() == "end"


def test_one_endless_line_is_not_called_nothing_and_colours_are_left_out(tmp_path: Path) -> None:
    with start(tmp_path, "import sys; sys.stdout.write('x' * 300_000); sys.stderr.write('y')") as server:
        server.wait_exit(60)
        assert server.log_tail() == "(one line of more than 262144 bytes)"
    with start(tmp_path, r"print('\x1b[31mred\x1b[0m\x07')") as server:
        server.wait_exit(60)
        assert server.log_tail() == r"red\x07"


def test_undecodable_output_is_shown_with_replacements(tmp_path: Path) -> None:
    with start(tmp_path, "import os; os.write(1, b'caf\\xe9 \\xff\\n')") as server:
        wait_until(lambda: server.poll() == 0, "the program has ended")
        assert server.log_tail() == "caf\ufffd \ufffd"


# --- readiness


def test_200_kb_of_output_before_ready_do_not_block_the_server(tmp_path: Path) -> None:
    port = free_port()
    program = f"print('x' * 99 + '\\n', end='', flush=True)\nfor _ in range(2000): print('x' * 99)\n{LISTEN}"
    with start(tmp_path, program, str(port)) as server:
        server.wait_ready(lambda _left: server.owns_port(port), timeout_s=60)
        assert server.log_path.stat().st_size > 200_000


def test_ready_when_the_probe_says_so_and_progress_is_reported(tmp_path: Path) -> None:
    answers = iter([False, False, True])
    seconds_left: list[float] = []
    reports: list[str] = []

    def probe(left: float) -> bool:
        seconds_left.append(left)
        return next(answers)

    with start(tmp_path, "import time; print('loading', flush=True); time.sleep(300)") as server:
        wait_text(server.log_path)
        server.wait_ready(probe, timeout_s=60, poll_s=0.01, report=reports.append, report_every_s=0)
    assert len(seconds_left) == 3
    assert seconds_left == sorted(seconds_left, reverse=True)
    assert [text.rpartition(": ")[2] for text in reports] == ["loading", "loading"]


def test_a_timeout_says_what_is_running_and_where_it_listens(tmp_path: Path) -> None:
    port = free_port()
    with start(tmp_path, LISTEN, str(port)) as server:
        wait_text(server.log_path)
        with pytest.raises(ServerTimeout, match=f"listens on {port}") as caught:
            server.wait_ready(never, timeout_s=0.3, poll_s=0.05)
        assert "server_timeout" in str(caught.value)
        assert str(caught.value).endswith("listening")
        server.check_alive()


def test_a_request_error_of_the_probe_is_final(tmp_path: Path) -> None:
    def probe(_left: float) -> bool:
        raise RequestError(f"HTTP 404: no model for {SECRET}")

    with start(tmp_path, SLEEP, secrets=[SECRET]) as server, pytest.raises(ServerStartError) as caught:
        server.wait_ready(probe, timeout_s=300)
    assert "HTTP 404: no model for ***" in str(caught.value)
    assert isinstance(caught.value.__cause__, RequestError)


def test_an_exit_explains_a_request_error_that_it_caused(tmp_path: Path) -> None:
    with start(tmp_path, "import sys; sys.stdin.read(); sys.exit(4)") as server:

        def probe(_left: float) -> bool:
            wait_gone(server.pid)
            raise RequestError("connection closed")

        with pytest.raises(ServerStartError, match="exit 4"):
            server.wait_ready(probe, timeout_s=300)


# --- processes and ports


def test_the_tree_has_the_server_and_its_children_but_no_helper_of_ours(tmp_path: Path) -> None:
    with start(tmp_path, PARENT_OF, f"print(flush=True); {SLEEP}") as server:
        child = int(wait_text(server.log_path))
        assert server.processes() == (server.pid, child)


def test_a_detached_group_member_counts_and_is_stopped(tmp_path: Path) -> None:
    program = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    if os.fork() == 0: print(os.getpid(), flush=True); time.sleep(300)\n"
        "    os._exit(0)\n"
        "os.wait(); time.sleep(300)\n"
    )
    with start(tmp_path, program) as server:
        detached = int(wait_text(server.log_path))
        wait_until(lambda: server.processes() == (server.pid, detached), "the go-between is reaped")
    assert not is_running(detached)


def test_a_port_belongs_to_the_server_whose_child_listens_on_it(tmp_path: Path, listener: tuple[int, int]) -> None:
    port = free_port()
    child = f"import sys; sys.argv[1:] = ['{port}']\n{LISTEN}"
    with start(tmp_path, PARENT_OF, child) as server:
        wait_text(server.log_path)
        assert server.owns_port(port)
        assert not server.owns_port(listener[1])


def test_a_foreign_process_on_the_port_is_named_and_survives(tmp_path: Path, listener: tuple[int, int]) -> None:
    pid, port = listener
    with pytest.raises(PortInUse, match=rf"port {port} is in use by .+ \(pid {pid}\)"):
        check_port_free(port)
    with start(tmp_path, LISTEN, str(port)) as server, pytest.raises(ServerStartError, match="in use"):
        server.wait_ready(lambda _left: server.owns_port(port), timeout_s=60)
    owner = port_owner(port)
    assert owner is not None
    assert owner.pid == pid
    assert is_running(pid)


def test_a_listener_whose_process_cant_be_seen_is_somebody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> list[object]:
        raise psutil.AccessDenied

    # What macOS answers without root, for the whole table and for the processes of others.
    monkeypatch.setattr(psutil, "net_connections", refused)
    monkeypatch.setattr(psutil.Process, "net_connections", refused)
    with socket.create_server(("127.0.0.1", 0)) as server:
        owner = port_owner(server.getsockname()[1])
    assert owner is not None
    assert owner.pid is None
    assert str(owner) == FOREIGN


def test_without_the_whole_table_our_own_processes_are_found(
    monkeypatch: pytest.MonkeyPatch, listener: tuple[int, int]
) -> None:
    def refused(*_: object) -> list[object]:
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil, "net_connections", refused)
    owner = port_owner(listener[1])
    assert owner is not None
    assert owner.pid == listener[0]


def test_a_free_port_has_no_owner() -> None:
    port = free_port()
    assert port_owner(port) is None
    check_port_free(port)


# --- stop


def test_stop_frees_the_port_and_may_be_called_again(tmp_path: Path) -> None:
    port = free_port()
    server = start(tmp_path, LISTEN, str(port))
    server.wait_ready(lambda _left: server.owns_port(port), timeout_s=60)
    server.stop()
    server.stop()
    assert server.poll() == -signal.SIGTERM
    assert server.processes() == ()
    check_port_free(port)


def test_stop_kills_a_server_and_a_grandchild_that_ignore_term(tmp_path: Path) -> None:
    with start(tmp_path, f"import signal; signal.signal(15, signal.SIG_IGN)\n{PARENT_OF}", IGNORE_TERM,
               grace_s=0.2) as server:  # fmt: skip
        grandchild = int(wait_text(server.log_path))
    assert server.poll() == -signal.SIGKILL
    assert not is_running(server.pid)
    assert not is_running(grandchild)


def test_a_failing_block_and_ctrl_c_stop_the_server(tmp_path: Path) -> None:
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error), start(tmp_path, SLEEP) as server:
            raise error
        assert not is_running(server.pid)


def test_a_thread_may_poll_while_another_stops(tmp_path: Path) -> None:
    with start(tmp_path, SLEEP) as server:
        seen: list[int | None] = []

        def watch() -> None:
            while server.poll() is None:
                pass
            seen.append(server.poll())

        thread = threading.Thread(target=watch)
        thread.start()
        server.stop()
        thread.join(30)
    assert seen == [-signal.SIGTERM]


PYTEST_LIKE = """
import sys, time
from pathlib import Path
from pytest_llmbench.process import ServerProcess
with ServerProcess.start(sys.argv[2:], env={}, log_path=Path(sys.argv[1]), grace_s=0.5) as server:
    print(server.pid, flush=True)
    time.sleep(300)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_orphan_when_a_signal_ends_the_parent(tmp_path: Path, number: signal.Signals) -> None:
    log = tmp_path / "server.log"
    command = [sys.executable, "-c", PYTEST_LIKE, str(log), *python(PARENT_OF, IGNORE_TERM)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}
    ) as parent:
        assert parent.stdout is not None
        pids = [int(parent.stdout.readline()), int(wait_text(log))]
        parent.send_signal(number)
        parent.wait(30)
        for pid in pids:
            wait_gone(pid)


def test_a_killed_supervisor_takes_the_server_with_it_and_that_is_said(tmp_path: Path) -> None:
    with start(tmp_path, SLEEP, grace_s=0.2) as server:
        os.kill(psutil.Process(server.pid).ppid(), signal.SIGKILL)
        wait_until(lambda: server.poll() is not None, "the loss is noticed")
        with pytest.raises(ServerCrashed, match="its supervisor was killed"):
            server.check_alive()
    wait_gone(server.pid)
