"""Is a measured value good enough: ratios, gates, and what to say about them.

A ratio is turned so that more than 1 is always better for the candidate. Gates compare unrounded numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Literal

from pytest_llmbench import stats, units
from pytest_llmbench.errors import MeasurementError, UsageError

Direction = Literal["higher", "lower"]
Rule = Literal["ratio", "at_least", "at_most", "compare"]

# "tok_s" also ends with "_s": the longer suffix comes first.
_DIRECTIONS: Final[tuple[tuple[str, Direction], ...]] = (
    ("tok_s", "higher"),
    ("_ratio", "higher"),
    ("_s", "lower"),
    ("_ns", "lower"),
    ("_bytes", "lower"),
)


class Outcome(StrEnum):
    """What a gate says.

    INCONCLUSIVE: out of rounds with the gate still inside of the interval; the ratio decided. UNDECIDED: the same with
    rounds left; it asks for one more and is no result, so no record holds it.
    """

    PASSED = "passed"
    FAILED = "failed"
    INCONCLUSIVE = "inconclusive"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One gate applied to one metric.

    `value` and `reference` are the candidate's and the baseline's medians in the metric's unit; `interval`
    bounds the median ratio of a pair, each bound at 95 % one-sided; `n` counts samples of the side that has fewer. With
    an absolute gate (`rule` at_least or at_most) `reference`, `ratio` and `interval` are None and `gate` is in the
    metric's unit.
    """

    outcome: Outcome
    metric: str
    value: float
    reference: float | None
    ratio: float | None
    interval: tuple[float, float] | None
    gate: float
    n: int
    reason: str
    rule: Rule = "ratio"

    @property
    def passed(self) -> bool:
        """Whether the gate is kept; an inconclusive verdict goes by its ratio, an undecided one is never kept."""
        if self.outcome is Outcome.INCONCLUSIVE:
            return self._ratio_passes
        return self.outcome is Outcome.PASSED

    @property
    def _ratio_passes(self) -> bool:
        return self.ratio is not None and self.ratio >= self.gate

    def message(self, *, candidate: str = "candidate", baseline: str = "baseline") -> str:
        """One line: metric, both values with units, ratio, interval, gate, n, reason."""
        facts = self._absolute() if self.ratio is None else self._relative(self.ratio, candidate, baseline)
        parts = [f"{self.metric} {self.outcome}: {facts}", f"n = {self.n}"]
        return ", ".join([*parts, self.reason] if self.reason else parts)

    def _absolute(self) -> str:
        value, gate = units.metric(self.metric, self.value), units.metric(self.metric, self.gate)
        if value == gate and self.value != self.gate:
            value, gate = f"{value} ({self.value!r})", f"{gate} ({self.gate!r})"
        return f"{value}, gate {self.rule.replace('_', ' ')} {gate}"

    def _relative(self, ratio: float, candidate: str, baseline: str) -> str:
        sides = (
            f"{candidate} {units.metric(self.metric, self.value)}, "
            f"{baseline} {units.metric(self.metric, self.reference)}"
        )
        text = f"{sides}, ratio {ratio_text(ratio, self.gate)}"
        if self.interval is not None:
            text += f" (interval {interval_text(self.interval, self.gate)})"
        return f"{text}, gate {self.gate:g}"


def direction(metric: str) -> Direction:
    """Whether more or less of `metric` is better, by the unit that its name ends with.

    Raises `UsageError` for a name without such a unit.
    """
    for suffix, better in _DIRECTIONS:
        if metric.endswith(suffix):
            return better
    known = ", ".join(suffix for suffix, _ in _DIRECTIONS)
    raise UsageError(f"metric {metric!r}: better or worse is unknown; a metric's name ends with one of {known}")


def ratio(metric: str, candidate: float | None, baseline: float | None) -> float | None:
    """Candidate against baseline, unrounded, more than 1 is better; None where a side is.

    Raises `MeasurementError` for a side that isn't positive and finite, `UsageError` for an unknown metric.
    """
    better = direction(metric)
    if candidate is None or baseline is None:
        return None
    for side, value in (("candidate", candidate), ("baseline", baseline)):
        if not (math.isfinite(value) and value > 0):
            raise MeasurementError(f"{metric}: {side} is {value!r}, which gives no ratio; measure that side again")
    result = candidate / baseline if better == "higher" else baseline / candidate
    if not (math.isfinite(result) and result > 0):
        raise MeasurementError(f"{metric}: {candidate!r} against {baseline!r} has no finite ratio; measure both again")
    return result


def point(candidate_samples: Sequence[float], baseline_samples: Sequence[float], metric: str, gate: float) -> Verdict:
    """Passed when the unrounded ratio of the two medians is at least `gate`.

    Raises `MeasurementError` where a side has no valid samples, `UsageError` for a gate that isn't positive.
    """
    _require_gate(metric, gate)
    value, reference = stats.median(candidate_samples), stats.median(baseline_samples)
    quotient = ratio(metric, value, reference)
    return Verdict(
        outcome=_outcome(quotient is not None and quotient >= gate),
        metric=metric,
        value=value,
        reference=reference,
        ratio=quotient,
        interval=None,
        gate=gate,
        n=min(len(candidate_samples), len(baseline_samples)),
        reason="",
    )


def interval(candidate: Sequence[float], baseline: Sequence[float], metric: str, gate: float, *, limit: int) -> Verdict:
    """Passed or failed once the whole interval of the median pair ratio is at or above, or below, `gate`.

    Samples with the same index are a pair: one round. The bounds are `stats.median_bounds` of the pairs' ratios; before
    the fifth round there are none. Otherwise the verdict is undecided while there are fewer rounds than `limit`, then
    inconclusive, which `Verdict.passed` settles by the ratio of the two medians:

        measure_a_round()
        while not decided([verdict := interval(candidate, baseline, "tok_s", 0.98, limit=16)]):
            measure_a_round()

    To judge rounds that end before their limit, give their number as the limit. 95 % hold for one look; what looking
    after each round makes of them is measured by ci/verdict_rates (docs/verdicts.md).
    Raises as `point`, and `MeasurementError` for sides of unequal length, `UsageError` for a limit below 1.
    """
    if limit < 1:
        raise UsageError(f"{metric}: a limit of {limit} rounds; give at least 1")
    if len(candidate) != len(baseline):
        raise MeasurementError(
            f"{metric}: {len(candidate)} samples against {len(baseline)} make no pairs; "
            "drop the round that one side missed"
        )
    found = point(candidate, baseline, metric, gate)
    ratios = [r for pair in zip(candidate, baseline, strict=True) if (r := ratio(metric, *pair)) is not None]
    bounds = stats.median_bounds(ratios)
    outcome = interval_outcome(bounds, gate, last=found.n >= limit)
    found = replace(found, outcome=outcome, interval=bounds)
    return replace(found, reason=_interval_reason(found, limit))


def interval_outcome(bounds: tuple[float, float] | None, gate: float, *, last: bool) -> Outcome:
    """Passed or failed once the whole interval is at or above, or below, `gate`; otherwise what `last` leaves of it."""
    if bounds is not None and bounds[0] >= gate:
        return Outcome.PASSED
    if bounds is not None and bounds[1] < gate:
        return Outcome.FAILED
    return Outcome.INCONCLUSIVE if last else Outcome.UNDECIDED


def decided(verdicts: Iterable[Verdict]) -> bool:
    """Whether no further round is called for: none of the verdicts on what the rounds measure is undecided."""
    return all(verdict.outcome is not Outcome.UNDECIDED for verdict in verdicts)


def threshold(metric: str, value: float | None, at_least: float | None = None, at_most: float | None = None) -> Verdict:
    """Compare one value with an absolute gate in the metric's own unit: exactly one of `at_least`, `at_most`.

    Raises `MeasurementError` where the value is None or not finite: that is no failure, nothing was measured.
    """
    if (at_least is None) == (at_most is None):
        raise UsageError(f"{metric}: give exactly one of at_least and at_most")
    if value is None or not math.isfinite(value):
        raise MeasurementError(f"{metric} wasn't measured ({value!r}); see the run's log for why")
    if at_least is not None:
        return _absolute(metric, value, at_least, "at_least", value >= at_least)
    assert at_most is not None
    return _absolute(metric, value, at_most, "at_most", value <= at_most)


def ratio_text(value: float, gate: float) -> str:
    """Four decimals, and as many more as it takes not to look equal to `gate`: 0.97996 at 0.98."""
    for digits in range(4, 18):
        text = f"{value:.{digits}f}"
        if value == gate or float(text) != gate:
            return text
    return repr(value)


def interval_text(interval: Sequence[float] | None, gate: float) -> str:
    """Both bounds as `ratio_text`: `0.9700 to 1.0100`."""
    return units.MISSING if interval is None else " to ".join(ratio_text(bound, gate) for bound in interval)


def _absolute(metric: str, value: float, gate: float, rule: Rule, passed: bool) -> Verdict:
    if not math.isfinite(gate):
        raise UsageError(f"{metric}: {rule} is {gate!r}; give a finite number")
    return Verdict(
        outcome=_outcome(passed),
        metric=metric,
        value=value,
        reference=None,
        ratio=None,
        interval=None,
        gate=gate,
        n=1,
        reason="",
        rule=rule,
    )


def _outcome(passed: bool) -> Outcome:
    return Outcome.PASSED if passed else Outcome.FAILED


def _interval_reason(found: Verdict, limit: int) -> str:
    if found.outcome is Outcome.UNDECIDED:
        return f"undecided after {found.n} of at most {limit} rounds"
    by_ratio = _outcome(found._ratio_passes)
    if found.outcome is not Outcome.INCONCLUSIVE:
        return "" if found.outcome is by_ratio else "the interval of the pairs decides, not the ratio of the medians"
    why = f"too few rounds for an interval, which takes {stats.MEDIAN_BOUNDS_MIN_N}"
    if found.interval is not None:
        why = "out of rounds with the gate inside of the interval"
    return f"{why}: {by_ratio} by the ratio"


def _require_gate(metric: str, gate: float) -> None:
    if not (math.isfinite(gate) and gate > 0):
        raise UsageError(f"{metric}: gate is {gate!r}; give a positive number such as 0.98")
