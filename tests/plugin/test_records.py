"""A saved parity record is replayed as tests, and only when it is asked for."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from lab import FEW_PLUGINS, ROOT, Lab, bracket

RECORDS = ROOT / "matrix" / "records"
RECORD = RECORDS / "parity_m4_pro.json"
BELOW_GATE = {
    "Qwen3-0.6B-4bit-concurrency-4-wall_s",
    "Qwen3-0.6B-4bit-concurrency-4-aggregate_tok_s",
    "Qwen3-0.6B-4bit-concurrency-4-decode_aggregate_tok_s",
    "Qwen3-30B-A3B-4bit-concurrency-4-decode_aggregate_tok_s",
    "Qwen3.6-35B-A3B-4bit-concurrency-1-decode_aggregate_tok_s",
    "Qwen3.6-35B-A3B-4bit-concurrency-4-decode_aggregate_tok_s",
    "Qwen3.6-35B-A3B-4bit-concurrency-8-decode_aggregate_tok_s",
    "Qwen3.6-35B-A3B-4bit-concurrency-4-wall_s",
    "Qwen3.6-35B-A3B-4bit-concurrency-4-aggregate_tok_s",
}
Replay = Callable[..., tuple[pytest.RunResult, list[pytest.TestReport]]]


@pytest.fixture
def replay(pytester: pytest.Pytester, no_outer_settings: None) -> Replay:
    """Run this repository's record with its own settings; gives the reports too."""

    class Reports:
        def __init__(self) -> None:
            self.found: list[pytest.TestReport] = []

        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.when == "call" or report.skipped:
                self.found.append(report)

    def run(*args: str) -> tuple[pytest.RunResult, list[pytest.TestReport]]:
        reports = Reports()
        here = ("-c", str(ROOT / "pyproject.toml"), f"--rootdir={ROOT}")
        result = pytester.runpytest_inprocess(*FEW_PLUGINS, *here, *args, plugins=[reports])
        return result, reports.found

    return run


@pytest.mark.parametrize(
    "words", [["test_mine.py", RECORD], [RECORD, "test_mine.py"], ["test_mine.py", "-o", f"llmbench_records={RECORDS}"]]
)
def test_a_test_of_the_users_own_runs_over_each_record_that_is_named(lab: Lab, words: list[str]) -> None:
    (lab.path / "test_mine.py").write_text("def test_own(llmbench_parity): assert llmbench_parity.gated\n")
    lab.run(*words, "-k", "test_own").assert_outcomes(passed=280)


def test_without_a_record_a_test_over_records_is_an_error(lab: Lab) -> None:
    (lab.path / "test_mine.py").write_text("def test_own(llmbench_parity): pass\n")
    result = lab.run("test_mine.py")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*no saved record to run over: name one on the command line, *"])


def test_the_m4_pro_record_gives_its_254_verdicts_and_26_skips(replay: Replay) -> None:
    result, reports = replay(str(RECORDS))
    result.assert_outcomes(passed=245, failed=9, skipped=26)
    assert {bracket(report.nodeid) for report in reports if report.failed} == BELOW_GATE
    skips = [report.longrepr[2] for report in reports if report.skipped and isinstance(report.longrepr, tuple)]
    assert sum("purge unavailable" in reason for reason in skips) == 24
    assert sum("Insufficient Memory" in reason for reason in skips) == 2
    message = next(r.longreprtext for r in reports if "Qwen3-0.6B-4bit-concurrency-4-wall_s" in r.nodeid)
    assert message.splitlines() == [
        "wall_s failed: nuvec 666 ms, mlx-lm 653 ms, ratio 0.9798, gate 0.98, n = 1",
        "samples: nuvec [0.666] s; mlx-lm [0.6525763329700567] s",
    ]
    _check_summary(result.outlines)


def _check_summary(lines: list[str]) -> None:
    """The terminal's summary equals the figures that the record itself stores."""
    stored = json.loads(RECORD.read_text())["summary"]

    def mean(name: str) -> float:
        return next(float(line[24:].split()[0]) for line in lines if line.startswith(f"geomean {name} "))

    assert mean("decode") == stored["decode_geomean"]["value"]
    assert mean("memory") == stored["memory_geomean"]["value"]
    assert mean("load warm") == stored["load_warm_geomean"]["value"]
    for name, found in stored["ttft_geomean"].items():
        assert mean(name if name == "legacy_prefill" else f"ttft {name}") == found["value"]
    for level, found in stored["concurrency_geomean"].items():
        assert mean(f"concurrency {level}") == found["value"]
    below = [
        f"below gate: {point} {found['model']} {found['ratio']:.4f}"
        for point, models in stored["below_gate"].items()
        for found in models
    ]
    assert [line for line in lines if line.startswith("below gate: ")] == below
    counts = ", ".join(f"{point} {len(models)}" for point, models in stored["below_goal"].items())
    assert f"below goal 1: {counts}" in lines


def test_another_gate_gives_other_outcomes(replay: Replay) -> None:
    result, reports = replay(str(RECORD), "--llmbench-gate=0.97", "-k", "section:concurrency")
    assert {bracket(r.nodeid) for r in reports if r.failed} == {
        "Qwen3.6-35B-A3B-4bit-concurrency-4-decode_aggregate_tok_s"
    }
    assert "gate 0.97" in result.stdout.str()


def test_the_unrounded_ratio_is_judged(replay: Replay) -> None:
    result, _ = replay(str(RECORD), "--llmbench-gate=1.0", "-k", "Qwen3.8-27B and section:decode")
    result.stdout.fnmatch_lines(["*ratio 0.9999*, gate 1, *"])


def test_results_of_a_record_reach_the_artefacts(replay: Replay, lab: Lab) -> None:
    _, reports = replay(
        str(RECORD), f"--llmbench-out={lab.out}", f"--junitxml={lab.path}/junit.xml", "-k", "Qwen3-0.6B and wall_s"
    )
    run = lab.run_json()
    assert len(run["results"]) == len(reports)
    failed = next(r for r in run["results"] if r["outcome"] == "failed")
    assert failed["extra"] == {
        "model_id": "mlx-community/Qwen3-0.6B-4bit",
        "section": "concurrency",
        "point": "4",
        "metric": "wall_s",
    }
    (verdict,) = failed["verdicts"]
    assert (verdict["gate"], verdict["value"], verdict["outcome"]) == (0.98, 0.666, "failed")


@pytest.fixture
def with_record(lab: Lab) -> Lab:
    """A folder with a record beside other JSON, and a test that has nothing to do with either."""
    (lab.path / "records").mkdir()
    (lab.path / "records" / "parity.json").write_text(RECORD.read_text())
    (lab.path / "records" / "package.json").write_text('{"name": "web"}\n')
    lab.pytester.makepyfile("def test_mine(): pass")
    return lab


@pytest.mark.parametrize("args", [[], ["-k", "mine or Qwen3"], ["."]])
def test_a_record_that_nobody_named_is_not_replayed(with_record: Lab, args: list[str]) -> None:
    assert [item.name for item in with_record.select(*args)] == ["test_mine"]


def test_a_named_folder_replays_its_records_and_leaves_other_json_alone(with_record: Lab) -> None:
    assert len(with_record.select("records")) == 280


def test_the_ini_value_replays_a_record_wherever_it_lies(with_record: Lab) -> None:
    with_record.ini("llmbench_records = records/parity.json\n")
    assert len(with_record.select()) == 281


def test_workers_know_what_was_named(with_record: Lab) -> None:
    with_record.ini("testpaths = records test_workers_know_what_was_named.py\n")
    with_record.spawn("-n1").assert_outcomes(passed=1)
    result = with_record.spawn("records", "-n1", "-k", "section:load and Qwen3-0.6B")
    result.assert_outcomes(passed=2, skipped=2)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "JSON"),
        ("[]", ""),
        ('{"schema": "other", "schema_version": 1}', "other"),
        ('{"schema": "nuvec-parity-record", "schema_version": 99}', "99"),
    ],
)
def test_a_named_file_that_is_no_record_is_a_collection_error_with_its_path(lab: Lab, text: str, why: str) -> None:
    (lab.path / "bad.json").write_text(text)
    result = lab.run("bad.json")
    result.assert_outcomes(errors=1)
    found = next(line for line in result.outlines if "bad.json: " in line or "bad.json:1" in line)
    assert why in found
    assert "Traceback" not in result.stdout.str()


def test_a_candidate_that_failed_is_an_error_not_a_skip(lab: Lab) -> None:
    record = json.loads(RECORD.read_text())
    text = json.dumps(_without_candidate(record))
    (lab.path / "parity.json").write_text(text)
    result = lab.run("parity.json", "-k", "section:decode and Qwen3-0.6B", "-rE")
    result.assert_outcomes(errors=1, passed=2)
    result.stdout.fnmatch_lines(["*the candidate failed: the engine crashed"])


def _without_candidate(record: dict[str, object]) -> dict[str, object]:
    """The record with the candidate's samples of one decode point taken away."""
    models = record["models"]
    assert isinstance(models, list)
    model = next(m for m in models if m["id"] == "mlx-community/Qwen3-0.6B-4bit")
    metric = model["decode"][0]["tok_s"]
    metric |= {"nuvec": None, "ratio": None, "reason": "the engine crashed"}
    del metric["gate_pass"], metric["goal_pass"]
    return record
