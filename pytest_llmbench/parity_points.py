"""One model's part of a parity record: from JSON to points and back."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from pytest_llmbench import stats
from pytest_llmbench.errors import MeasurementError
from pytest_llmbench.json_node import JsonNode
from pytest_llmbench.parity import (
    GATED,
    LEGACY_METRICS,
    METRICS,
    RULES,
    UNJUDGED,
    ParityPoint,
    ParityResult,
    Side,
    judge,
)
from pytest_llmbench.units import unit_of

MODEL_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*(/[A-Za-z0-9][A-Za-z0-9._+-]*)*")

_LOAD_POINT: Final = re.compile(r"warm|cold")
_MEMORY_POINT: Final = re.compile(r"load|decode|prefill_[1-9][0-9]*")
# A stored median may have been summed in another order than ours.
_MEDIAN_TOLERANCE: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The keys that differ between schemas."""

    schema: str
    version: int
    candidate: str
    baseline: str
    raw_memory: str
    matches_solo: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReader:
    """Reads one model's sections; every fault is a `RecordError` with its JSON path."""

    layout: Layout
    model: str
    name: str
    kind: str

    def points(self, node: JsonNode, section: str) -> list[ParityPoint]:
        """The points of one section, which has at least one; none stands twice."""
        readers: dict[str, Callable[[JsonNode], Iterator[tuple[JsonNode, ParityPoint]]]] = {
            "decode": self._decode,
            "ttft": self._ttft,
            "memory": self._memory,
            "load": self._load,
            "concurrency": self._concurrency,
        }
        points: list[ParityPoint] = []
        for place, point in readers[section](node):
            if any(point.name == other.name for other in points):
                place.fail(f"point {point.name!r} of section {section!r} stands twice")
            points.append(point)
        return points or node.fail(f"section {section!r} has no points")

    def _decode(self, node: JsonNode) -> Iterator[tuple[JsonNode, ParityPoint]]:
        for element in node.elements():
            yield element, self._repeats(element, "decode", METRICS["decode"])

    def _ttft(self, node: JsonNode) -> Iterator[tuple[JsonNode, ParityPoint]]:
        for element in node["legacy"].array():
            yield element, self._repeats(element, "ttft", LEGACY_METRICS)
        for element in node["lengths"].array():
            tokens = element["prompt_tokens"].whole()
            results = self._results(element, "ttft", str(tokens), METRICS["ttft"])
            yield (
                element,
                ParityPoint(section="ttft", name=str(tokens), results=results, prompt_tokens=(tokens, tokens)),
            )

    def _memory(self, node: JsonNode) -> Iterator[tuple[JsonNode, ParityPoint]]:
        for name, element in node.items():
            if not _MEMORY_POINT.fullmatch(name):
                element.fail("unknown memory point (known: load, decode, prefill_N)")
            raw = element.get(self.layout.raw_memory)
            yield (
                element,
                ParityPoint(
                    section="memory",
                    name=name,
                    results=self._results(element, "memory", name, METRICS["memory"]),
                    raw_memory=None
                    if raw is None or raw.is_null
                    else {key: item.number() for key, item in raw.items()},
                ),
            )

    def _load(self, node: JsonNode) -> Iterator[tuple[JsonNode, ParityPoint]]:
        for name, element in node.items():
            if not _LOAD_POINT.fullmatch(name):
                element.fail("unknown load point (known: warm, cold)")
            results = self._results(element, "load", name, METRICS["load"])
            yield element, ParityPoint(section="load", name=name, results=results)

    def _concurrency(self, node: JsonNode) -> Iterator[tuple[JsonNode, ParityPoint]]:
        for element in node.elements():
            level, solo = str(element["level"].whole()), element[self.layout.matches_solo]
            yield (
                element,
                ParityPoint(
                    section="concurrency",
                    name=level,
                    results=self._results(element, "concurrency", level, METRICS["concurrency"]),
                    total_tokens=element["total_tokens"].whole(),
                    matches_solo=None if solo.is_null else solo.flag(),
                    note=_note(element),
                ),
            )

    def _repeats(self, node: JsonNode, section: str, metrics: tuple[str, ...]) -> ParityPoint:
        name, counts = f"r{node['repeats'].whole()}", node["prompt_tokens"]
        tokens = (
            _whole_or_null(counts[self.layout.candidate]),
            _whole_or_null(counts[self.layout.baseline]),
        )
        results = self._results(node, section, name, metrics)
        same = node.get("same_tokens")
        return ParityPoint(
            section=section,
            name=name,
            results=results,
            prompt_tokens=tokens,
            same_tokens=None if same is None else same.flag(),
            note=_note(node),
        )

    def _results(self, node: JsonNode, section: str, point: str, metrics: tuple[str, ...]) -> tuple[ParityResult, ...]:
        found = [metric for metric in UNJUDGED.get(section, ()) if node.get(metric) is not None]
        return tuple(self._result(node[metric], section, point, metric) for metric in (*metrics, *found))

    def _result(self, node: JsonNode, section: str, point: str, metric: str) -> ParityResult:
        candidate, baseline = (_side(node[key], metric) for key in (self.layout.candidate, self.layout.baseline))
        gated, reason = node.get("gated"), node.get("reason")
        missing = candidate is None or baseline is None
        result = ParityResult(
            model=self.model,
            name=self.name,
            kind=self.kind,
            section=section,
            point=point,
            metric=metric,
            candidate=candidate,
            baseline=baseline,
            reason=node["reason"].text() if missing else reason.text() if reason else "",
            gated=metric in GATED[section] if gated is None else gated.flag(),
            rule=_rule(node),
            stored_ratio=_stored_ratio(node, missing),
        )
        _check(node, result)
        return result


def _side(node: JsonNode, metric: str) -> Side | None:
    if node.is_null:
        return None
    unit = unit_of(metric)
    if node["unit"].text() != unit:
        node["unit"].fail(f"unit of {metric} is {unit!r}, found {node['unit'].text()!r}")
    samples = tuple(element.number() for element in node["samples"].elements())
    stated, median = node["median"].number(), stats.median(samples)
    if not math.isclose(stated, median, rel_tol=_MEDIAN_TOLERANCE):
        node["median"].fail(f"is {stated!r}, but the samples' median is {median!r}")
    return Side(median=stated, samples=samples, unit=unit)


def _note(node: JsonNode) -> str:
    note = node.get("note")
    return "" if note is None else note.text()


def _rule(node: JsonNode) -> str:
    rule = node.get("rule")
    if rule is not None and rule.text() not in RULES:
        rule.fail(f"is no rule that ratios are judged by (known: {', '.join(RULES)})")
    return "point" if rule is None else rule.text()


def _stored_ratio(node: JsonNode, missing: bool) -> float | None:
    ratio = node["ratio"]
    if ratio.is_null != missing:
        ratio.fail("must be null exactly where a side is null")
    return None if ratio.is_null else ratio.number()


def _check(node: JsonNode, result: ParityResult) -> None:
    try:
        ratio = result.ratio
        judge(result, 1.0)
    except MeasurementError as error:
        raise node.error(str(error)) from error
    if result.gated and ratio is not None:
        node["gate_pass"].flag()
        node["goal_pass"].flag()


def _whole_or_null(node: JsonNode) -> int | None:
    return None if node.is_null else node.whole()
