"""The interval of a factor between two samples: its null distribution, symmetry, and how often it misses."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.errors import MeasurementError
from pytest_llmbench.two_samples import MOST_EXACT, _exact_rank, _normal_rank, _u_counts, factor_bounds

VALUES = st.lists(st.floats(min_value=1e-3, max_value=1e6), min_size=1, max_size=8)


@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 4), (3, 3), (4, 2), (5, 4)])
def test_the_null_distribution_is_that_of_all_orders(n: int, m: int) -> None:
    counted = [0] * (n * m + 1)
    for places in itertools.combinations(range(n + m), n):
        counted[sum(place - index for index, place in enumerate(places))] += 1
    assert _u_counts(n, m) == counted


def test_three_against_three_gives_the_extreme_quotients() -> None:
    assert factor_bounds([2.0, 4.0, 8.0], [1.0, 1.0, 2.0]) == (1.0, 8.0)


@pytest.mark.parametrize(("n", "m"), [(0, 5), (1, 1), (2, 3), (1, 18)])
def test_too_few_values_give_no_bounds(n: int, m: int) -> None:
    assert factor_bounds([1.0] * n, [1.0] * m) is None


def test_one_against_nineteen_is_enough() -> None:
    assert factor_bounds([10.0], [float(n) for n in range(1, 20)]) == (10 / 19, 10.0)


@given(VALUES, VALUES)
def test_swapped_samples_give_the_reciprocal_bounds(a: list[float], b: list[float]) -> None:
    one, other = factor_bounds(a, b), factor_bounds(b, a)
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert one == pytest.approx((1 / other[1], 1 / other[0]))


@given(VALUES, VALUES, st.floats(min_value=1e-3, max_value=1e3))
def test_a_scale_moves_the_bounds_and_nothing_else(a: list[float], b: list[float], scale: float) -> None:
    plain, scaled = factor_bounds(a, b), factor_bounds([scale * value for value in a], b)
    if plain is not None:
        assert scaled == pytest.approx((scale * plain[0], scale * plain[1]))


@given(VALUES)
def test_a_sample_against_itself_is_not_different(a: list[float]) -> None:
    bounds = factor_bounds(a, a)
    assert bounds is None or bounds[0] <= 1 <= bounds[1]


def test_the_approximation_for_many_values_meets_the_exact_rank() -> None:
    assert abs(_normal_rank(MOST_EXACT, MOST_EXACT) - _exact_rank(MOST_EXACT, MOST_EXACT)) <= 3


def test_each_bound_misses_in_five_percent_of_cases_at_most() -> None:
    rng = random.Random(7)
    trials, low, high = 2000, 0, 0
    for _ in range(trials):
        a, b = ([math.exp(rng.gauss(0, 0.1)) for _ in range(5)] for _ in range(2))
        bounds = factor_bounds(a, b)
        assert bounds is not None
        low, high = low + (bounds[0] > 1), high + (bounds[1] < 1)
    assert max(low, high) / trials < 0.07  # seeded: the expected share for n = 5 is 0.0476


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_value_that_gives_no_ratio_is_refused(bad: float) -> None:
    with pytest.raises(MeasurementError):
        factor_bounds([1.0, bad], [1.0])
