"""The interval verdict over pairs: what holds for any samples, and each outcome with its message."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench import stats, verdict
from pytest_llmbench.errors import MeasurementError, UsageError
from pytest_llmbench.verdict import Outcome, Verdict, decided

LIMIT = 20
ROUNDS = st.integers(1, LIMIT)
GATES = st.floats(0.5, 2)
SAMPLE = st.floats(min_value=0.5, max_value=2) | st.sampled_from([1.0, 1.02, 0.98])
PAIRS = st.lists(st.tuples(SAMPLE, SAMPLE), min_size=1, max_size=LIMIT)
Pairs = list[tuple[float, float]]
RANK = {Outcome.FAILED: 0, Outcome.INCONCLUSIVE: 1, Outcome.UNDECIDED: 1, Outcome.PASSED: 2}


def judge(pairs: Sequence[tuple[float, float]], gate: float = 0.98, *, metric: str = "tok_s", limit: int) -> Verdict:
    return verdict.interval([c for c, _ in pairs], [b for _, b in pairs], metric, gate, limit=limit)


def ratios(*values: float) -> Pairs:
    return [(value, 1.0) for value in values]


@given(PAIRS, GATES, ROUNDS, st.randoms(use_true_random=False))
def test_the_order_of_the_pairs_changes_nothing(pairs: Pairs, gate: float, limit: int, random: object) -> None:
    mixed = list(pairs)
    random.shuffle(mixed)  # type: ignore[attr-defined]
    assert judge(mixed, gate, limit=limit) == judge(pairs, gate, limit=limit)


@given(PAIRS, GATES, ROUNDS, st.integers(-20, 20))
def test_a_common_scale_changes_neither_ratio_nor_outcome(pairs: Pairs, gate: float, limit: int, power: int) -> None:
    scale = 2.0**power  # a power of two, so that nothing is rounded
    found, scaled = (
        judge(pairs, gate, limit=limit),
        judge([(c * scale, b * scale) for c, b in pairs], gate, limit=limit),
    )
    assert (scaled.ratio, scaled.interval, scaled.outcome) == (found.ratio, found.interval, found.outcome)
    assert (scaled.value, scaled.reason) == (found.value * scale, found.reason)


@given(PAIRS)
def test_the_bounds_are_pair_ratios_around_their_median(pairs: Pairs) -> None:
    found = judge(pairs, limit=LIMIT)
    quotients = [c / b for c, b in pairs]
    if found.interval is None:
        assert len(pairs) < 5
        return
    low, high = found.interval
    assert low <= statistics.median(quotients) <= high
    assert {low, high} <= set(quotients)


@given(PAIRS, GATES, GATES, ROUNDS)
def test_a_higher_gate_is_never_easier(pairs: Pairs, one: float, other: float, limit: int) -> None:
    low, high = (judge(pairs, gate, limit=limit) for gate in sorted((one, other)))
    assert RANK[high.outcome] <= RANK[low.outcome]
    assert high.passed <= low.passed


@given(PAIRS)
def test_swapped_sides_give_the_reciprocal_ratio_and_interval(pairs: Pairs) -> None:
    found, swapped = judge(pairs, limit=LIMIT), judge([(b, c) for c, b in pairs], limit=LIMIT)
    assert found.ratio is not None
    assert swapped.ratio == pytest.approx(1 / found.ratio)
    if found.interval is None:
        assert swapped.interval is None
    else:
        assert swapped.interval == pytest.approx(tuple(1 / bound for bound in reversed(found.interval)))


@given(PAIRS, GATES, ROUNDS)
def test_less_is_better_for_seconds(pairs: Pairs, gate: float, limit: int) -> None:
    times = judge(pairs, gate, metric="wall_s", limit=limit)
    rates = judge([(b, c) for c, b in pairs], gate, limit=limit)
    assert (times.outcome, times.interval, times.ratio) == (rates.outcome, rates.interval, rates.ratio)


@given(st.lists(st.tuples(SAMPLE, SAMPLE), min_size=1, max_size=4), GATES, ROUNDS)
def test_fewer_than_five_pairs_never_decide(pairs: Pairs, gate: float, limit: int) -> None:
    found = judge(pairs, gate, limit=limit)
    assert found.interval is None
    assert found.outcome is (Outcome.UNDECIDED if len(pairs) < limit else Outcome.INCONCLUSIVE)


@given(st.lists(SAMPLE, min_size=5, max_size=LIMIT), st.floats(0.5, 1), ROUNDS)
def test_identical_sides_pass_any_gate_up_to_one(samples: list[float], gate: float, limit: int) -> None:
    found = judge([(s, s) for s in samples], gate, limit=limit)
    assert (found.outcome, found.ratio, found.interval, found.reason) == (Outcome.PASSED, 1.0, (1.0, 1.0), "")


@given(PAIRS, GATES, ROUNDS)
def test_an_outcome_is_what_interval_limit_and_ratio_say(pairs: Pairs, gate: float, limit: int) -> None:
    found = judge(pairs, gate, limit=limit)
    assert found.ratio == verdict.point([c for c, _ in pairs], [b for _, b in pairs], "tok_s", gate).ratio
    low, high = found.interval or (0.0, math.inf)
    assert (found.outcome is Outcome.PASSED) == (low >= gate)
    assert (found.outcome is Outcome.FAILED) == (high < gate)
    assert (found.outcome is Outcome.UNDECIDED) == (low < gate <= high and len(pairs) < limit)
    if found.outcome is Outcome.INCONCLUSIVE:
        assert found.ratio is not None
        assert found.passed == (found.ratio >= gate)
    else:
        assert found.passed == (found.outcome is Outcome.PASSED)


@given(PAIRS, GATES)
def test_at_its_limit_a_verdict_is_never_undecided(pairs: Pairs, gate: float) -> None:
    assert decided([judge(pairs, gate, limit=len(pairs))])


def test_one_undecided_verdict_asks_for_another_round() -> None:
    clear, unclear = judge(ratios(*[1.1] * 5), limit=9), judge(ratios(*[0.97, 0.99] * 3), limit=9)
    assert decided([clear])
    assert decided([])
    assert not decided([clear, unclear])


@pytest.mark.parametrize(
    ("n", "k"),
    [(4, 0), (5, 1), (7, 1), (8, 2), (10, 2), (11, 3), (13, 4), (16, 5), (20, 6), (25, 8), (50, 19), (100, 42)],
)
def test_bounds_are_the_ranks_of_the_published_table(n: int, k: int) -> None:
    """The sign test's critical values, one-sided at 5 %."""
    bounds = stats.median_bounds(list(range(1, n + 1)))
    assert bounds == ((k, n + 1 - k) if k else None)


@pytest.mark.parametrize("n", range(5, 60))
def test_a_bounds_rank_is_the_greatest_with_a_tail_of_five_percent(n: int) -> None:
    bounds = stats.median_bounds(list(range(1, n + 1)))
    assert bounds is not None
    tail = [sum(math.comb(n, i) for i in range(int(k))) / 2**n for k in (bounds[0], bounds[0] + 1)]
    assert tail[0] <= 0.05 < tail[1]


def test_bounds_of_what_is_no_number_are_refused() -> None:
    with pytest.raises(MeasurementError, match="bounds of the median"):
        stats.median_bounds([1.0] * 5 + [math.nan])


def test_an_undecided_verdict_says_how_many_rounds_there_were_and_may_be() -> None:
    found = judge([(100 * c, 100.0) for c in (0.97, 0.99, 0.97, 0.99, 0.985, 0.99)], limit=9)
    assert found.message(candidate="ours", baseline="mlx-lm") == (
        "tok_s undecided: ours 98.8 tok/s, mlx-lm 100.0 tok/s, ratio 0.9875 (interval 0.9700 to 0.9900), gate 0.98, "
        "n = 6, undecided after 6 of at most 9 rounds"
    )


@pytest.mark.parametrize(("middle", "says", "passed"), [(0.981, "passed", True), (0.979, "failed", False)])
def test_an_inconclusive_verdict_says_so_and_what_the_ratio_decides(middle: float, says: str, passed: bool) -> None:
    found = judge(ratios(0.97, 0.975, middle, 0.99, 0.99), limit=5)
    assert (found.outcome, found.passed) == (Outcome.INCONCLUSIVE, passed)
    assert found.message().endswith(
        f"ratio {middle:.4f} (interval 0.9700 to 0.9900), gate 0.98, n = 5, "
        f"out of rounds with the gate inside of the interval: {says} by the ratio"
    )


def test_too_few_rounds_for_an_interval_are_told_from_an_interval_that_says_nothing() -> None:
    found = judge(ratios(1.1, 1.1, 1.1), limit=3)
    assert found.passed
    assert found.reason == "too few rounds for an interval, which takes 5: passed by the ratio"


def test_a_verdict_of_the_pairs_against_the_medians_says_so() -> None:
    drifting = [float(b) for b in range(1, 10)]
    found = verdict.interval([*drifting[:-1], 1.0], drifting, "tok_s", 0.98, limit=9)
    assert (found.outcome, found.ratio, found.interval) == (Outcome.PASSED, 4 / 5, (1.0, 1.0))
    assert found.reason == "the interval of the pairs decides, not the ratio of the medians"


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_round_is_wrong_use(limit: int) -> None:
    with pytest.raises(UsageError, match="give at least 1"):
        judge(ratios(1.0), limit=limit)


def test_sides_of_unequal_length_are_no_pairs() -> None:
    with pytest.raises(MeasurementError, match="2 samples against 1 make no pairs"):
        verdict.interval([1.0, 1.0], [1.0], "tok_s", 0.98, limit=5)


@pytest.mark.parametrize("bad", [0.0, math.inf, math.nan])
def test_a_pair_that_gives_no_ratio_is_an_error(bad: float) -> None:
    with pytest.raises(MeasurementError):
        judge([(1.0, 1.0), (bad, 1.0), (1.0, 1.0)], limit=5)
