"""What the gate makes of a run: exit code, GitHub's files, annotations."""

from __future__ import annotations

import html
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from gate_kit import RECORD_FILE, Repository, clean_environment, replay
from hypothesis import given
from hypothesis import strategies as st

from gate import report
from gate.results import Case, Run, read_junit
from pytest_llmbench import verdict


def junit(folder: Path, *cases: str) -> Path:
    path = folder / "junit.xml"
    path.write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")
    return path


def record_copy(folder: Path) -> Path:
    """The saved record, under the name that a run gives it."""
    path = folder / "parity.json"
    path.write_bytes(RECORD_FILE.read_bytes())
    return path


def on_github(folder: Path) -> dict[str, str]:
    names = ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT")
    return {"GITHUB_ACTIONS": "true", **{name: str(folder / name) for name in names}}


def outputs(folder: Path) -> dict[str, str]:
    lines = (folder / "GITHUB_OUTPUT").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_a_summary_that_cant_be_written_is_said_and_changes_no_verdict(repository: Repository, tmp_path: Path) -> None:
    missing = tmp_path / "no" / "summary"
    done = repository.gate("--judge", str(tmp_path), GITHUB_STEP_SUMMARY=str(missing))
    assert done.returncode == 3
    assert done.stderr == f"{missing}: can't be written (No such file or directory)\n"


def test_results_below_the_gate_are_red_with_all_that_ci_shows(
    repository: Repository, replayed: Path, tmp_path: Path
) -> None:
    repository.script(*replayed.iterdir(), status=1)
    done = repository.gate("--all", **on_github(tmp_path))
    assert done.returncode == 1
    page = (tmp_path / "GITHUB_STEP_SUMMARY").read_text()
    assert page.startswith(
        "## Parity gate: failed\n\n9 below the gate or wrong, 26 skipped, 245 passed.\n\n- all models, tier quick: "
    )
    assert page.count("| failed |") == 9
    assert "| failed | 0.9798 | — | 0.98 |" in page
    assert "geomean decode           1.0088  (n 36)" in page
    assert outputs(tmp_path) == {
        "outcome": "failed",
        "junit": str(repository.out / "junit.xml"),
        "record": str(repository.out / "parity.json"),
    }
    errors = [line for line in done.stdout.splitlines() if line.startswith("::error ")]
    assert len(errors) == 9
    assert errors[0].startswith(
        "::error title=Parity gate::test_parity[Qwen3-0.6B-4bit-concurrency-4-wall_s]: wall_s failed: "
    )


def test_what_tests_print_is_no_command_to_github(repository: Repository, replayed: Path, tmp_path: Path) -> None:
    repository.script(*replayed.iterdir(), status=1)
    lines = repository.gate("--all", **on_github(tmp_path)).stdout.splitlines()
    stop = next(line for line in lines if line.startswith("::stop-commands::"))
    resume = f"::{stop.removeprefix('::stop-commands::')}::"
    assert lines.index(stop) < lines.index("::set-env name=PATH::/evil") < lines.index(resume)


def test_in_a_terminal_the_page_is_plain_text(repository: Repository, replayed: Path) -> None:
    repository.script(*replayed.iterdir(), status=1)
    done = repository.gate("--all")
    assert "\n## Parity gate: failed\n" in done.stdout
    assert "| test_parity[Qwen3-0.6B-4bit-concurrency-4-wall_s] | failed | 0.9798 |" in done.stdout
    assert "::error" not in done.stdout
    assert "stop-commands" not in done.stdout


def test_a_run_above_its_gate_is_green(repository: Repository, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    replay(run, RECORD_FILE, "--llmbench-gate=0.9")
    repository.script(*run.iterdir())
    done = repository.gate("--all", **on_github(tmp_path))
    assert done.returncode == 0
    assert outputs(tmp_path)["outcome"] == "passed"
    assert "::error" not in done.stdout


def test_a_candidate_that_could_not_be_measured_is_not_below_the_gate(repository: Repository, tmp_path: Path) -> None:
    record = json.loads(RECORD_FILE.read_text())
    for point in record["models"][0]["decode"]:
        point["tok_s"] |= {"nuvec": None, "ratio": None, "reason": "it crashed"}
    record["models"][0] |= {"status": "partial", "reason": "it crashed"}
    record["models"], record["sections"] = record["models"][:1], ["decode"]
    for section in ("ttft", "memory", "load", "concurrency"):
        record["models"][0].pop(section, None)
    path = tmp_path / "parity.json"
    path.write_text(json.dumps(record))
    run = tmp_path / "run"
    run.mkdir()
    replay(run, path)
    repository.script(*run.iterdir(), status=1)
    done = repository.gate("--all", **on_github(tmp_path))
    assert done.returncode == 3
    assert outputs(tmp_path)["outcome"] == "error"
    assert "3 of 3 results could not be measured" in done.stdout


@pytest.mark.parametrize(
    ("status", "cases", "code", "message"),
    [
        (0, ('<testcase name="a"><skipped message="no baseline"/></testcase>',), 3, "nothing was measured"),
        (1, ('<testcase name="a"/>',), 3, "pytest failed, but no test did"),
        (1, ('<testcase name="a"><error message="no model"/></testcase>',), 3, "1 of 1 results could not be measured"),
        (1, ('<testcase name="a"><failure message="x"/><error message="y"/></testcase>',), 1, "1 below the gate"),
        (2, ('<testcase name="a"><failure message="x"/></testcase>',), 3, "pytest ended with status 2"),
        (3, ('<testcase name="a"/>',), 3, "pytest ended with status 3"),
        (6, ('<testcase name="a"/>',), 3, "pytest couldn't write all of its files"),
        (4, (), 2, "pytest refused its arguments or the plan"),
        (5, (), 2, "pytest found no test for these models"),
    ],
)
def test_only_what_was_measured_and_held_is_green(
    repository: Repository, tmp_path: Path, status: int, cases: tuple[str, ...], code: int, message: str
) -> None:
    repository.script(junit(tmp_path, *cases), record_copy(tmp_path), status=status)
    done = repository.gate("--all")
    assert done.returncode == code, done.stdout
    assert message in done.stdout


def test_without_a_readable_record_nothing_is_green(repository: Repository, tmp_path: Path) -> None:
    green = junit(tmp_path, '<testcase name="a"/>')
    repository.script(green)
    missing = repository.gate("--all")
    (tmp_path / "parity.json").write_text('{"schema": "llmbench-parity-record", "schema_version": 99}')
    repository.script(green, tmp_path / "parity.json")
    unknown = repository.gate("--all")
    assert (missing.returncode, unknown.returncode) == (3, 3)
    assert "parity.json wasn't written" in missing.stdout
    assert "version 99 of 'llmbench-parity-record' is unknown" in unknown.stdout


def test_what_an_earlier_run_left_is_not_judged(repository: Repository, tmp_path: Path) -> None:
    repository.script(junit(tmp_path, '<testcase name="a"/>'), record_copy(tmp_path))
    assert repository.gate("--all").returncode == 0
    repository.script()
    done = repository.gate("--all", **on_github(tmp_path))
    assert done.returncode == 3
    assert "junit.xml wasn't written" in done.stdout
    assert outputs(tmp_path) == {"outcome": "error", "junit": "", "record": ""}


def test_a_finished_run_is_judged_again_without_measuring(repository: Repository, replayed: Path) -> None:
    done = repository.gate("--judge", str(replayed))
    assert done.returncode == 1
    assert "9 below the gate or wrong" in done.stdout
    assert not repository.was_called


def test_a_killed_pytest_is_no_verdict(repository: Repository, tmp_path: Path) -> None:
    kill = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    repository.script(junit(tmp_path, '<testcase name="a"/>'), record_copy(tmp_path), then=kill)
    done = repository.gate("--all")
    assert done.returncode == 3
    assert "pytest ended with status -9" in done.stdout


def test_told_to_end_the_gate_waits_until_pytest_has_stopped_its_servers(repository: Repository) -> None:
    repository.script(
        then="import signal, time\n"
        "def end(*_):\n"
        "    time.sleep(0.3)\n"
        "    (here / 'stopped').touch()\n"
        "    sys.exit(2)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "(here / 'running').touch()\n"
        "time.sleep(60)"
    )
    gate = subprocess.Popen(
        repository.command("--all"), cwd=repository.path, env=clean_environment(), stdout=subprocess.DEVNULL
    )
    while not (repository.path / "running").exists():
        assert gate.poll() is None
        time.sleep(0.02)
    gate.send_signal(signal.SIGTERM)
    assert gate.wait(timeout=30) == 3
    assert (repository.path / "stopped").exists()


def cells(row: str) -> list[str]:
    """The cells of a row of a Markdown table, as a browser shows them."""
    return [html.unescape(cell.strip()) for cell in row.strip("|").split("|")]


def test_names_and_messages_are_shown_and_never_obeyed(repository: Repository, tmp_path: Path) -> None:
    name = "test_parity[a|b-&lt;script&gt;alert(1)&lt;/script&gt;]"
    message = "Failed: `x` | [y](http://z) \x01 *bold* ::error::z%0A, ratio 0.5&#10;::set-env name=A::b"
    case = f'<testcase name="{name}"><failure message="{message.replace(chr(1), "#x1")}"/></testcase>'
    repository.script(junit(tmp_path, case), record_copy(tmp_path), status=1)
    done = repository.gate("--all", **on_github(tmp_path))
    page = (tmp_path / "GITHUB_STEP_SUMMARY").read_text()
    assert "<script" not in page
    row = next(line for line in page.splitlines() if "failed |" in line)
    assert cells(row) == [
        "test_parity[a|b-<script>alert(1)</script>]",
        *("failed", "0.5", "—", "—"),
        "`x` | [y](http://z) #x1 *bold* ::error::z%0A, ratio 0.5",
    ]
    assert not any(line.startswith("::set-env name=A") for line in done.stdout.splitlines())
    assert "::error::z%250A" in done.stdout


@given(st.text())
def test_escaped_text_is_one_line_that_shows_as_it_was(text: str) -> None:
    escaped = report.escape(text)
    assert escaped.isprintable()
    assert not re.search(r"[`*_|<>\[\]\\]|&(?!#)", escaped)
    assert html.unescape(escaped) == report.one_line(text)


@given(st.text())
def test_an_annotation_is_one_line(text: str) -> None:
    assert not set("\r\n") & set(report.annotation("error", text))


def test_the_page_stays_below_githubs_limit_whatever_failed() -> None:
    cases = tuple(Case(name=f"test[{n}]" + "<" * 500, state="failed", message="é|" * 400) for n in range(3000))
    run = Run(cases=cases, record=("é<&" * 200,) * 3000, faults=(), code=1)
    page = report.page(report.Verdict(outcome="failed", headline="<" * 5000, notes=("<" * 500,), run=run))
    rows = page.count("| failed |")
    assert len(page.encode()) < report.MOST_BYTES
    assert rows > 3
    assert "&amp;é&lt;" in page
    assert f"… and {3000 - rows} more: they are in junit's file." in page


def test_ratio_interval_and_gate_come_from_the_verdicts_own_words(tmp_path: Path) -> None:
    found = verdict.Verdict(
        outcome=verdict.Outcome.FAILED,
        metric="tok_s",
        value=97.0,
        reference=100.0,
        ratio=0.97,
        interval=(0.961, 0.975),
        gate=0.98,
        n=9,
        reason="",
    )
    case = Case(name="x", state="failed", message=found.message(candidate="engine", baseline="mlx-lm"))
    assert (case.ratio, case.interval, case.gate) == ("0.9700", "0.9610 to 0.9750", "0.98")


def test_inconclusive_results_are_counted(repository: Repository, tmp_path: Path) -> None:
    properties = '<properties><property name="llmbench.tok_s.outcome" value="inconclusive"/></properties>'
    cases = [f'<testcase name="{name}">{properties}</testcase>' for name in "ab"]
    repository.script(junit(tmp_path, *cases, '<testcase name="c"/>'), record_copy(tmp_path))
    done = repository.gate("--all")
    assert done.returncode == 0
    assert "3 passed, 2 of them inconclusive." in done.stdout


def test_junit_as_pytest_writes_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "@pytest.fixture\ndef broken(): raise OSError('a|b')\n"
        "def test_pass(): pass\n"
        "def test_fail(): pytest.fail('one\\ntwo')\n"
        "def test_error(broken): pass\n"
        "def test_skip(): pytest.skip('no')\n"
        "@pytest.mark.xfail(reason='known')\ndef test_known(): raise ValueError\n"
    )
    subprocess.run(
        [sys.executable, "-m", "pytest", "--junitxml=junit.xml", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env=clean_environment(),
        stdout=subprocess.DEVNULL,
        check=False,
    )
    cases = {case.name: (case.state, case.message) for case in read_junit(tmp_path / "junit.xml")}
    assert cases["test_pass"] == ("passed", "")
    assert cases["test_fail"] == ("failed", "one")
    assert cases["test_error"] == ("error", 'failed on setup with "OSError: a|b"')
    assert cases["test_skip"] == ("skipped", "no")
    assert cases["test_known"] == ("skipped", "known")


def test_a_checkpoint_that_isnt_there_is_an_error_of_the_real_run(repository: Repository, tmp_path: Path) -> None:
    done = repository.gate("--models", "Qwen3-0.6B-4bit", HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path / "empty"))
    assert done.returncode == 3, done.stdout + done.stderr
    assert " results could not be measured" in done.stdout
    assert "passed" not in done.stdout.partition("## Parity gate: error")[2].splitlines()[2]
