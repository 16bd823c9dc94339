"""The journal survives a crash and says where it was damaged."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from process_helpers import REPOSITORY, wait_text

from pytest_llmbench.errors import RecordError
from pytest_llmbench.journal import Journal, read, set_aside
from pytest_llmbench.record import Outcome, Result

HEAD = {"created": "2026-01-31T12:00:00.000+00:00", "environment": {"chip": "x"}, "options": {}}


def result(nodeid: str, outcome: Outcome = "passed") -> Result:
    return Result(nodeid=nodeid, outcome=outcome, duration_s=1.0, finished_at="now", verdicts=[])


def write(path: Path, *results: Result) -> Path:
    journal = Journal(path, **HEAD)  # type: ignore[arg-type]
    for each in results:
        journal.write(each)
    journal.close()
    return path


def outcomes(path: Path) -> dict[str, str]:
    return {r.nodeid: r.outcome for r in read(path).run.results}


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    found = read(write(tmp_path / "new" / "j", result("a"), result("b", "failed")))
    assert [r.nodeid for r in found.run.results] == ["a", "b"]
    assert found.run.environment == {"chip": "x"}
    assert found.run.complete is False
    assert found.warning is None


def test_a_line_is_in_the_file_when_write_returns_even_if_the_process_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys, time, pathlib\n"
        "from pytest_llmbench.journal import Journal\nfrom pytest_llmbench.record import Result\n"
        "path = pathlib.Path(sys.argv[1])\n"
        "journal = Journal(path, created='2026-01-31T12:00:00.000+00:00', environment={}, options={})\n"
        "journal.write(Result(nodeid='a', outcome='passed', duration_s=1.0, finished_at='now', verdicts=[]))\n"
        "path.with_name('ready').write_text('yes\\n')\ntime.sleep(60)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "j")], env=environment) as process:
        wait_text(tmp_path / "ready")
        process.send_signal(signal.SIGKILL)
    assert outcomes(tmp_path / "j") == {"a": "passed"}


def test_two_at_once_are_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "j"
    first = Journal(path, **HEAD)  # type: ignore[arg-type]
    for other in (lambda: Journal(path, **HEAD), lambda: set_aside(path)):  # type: ignore[arg-type]
        with pytest.raises(RecordError, match="j: another pytest writes it; wait for its end, or name another folder"):
            other()
    first.write(result("a"))
    first.close()
    write(path, result("b"))
    assert outcomes(path) == {"a": "passed", "b": "passed"}
    set_aside(path)
    assert outcomes(tmp_path / "j.previous") == {"a": "passed", "b": "passed"}
    assert path.read_bytes() == b""
    set_aside(path)
    assert outcomes(tmp_path / "j.previous") == {"a": "passed", "b": "passed"}


def test_who_opened_it_before_it_was_set_aside_cant_lock_it_beside_the_new_run(tmp_path: Path) -> None:
    path = write(tmp_path / "j", result("a"))
    with path.open("ab") as late:
        set_aside(path)
        new = Journal(path, **HEAD)  # type: ignore[arg-type]
        with pytest.raises(BlockingIOError):
            fcntl.flock(late, fcntl.LOCK_EX | fcntl.LOCK_NB)
        new.close()


def test_a_full_disk_is_told_at_the_line_and_not_again_at_the_end(tmp_path: Path) -> None:
    program = (
        "import pathlib, resource, sys\n"
        "from pytest_llmbench.journal import Journal\nfrom pytest_llmbench.record import Result\n"
        "now = '2026-01-31T12:00:00.000+00:00'\n"
        "journal = Journal(pathlib.Path(sys.argv[1]), created=now, environment={}, options={})\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))\n"
        "one = Result(nodeid='a' * 50, outcome='passed', duration_s=1.0, finished_at='now', verdicts=[])\n"
        "try:\n    [journal.write(one) for _ in range(9)]\nexcept OSError:\n    print('told')\n"
        "journal.close()\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "j")]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True)
    assert (done.stdout, done.stderr, done.returncode) == ("told\n", "", 0)
    assert outcomes(tmp_path / "j") == {"a" * 50: "passed"}
    assert (read(tmp_path / "j").warning or "").startswith(f"{tmp_path / 'j'}: dropped a torn last line")


def test_a_torn_last_line_is_dropped_with_a_warning_wherever_it_is_torn(tmp_path: Path) -> None:
    path = write(tmp_path / "j", result("a"), result("é"))
    whole = path.read_bytes()
    second = whole.rindex(b"\n", 0, -1) + 1
    for end in range(second + 1, len(whole)):
        path.write_bytes(whole[:end])
        found = read(path)
        assert [r.nodeid for r in found.run.results] == ["a"]
        assert found.warning is not None
        assert "torn last line" in found.warning


def test_going_on_cuts_the_torn_line_and_keeps_the_head(tmp_path: Path) -> None:
    path = write(tmp_path / "j", result("a"), result("b"))
    path.write_bytes(path.read_bytes()[:-10])
    write(path, result("c"))
    assert outcomes(path) == {"a": "passed", "c": "passed"}
    assert path.read_text().count("schema_version") == 1


def test_a_torn_head_is_written_anew(tmp_path: Path) -> None:
    path = write(tmp_path / "j")
    path.write_bytes(path.read_bytes()[:30])
    assert outcomes(write(path, result("a"))) == {"a": "passed"}


def test_the_last_result_of_a_test_counts(tmp_path: Path) -> None:
    assert outcomes(write(tmp_path / "j", result("a", "failed"), result("a"))) == {"a": "passed"}


@pytest.mark.parametrize(
    "line",
    [b"{]", b"", b"[1]", b'{"nodeid": "x"}', b'{"nodeid": "\xff"}', b"NaN", b'{"schema": "llmbench-run"}'],
    ids=repr,
)
def test_a_damaged_line_in_the_middle_is_an_error_with_its_number(tmp_path: Path, line: bytes) -> None:
    path = write(tmp_path / "j", result("a"), result("b"))
    head, _, last = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([head, line, last]) + b"\n")
    with pytest.raises(RecordError, match="j:2: "):
        read(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"measurement": {}}, "measurement: missing key 'target'"),
        ({"verdicts": ["a"]}, 'verdicts[0]: expected an object, found "a"'),
        ({"entry": {"id": ["a"]}}, "entry.id: expected a string, found an array"),
    ],
)
def test_a_line_that_is_damaged_inside_is_an_error_with_its_number_and_its_place(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    path = write(tmp_path / "j", result("a"))
    head, line = path.read_text().splitlines()
    path.write_text(f"{head}\n{json.dumps(json.loads(line) | change)}\n")
    with pytest.raises(RecordError, match=re.escape(f"j:2: {said}")):
        read(path)


@pytest.mark.parametrize("content", [b"", b'{"schema": "llmb'])
def test_a_journal_without_a_whole_head_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "j").write_bytes(content)
    with pytest.raises(RecordError, match="first line is missing"):
        read(tmp_path / "j")


def test_a_journal_that_is_not_there_is_a_record_error(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="can't be read"):
        read(tmp_path / "j")


@pytest.mark.parametrize("content", [b"my notes\n", b"my notes", b'{"schema": "other", "schema_version": 1}\n'])
def test_another_file_is_neither_read_nor_written_to(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "j"
    path.write_bytes(content)
    with pytest.raises(RecordError):
        read(path)
    with pytest.raises(RecordError):
        write(path, result("a"))
    assert path.read_bytes() == content


def test_another_version_is_refused_by_number(tmp_path: Path) -> None:
    path = write(tmp_path / "j")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema_version": 9}) + "\n")
    with pytest.raises(RecordError, match="version 9"):
        read(path)
