"""Two runs side by side: what got worse, what is missing, and whether they can be compared at all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pytest_llmbench import verdict
from pytest_llmbench.environment import machine_key
from pytest_llmbench.errors import MeasurementError, UsageError
from pytest_llmbench.figures import Loaded, Source, Subject, Values, environment_differences
from pytest_llmbench.two_samples import factor_bounds
from pytest_llmbench.verdict import Outcome, Verdict

RUN_LIMITS: Final = {
    "decode_tok_s": 0.05, "prefill_tok_s": 0.1, "ttft_s": 0.1, "aggregate_tok_s": 0.05, "peak_memory_bytes": 0.1,
}  # fmt: skip
PARITY_LIMITS: Final = {
    "tok_s_ratio": 0.03, "prefill_tok_s_ratio": 0.03, "ttft_s_ratio": 0.03, "aggregate_tok_s_ratio": 0.03,
}  # fmt: skip
"""What `llmbench compare` fails on if nothing else is said: of parity records the ratios alone, since the baseline that
ran beside the candidate had the same machine on the same day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """By what share of the old value `metric` may get worse: 0.05 is 5 %.

    `parity`: whether that is said of points of parity records alone, or of everything else; None: of both.
    """

    metric: str
    share: float
    parity: bool | None = None

    @property
    def gate(self) -> float:
        """The limit as a ratio, more than 1 being better: 5 % less speed is 0.95, 5 % more time 1/1.05."""
        return 1 - self.share if verdict.direction(self.metric) == "higher" else 1 / (1 + self.share)

    def applies_to(self, subject: Subject) -> bool:
        """Whether it is said of the subject's kind."""
        return self.parity in (None, "reference" in subject.facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One metric of one subject on both sides; `verdict.ratio` above 1 is an improvement."""

    new: Subject
    old: Subject
    limit: Limit
    verdict: Verdict

    @property
    def regressed(self) -> bool:
        """Worse by more than the limit."""
        return not self.verdict.passed

    @property
    def improved(self) -> bool:
        """Better by as much as the limit allows it to be worse, and not only by chance."""
        ratio, interval = self.verdict.ratio, self.verdict.interval
        beyond = ratio is not None and ratio * self.limit.gate > 1
        return beyond and (interval is None or interval[0] > 1)

    @property
    def share(self) -> float:
        """By what share of the old value the metric moved, in its own direction: 0.1 is 10 % more."""
        assert self.verdict.reference is not None
        return self.verdict.value / self.verdict.reference - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """`lost` was measured in the old run and couldn't be in the new one; `gone` isn't in it, `added` is new.

    `environment` says how the machines differ, `notes` what else makes figures incomparable.
    """

    changes: tuple[Change, ...]
    lost: tuple[Subject, ...] = ()
    gone: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def regressions(self) -> tuple[Change, ...]:
        """The worst first."""
        return tuple(sorted((c for c in self.changes if c.regressed), key=lambda c: c.verdict.ratio or 0))

    @property
    def improvements(self) -> tuple[Change, ...]:
        """The best first."""
        return tuple(sorted((c for c in self.changes if c.improved), key=lambda c: -(c.verdict.ratio or 0)))

    @property
    def inconclusive(self) -> int:
        """How many figures scatter so much that their interval holds the limit."""
        return sum(change.verdict.outcome is Outcome.INCONCLUSIVE for change in self.changes)

    @property
    def compared(self) -> int:
        """How many subjects are on both sides."""
        return len({id(change.new) for change in self.changes})

    @property
    def faulty(self) -> bool:
        """Something got worse, or can't be measured any more."""
        return bool(self.regressions or self.lost)


def default_limits() -> tuple[Limit, ...]:
    """Those in force where nothing is said."""
    kinds = ((RUN_LIMITS, False), (PARITY_LIMITS, True))
    return tuple(Limit(metric=m, share=share, parity=parity) for of, parity in kinds for m, share in of.items())


def parse_limits(text: str) -> tuple[Limit, ...]:
    """`decode_tok_s:5%,ttft_s:10%`. UsageError says what is wrong with it."""
    limits = tuple(_limit(part.strip()) for part in text.split(",") if part.strip())
    if not limits:
        raise UsageError("no limits; write them as decode_tok_s:5%,ttft_s:10%")
    names = [limit.metric for limit in limits]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"{twice[0]} stands twice; give one limit for each metric")
    return limits


def _limit(text: str) -> Limit:
    metric, colon, number = text.partition(":")
    try:
        share = float(number.strip().removesuffix("%")) / 100 if number.strip().endswith("%") else -1.0
    except ValueError:
        share = -1.0
    higher = verdict.direction(metric.strip()) == "higher"
    if not colon or not 0 <= share < (1 if higher else float("inf")):
        raise UsageError(f"limit {text!r}: write METRIC:PERCENT%, such as decode_tok_s:5%")
    return Limit(metric=metric.strip(), share=share)


def compare(old: Loaded, new: Loaded, limits: Sequence[Limit]) -> Comparison:
    """Match the subjects of two runs and judge each metric that has a limit.

    UsageError where they have nothing in common: then nothing was compared.
    """
    before = _by_name(old.subjects)
    measured_before = {name: found for name, group in before.items() if (found := [s for s in group if s.metrics])}
    now = _by_name(new.subjects)
    pairs = [
        (_partner(subject, measured_before[name]), subject)
        for name, group in now.items()
        if name in measured_before
        for subject in group
        if subject.metrics
    ]
    lost = [s for name, group in now.items() if name in measured_before for s in group if _is_lost(s)]
    if not pairs and not lost:
        raise UsageError(f"{_paths(old)} and {_paths(new)} have no measured entry in common: nothing to compare")
    changes, notes = judge_pairs(pairs, limits)
    if not (changes or lost):
        names = ", ".join(limit.metric for limit in limits)
        raise UsageError(f"{_paths(old)} and {_paths(new)}: none of {names} was measured in both: nothing to compare")
    return Comparison(
        changes=tuple(changes),
        lost=tuple(lost),
        gone=tuple(_gone(name, now.get(name, ())) for name in measured_before if not _is_there(now.get(name, ()))),
        added=tuple(name for name, group in now.items() if name not in before and any(s.metrics for s in group)),
        environment=_machines(pairs),
        notes=tuple(notes),
    )


def judge_pairs(pairs: Iterable[tuple[Subject, Subject]], limits: Sequence[Limit]) -> tuple[list[Change], list[str]]:
    """(old, new) subjects → the changes, and what couldn't be judged or shouldn't."""
    changes: list[Change] = []
    notes: list[str] = []
    for old, new in pairs:
        notes += _token_notes(old, new)
        for limit in (limit for limit in limits if limit.applies_to(new)):
            if (a := old.metrics.get(limit.metric)) is None:
                continue
            if (b := new.metrics.get(limit.metric)) is None:
                notes.append(f"{new.name}: {limit.metric} was measured before and isn't any more")
                continue
            try:
                changes.append(Change(old=old, new=new, limit=limit, verdict=judge(a, b, limit)))
            except MeasurementError as error:
                notes.append(f"{new.name}: {error}")
    return changes, notes


def judge(old: Values, new: Values, limit: Limit) -> Verdict:
    """Whether `new` is worse than `old` by more than the limit.

    The interval of the ratio decides where it lies wholly on one side of the limit; else the ratio of the medians, and
    the verdict is inconclusive. Without an interval (too few samples) the ratio alone decides.
    Raises MeasurementError for values that give no ratio.
    """
    ratio = verdict.ratio(limit.metric, new.value, old.value)
    assert ratio is not None
    interval = _interval(old, new, limit.metric)
    outcome, reason = _outcome(ratio, interval, limit.gate)
    return Verdict(
        outcome=outcome,
        metric=limit.metric,
        value=new.value,
        reference=old.value,
        ratio=ratio,
        interval=interval,
        gate=limit.gate,
        n=min(len(new.samples), len(old.samples)) or 1,
        reason=reason,
        rule="compare",
    )


def _interval(old: Values, new: Values, metric: str) -> tuple[float, float] | None:
    higher = verdict.direction(metric) == "higher"
    above, below = (new, old) if higher else (old, new)
    return factor_bounds(above.samples, below.samples)


def _outcome(ratio: float, interval: tuple[float, float] | None, gate: float) -> tuple[Outcome, str]:
    by_ratio = Outcome.PASSED if ratio >= gate else Outcome.FAILED
    if interval is None:
        return by_ratio, "too few samples for an interval"
    outcome = verdict.interval_outcome(interval, gate, last=True)
    inside = f"the limit lies inside of the interval: {by_ratio} by the ratio"
    return outcome, inside if outcome is Outcome.INCONCLUSIVE else ""


def _token_notes(old: Subject, new: Subject) -> list[str]:
    return [
        f"{new.name}: {name} was {old.counts[name]:g} and is {value:g}: not the same work"
        for name, value in new.counts.items()
        if name in old.counts and old.counts[name] != value
    ]


def _by_name(subjects: Iterable[Subject]) -> Mapping[str, list[Subject]]:
    found: dict[str, list[Subject]] = {}
    for subject in subjects:
        found.setdefault(subject.name, []).append(subject)
    return found


def partner(subject: Subject, old: Loaded) -> Subject | None:
    """The old run's measurement of the same entry and prompt."""
    found = [s for s in old.subjects if s.name == subject.name and s.metrics]
    return _partner(subject, found) if found else None


def _partner(subject: Subject, candidates: Sequence[Subject]) -> Subject:
    """Of several results the latest of the same machine, if there is one with the same software."""
    own = subject.source

    def nearness(other: Source) -> tuple[bool, bool, str]:
        key = machine_key(other.environment)
        same = bool(key) and key == machine_key(own.environment)
        return other.fingerprint == own.fingerprint, same, other.created

    return max(candidates, key=lambda s: nearness(s.source))


def _is_lost(subject: Subject) -> bool:
    """Whether a test of it ran and gave no figure; one that was skipped, or has a known issue, says why."""
    return not subject.metrics and subject.outcome not in ("skipped", "xfailed")


def _is_there(group: Sequence[Subject]) -> bool:
    return any(subject.metrics or _is_lost(subject) for subject in group)


def _gone(name: str, group: Sequence[Subject]) -> str:
    said = next((subject for subject in group if subject.reason), None)
    return name if said is None else f"{name} ({said.outcome}: {said.reason.partition(chr(10))[0]})"


def _machines(pairs: Iterable[tuple[Subject, Subject]]) -> tuple[str, ...]:
    sources = {(id(old.source), id(new.source)): (old.source, new.source) for old, new in pairs}
    found = [line for pair in sources.values() for line in environment_differences(*pair)]
    return tuple(dict.fromkeys(found))


def _paths(loaded: Loaded) -> str:
    return ", ".join(str(source.path) for source in loaded.sources)
