"""`ci/verdict_rates`: its form, what it says surely, and that the published figures are those of today's rules."""

from __future__ import annotations

import json
import math
import random
import statistics
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from script_kit import loaded_script, run_script

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "ci" / "verdict_rates"
PUBLISHED = ROOT / "docs" / "results" / "verdict_rates.json"
PAGE = ROOT / "docs" / "verdicts.md"
RULES = ["point 3", "point 4", *(f"interval {limit}" for limit in range(5, 21))]
RATIOS = [1.0, 0.98, 0.97, 0.95, 0.9]
SHARES = {"passed", "failed", "inconclusive", "sure_passed", "sure_failed", "unlike_point"}
Rates = dict[tuple[str, float, str], dict[str, Any]]


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return run_script(SCRIPT, *arguments)


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return loaded_script(SCRIPT, tmp_path_factory.mktemp("script"))


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """The result of a run with few trials, and what it printed."""
    out = tmp_path_factory.mktemp("rates") / "made" / "rates.json"
    done = run("--trials", "20", "--out", out)
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text(encoding="utf-8")), done.stdout


def by_cell(data: dict[str, Any]) -> Rates:
    return {(row["noise"], row["true_ratio"], row["rule"]): row for row in data["rates"]}


def check_form(data: dict[str, Any], trials: int) -> None:
    assert (data["gate"], data["trials"], data["seed"]) == (0.98, trials, 1)
    noises = list(dict.fromkeys(row["noise"] for row in data["rates"]))
    assert noises == [
        *(f"lognormal {p} %" for p in ("0.5", "1", "2", "5")),
        "record decode",
        "record ttft",
        "record load",
    ]
    assert list(by_cell(data)) == [(noise, ratio, rule) for noise in noises for ratio in RATIOS for rule in RULES]
    for row in data["rates"]:
        assert all(0 <= row[name] <= 1 for name in SHARES)
        assert row["passed"] + row["failed"] == pytest.approx(1)
        assert row["sure_passed"] + row["sure_failed"] + row["inconclusive"] == pytest.approx(1, abs=2e-4)


def test_few_trials_have_the_whole_form(few: tuple[dict[str, Any], str]) -> None:
    data, printed = few
    check_form(data, 20)
    assert printed.count("\n| lognormal 5 % |") == 5


def test_what_cannot_be_otherwise(few: tuple[dict[str, Any], str]) -> None:
    for data in (few[0], json.loads(PUBLISHED.read_text(encoding="utf-8"))):
        rates = by_cell(data)
        for rule in RULES:
            assert rates["lognormal 0.5 %", 0.9, rule]["passed"] == 0
            assert rates["lognormal 0.5 %", 1.0, rule]["failed"] == 0
        for (_, _, rule), row in rates.items():
            kind, rounds = rule.split()
            if kind == "point":
                assert (row["inconclusive"], row["unlike_point"], row["mean_rounds"]) == (0, 0, int(rounds))
            else:
                assert 5 <= row["mean_rounds"] <= int(rounds)


def test_more_rounds_leave_less_inconclusive(few: tuple[dict[str, Any], str]) -> None:
    rates = by_cell(few[0])
    for noise, ratio in {(noise, ratio) for noise, ratio, _ in rates}:
        left = [rates[noise, ratio, f"interval {limit}"]["sure_passed"] for limit in range(5, 21)]
        assert left == sorted(left)


@pytest.mark.parametrize(("noise", "true_ratio"), [("lognormal 2 %", 0.97), ("record load", 1.0)])
def test_the_published_rates_are_those_of_the_rules(script: ModuleType, noise: str, true_ratio: float) -> None:
    data = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    found = script.cell(noise, script.noises()[noise], true_ratio, trials=data["trials"], seed=data["seed"])
    published = [row for row in data["rates"] if (row["noise"], row["true_ratio"]) == (noise, true_ratio)]
    assert found == published, (
        f"the rules have changed: run {data['command']}, and put its tables into docs/verdicts.md"
    )


def test_the_page_has_the_published_tables(script: ModuleType) -> None:
    data = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    check_form(data, script.TRIALS)
    page = PAGE.read_text(encoding="utf-8")
    assert f"<!-- rates -->\n{script.table(data)}<!-- end -->" in page
    assert f"<!-- gate -->\n{script.gate_table(data)}<!-- end -->" in page
    assert f"$ {data['command']}\n" in page


def test_an_interval_ends_as_a_run_that_stops_early_does(script: ModuleType) -> None:
    rng = random.Random(3)
    for _ in range(50):
        candidate, baseline = ([rng.gauss(100, 2) for _ in range(20)] for _ in range(2))
        endings = script.interval_endings(candidate, baseline)
        for limit in (5, 9, 16, 20):
            verdict = live(script, candidate, baseline, limit)
            assert endings[f"interval {limit}"] == script.ending(verdict)


def live(script: ModuleType, candidate: list[float], baseline: list[float], limit: int) -> Any:
    n = 1
    while not script.verdict.decided(
        [found := script.verdict.interval(candidate[:n], baseline[:n], "tok_s", 0.98, limit=limit)]
    ):
        n += 1
    return found


def test_lognormal_noise_has_its_deviation_in_a_pair_and_drifts_in_common(script: ModuleType) -> None:
    rounds = script.lognormal(0.01)(random.Random(5))
    pairs = [next(rounds) for _ in range(4000)]
    apart = [math.log(ours / theirs) for ours, theirs in pairs]
    assert statistics.stdev(apart) == pytest.approx(0.01 * math.sqrt(2), rel=0.05)
    assert statistics.stdev(math.log(ours) for ours, _ in pairs) > 0.05


def test_residuals_have_mean_zero_and_the_samples_deviation(script: ModuleType) -> None:
    result = next(r for r in script.simulation.read_parity_record(script.RECORD).results if r.section == "decode")
    found = script.simulation.residuals(result)
    assert sum(found) == pytest.approx(0, abs=1e-12)
    for side, own in ((result.candidate, found[:4]), (result.baseline, found[4:])):
        assert statistics.pstdev(own) == pytest.approx(statistics.stdev(map(math.log, side.samples)))


def test_wrong_use_ends_with_two() -> None:
    assert run("--trials", "0").returncode == 2
