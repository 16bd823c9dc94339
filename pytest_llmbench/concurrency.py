"""Figures of several requests at once. A round is that many requests, sent together; all stamps are of one clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_llmbench import stats
from pytest_llmbench.errors import MeasurementError
from pytest_llmbench.matrix import ROUND_METRICS
from pytest_llmbench.sample import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The answers to requests that were sent together."""

    samples: tuple[Sample, ...]

    @property
    def valid(self) -> bool:
        return all(s.invalid is None for s in self.samples)

    @property
    def wall_s(self) -> float:
        """Seconds from the first request until the last answer's end."""
        return self._until_s(max(_absolute(s, s.end_ns) for s in self.samples))

    @property
    def aggregate_tok_s(self) -> float | None:
        """Tokens of all answers per second of `wall_s`."""
        counts = [s.completion_tokens for s in self.samples]
        return None if None in counts else sum(filter(None, counts)) / self.wall_s

    @property
    def decode_aggregate_tok_s(self) -> float | None:
        """Tokens per second from the moment at which every answer had begun until the last one's last text.

        A delta counts as its answer's mean of tokens a delta, which is one where each token is sent by itself.
        """
        if any(_per_delta(s) is None for s in self.samples):
            return None
        begun, end = max(_stamps(s)[0] for s in self.samples), max(_stamps(s)[-1] for s in self.samples)
        tokens = sum((_per_delta(s) or 0) * sum(at > begun for at in _stamps(s)) for s in self.samples)
        return tokens * 1e9 / (end - begun) if tokens and end > begun else None

    @property
    def fairness_ratio(self) -> float | None:
        """The slowest answer's tokens per second by the quickest one's, both from the round's start: 1 is fair."""
        rates = [_rate(s, self._until_s(_absolute(s, s.end_ns))) for s in self.samples]
        known = [rate for rate in rates if rate]
        return min(known) / max(known) if len(known) == len(rates) else None

    @property
    def ttft_spread_s(self) -> float | None:
        """Seconds between the shortest and the longest time to a first token."""
        times = [s.ttft_s for s in self.samples]
        known = [t for t in times if t is not None]
        return max(known) - min(known) if len(known) == len(times) else None

    @property
    def streams_at_once(self) -> int | None:
        """The most answers that were underway at one moment, each from its first text to its last."""
        if any(not s.deltas or s.unseen is not None for s in self.samples):
            return None
        spans = [(_stamps(s)[0], _stamps(s)[-1]) for s in self.samples]
        return max(sum(first <= at <= last for first, last in spans) for at, _ in spans)

    def metrics(self) -> dict[str, float | None]:
        """Every figure of the round by its name (`ROUND_METRICS`)."""
        return {name: getattr(self, name) for name in ROUND_METRICS}

    def _until_s(self, at_ns: int) -> float:
        return (at_ns - min(_absolute(s, 0) for s in self.samples)) / 1e9


def check_round(samples: Sequence[Sample]) -> tuple[Sample, ...]:
    """A round's samples, their `sent_ns` from the first of them on; where one is invalid none of them counts.

    MeasurementError where it isn't known when each of them was sent.
    """
    if any(s.sent_ns is None for s in samples):
        raise MeasurementError("the target doesn't say when each of its requests went out (Sample.sent_ns)")
    begun = min(_absolute(s, 0) for s in samples)
    odd = next((s.invalid for s in samples if s.invalid is not None), None)
    others = None if odd is None else f"another request of its round is invalid: {odd}"
    return tuple(replace(s, sent_ns=_absolute(s, -begun), invalid=s.invalid or others) for s in samples)


def rounds(samples: Sequence[Sample], level: int) -> tuple[Round, ...]:
    """`samples`, round after round, as rounds of `level`."""
    starts = range(0, len(samples), level)
    return tuple(Round(samples=tuple(samples[start : start + level])) for start in starts)


def metrics(taken: Sequence[Round]) -> dict[str, float | None]:
    """`matrix.CONCURRENCY_METRICS`: medians over valid rounds, and tails over the requests of all of them."""
    of_rounds = [r.metrics() for r in taken]
    medians = {name: stats.median_of_known(found[name] for found in of_rounds) for name in ROUND_METRICS}
    return medians | {"ttft_p95_s": _p95(taken, "ttft_s"), "total_p95_s": _p95(taken, "total_s")}


def queued(taken: Sequence[Round], level: int) -> str | None:
    """What to say where a server that was to answer several at once answered them one by one; None where it didn't."""
    at_once = stats.median_of_known(r.streams_at_once for r in taken)
    if level == 1 or at_once is None or at_once > 1:
        return None
    return f"{level} requests were answered one after the other: this server lets them wait"


def _p95(taken: Sequence[Round], metric: str) -> float | None:
    known = [v for r in taken for s in r.samples if (v := getattr(s, metric)) is not None]
    return stats.percentile(known, 95, min_n=stats.P95_MIN_N)


def _absolute(sample: Sample, at_ns: int) -> int:
    """A stamp of the sample on the clock that its round shares."""
    return (sample.sent_ns or 0) + at_ns


def _stamps(sample: Sample) -> list[int]:
    return [_absolute(sample, d.at_ns) for d in sample.deltas]


def _rate(sample: Sample, seconds: float) -> float | None:
    return sample.completion_tokens / seconds if sample.completion_tokens and seconds > 0 else None


def _per_delta(sample: Sample) -> float | None:
    """Tokens of a delta behind the first, on average; None where they aren't known."""
    if sample.completion_tokens is None or sample.unseen is not None or not sample.deltas:
        return None
    later = len(sample.deltas) - 1
    tokens = sample.completion_tokens - sample.first_delta_tokens - sample.silent_tokens
    return max(0, tokens) / later if later else 0.0
