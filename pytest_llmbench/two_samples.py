"""Two independent samples: by what factor one lies above the other, whatever distribution they have."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from statistics import NormalDist
from typing import Final

from pytest_llmbench.errors import MeasurementError
from pytest_llmbench.stats import bound_rank

MOST_EXACT: Final = 30
"""Values a side up to which the null distribution is counted out; above, its normal approximation is close."""
ALPHA: Final = 0.05


def factor_bounds(above: Sequence[float], below: Sequence[float]) -> tuple[float, float] | None:
    """A lower and an upper bound of the factor between two samples, each one-sided at 95 %; together at 90 %.

    Of all quotients of one value of `above` by one of `below`, in order, the k-th from below and the k-th from above, k
    being the greatest number with P(U <= k - 1) <= 0.05 under the null distribution of Mann and Whitney's U: their test
    turned round, on logarithms (L. E. Moses; Hollander and Wolfe, "Nonparametric Statistical Methods", section 4.3). It
    holds if the two distributions differ by a factor only. None where there are too few values: it takes three a side,
    or 19 against one. Raises `MeasurementError` for a value that isn't positive and finite.
    """
    for value in (*above, *below):
        if not (math.isfinite(value) and value > 0):
            raise MeasurementError(f"{value!r} gives no ratio; leave out what wasn't measured")
    rank = _rank(len(above), len(below))
    if rank == 0:
        return None
    quotients = sorted(a / b for a in above for b in below)
    return quotients[rank - 1], quotients[-rank]


def _rank(n: int, m: int) -> int:
    """k for `factor_bounds`; 0 where there is none."""
    if n == 0 or m == 0:
        return 0
    return _exact_rank(n, m) if max(n, m) <= MOST_EXACT else _normal_rank(n, m)


@cache
def _exact_rank(n: int, m: int) -> int:
    return bound_rank(_u_counts(n, m), math.comb(n + m, n))


def _u_counts(n: int, m: int) -> list[int]:
    """In how many of the orders of n and m values U is 0, 1, …, n·m: the coefficients of a Gaussian binomial."""
    counts = [1] + [0] * (n * m)
    for i in range(1, n + 1):
        for u in range(n * m, m + i - 1, -1):
            counts[u] -= counts[u - m - i]
        for u in range(i, n * m + 1):
            counts[u] += counts[u - i]
    return counts


def _normal_rank(n: int, m: int) -> int:
    spread = math.sqrt(n * m * (n + m + 1) / 12)
    return max(0, math.floor(n * m / 2 + NormalDist().inv_cdf(ALPHA) * spread))
