"""A parity record in our own schema, as JSON: whole, or a section of a model while it is still being made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC

from pytest_llmbench.parity import ParityModel, ParityPoint, ParityResult, Side
from pytest_llmbench.parity_record import OUR_SCHEMA, OUR_VERSION, Engine, ParityRecord


def to_json(record: ParityRecord) -> dict[str, object]:
    """The record in our own schema, for `json.dump(…, allow_nan=False)`; ratios unrounded, summary anew.

    Read back it gives equal results. Raises `MeasurementError` for samples that give no ratio.
    """
    return {
        "schema": OUR_SCHEMA,
        "schema_version": OUR_VERSION,
        "created": record.created.astimezone(UTC).isoformat(),
        "candidate": _engine_json(record.candidate),
        "baseline": _engine_json(record.baseline),
        "environment": dict(record.environment),
        "settings": dict(record.settings),
        "sections": list(record.sections),
        "models": [_model_json(record, model) for model in record.models],
        "summary": record.summary().to_json(),
    }


def _engine_json(engine: Engine) -> dict[str, object]:
    facts = {"facts": dict(engine.facts)} if engine.facts else {}
    return {"name": engine.name, "version": engine.version, **facts}


def model_head(model: ParityModel) -> dict[str, object]:
    """What stands at the top of a model."""
    head: dict[str, object] = {"id": model.id, "kind": model.kind, "snapshot": model.snapshot}
    if model.synthetic:
        head["synthetic"] = True
    head["status"] = model.status
    return {**head, **({"reason": model.reason} if model.reason else {})}


def section_json(section: str, points: Sequence[ParityPoint], *, gate: float, goal: float) -> object:
    """One section of a model."""
    items = [(point, _point_json(point, gate, goal)) for point in points]
    if section in ("memory", "load"):
        return {point.name: body for point, body in items}
    if section == "ttft":
        return {
            "legacy": [body for _, body in items if "repeats" in body],
            "lengths": [body for _, body in items if "repeats" not in body],
        }
    return [body for _, body in items]


def _model_json(record: ParityRecord, model: ParityModel) -> dict[str, object]:
    sections = {s: _points_of(model.points, s) for s in record.sections}
    limits = {"gate": record.gate, "goal": record.goal}
    return model_head(model) | {s: section_json(s, points, **limits) for s, points in sections.items() if points}


def _points_of(points: Iterable[ParityPoint], section: str) -> list[ParityPoint]:
    return [point for point in points if point.section == section]


def _point_json(point: ParityPoint, gate: float, goal: float) -> dict[str, object]:
    metrics: dict[str, object] = {r.metric: _result_json(r, gate, goal) for r in point.results}
    if point.section == "concurrency":
        facts = {"level": int(point.name), "total_tokens": point.total_tokens}
        return {**facts, **metrics, "matches_solo": point.matches_solo, **_note(point)}
    if point.section == "memory":
        return {**metrics, "candidate_raw": None if point.raw_memory is None else dict(point.raw_memory)}
    if point.section == "load" or point.prompt_tokens is None:
        return metrics
    if not point.name.startswith("r"):
        return {"prompt_tokens": int(point.name), **metrics}
    candidate, baseline = point.prompt_tokens
    tokens = {"candidate": candidate, "baseline": baseline}
    body = {"repeats": int(point.name.removeprefix("r")), "prompt_tokens": tokens, **metrics}
    if point.same_tokens is None:
        return body
    return {**body, "same_tokens": point.same_tokens, **_note(point)}


def _note(point: ParityPoint) -> dict[str, object]:
    return {"note": point.note} if point.note else {}


def _result_json(result: ParityResult, gate: float, goal: float) -> dict[str, object]:
    ratio = result.ratio
    body: dict[str, object] = {
        "candidate": _side_json(result.candidate),
        "baseline": _side_json(result.baseline),
        "ratio": ratio,
        "gated": result.gated,
    }
    if result.rule != "point":
        body["rule"] = result.rule
    if result.gated and ratio is not None:
        body |= {"gate_pass": ratio >= gate, "goal_pass": ratio >= goal}
    return {**body, **({"reason": result.reason} if result.reason else {})}


def _side_json(side: Side | None) -> dict[str, object] | None:
    if side is None:
        return None
    return {"median": side.median, "samples": list(side.samples), "unit": side.unit}
