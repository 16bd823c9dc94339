"""One holder at a time on a host, whichever process it is and however it ends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from process_helpers import REPOSITORY

from processes import wait_until
from pytest_llmbench.accelerator import Accelerator
from pytest_llmbench.errors import UsageError

# Says what it waits for, says "held", and lets go when its standard input ends. argv[2]: the user to become.
HOLDER = """
import os, sys
from pathlib import Path
from pytest_llmbench.accelerator import Accelerator
if len(sys.argv) > 2:
    os.setuid(int(sys.argv[2]))
with Accelerator(Path(sys.argv[1])).hold(lambda line: print(line, flush=True)):
    print("held", flush=True)
    sys.stdin.read()
print("released", flush=True)
"""
NOBODY = "65534"


@contextmanager
def holder(path: Path, *user: str) -> Iterator[subprocess.Popen[str]]:
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-c", HOLDER, str(path), *user]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def let_go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.close()


def test_the_second_process_waits_and_names_the_first(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with holder(path) as first:
        assert line(first) == "held"
        with holder(path) as second:
            assert line(second) == f"waiting for the accelerator: process {first.pid} is measuring"
            let_go(first)
            assert line(first) == "released"
            assert line(second) == "held"
            assert path.read_text() == f"{second.pid}\n"


def test_a_killed_holder_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with holder(path) as first:
        assert line(first) == "held"
        first.send_signal(signal.SIGKILL)
        first.wait()
        waited: list[str] = []
        with Accelerator(path).hold(waited.append):
            assert waited == []
            assert path.read_text() == f"{os.getpid()}\n"


def test_it_can_be_held_again_and_is_let_go_on_an_error(tmp_path: Path) -> None:
    accelerator, waited = Accelerator(tmp_path / "lock"), list[str]()
    with pytest.raises(RuntimeError), accelerator.hold(waited.append):
        raise RuntimeError
    with accelerator.hold(waited.append):
        pass
    assert waited == []


def test_who_holds_it_may_hold_it_once_more_and_keeps_it(tmp_path: Path) -> None:
    path, waited, got = tmp_path / "lock", list[str](), threading.Event()
    accelerator = Accelerator(path)

    def second() -> None:
        with accelerator.hold(waited.append):
            got.set()

    with accelerator.hold(waited.append):
        with accelerator.hold(waited.append):
            pass
        thread = threading.Thread(target=second)
        thread.start()
        wait_until(lambda: bool(waited), "the other thread waits")
        assert not got.is_set()
    thread.join()
    assert got.is_set()


def test_it_is_kept_until_the_last_one_lets_go_in_whatever_order(tmp_path: Path) -> None:
    path, waited = tmp_path / "lock", list[str]()
    accelerator = Accelerator(path)
    outer, inner = accelerator.hold(waited.append), accelerator.hold(waited.append)
    outer.__enter__(), inner.__enter__()
    outer.__exit__(None, None, None)
    with holder(path) as other:
        assert line(other) == f"waiting for the accelerator: process {os.getpid()} is measuring"
        inner.__exit__(None, None, None)
        assert line(other) == "held"
    assert waited == []


def test_threads_of_one_process_wait_for_each_other_too(tmp_path: Path) -> None:
    path, waited, got = tmp_path / "lock", list[str](), threading.Event()

    def second() -> None:
        with Accelerator(path).hold(waited.append):
            got.set()

    with Accelerator(path).hold(waited.append):
        thread = threading.Thread(target=second)
        thread.start()
        wait_until(lambda: bool(waited), "the second thread waits")
        assert not got.is_set()
    thread.join()
    assert got.is_set()
    assert waited == [f"waiting for the accelerator: process {os.getpid()} is measuring"]


@pytest.mark.parametrize("content", ["", "not a pid\n", "\x00\xff"])
def test_a_holder_that_left_no_pid_is_another_process(tmp_path: Path, content: str) -> None:
    path = tmp_path / "lock"
    with holder(path) as first:
        assert line(first) == "held"
        path.write_text(content)
        with holder(path) as second:
            assert line(second) == "waiting for the accelerator: another process is measuring"


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that every user can enter (pytest's own are closed)."""
    folder = Path(tempfile.mkdtemp(prefix="llmbench-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_a_lock_file_that_may_only_be_read_still_locks(shared_folder: Path) -> None:
    """Another user's lock file: who can't write to it can lock it, and only stays unnamed."""
    path = shared_folder / "lock"
    path.write_text("1\n")
    path.chmod(0o444)
    user = (NOBODY,) if os.geteuid() == 0 else ()
    with holder(path, *user) as first:
        assert line(first) == "held"
        assert path.read_text() == "1\n"
        with holder(path) as second:
            assert line(second).startswith("waiting for the accelerator: ")


def test_a_path_that_can_not_be_a_lock_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for path in (tmp_path / "gone" / "lock", tmp_path / "link"):
        with pytest.raises(UsageError, match="can't be opened as the accelerator's lock"):
            Accelerator(path).hold(lambda _: None).__enter__()
    assert not (tmp_path / "elsewhere").exists()
