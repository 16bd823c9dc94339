"""Rounds of a point: a sample of each side, candidate first in one round and baseline first in the next (A B B A)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pytest_llmbench import stats, verdict
from pytest_llmbench.errors import SideError, Unavailable
from pytest_llmbench.parity import ParityResult, Side, side_reason
from pytest_llmbench.parity_pair import BOTH, Pair, Who
from pytest_llmbench.parity_planned import PlannedResult, PlannedSection
from pytest_llmbench.parity_readings import Reading, Sampler
from pytest_llmbench.units import unit_of

Say = Callable[[str], None]


@dataclass(slots=True)
class Readings:
    """What a point's rounds have given so far; `reasons` has a side that failed, and why."""

    readings: dict[Who, list[Reading]] = field(default_factory=lambda: {who: [] for who in BOTH})
    reasons: dict[Who, str] = field(default_factory=dict)

    @property
    def rounds(self) -> int:
        """Whole rounds."""
        return min(map(len, self.readings.values()))

    @property
    def enough(self) -> bool:
        """Whether further rounds are of no use: a side failed, and of the other one there is a sample."""
        left = [who for who in BOTH if who not in self.reasons]
        return not left or (len(left) < len(BOTH) and bool(self.readings[left[0]]))

    def take(self, who: Who, sample: Callable[[], Reading], *, counted: bool = True) -> None:
        """Take a sample of a side that hasn't failed."""
        if who in self.reasons:
            return
        try:
            reading = sample()
        except SideError as error:
            self.reasons[who] = side_reason(who, error.reason)
        except Unavailable as error:
            # What this machine can't do for one side it can't do for the other.
            self.reasons = dict.fromkeys(BOTH, error.reason) | self.reasons
        else:
            if counted:
                self.readings[who].append(reading)


class PointRounds:
    """The rounds of one point over all passes."""

    def __init__(self, section: PlannedSection, results: Sequence[PlannedResult], sample: Sampler, say: Say) -> None:
        self.found = Readings()
        self._section, self._results, self._sample, self._say = section, results, sample, say
        self._warm: dict[Who, int] = {}

    def run_pass(self, pair: Pair, *, last: bool) -> None:
        """The rounds of a pass; in the last one also those that the verdicts still ask for."""
        settings = self._section.settings
        for _ in range(self._rounds_of_a_pass()):
            self._round(pair)
        while last and not self.found.enough and self._undecided() and self.found.rounds < settings.max_rounds:
            self._round(pair)

    def results(self) -> tuple[ParityResult, ...]:
        """Each metric's result; a side that failed, or that doesn't know the metric, is None."""
        return tuple(self._result(planned) for planned in self._results)

    def _rounds_of_a_pass(self) -> int:
        settings, section = self._section.settings, self._section.section
        if section == "load":
            return max(1, -(-settings.load.samples // settings.passes))
        if section == "memory" and not settings.memory.gated:
            return 1
        return settings.runs_per_pass

    def _round(self, pair: Pair) -> None:
        if self.found.enough:
            return
        number = self.found.rounds
        at = self._results[0].at
        for who in BOTH if number % 2 == 0 else tuple(reversed(BOTH)):
            self._say(f"{at.id}: round {number + 1}, {who}")
            self._warm_up(pair, who)
            self.found.take(who, lambda who=who: self._sample(pair, who))  # type: ignore[misc]

    def _warm_up(self, pair: Pair, who: Who) -> None:
        """One sample that doesn't count, of each process that is asked more than once; of loading the very first."""
        section, point = self._section.section, self._results[0].at.point
        if section == "memory" or point == "cold" or who in self.found.reasons:
            return
        if section == "load":
            generation = 0
        else:
            try:
                generation = pair.generation(who)
            except SideError as error:
                self.found.reasons[who] = side_reason(who, error.reason)
                return
        if self._warm.get(who) != generation:
            self._warm[who] = generation
            self.found.take(who, lambda: self._sample(pair, who), counted=False)

    def _undecided(self) -> bool:
        settings = self._section.settings
        judged = [(r.metric, r.candidate, r.baseline) for r in self.results() if r.gated and r.candidate and r.baseline]
        if settings.verdict == "point" or not judged:
            return False
        return not verdict.decided(
            verdict.interval(one.samples, other.samples, metric, settings.gate, limit=settings.max_rounds)
            for metric, one, other in judged
        )

    def _result(self, planned: PlannedResult) -> ParityResult:
        sides = {who: self._side(who, planned.metric) for who in BOTH}
        return ParityResult(
            model=planned.model,
            name=planned.name,
            kind=planned.kind,
            section=planned.section,
            point=planned.point,
            metric=planned.metric,
            candidate=sides["candidate"],
            baseline=sides["baseline"],
            reason=self._reason(sides, planned.metric),
            gated=planned.gated,
            rule=self._section.settings.verdict,
        )

    def _side(self, who: Who, metric: str) -> Side | None:
        """Its samples, one for each round: None where one of them is missing, or is nothing that has a ratio."""
        samples = self._samples(who, metric)
        if who in self.found.reasons or not samples or not all(sample is not None and sample > 0 for sample in samples):
            return None
        values = tuple(sample for sample in samples if sample is not None)
        return Side(median=stats.median(values), samples=values, unit=unit_of(metric))

    def _samples(self, who: Who, metric: str) -> list[float | None]:
        # Pairs are whole rounds; a side may have one sample more when the other one failed.
        count = self.found.rounds if not self.found.reasons else None
        return [reading.values.get(metric) for reading in self.found.readings[who][:count]]

    def _reason(self, sides: dict[Who, Side | None], metric: str) -> str:
        failed = self.found.reasons
        missing = {who: self._missing(who, metric) for who, side in sides.items() if side is None}
        if not failed and len(missing) == len(BOTH) and len({*missing.values()}) == 1:
            # Neither is to blame: what was asked for has no such metric (one token has no rate).
            return side_reason("both sides", missing["candidate"])
        said = (failed.get(who) or side_reason(who, reason) for who, reason in missing.items())
        return "; ".join(dict.fromkeys(said))

    def _missing(self, who: Who, metric: str) -> str:
        return f"{metric} is 0, which gives no ratio" if 0 in self._samples(who, metric) else f"can't tell {metric}"
