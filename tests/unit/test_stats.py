from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench import stats
from pytest_llmbench.errors import MeasurementError

NUMBERS = st.lists(st.floats(min_value=-1e9, max_value=1e9), min_size=1, max_size=60)
POSITIVE = st.lists(st.floats(min_value=1e-6, max_value=1e6), min_size=1, max_size=60)


@given(NUMBERS, st.floats(min_value=0, max_value=100))
def test_percentile_interpolates_as_numpy_does_by_default(values: list[float], q: float) -> None:
    assert stats.percentile(values, q, 1) == pytest.approx(float(np.percentile(values, q)), rel=1e-9, abs=1e-6)


@given(NUMBERS)
def test_median_is_numpys(values: list[float]) -> None:
    assert stats.median(values) == pytest.approx(float(np.median(values)), rel=1e-12, abs=1e-12)


@given(POSITIVE)
def test_geometric_mean_is_the_exponential_of_the_mean_logarithm(values: list[float]) -> None:
    mean = stats.geomean(values)
    assert mean.n == len(values)
    assert mean.value == pytest.approx(float(np.exp(np.mean(np.log(values)))), rel=1e-9)


@given(POSITIVE)
def test_geometric_mean_of_reciprocals_is_the_reciprocal(values: list[float]) -> None:
    mean, inverse = stats.geomean(values), stats.geomean([1 / value for value in values])
    assert mean.value is not None
    assert inverse.value == pytest.approx(1 / mean.value, rel=1e-9)


def test_geometric_mean_of_nothing_has_no_value() -> None:
    assert stats.geomean([]) == stats.GeometricMean(value=None, n=0)


@pytest.mark.parametrize(("q", "min_n"), [(95, stats.P95_MIN_N), (99, stats.P99_MIN_N)])
def test_a_tail_percentile_needs_enough_values(q: float, min_n: int) -> None:
    assert stats.percentile([1.0] * (min_n - 1), q, min_n) is None
    assert stats.percentile([1.0] * min_n, q, min_n) == 1.0


def test_p95_needs_20_values_and_p99_needs_100() -> None:
    assert (stats.P95_MIN_N, stats.P99_MIN_N) == (20, 100)


def test_percentile_of_nothing_is_none_whatever_the_minimum() -> None:
    assert stats.percentile([], 50, 0) is None


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_refused(bad: float) -> None:
    with pytest.raises(MeasurementError, match="isn't a finite number"):
        stats.median([1.0, bad])
    with pytest.raises(MeasurementError, match="isn't a finite number"):
        stats.geomean([1.0, bad])
    with pytest.raises(MeasurementError, match="isn't a finite number"):
        stats.percentile([1.0, bad], 50, 1)


@pytest.mark.parametrize("bad", [0.0, -1.0])
def test_geometric_mean_refuses_what_is_not_positive(bad: float) -> None:
    with pytest.raises(MeasurementError, match="isn't positive"):
        stats.geomean([1.0, bad])


@pytest.mark.parametrize("q", [-0.1, 100.1])
def test_percentile_rank_lies_between_0_and_100(q: float) -> None:
    with pytest.raises(MeasurementError, match="0 to 100"):
        stats.percentile([1.0], q, 1)


def test_median_of_nothing_is_refused() -> None:
    with pytest.raises(MeasurementError, match="no values"):
        stats.median([])
