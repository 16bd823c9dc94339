"""Results of a parity run: a candidate engine and a baseline, side by side at each point.

section      points                          key in the summary
decode       r1, r40, r160 (repeats)         decode
ttft         r1, r40, r160; 2048, 32768, …   prefill_legacy (r1 apart); ttft_2048, …
memory       load, decode, prefill_2048, …   memory
load         warm, cold                      load_warm, load_cold
concurrency  1, 4, 8 (streams)               concurrency_1, …
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from pytest_llmbench import stats, verdict

RULES: Final = ("point", "interval")
DEFAULT_GATE: Final = 0.98
DEFAULT_GOAL: Final = 1.0
SECTIONS: Final = ("decode", "ttft", "memory", "load", "concurrency")
RUN_ORDER: Final = ("decode", "ttft", "concurrency", "memory", "load")
"""Sections as a live run takes them; a record has them in the order of `SECTIONS`."""
LEGACY_METRICS: Final = ("prefill_tok_s",)
METRICS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "decode": ("tok_s",),
        "ttft": ("ttft_s", "prefill_tok_s"),
        "memory": ("peak_bytes", "os_peak_rss_bytes"),
        "load": ("model_ready_s", "first_token_s"),
        "concurrency": ("wall_s", "aggregate_tok_s", "decode_aggregate_tok_s"),
    }
)
UNJUDGED: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType({"load": ("spawn_to_first_token_s",)})
"""Metrics that a live run measures beside them: a saved record may lack them."""
GATED: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType({**METRICS, "memory": ()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One engine's samples at a point; `unit` is `tok/s`, `s` or `bytes`."""

    median: float
    samples: tuple[float, ...]
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityResult:
    """One metric at one point of one model; a side that wasn't measured is None and `reason` says why.

    `name` is the model's part of the test id. `rule` is how the ratio is judged: `interval` takes the sides' samples
    as pairs, in the order of their rounds. `stored_ratio` is what a file claimed: shown, never judged.
    """

    model: str
    name: str
    kind: str
    section: str
    point: str
    metric: str
    candidate: Side | None
    baseline: Side | None
    reason: str
    gated: bool
    rule: str = "point"
    stored_ratio: float | None = field(default=None, compare=False)

    @property
    def ratio(self) -> float | None:
        """Ratio of the samples' medians, unrounded, more than 1 is better; None where a side is missing.

        Raises `MeasurementError` for samples that give no ratio.
        """
        if self.candidate is None or self.baseline is None:
            return None
        medians = (stats.median(side.samples) for side in (self.candidate, self.baseline))
        return verdict.ratio(self.metric, *medians)

    @property
    def id(self) -> str:
        """`Qwen3-0.6B-4bit-decode-r1-tok_s`: unique in a record."""
        return f"{point_id(self.name, self.section, self.point)}-{self.metric}"

    @property
    def keywords(self) -> tuple[str, ...]:
        """What `-k` also finds: the full model id and the section."""
        return (self.model, f"section:{self.section}")

    @property
    def key(self) -> str:
        """The summary's name for this point, as in this module's table."""
        if self.section in ("decode", "memory"):
            return self.section
        if self.section == "ttft" and self.is_legacy:
            return "prefill_legacy"
        return f"{self.section}_{self.point}"

    @property
    def is_legacy(self) -> bool:
        """A point that counts repeats of a text (`r40`) rather than an exact number of tokens."""
        return self.point.startswith("r")

    @property
    def candidate_failed(self) -> bool:
        """The candidate has no samples, and not for the machine's sake: an error, where any other gap is a skip."""
        if self.candidate is not None:
            return False
        return self.baseline is not None or any(part.startswith(CANDIDATE_SAID) for part in self.reason.split("; "))


def side_reason(who: str, reason: str) -> str:
    """A side's part of a result's `reason`: it says whose failure this is, in a record too."""
    return f"{who}: {reason}"


CANDIDATE_SAID = side_reason("candidate", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityPoint:
    """The results of one point, and what was noted beside them.

    `prompt_tokens` is (candidate, baseline), None for a side that failed; `raw_memory` the candidate's own
    counters in bytes; `matches_solo` whether its batched output equals its output one by one, `same_tokens` whether
    its greedy output equals the baseline's. `note` says where those differ, and by what margin.
    """

    section: str
    name: str
    results: tuple[ParityResult, ...]
    prompt_tokens: tuple[int | None, int | None] | None = None
    total_tokens: int | None = None
    matches_solo: bool | None = None
    same_tokens: bool | None = None
    note: str = ""
    raw_memory: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityModel:
    """Everything known about one model; `status` is `ok`, or else `reason` says what is missing.

    `synthetic`: its weights are random ones of the model's shape.
    """

    id: str
    name: str
    kind: str
    snapshot: str | None
    status: str
    reason: str
    points: tuple[ParityPoint, ...]
    synthetic: bool = False

    @property
    def results(self) -> tuple[ParityResult, ...]:
        """Results of all points, in the record's order."""
        return tuple(result for point in self.points for result in point.results)

    def solo_checks(self) -> tuple[tuple[str, bool], ...]:
        """(`MODEL-LEVEL`, batched output equals solo output) for each concurrency level that was checked."""
        return tuple(
            (f"{self.name}-{point.name}", point.matches_solo) for point in self.points if point.matches_solo is not None
        )


def point_id(model: str, section: str, point: str) -> str:
    """`Qwen3-0.6B-4bit-decode-r1`: what one point's results have in common, in a record, a comparison and a report."""
    return f"{model}-{section}-{point}"


def judge(result: ParityResult, gate: float) -> verdict.Verdict | None:
    """The verdict on one result by its own rule; None where a side is missing (see its `reason`)."""
    if result.candidate is None or result.baseline is None:
        return None
    samples = result.candidate.samples, result.baseline.samples
    if result.rule == "interval":
        return verdict.interval(*samples, result.metric, gate, limit=len(samples[0]))
    return verdict.point(*samples, result.metric, gate)


def model_names(ids: Sequence[str]) -> dict[str, str]:
    """Model id → its part in test ids: without the owner, unless two models would share a name."""
    seen = Counter(_without_owner(model) for model in ids)
    return {model: model if seen[_without_owner(model)] > 1 else _without_owner(model) for model in ids}


def correctness_flags(models: Iterable[ParityModel]) -> tuple[str, ...]:
    """Points where the sides' numbers can't be compared, or where the candidate is plainly wrong.

    Flagged: unequal prompt token counts, and a batch of one that differs from solo. Larger batches are not:
    their matrix shapes differ from solo's, and with them the rounding that greedy near-ties turn on.
    """
    return tuple(
        f"{model.id} {point.section} {point.name}: {fault}"
        for model in models
        for point in model.points
        for fault in _faults(point)
    )


def _faults(point: ParityPoint) -> Iterable[str]:
    counts = point.prompt_tokens or (None, None)
    if None not in counts and counts[0] != counts[1]:
        yield f"candidate read {counts[0]} prompt tokens, baseline {counts[1]}"
    if point.section == "concurrency" and point.name == "1" and point.matches_solo is False:
        yield "a batch of one differs from solo output"


def _without_owner(model: str) -> str:
    return model.rsplit("/", 1)[-1]
