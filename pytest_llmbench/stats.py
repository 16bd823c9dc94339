"""Statistics of samples: plain Python, so that reading a record needs no numpy."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pytest_llmbench.errors import MeasurementError

P95_MIN_N: Final = 20
P99_MIN_N: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class GeometricMean:
    """`value` over `n` numbers; None where there was none."""

    value: float | None
    n: int


def median(values: Sequence[float]) -> float:
    """Middle value, or the mean of the two middle ones.

    Raises `MeasurementError` for no values or one that isn't finite.
    """
    _require_finite(values, "median")
    return statistics.median(values)


def geomean(values: Sequence[float]) -> GeometricMean:
    """exp(mean(log x)). Raises `MeasurementError` for a value that isn't positive and finite."""
    if not values:
        return GeometricMean(value=None, n=0)
    _require_finite(values, "geometric mean")
    if min(values) <= 0:
        raise MeasurementError(
            f"geometric mean: {min(values)!r} isn't positive; leave out what wasn't measured before averaging"
        )
    return GeometricMean(value=math.exp(statistics.fmean(map(math.log, values))), n=len(values))


def percentile(values: Sequence[float], q: float, min_n: int) -> float | None:
    """The `q`-th percentile (0 to 100), interpolated linearly between order statistics (Hyndman-Fan type 7).

    None with fewer than `min_n` values: a tail needs its own observations (`P95_MIN_N`, `P99_MIN_N`).
    Raises `MeasurementError` for a `q` outside 0 to 100 or a non-finite value.
    """
    if not 0 <= q <= 100:
        raise MeasurementError(f"percentile: q is {q!r}; it must lie in 0 to 100")
    if len(values) < max(min_n, 1):
        return None
    _require_finite(values, "percentile")
    ordered = sorted(values)
    position = (len(ordered) - 1) * q / 100
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    share = position - below
    return ordered[below] * (1 - share) + ordered[above] * share


def _require_finite(values: Sequence[float], what: str) -> None:
    if not values:
        raise MeasurementError(f"{what}: no values; measure at least one sample")
    for value in values:
        if not math.isfinite(value):
            raise MeasurementError(f"{what}: {value!r} isn't a finite number; drop the invalid sample first")
