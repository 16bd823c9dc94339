"""The supervisor, driven by its protocol as a script and without our package."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from process_helpers import (
    IGNORE_TERM,
    PARENT_OF,
    REPOSITORY,
    SLEEP,
    python,
    wait_gone,
    wait_text,
)

from processes import PATIENCE_S, is_running

SCRIPT = REPOSITORY / "pytest_llmbench" / "supervise.py"


class Driver:
    """A supervisor whose stdin and stdout the test holds."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "server.log"
        self.child = subprocess.Popen(
            [sys.executable, "-I", "-S", str(SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=folder,
            bufsize=0,
            start_new_session=True,
        )

    def spec(self, argv: list[str], **changes: Any) -> bytes:
        spec = {
            "argv": argv,
            "env": {"PATH": os.defpath},
            "cwd": None,
            "log": str(self.log),
            "grace_s": 20,
            "parent": os.getpid(),
        }
        return json.dumps({**spec, **changes}).encode() + b"\n"

    def start(self, program: str, *arguments: str, **changes: Any) -> dict[str, Any]:
        self.write(self.spec(python(program, *arguments), **changes))
        return self.read()

    def write(self, data: bytes) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(data)

    def read(self) -> dict[str, Any]:
        assert self.child.stdout is not None
        ready, _, _ = select.select([self.child.stdout], [], [], PATIENCE_S)
        assert ready, "the supervisor says nothing"
        return json.loads(self.child.stdout.readline())

    def close(self) -> None:
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self.child.stdin.close()
        try:
            self.child.wait(PATIENCE_S)
        finally:
            self.child.kill()
            self.child.stdout.close()


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    made = Driver(tmp_path)
    yield made
    made.close()


def test_tells_the_pid_the_spawn_stamp_and_the_exit_code(driver: Driver) -> None:
    before = time.monotonic_ns()
    started = driver.start("import os, sys; print(os.getpid()); sys.exit(7)")
    assert before <= started["spawned_ns"] <= time.monotonic_ns()
    assert driver.read() == {"exit": 7}
    assert driver.child.wait(30) == 0
    assert int(driver.log.read_text()) == started["pid"]


def test_a_crash_is_told_as_the_negative_signal(driver: Driver) -> None:
    driver.start("import os, signal; os.kill(os.getpid(), signal.SIGABRT)")
    assert driver.read() == {"exit": -signal.SIGABRT}


@pytest.mark.parametrize(("program", "number"), [("no-such-program-here", 2), (str(REPOSITORY / "pyproject.toml"), 13)])
def test_a_program_that_cant_be_executed_is_told_with_its_name(driver: Driver, program: str, number: int) -> None:
    driver.write(driver.spec([program]))
    message = driver.read()
    assert message["errno"] == number
    assert message["filename"] == program
    assert driver.child.wait(30) == 127


def test_end_of_file_on_stdin_stops_the_server(driver: Driver) -> None:
    pid = driver.start(SLEEP)["pid"]
    driver.child.stdin.close()
    assert driver.read() == {"exit": -signal.SIGTERM}
    assert not is_running(pid)


def test_stop_sent_right_behind_the_start_line_is_obeyed(driver: Driver) -> None:
    driver.write(driver.spec(python(SLEEP)) + b"stop\n")
    assert "pid" in driver.read()
    assert driver.read() == {"exit": -signal.SIGTERM}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_stop_signal_to_the_supervisor_stops_the_server_first(driver: Driver, number: signal.Signals) -> None:
    pid = driver.start(SLEEP)["pid"]
    driver.child.send_signal(number)
    assert driver.read() == {"exit": -signal.SIGTERM}
    driver.child.wait(30)
    assert not is_running(pid)


def test_sigint_to_the_supervisor_does_nothing(driver: Driver) -> None:
    driver.start(SLEEP)
    driver.child.send_signal(signal.SIGINT)
    driver.write(b"stop\n")
    assert driver.read() == {"exit": -signal.SIGTERM}
    assert driver.child.wait(30) == 0


def test_the_server_gets_default_signals_an_empty_stdin_and_a_private_log(driver: Driver) -> None:
    driver.start(
        "import signal, sys;"
        "print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, repr(sys.stdin.read()))"
    )
    assert driver.read() == {"exit": 0}
    assert driver.log.read_text() == "True ''\n"
    assert driver.log.stat().st_mode & 0o777 == 0o600


def test_the_server_gets_the_given_environment_and_folder_only(driver: Driver, tmp_path: Path) -> None:
    folder = tmp_path / "there"
    folder.mkdir()
    driver.start("import os; print(os.environ['ONLY'], 'HOME' in os.environ, os.getcwd())",
                 env={"ONLY": "this"}, cwd=str(folder))  # fmt: skip
    assert driver.read() == {"exit": 0}
    assert driver.log.read_text() == f"this False {folder.resolve()}\n"


def test_a_server_that_ignores_term_is_killed_after_the_grace_time(driver: Driver) -> None:
    pid = driver.start(IGNORE_TERM, grace_s=0.2)["pid"]
    wait_text(driver.log)
    driver.write(b"stop\n")
    assert driver.read() == {"exit": -signal.SIGKILL}
    assert not is_running(pid)


def test_members_that_outlive_the_leader_are_killed(driver: Driver) -> None:
    program = PARENT_OF.replace("time.sleep(300)", "sys.exit(5)")
    driver.start(program, IGNORE_TERM)
    assert driver.read() == {"exit": 5}
    driver.child.wait(30)
    assert not is_running(int(driver.log.read_text()))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has processes adopt orphans")
@pytest.mark.parametrize("then", ["sys.exit(5)", "time.sleep(300)"])
def test_a_daemon_that_left_the_servers_group_is_stopped_with_it(driver: Driver, then: str) -> None:
    driver.start(PARENT_OF.replace("time.sleep(300)", then), f"import os; os.setsid(); {IGNORE_TERM}")
    daemon = int(wait_text(driver.log))
    driver.child.stdin.close()  # type: ignore[union-attr]
    driver.child.wait(30)
    assert not is_running(daemon)


@pytest.mark.parametrize("program", [SLEEP, IGNORE_TERM])
def test_the_server_does_not_outlive_a_supervisor_that_was_killed(driver: Driver, program: str) -> None:
    started = driver.start(PARENT_OF, program.replace("import time;", "import time; print(flush=True);"), grace_s=0.3)
    grandchild = int(wait_text(driver.log))
    driver.child.kill()
    for pid in (started["pid"], grandchild, started["guard"]):
        wait_gone(pid)


def test_the_server_stops_when_the_parent_is_gone_though_somebody_holds_the_pipe(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    log = tmp_path / "server.log"
    parent = (
        "import json, os, subprocess, sys\n"
        "spec = json.loads(sys.argv[1]) | {'parent': os.getpid()}\n"
        "reading, writing = int(sys.argv[2]), int(sys.argv[3])\n"
        "s = subprocess.Popen(sys.argv[4:], stdin=reading, stdout=subprocess.PIPE, start_new_session=True)\n"
        "os.write(writing, json.dumps(spec).encode() + b'\\n')\n"
        "sys.stdout.buffer.write(s.stdout.readline())\n"
    )
    spec = {"argv": python(SLEEP), "env": {}, "cwd": None, "log": str(log), "grace_s": 20}
    try:
        done = subprocess.run(
            [*python(parent, json.dumps(spec), str(reading), str(writing)), sys.executable, "-I", "-S", str(SCRIPT)],
            pass_fds=(reading, writing),
            stdout=subprocess.PIPE,
            check=True,
        )
        wait_gone(json.loads(done.stdout)["pid"])
    finally:
        os.close(reading)
        os.close(writing)


def test_a_group_whose_number_nothing_of_ours_pins_is_never_signalled() -> None:
    program = (
        "import runpy, sys\n"
        "group = runpy.run_path(sys.argv[1])['Group'](int(sys.argv[2]), int(sys.argv[2]))\n"
        "group.reap()\n"
        "group.signal(9)\n"
    )
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0) as foreign:
        subprocess.run(python(program, str(SCRIPT), str(foreign.pid)), check=True)
        answer, _ = foreign.communicate(b"alive")
    assert answer == b"alive"
    assert foreign.returncode == 0
