"""`--llmbench-compare`: a test that got worse fails, in junit too; what is missing and what differs is said."""

from __future__ import annotations

import csv
import json

import pytest
from lab import ROOT, Lab, properties

RECORD = ROOT / "matrix" / "records" / "parity_m4_pro.json"
COMPARE = ("--llmbench-compare=saved", "--llmbench-compare-fail=decode_tok_s:5%,ttft_s:10%")


def rated(**rates: float) -> list[dict[str, object]]:
    return [{"id": name, "extra_args": ["--rate", str(rate)]} for name, rate in rates.items()]


@pytest.fixture
def saved(lab: Lab) -> Lab:
    """A lab with a saved run: `a` and `b` at 50 tokens per second, 3 runs."""
    lab.matrix(*rated(a=50, b=50), settings={"runs": 3})
    lab.run("matrix.yaml", "--llmbench-out=saved").assert_outcomes(passed=2)
    return lab


def test_a_test_that_got_worse_fails_and_junit_is_red(saved: Lab) -> None:
    saved.matrix(*rated(a=40, b=50), settings={"runs": 3})
    result = saved.run("matrix.yaml", *COMPARE, "--llmbench-out=out", "--junitxml=junit.xml")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["decode_tok_s failed: now 40.0 tok/s, saved 50.0 tok/s, ratio 0.8000 (interval *), gate 0.95, n = 3"]
    )
    assert saved.outcomes() == {"a-short": "failed", "b-short": "passed"}
    case = saved.junit()["a-short"]
    assert case.find("failure") is not None
    assert properties(case)["llmbench.compare.decode_tok_s.outcome"] == "failed"
    assert float(properties(case)["llmbench.compare.decode_tok_s.ratio"]) == pytest.approx(0.8)
    (verdict, _) = next(r["verdicts"] for r in saved.run_json()["results"] if r["outcome"] == "failed")
    assert (verdict["rule"], verdict["metric"]) == ("compare", "decode_tok_s")


def test_what_is_as_fast_or_faster_passes(saved: Lab) -> None:
    saved.matrix(*rated(a=50, b=80), settings={"runs": 3})
    result = saved.run("matrix.yaml", *COMPARE)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*llmbench: compared with*", "0 regressions, 1 improved, *"])


def test_without_a_limit_nothing_fails_and_the_difference_is_shown(saved: Lab) -> None:
    saved.matrix(*rated(a=40, b=50), settings={"runs": 3})
    result = saved.run("matrix.yaml", "--llmbench-compare=saved/run.json")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["a-short*decode_tok_s*-20.0%*worse"])


def test_what_is_missing_on_either_side_is_named(saved: Lab) -> None:
    saved.matrix(*rated(a=50, c=50), settings={"runs": 3})
    result = saved.run("matrix.yaml", *COMPARE, "--junitxml=junit.xml")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["only in the old run: b-short", "only in the new run: c-short"])
    assert properties(saved.junit()["c-short"])["llmbench.compare"] == "not in the saved run"


def test_with_require_a_missing_figure_is_an_error(saved: Lab) -> None:
    saved.matrix(*rated(a=50, c=50), settings={"runs": 3})
    result = saved.run("matrix.yaml", *COMPARE, "--llmbench-require")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*c-short is not in the saved run*"])


def test_another_machine_is_said(saved: Lab) -> None:
    path = saved.path / "saved" / "run.json"
    data = json.loads(path.read_text())
    data["environment"] |= {"chip": "Apple M9", "fingerprint": "0123456789ab"}
    path.write_text(json.dumps(data))
    saved.run("matrix.yaml", *COMPARE).stdout.fnmatch_lines(["not the same machine: chip: Apple M9 → *"])


def test_a_run_with_nothing_in_common_says_so(saved: Lab) -> None:
    saved.matrix(*rated(z=50), settings={"runs": 3})
    saved.run("matrix.yaml", *COMPARE).stdout.fnmatch_lines(["llmbench: warning: compared nothing: *"])


def test_workers_compare_too(saved: Lab) -> None:
    saved.matrix(*rated(a=40, b=50), settings={"runs": 3})
    result = saved.spawn("matrix.yaml", *COMPARE, "-n2", "-p", "xdist")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["1 regression, *"])


def test_the_saved_run_is_read_before_it_is_overwritten(saved: Lab) -> None:
    saved.matrix(*rated(a=40, b=50), settings={"runs": 3})
    saved.run("matrix.yaml", *COMPARE, "--llmbench-out=saved").assert_outcomes(passed=1, failed=1)


def test_a_test_that_fails_anyway_says_its_own_reason(saved: Lab) -> None:
    gate = {"decode_tok_s": {"at_least": 99}}
    saved.matrix({"id": "a", "extra_args": ["--rate", "40"], "gates": gate}, settings={"runs": 3})
    result = saved.run("matrix.yaml", *COMPARE)
    result.assert_outcomes(failed=1)
    assert "saved 50.0" not in "".join(line for line in result.outlines if line.startswith("decode_tok_s failed"))


def test_a_replayed_parity_record_is_compared_with_another(lab: Lab) -> None:
    data = json.loads(RECORD.read_text(encoding="utf-8"))
    side = data["models"][0]["decode"][0]["tok_s"]["nuvec"]
    side["samples"], side["median"] = [2 * value for value in side["samples"]], 2 * side["median"]
    old = lab.path / "old.json"
    old.write_text(json.dumps(data))
    result = lab.run(
        RECORD, "-k", "Qwen3-0.6B-4bit-decode", "--llmbench-compare=old.json", "--llmbench-compare-fail=tok_s:5%"
    )
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["tok_s failed: now 441.1 tok/s, saved 882.3 tok/s, ratio 0.5000 (interval *"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--llmbench-compare=gone.json"], "--llmbench-compare: *gone.json: can't be read"),
        (["--llmbench-compare-fail=tok_s:5%"], "--llmbench-compare-fail: with what?"),
        (["--llmbench-compare-fail=tok_s:5"], "write METRIC:PERCENT%"),
        (["--llmbench-compare-fail=speed:5%"], "better or worse is unknown"),
        (["--llmbench-report=md"], "--llmbench-report: where to?"),
        (["--llmbench-out=out", "--llmbench-report=md,pdf"], "no report 'pdf'"),
    ],
)
def test_wrong_use_is_refused_before_anything_runs(lab: Lab, words: list[str], says: str) -> None:
    lab.matrix({"id": "a"})
    result = lab.run("matrix.yaml", *words)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{says}*"])
    assert not lab.events("open")


def test_reports_are_written_beside_the_record(saved: Lab) -> None:
    result = saved.run("matrix.yaml", *COMPARE, "--llmbench-out=out", "--llmbench-report=md,csv,bmf,gha,gha-smaller")
    result.stdout.fnmatch_lines(["llmbench: wrote *run.json, *report.md, *report.csv, *"])
    assert "## Compared with the saved run: passed" in (saved.out / "report.md").read_text()
    rows = list(csv.DictReader((saved.out / "report.csv").read_text().splitlines()))
    assert {row["id"]: float(row["decode_tok_s [tok/s]"]) for row in rows} == pytest.approx({"a": 50, "b": 50})
    for name in ("bmf", "bigger", "smaller"):
        assert json.loads((saved.out / f"report.{name}.json").read_text())


def test_a_report_that_cant_be_made_is_said_and_the_results_are_kept(lab: Lab) -> None:
    for name in ("one", "two"):
        (lab.path / f"{name}.json").write_text(RECORD.read_text(encoding="utf-8"))
    result = lab.run(
        "one.json", "two.json", "-k", "Qwen3-0.6B-4bit-decode", "--llmbench-out=out", "--llmbench-report=bmf"
    )
    result.assert_outcomes(passed=6)
    result.stdout.fnmatch_lines(["*not all reports were written: *-r1 stands twice in *one.json and *two.json*"])
    assert len(lab.run_json()["results"]) == 6


def test_the_page_of_a_replayed_record_has_the_places_of_its_points(lab: Lab) -> None:
    lab.run(RECORD, "-k", "Qwen3-0.6B-4bit-load", "--llmbench-out=out", "--llmbench-report=html")
    page = (lab.out / "report.html").read_text(encoding="utf-8")
    data = json.loads(page.partition('<script type="application/json" id="data">')[2].partition("</script>")[0])
    places = {row["id"].rpartition("Qwen3-0.6B-4bit-")[2]: (row["context"], row["level"]) for row in data["rows"]}
    assert (places["concurrency-8"], places["decode-r160"]) == ((None, 8), (3841, None))


def test_without_a_benchmark_the_options_cost_nothing(lab: Lab) -> None:
    lab.ini("llmbench_compare = gone.json\nllmbench_compare_fail = tok_s:5%\n")
    lab.pytester.makepyfile("def test_it(): pass")
    lab.run().assert_outcomes(passed=1)
