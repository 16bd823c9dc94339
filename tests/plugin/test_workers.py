"""With workers, and with two sessions at once, one entry is open at a time on the host."""

from __future__ import annotations

import csv
import itertools
import subprocess
import sys
from typing import Any

import pytest
from lab import FEW_PLUGINS, ROOT, Lab

from pytest_llmbench import distribute

RECORD = ROOT / "matrix" / "records" / "parity_m4_pro.json"
SLEEPY = ["--sleep", "0.03"]


def intervals(lab: Lab) -> list[tuple[int, int, int]]:
    """(open, close, pid) of every time that an entry was open, by opening."""
    found: list[tuple[int, int, int]] = []
    begun: dict[tuple[int, str], dict[str, Any]] = {}
    for event in lab.events("open", "close"):
        key = (event["pid"], event["id"])
        if event["what"] == "open":
            begun[key] = event
        else:
            found.append((begun.pop(key)["at_ns"], event["at_ns"], event["pid"]))
    assert not begun
    return sorted(found)


def check_one_at_a_time(lab: Lab) -> None:
    found = intervals(lab)
    assert len(found) > 1
    for (_, closed, _), (opened, _, _) in itertools.pairwise(found):
        assert closed <= opened


@pytest.fixture
def three(lab: Lab) -> Lab:
    lab.matrix(
        {"id": "a", "extra_args": SLEEPY},
        {"id": "b", "extra_args": SLEEPY, "gates": {"decode_tok_s": {"at_least": 60}}},
        {"id": "c", "extra_args": [*SLEEPY, "--fail", "stream"]},
        prompts=["short", "long"],
    )
    lab.ini("llmbench_matrix = matrix.yaml\n")
    return lab


def test_a_record_that_workers_replay_is_in_the_summary_and_the_reports(lab: Lab) -> None:
    words = ("--llmbench-compare", RECORD, "--llmbench-out=out", "--llmbench-report=csv")
    result = lab.spawn("-n2", RECORD, "-k", "Qwen3-0.6B-4bit-decode", *words)
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["*llmbench: parity_m4_pro.json*", "0 regressions, *", "llmbench: wrote *"])
    rows = list(csv.DictReader((lab.out / "report.csv").read_text(encoding="utf-8").splitlines()))
    assert {row["side"] for row in rows if row["id"] == "Qwen3-0.6B-4bit-decode-r1"} == {"candidate", "baseline"}


def test_one_worker_gets_the_whole_matrix_and_opens_each_entry_once(three: Lab) -> None:
    three.pytester.makepyfile(test_plain="def test_one(): pass\ndef test_two(): pass\n")
    result = three.spawn("-n2", "matrix.yaml", "test_plain.py", "--llmbench-out=out", "--junitxml=junit.xml")
    result.assert_outcomes(passed=4, failed=2, errors=2)
    check_one_at_a_time(three)
    assert three.opened() == ["a", "b", "c"]
    assert len({pid for _, _, pid in intervals(three)}) == 1
    result.stdout.fnmatch_lines(["*llmbench: short*", "a   fake *", "b   fake *", "llmbench: wrote *run.json"])
    check_artefacts(three)


def check_artefacts(three: Lab) -> None:
    """What the workers found has reached the controller's files."""
    expected = {"a": "passed", "b": "failed", "c": "error"}
    assert three.outcomes() == {f"{i}-{p}": outcome for i, outcome in expected.items() for p in ("short", "long")}
    assert len(three.journal()) == 6
    run = three.run_json()
    measured = [r for r in run["results"] if r["measurement"] is not None]
    assert [r["measurement"]["metrics"]["decode_tok_s"] for r in measured] == [pytest.approx(50)] * 4
    junit = three.junit()
    kinds = {name: [c.tag for c in junit[name] if c.tag != "properties"] for name in three.outcomes()}
    assert kinds == {
        name: {"passed": [], "failed": ["failure"], "error": ["error"]}[outcome]
        for name, outcome in three.outcomes().items()
    }


@pytest.mark.parametrize("dist", ["load", "worksteal", "loadfile"])
def test_no_distribution_opens_two_entries_at_once_for_users_tests(three: Lab, dist: str) -> None:
    text = (
        "import pytest\n"
        '@pytest.mark.llmbench(id="a")\ndef test_a(llmbench_measurement): pass\n'
        '@pytest.mark.llmbench(id="b")\ndef test_b(llmbench_measurement): pass\n'
    )
    for name in ("test_one", "test_two"):
        (three.path / f"{name}.py").write_text(text)
    result = three.spawn("-n2", f"--dist={dist}", "test_one.py", "test_two.py")
    result.assert_outcomes(passed=8)
    check_one_at_a_time(three)


def test_an_explicit_distribution_of_a_matrix_is_serialised_by_the_lock(three: Lab) -> None:
    three.spawn("-n2", "--dist=worksteal", "matrix.yaml").assert_outcomes(passed=2, failed=2, errors=2)
    check_one_at_a_time(three)


def test_two_sessions_on_one_host_wait_for_each_other(three: Lab) -> None:
    command = [sys.executable, "-m", "pytest", *FEW_PLUGINS, "-q", "matrix.yaml", "-k", "a- or b-"]
    both = [subprocess.Popen(command, cwd=three.path, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait(timeout=60) for process in both] == [pytest.ExitCode.TESTS_FAILED] * 2
    check_one_at_a_time(three)
    assert len(intervals(three)) == 4


def test_a_run_is_resumed_with_workers(three: Lab) -> None:
    three.run("matrix.yaml", "--llmbench-out=out", "-k", "a-short or b-short")
    three.forget()
    result = three.spawn("-n2", "matrix.yaml", "--llmbench-resume=out")
    result.assert_outcomes(passed=1, skipped=1, failed=2, errors=2)
    assert three.outcomes()["a-short"] == "passed"
    measured = {(event["id"], event["prompt"]) for event in three.events("stream")}
    assert measured == {("a", "long"), ("b", "long"), ("c", "short"), ("c", "long")}


@pytest.mark.parametrize(
    ("nodeid", "scope"),
    [
        ("matrix/smoke.yaml::test_throughput[a-short]", "llmbench"),
        ("m.yml::test_throughput[a-short]", "llmbench"),
        ("records/x.json::test_parity[a]", "llmbench"),
        ("tests/test_x.py::test_y[m.yaml]", "tests/test_x.py::test_y[m.yaml]"),
    ],
)
def test_files_of_benchmarks_share_a_scope(nodeid: str, scope: str) -> None:
    assert distribute.scope_of(nodeid) == scope
