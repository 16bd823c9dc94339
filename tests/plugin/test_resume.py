"""A run that died is continued: what passed is kept, what failed fails again unmeasured, the rest is measured."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from lab import FEW_PLUGINS, Lab

from pytest_llmbench import journal


def start(lab: Lab, *args: str) -> subprocess.Popen[bytes]:
    """pytest in a process of its own, left running."""
    command = [sys.executable, "-m", "pytest", *FEW_PLUGINS, *args]
    with (lab.path / "log.txt").open("wb") as log:
        return subprocess.Popen(command, cwd=lab.path, stdout=log, stderr=subprocess.STDOUT)


def wait_for(lab: Lab, process: subprocess.Popen[bytes], entry: str) -> None:
    """Until a request to `entry` is under way."""
    deadline = time.monotonic() + 60
    while not any(event["id"] == entry for event in lab.events("stream")):
        assert process.poll() is None, (lab.path / "log.txt").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def crashed(lab: Lab) -> Lab:
    """A run of four tests (passed, failed, passed, passed) that was killed in the middle of the third."""
    lab.matrix(
        {"id": "one"},
        {"id": "two", "gates": {"decode_tok_s": {"at_least": 60}}},
        {"id": "three", "extra_args": ["--sleep", "60"]},
        {"id": "four"},
    )
    process = start(lab, "matrix.yaml", "--llmbench-out=out")
    try:
        wait_for(lab, process, "three")
    finally:
        process.kill()
        process.wait()
    text = (lab.path / "matrix.yaml").read_text()
    (lab.path / "matrix.yaml").write_text(text.replace("'60'", "'0'"))
    return lab


def test_a_kill_loses_only_the_test_in_flight_and_the_run_is_continued(crashed: Lab) -> None:
    lab = crashed
    assert [(r["entry"]["id"], r["outcome"]) for r in lab.journal()] == [("one", "passed"), ("two", "failed")]
    assert not (lab.out / "run.json").exists()
    lab.forget()

    result = lab.run("matrix.yaml", "--llmbench-resume=out", "-rs", "--junitxml=junit.xml")

    result.assert_outcomes(passed=2, failed=1, skipped=1)
    result.stdout.fnmatch_lines(["already done in the resumed run: decode_tok_s failed: 50.0 tok/s, gate at least*"])
    result.stdout.fnmatch_lines(["SKIPPED *already done in the resumed run: passed"])
    assert lab.opened() == ["three", "four"]
    assert lab.outcomes() == {
        "one-short": "passed",
        "two-short": "failed",
        "three-short": "passed",
        "four-short": "passed",
    }
    assert lab.run_json()["complete"] is True
    assert [r["entry"]["id"] for r in lab.journal()] == ["one", "two", "three", "four"]
    kinds = {name: [child.tag for child in case if child.tag != "properties"] for name, case in lab.junit().items()}
    assert kinds["two-short"] == ["failure"]


@pytest.mark.parametrize("args", [(), ("-W", "error")])
def test_a_torn_last_line_is_dropped_with_a_warning_that_stops_nothing(crashed: Lab, args: tuple[str, ...]) -> None:
    lab = crashed
    path = lab.out / "journal.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    lab.forget()
    result = lab.run("matrix.yaml", "--llmbench-resume=out", *args)
    result.stdout.fnmatch_lines(["llmbench: warning: *journal.jsonl: dropped a torn last line*"])
    result.assert_outcomes(passed=2, failed=1, skipped=1)
    assert lab.opened() == ["two", "three", "four"]
    kept = journal.read(path)
    assert kept.warning is None
    assert len(kept.run.results) == 4


def test_errors_are_run_again(lab: Lab) -> None:
    lab.matrix({"id": "a"}, {"id": "b", "extra_args": ["--broken", "broken"]})
    (lab.path / "broken").touch()
    lab.run("matrix.yaml", "--llmbench-out=out").assert_outcomes(passed=1, errors=1)
    (lab.path / "broken").unlink()
    lab.forget()
    lab.run("matrix.yaml", "--llmbench-resume=out").assert_outcomes(passed=1, skipped=1)
    assert lab.opened() == ["b"]
    assert lab.outcomes() == {"a-short": "passed", "b-short": "passed"}
    assert [(r["entry"]["id"], r["outcome"]) for r in lab.journal()] == [
        ("a", "passed"),
        ("b", "error"),
        ("b", "passed"),
    ]


def test_a_resumed_run_may_write_elsewhere_and_is_whole_there(lab: Lab) -> None:
    lab.matrix({"id": "a"}, {"id": "b"})
    lab.run("matrix.yaml", "--llmbench-out=first", "-k", "a-short").assert_outcomes(passed=1)
    lab.run("matrix.yaml", "--llmbench-resume=first", "--llmbench-out=out").assert_outcomes(passed=1, skipped=1)
    assert lab.outcomes() == {"a-short": "passed", "b-short": "passed"}
    assert [result["entry"]["id"] for result in lab.journal()] == ["a", "b"]
    assert len(journal.read(lab.path / "first" / "journal.jsonl").run.results) == 1


def test_a_resumed_test_that_is_not_selected_stays_in_the_record(lab: Lab) -> None:
    lab.matrix({"id": "a"}, {"id": "b"})
    lab.run("matrix.yaml", "--llmbench-out=out", "-k", "a-short")
    lab.run("matrix.yaml", "--llmbench-resume=out", "-k", "b-short").assert_outcomes(passed=1)
    assert lab.outcomes() == {"a-short": "passed", "b-short": "passed"}


@pytest.mark.parametrize("text", [None, "", "{}\n", "not json\n"])
def test_a_folder_without_a_journal_is_refused_by_name(lab: Lab, text: str | None) -> None:
    if text is not None:
        lab.out.mkdir()
        (lab.out / "journal.jsonl").write_text(text)
    lab.matrix({"id": "a"})
    result = lab.run("matrix.yaml", "--llmbench-resume=out")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*journal.jsonl*"])
    assert "Traceback" not in result.stderr.str()


def test_ctrl_c_closes_the_target_and_writes_what_there_is(lab: Lab) -> None:
    lab.matrix({"id": "one"}, {"id": "two", "extra_args": ["--sleep", "60"]}, {"id": "three"})
    process = start(lab, "matrix.yaml", "--llmbench-out=out")
    try:
        wait_for(lab, process, "two")
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(timeout=60) == pytest.ExitCode.INTERRUPTED
    finally:
        process.kill()
    assert lab.opened() == ["one", "two"]
    assert lab.outcomes() == {"one-short": "passed"}
    assert lab.run_json()["complete"] is False
    assert "KeyboardInterrupt" in (lab.path / "log.txt").read_text()


def test_a_run_made_with_other_options_is_not_continued(crashed: Lab) -> None:
    result = crashed.run("matrix.yaml", "--llmbench-resume=out", "--llmbench-runs=9")
    assert result.ret != 0
    result.stderr.fnmatch_lines(["*that run was made with runs *give the same, or start anew*"])


def test_settings_that_changed_are_measured_again(lab: Lab) -> None:
    lab.matrix({"id": "a"})
    lab.run("matrix.yaml", "--llmbench-out=out").assert_outcomes(passed=1)
    lab.forget()
    path = lab.path / "matrix.yaml"
    path.write_text(
        "settings: {runs: 2}\n" + path.read_text()
        if "settings" not in path.read_text()
        else path.read_text().replace("runs: 1", "runs: 2")
    )
    lab.run("matrix.yaml", "--llmbench-resume=out").assert_outcomes(passed=1)
    assert lab.opened() == ["a"]


def test_a_journal_that_knows_none_of_the_tests_is_an_error(lab: Lab) -> None:
    lab.matrix({"id": "a"})
    lab.run("matrix.yaml", "--llmbench-out=out").assert_outcomes(passed=1)
    (lab.path / "other.yaml").write_text((lab.path / "matrix.yaml").read_text())
    result = lab.run("other.yaml", "--llmbench-resume=out")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*none of these tests is in its journal*"])
