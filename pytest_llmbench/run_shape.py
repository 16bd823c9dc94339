"""What a run.json must be like where its readers look: compare, report, history and merge ask no further.

The whole format is `schema/run.schema.json`; what is checked here is what a damaged file would break on.
"""

from __future__ import annotations

import re
from typing import Final

from pytest_llmbench.json_node import JsonNode

TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?\+00:00")
_ENTRY_TEXTS: Final = ("backend", "model_id", "model", "fmt", "quant", "kv_cache")
_VERDICT_TEXTS: Final = ("outcome", "metric", "reason", "rule")
_VERDICT_NUMBERS: Final = ("value", "gate", "n")
_VERDICT_UNKNOWN: Final = ("reference", "ratio", "interval")
_CONDITIONS: Final = ("before", "after")


def check_run(run: JsonNode) -> None:
    """RecordError with the JSON path of what no reader could use."""
    check_time(run["created"])
    if (sources := run.get("sources")) is not None:
        for _, head in sources.items():
            check_time(head["created"])
            head["environment"].mapping()
    for result in run["results"].array():
        check_result(result)


def check_time(node: JsonNode) -> None:
    """UTC, as records write it: times are put in order as texts."""
    if not (isinstance(node.value, str) and TIME.fullmatch(node.value)):
        node.fail(f"{node.value!r:.80} is no time in UTC such as 2026-01-31T12:00:00.000+00:00")


def check_result(result: JsonNode) -> None:
    """Of one finished test, a run's or a journal's."""
    if not (entry := result["entry"]).is_null:
        entry["id"].text()
        for name in _ENTRY_TEXTS:
            _text_or_null(entry.get(name))
    for verdict in result["verdicts"].array():
        _check_verdict(verdict)
    if not (measurement := result["measurement"]).is_null:
        _check_measurement(measurement)


def _check_verdict(verdict: JsonNode) -> None:
    for name in _VERDICT_TEXTS:
        _text(verdict[name])
    for name in _VERDICT_NUMBERS:
        verdict[name].finite()
    for name in _VERDICT_UNKNOWN:
        if not (node := verdict[name]).is_null:
            for number in node.array() if name == "interval" else [node]:
                number.finite()
    if verdict["outcome"].value == "inconclusive" and verdict["ratio"].is_null:
        verdict["ratio"].fail("is null, but it is what decides an inconclusive verdict")


def _check_measurement(measurement: JsonNode) -> None:
    _text_or_null(measurement["target"]["version"])
    _check_metrics(measurement["metrics"])
    for sample in measurement["samples"].array():
        _text_or_null(sample["invalid"])
        _check_metrics(sample["metrics"])
    if (level := measurement.get("level")) is not None and not level.is_null:
        _check_rounds(measurement, level.whole())
    for odd in measurement["suspicions"].array():
        _text(odd)
    for name in _CONDITIONS:
        if (when := measurement["conditions"].get(name)) is not None:
            when.mapping()


def _check_rounds(measurement: JsonNode, level: int) -> None:
    """Of several requests at once: `level` samples for each round, with the same figures."""
    rounds, samples = measurement["rounds"].array(), measurement["samples"].array()
    for found in rounds:
        found["valid"].flag()
        _check_metrics(found["metrics"])
    if len(samples) != level * len(rounds):
        measurement["samples"].fail(f"has {len(samples)} of {level} requests in each of {len(rounds)} rounds")
    if len({frozenset(sample["metrics"].mapping()) for sample in samples}) > 1:
        measurement["samples"].fail("haven't all the same metrics")


def _check_metrics(metrics: JsonNode) -> None:
    for _, value in metrics.items():
        if not value.is_null:
            value.finite()


def _text_or_null(node: JsonNode | None) -> None:
    if node is not None and not node.is_null:
        _text(node)


def _text(node: JsonNode) -> None:
    """A text, empty ones and halves of surrogate pairs included: a model may have written it."""
    if not isinstance(node.value, str):
        node.wrong_type("a string")
