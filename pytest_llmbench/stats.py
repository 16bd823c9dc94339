"""Statistics of samples: plain Python, so that reading a record needs no numpy."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import Final

from pytest_llmbench.errors import MeasurementError

P95_MIN_N: Final = 20
P99_MIN_N: Final = 100
MEDIAN_BOUNDS_MIN_N: Final = 5
"""With fewer values no two of them bound the median at 95 % a side: (1/2)**4 is more than 0.05."""


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


def median_of_known(values: Iterable[float | None]) -> float | None:
    """The median of those that were measured; None where none was."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


def median_bounds(values: Sequence[float]) -> tuple[float, float] | None:
    """A lower and an upper bound of the distribution's median, each one-sided at 95 %; together at 90 %.

    Of n values in order, the k-th from below and the k-th from above, k being the greatest number with
    P(Bin(n, 1/2) <= k - 1) <= 0.05. This is the sign test turned round: it holds for whatever distribution the values
    have, if they are independent (W. R. Thompson, "On confidence ranges for the median", Annals of Mathematical
    Statistics 7, 1936). None with fewer than `MEDIAN_BOUNDS_MIN_N` values.
    Raises `MeasurementError` for a value that isn't finite.
    """
    n = len(values)
    rank = bound_rank((math.comb(n, below) for below in range(n + 1)), 2**n)
    if rank == 0:
        return None
    _require_finite(values, "bounds of the median")
    ordered = sorted(values)
    return ordered[rank - 1], ordered[-rank]


def bound_rank(ways: Iterable[int], total: int) -> int:
    """The greatest k with P(X <= k - 1) <= 0.05; 0 where there is none.

    X is 0, 1, … in that many of `total` equally likely cases. In whole numbers: 20 times the tail against the total.
    """
    tails = accumulate(ways)
    return sum(1 for _ in takewhile(lambda tail: 20 * tail <= total, tails))


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
