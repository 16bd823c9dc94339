"""Rounds of a point: their order, their number, and what a side that fails leaves of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.errors import SideError, Unavailable
from pytest_llmbench.parity import judge
from pytest_llmbench.parity_pair import BOTH, Pair, Who
from pytest_llmbench.parity_plan import LoadSettings, ParityPlan, ParityPlanModel, ParitySettings
from pytest_llmbench.parity_planned import planned_sections
from pytest_llmbench.parity_readings import Reading
from pytest_llmbench.parity_rounds import PointRounds

MODEL = ParityPlanModel(id="m", name="m", kind="dense", line=1)
Take = Callable[[Who, int], dict[str, float]]


class Alive:
    """Sides that are always there, or are started anew for each sample."""

    def __init__(self, *, anew: bool = False) -> None:
        self._anew, self._number = anew, 0

    def generation(self, who: Who) -> int:
        self._number += self._anew
        return self._number


def run(take: Take, section: str = "decode", *, anew: bool = False, **given_settings: Any) -> tuple[PointRounds, str]:
    """All passes of the section's first point; `take` is told whose sample, and its number. The order as `abba`."""
    settings = ParitySettings(**{"passes": 1, "runs_per_pass": 5, "max_rounds": 9, **given_settings})
    (planned,) = (
        s for s in planned_sections(ParityPlan(path=Path("p"), models=(MODEL,)), settings) if s.section == section
    )
    order: list[Who] = []

    def sample(pair: Pair, who: Who) -> Reading:
        order.append(who)
        return Reading(values=take(who, order.count(who) - 1))

    results = [r for r in planned.results if r.at == planned.points[0]]
    rounds = PointRounds(planned, results, sample, lambda _: None)
    for number in range(settings.passes):
        rounds.run_pass(cast("Pair", Alive(anew=anew)), last=number == settings.passes - 1)
    return rounds, "".join("a" if who == "candidate" else "b" for who in order)


def steady(who: Who, number: int) -> dict[str, float]:
    return {"tok_s": 10.0}


@given(st.integers(1, 3), st.integers(1, 6))
def test_the_side_that_begins_changes_from_round_to_round(passes: int, runs: int) -> None:
    rounds, order = run(steady, passes=passes, runs_per_pass=runs, max_rounds=passes * runs, verdict="point")
    counted = "abba" * (passes * runs)
    assert rounds.found.rounds == passes * runs
    # A warm-up of each side before its first sample.
    assert order == "aabb" + counted[2 : 2 * passes * runs]


def test_a_side_that_is_started_anew_is_warmed_up_anew() -> None:
    _, order = run(steady, anew=True, runs_per_pass=2, max_rounds=2, verdict="point")
    assert order == "aabb" + "bbaa"


@given(st.integers(5, 9), st.integers(0, 12))
def test_a_clear_ratio_ends_the_rounds_and_an_open_one_takes_all(runs: int, more: int) -> None:
    def slower(who: Who, number: int) -> dict[str, float]:
        return {"tok_s": 9.0 if who == "candidate" else 10.0}

    def wavering(who: Who, number: int) -> dict[str, float]:
        return {"tok_s": 10.0 + (who == "candidate") * (number % 3 - 1)}

    for take, expected in ((steady, runs), (slower, runs), (wavering, runs + more)):
        rounds, _ = run(take, runs_per_pass=runs, max_rounds=runs + more)
        assert rounds.found.rounds == expected


def test_rounds_are_only_added_in_the_last_pass_and_never_by_the_rule_point() -> None:
    def wavering(who: Who, number: int) -> dict[str, float]:
        return {"tok_s": 10.0 + (who == "candidate") * (number % 3 - 1)}

    rounds, _ = run(wavering, passes=2, runs_per_pass=3, max_rounds=11)
    assert rounds.found.rounds == 11
    rounds, _ = run(wavering, passes=2, runs_per_pass=3, max_rounds=11, verdict="point")
    assert rounds.found.rounds == 6


def test_one_open_metric_of_a_point_keeps_the_rounds_going() -> None:
    def take(who: Who, number: int) -> dict[str, float]:
        return {"ttft_s": 1.0, "prefill_tok_s": 10.0 + (who == "candidate") * (number % 3 - 1)}

    rounds, _ = run(take, "ttft", legacy_repeats=(1,))
    assert rounds.found.rounds == 9


def test_loading_has_the_samples_of_its_settings_and_warms_the_file_cache_once() -> None:
    def take(who: Who, number: int) -> dict[str, float]:
        return {"model_ready_s": 1.0, "first_token_s": 2.0, "spawn_to_first_token_s": 3.0}

    rounds, order = run(take, "load", load=LoadSettings(samples=3), verdict="point", anew=True)
    assert rounds.found.rounds == 3
    assert order == "aabbbaab"


def test_memory_that_nobody_judges_is_taken_once_without_a_warm_up() -> None:
    _, order = run(lambda who, number: {"peak_bytes": 1.0, "os_peak_rss_bytes": 2.0}, "memory")
    assert order == "ab"


@given(st.sampled_from(BOTH), st.integers(0, 4))
def test_a_side_that_fails_is_null_and_the_other_keeps_its_samples(bad: Who, at: int) -> None:
    def take(who: Who, number: int) -> dict[str, float]:
        if who == bad and number == at:
            raise SideError("ended", kind="crash")
        return {"tok_s": 10.0}

    rounds, _ = run(take)
    (result,) = rounds.results()
    failed, other = (result.candidate, result.baseline) if bad == "candidate" else (result.baseline, result.candidate)
    assert failed is None
    assert other is not None
    assert result.reason == f"{bad}: ended"
    assert judge(result, 0.98) is None


def test_both_failed_are_both_told() -> None:
    def take(who: Who, number: int) -> dict[str, float]:
        raise SideError(f"no {who}", kind="crash")

    (result,) = run(take)[0].results()
    assert (result.candidate, result.baseline) == (None, None)
    assert result.reason == "candidate: no candidate; baseline: no baseline"


def test_what_the_machine_can_t_do_is_nobody_s_fault() -> None:
    def take(who: Who, number: int) -> dict[str, float]:
        raise Unavailable("purge unavailable")

    (result, *_) = run(take, "load")[0].results()
    assert (result.candidate, result.baseline, result.reason) == (None, None, "purge unavailable")


def test_what_is_known_of_a_candidate_stays_said_where_the_machine_fails_the_baseline() -> None:
    def take(who: Who, number: int) -> dict[str, float]:
        if who == "candidate":
            raise SideError("killed", kind="crash")
        raise Unavailable("purge unavailable")

    (result, *_) = run(take, "load")[0].results()
    assert (result.reason, result.candidate_failed) == ("candidate: killed; purge unavailable", True)


def test_a_candidates_gap_is_told_beside_the_baselines_crash() -> None:
    def take(who: Who, number: int) -> dict[str, float]:
        if who == "baseline":
            raise SideError("exit 3", kind="crash")
        return {"tok_s": 0.0}

    (result,) = run(take)[0].results()
    assert result.reason == "candidate: tok_s is 0, which gives no ratio; baseline: exit 3"
    assert result.candidate_failed


@pytest.mark.parametrize(
    ("values", "reason"),
    [({}, "candidate: can't tell tok_s"), ({"tok_s": 0.0}, "candidate: tok_s is 0, which gives no ratio")],
)
@pytest.mark.parametrize("at", [0, 3])
def test_a_metric_that_one_round_lacks_makes_no_unequal_pairs(values: dict[str, float], reason: str, at: int) -> None:
    def take(who: Who, number: int) -> dict[str, float]:
        # The first of all isn't counted.
        return values if who == "candidate" and number == at + 1 else {"tok_s": 10.0}

    (result,) = run(take)[0].results()
    assert (result.candidate, result.reason) == (None, reason)
    assert result.baseline is not None
