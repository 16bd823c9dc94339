"""What a parity plan comes to: each section, point and result of a run, before anything is measured. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from pytest_llmbench.parity import GATED, LEGACY_METRICS, METRICS, SECTIONS, UNJUDGED
from pytest_llmbench.parity_plan import ParityPlan, ParityPlanModel, ParitySettings


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPoint:
    """A point to measure. The number that its name stands for is `repeats`, `prompt_tokens` or `streams`.

    `load` points and `memory` of load and decode have none of them.
    """

    model: ParityPlanModel = field(repr=False)
    section: str
    point: str
    repeats: int | None = None
    prompt_tokens: int | None = None
    streams: int | None = None

    @property
    def id(self) -> str:
        """`Qwen3-0.6B-4bit-decode-r1`: unique in a plan."""
        return f"{self.model.name}-{self.section}-{self.point}"

    @property
    def keywords(self) -> tuple[str, ...]:
        """What `-k` also finds: as for the result of a record, and the quantization where the plan names it."""
        quant = (f"quant:{self.model.quant}",) if self.model.quant else ()
        return (self.model.id, f"section:{self.section}", *quant)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedResult:
    """One metric at a point: what a `ParityResult` is before it is measured, with the same names and the same id."""

    at: PlannedPoint
    metric: str
    gated: bool

    @property
    def model(self) -> str:
        """The model's id."""
        return self.at.model.id

    @property
    def name(self) -> str:
        """The model's part of the test id."""
        return self.at.model.name

    @property
    def kind(self) -> str:
        """The model's kind."""
        return self.at.model.kind

    @property
    def section(self) -> str:
        """The point's section."""
        return self.at.section

    @property
    def point(self) -> str:
        """The point's name."""
        return self.at.point

    @property
    def id(self) -> str:
        """As `ParityResult.id`."""
        return f"{self.at.id}-{self.metric}"

    @property
    def keywords(self) -> tuple[str, ...]:
        """What `-k` also finds."""
        return self.at.keywords


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSection:
    """One section of one model, which is measured as a whole: its points, and their results in the same order."""

    plan: ParityPlan = field(repr=False)
    settings: ParitySettings = field(repr=False)
    model: ParityPlanModel
    section: str
    points: tuple[PlannedPoint, ...] = field(repr=False)
    results: tuple[PlannedResult, ...] = field(repr=False)

    @property
    def id(self) -> str:
        """`Qwen3-0.6B-4bit-decode`: unique in a plan."""
        return f"{self.model.name}-{self.section}"

    @property
    def keywords(self) -> tuple[str, ...]:
        """What `-k` also finds."""
        return self.points[0].keywords

    @property
    def ungated_points(self) -> tuple[PlannedPoint, ...]:
        """Points of which nothing is judged."""
        judged = [result.at for result in self.results if result.gated]
        return tuple(point for point in self.points if point not in judged)


def planned_sections(plan: ParityPlan, settings: ParitySettings) -> tuple[PlannedSection, ...]:
    """The sections of each model that have a point, in a record's order; `settings` are those of a tier."""
    return tuple(
        PlannedSection(
            plan=plan,
            settings=settings,
            model=model,
            section=section,
            points=points,
            results=tuple(result for point in points for result in _results(point, settings)),
        )
        for model in plan.models
        for section in SECTIONS
        if section in model.sections and (points := tuple(_POINTS[section](model, settings)))
    )


def planned_results(plan: ParityPlan, tier: str) -> tuple[PlannedResult, ...]:
    """Every result that a complete run gives, in the record's order. UsageError for an unknown tier."""
    sections = planned_sections(plan, plan.settings.for_tier(tier))
    return tuple(result for section in sections for result in section.results)


def settings_json(plan: ParityPlan, settings: ParitySettings) -> dict[str, Any]:
    """The record's `settings`: those of the tier, gates apart, and the models' extra lengths if they are measured."""
    found = {name: value for name, value in asdict(settings).items() if name not in ("tiers", "gate", "goal")}
    extra = {m.id: list(m.extra_prompt_tokens) for m in plan.models if m.extra_prompt_tokens and settings.extra_prompts}
    gates = {"gate": settings.gate, "goal": settings.goal}
    return {**found, "extra_prompt_tokens": extra, "gates": gates}


def _decode(model: ParityPlanModel, settings: ParitySettings) -> Iterator[PlannedPoint]:
    for repeats in settings.legacy_repeats:
        yield PlannedPoint(model=model, section="decode", point=f"r{repeats}", repeats=repeats)


def _ttft(model: ParityPlanModel, settings: ParitySettings) -> Iterator[PlannedPoint]:
    for repeats in settings.legacy_repeats:
        yield PlannedPoint(model=model, section="ttft", point=f"r{repeats}", repeats=repeats)
    for tokens in _lengths(settings, settings.prompt_tokens, model.extra_prompt_tokens):
        yield PlannedPoint(model=model, section="ttft", point=str(tokens), prompt_tokens=tokens)


def _memory(model: ParityPlanModel, settings: ParitySettings) -> Iterator[PlannedPoint]:
    for name in ("load", "decode"):
        yield PlannedPoint(model=model, section="memory", point=name)
    for tokens in _lengths(settings, settings.memory.prompt_tokens, model.extra_memory_prompt_tokens):
        yield PlannedPoint(model=model, section="memory", point=f"prefill_{tokens}", prompt_tokens=tokens)


def _load(model: ParityPlanModel, settings: ParitySettings) -> Iterator[PlannedPoint]:
    for name in ("warm", "cold") if settings.load.cold else ("warm",):
        yield PlannedPoint(model=model, section="load", point=name)


def _concurrency(model: ParityPlanModel, settings: ParitySettings) -> Iterator[PlannedPoint]:
    for level in settings.concurrency.levels:
        yield PlannedPoint(model=model, section="concurrency", point=str(level), streams=level)


_POINTS: Final = {"decode": _decode, "ttft": _ttft, "memory": _memory, "load": _load, "concurrency": _concurrency}


def _lengths(settings: ParitySettings, usual: tuple[int, ...], extra: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(dict.fromkeys((*usual, *extra))) if settings.extra_prompts else usual


def _results(point: PlannedPoint, settings: ParitySettings) -> Iterator[PlannedResult]:
    gated = settings.memory.gated if point.section == "memory" else GATED[point.section]
    legacy = point.section == "ttft" and point.repeats is not None
    metrics = LEGACY_METRICS if legacy else METRICS[point.section]
    for metric in (*metrics, *UNJUDGED.get(point.section, ())):
        yield PlannedResult(at=point, metric=metric, gated=metric in gated)
