"""Saved parity records: strict reading of two schemas, writing of our own.

    nuvec-parity-record 1      sides are keyed `nuvec` and `mlx_lm`, versions lie in `environment`
    llmbench-parity-record 1   sides are keyed `candidate` and `baseline`, name and version in the head

What follows from samples (ratios, passes, the summary) is worked out anew; what a file says of it is kept
apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pytest_llmbench.json_node import JsonNode, read_json
from pytest_llmbench.parity import SECTIONS, ParityModel, ParityPoint, ParityResult, Side, model_names
from pytest_llmbench.parity_points import MODEL_ID, Layout, ModelReader
from pytest_llmbench.parity_summary import Summary, summarize

OUR_SCHEMA: Final = "llmbench-parity-record"
OUR_VERSION: Final = 1

_LAYOUTS: Final = (
    Layout(
        schema="nuvec-parity-record",
        version=1,
        candidate="nuvec",
        baseline="mlx_lm",
        raw_memory="nuvec_raw",
        matches_solo="nuvec_matches_solo",
    ),
    Layout(
        schema=OUR_SCHEMA,
        version=OUR_VERSION,
        candidate="candidate",
        baseline="baseline",
        raw_memory="candidate_raw",
        matches_solo="matches_solo",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One side's name and version."""

    name: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityRecord:
    """A parity run as read from `path`; `version` is the schema's. `gate` and `goal` are the run's own."""

    path: Path
    schema: str
    version: int
    created: datetime
    candidate: Engine
    baseline: Engine
    environment: Mapping[str, object]
    settings: Mapping[str, object]
    gate: float
    goal: float
    sections: tuple[str, ...]
    models: tuple[ParityModel, ...]
    stored_summary: Mapping[str, object]

    @property
    def candidate_name(self) -> str:
        """Name of the engine under test."""
        return self.candidate.name

    @property
    def baseline_name(self) -> str:
        """Name of the engine it is measured against."""
        return self.baseline.name

    @property
    def results(self) -> tuple[ParityResult, ...]:
        """Results of all models, in the record's order; their ids are unique."""
        return tuple(result for model in self.models for result in model.results)

    def summary(self, *, gate: float | None = None, goal: float | None = None) -> Summary:
        """Summed up anew from the samples; None: with the run's own gate or goal."""
        limits = (self.gate if gate is None else gate, self.goal if goal is None else goal)
        return summarize(self.results, *limits, self.models)


def read_parity_record(path: Path) -> ParityRecord:
    """Read and check a record. Raises `RecordError` with file and JSON path for anything that isn't one."""
    root = read_json(path)
    layout = _layout(root)
    candidate, baseline = _engines(root, layout)
    sections = _sections(root["sections"])
    settings = root["settings"]
    return ParityRecord(
        path=path,
        schema=layout.schema,
        version=layout.version,
        created=_created(root["created"]),
        candidate=candidate,
        baseline=baseline,
        environment=root["environment"].mapping(),
        settings=settings.mapping(),
        gate=_limit(settings["gates"]["gate"]),
        goal=_limit(settings["gates"]["goal"]),
        sections=sections,
        models=_models(root["models"], layout, sections),
        stored_summary=root["summary"].mapping(),
    )


def _layout(root: JsonNode) -> Layout:
    schema, version = root["schema"], root["schema_version"]
    for layout in _LAYOUTS:
        if (layout.schema, layout.version) == (schema.text(), version.whole()):
            return layout
    known = ", ".join(f"{layout.schema} {layout.version}" for layout in _LAYOUTS)
    if schema.text() in {layout.schema for layout in _LAYOUTS}:
        version.fail(
            f"version {version.whole()} of {schema.text()!r} is unknown (known: {known})",
            hint="upgrade pytest-llmbench",
        )
    schema.fail(f"schema {schema.text()!r} is no parity record's (known: {known})", hint="name a parity record's file")


def _engines(root: JsonNode, layout: Layout) -> tuple[Engine, Engine]:
    if layout.schema == OUR_SCHEMA:
        return _engine(root["candidate"]), _engine(root["baseline"])
    environment = root["environment"]
    return (
        Engine(name="nuvec", version=environment["nuvec"]["version"].text()),
        Engine(name="mlx-lm", version=environment["mlx_lm"].text()),
    )


def _engine(node: JsonNode) -> Engine:
    return Engine(name=node["name"].text(), version=node["version"].text())


def _created(node: JsonNode) -> datetime:
    try:
        created = datetime.fromisoformat(node.text())
    except ValueError as error:
        raise node.error(f"{node.text()!r} isn't an ISO 8601 time") from error
    return created if created.tzinfo is not None else node.fail(f"{node.text()!r} has no UTC offset")


def _limit(node: JsonNode) -> float:
    value = node.number()
    return value if value > 0 else node.fail("must be more than 0")


def _sections(node: JsonNode) -> tuple[str, ...]:
    names: list[str] = []
    for element in node.elements():
        name = element.text()
        if name not in SECTIONS:
            element.fail(f"unknown section {name!r} (known: {', '.join(SECTIONS)})")
        if name in names:
            element.fail(f"section {name!r} stands twice")
        names.append(name)
    return tuple(names)


def _models(node: JsonNode, layout: Layout, sections: tuple[str, ...]) -> tuple[ParityModel, ...]:
    ids: list[str] = []
    for element in node.elements():
        model = element["id"].text()
        if not MODEL_ID.fullmatch(model):
            element["id"].fail(f"{model!r} isn't a model id such as 'mlx-community/Qwen3-0.6B-4bit'")
        if model in ids:
            element["id"].fail(f"model {model!r} stands twice (first at models[{ids.index(model)}])")
        ids.append(model)
    names = model_names(ids)
    return tuple(_model(element, layout, names, sections) for element in node.elements())


def _model(node: JsonNode, layout: Layout, names: Mapping[str, str], sections: tuple[str, ...]) -> ParityModel:
    model, status, snapshot = node["id"].text(), node["status"].text(), node["snapshot"]
    reader = ModelReader(layout=layout, model=model, name=names[model], kind=node["kind"].text())
    for section in SECTIONS:
        if section not in sections and (unlisted := node.get(section)):
            unlisted.fail("isn't listed in the record's sections")
    return ParityModel(
        id=model,
        name=reader.name,
        kind=reader.kind,
        snapshot=None if snapshot.is_null else snapshot.text(),
        status=status,
        reason="" if status == "ok" else node["reason"].text(),
        points=tuple(point for section in sections for point in reader.points(node[section], section)),
    )


def to_json(record: ParityRecord) -> dict[str, object]:
    """The record in our own schema, for `json.dump(…, allow_nan=False)`; ratios unrounded, summary anew.

    Read back it gives equal results. Raises `MeasurementError` for samples that give no ratio.
    """
    return {
        "schema": OUR_SCHEMA,
        "schema_version": OUR_VERSION,
        "created": record.created.astimezone(UTC).isoformat(),
        "candidate": asdict(record.candidate),
        "baseline": asdict(record.baseline),
        "environment": dict(record.environment),
        "settings": dict(record.settings),
        "sections": list(record.sections),
        "models": [_model_json(record, model) for model in record.models],
        "summary": record.summary().to_json(),
    }


def _model_json(record: ParityRecord, model: ParityModel) -> dict[str, object]:
    head = {"id": model.id, "kind": model.kind, "snapshot": model.snapshot, "status": model.status}
    points = {
        section: [(point, _point_json(record, point)) for point in model.points if point.section == section]
        for section in record.sections
    }
    body = {section: _section_json(section, items) for section, items in points.items()}
    return {**head, **({"reason": model.reason} if model.reason else {}), **body}


def _section_json(section: str, items: list[tuple[ParityPoint, dict[str, object]]]) -> object:
    if section in ("memory", "load"):
        return {point.name: body for point, body in items}
    if section == "ttft":
        return {
            "legacy": [body for _, body in items if "repeats" in body],
            "lengths": [body for _, body in items if "repeats" not in body],
        }
    return [body for _, body in items]


def _point_json(record: ParityRecord, point: ParityPoint) -> dict[str, object]:
    metrics: dict[str, object] = {result.metric: _result_json(record, result) for result in point.results}
    if point.section == "concurrency":
        facts = {"level": int(point.name), "total_tokens": point.total_tokens}
        return {**facts, **metrics, "matches_solo": point.matches_solo}
    if point.section == "memory":
        return {**metrics, "candidate_raw": None if point.raw_memory is None else dict(point.raw_memory)}
    if point.section == "load" or point.prompt_tokens is None:
        return metrics
    if not point.name.startswith("r"):
        return {"prompt_tokens": int(point.name), **metrics}
    candidate, baseline = point.prompt_tokens
    tokens = {"candidate": candidate, "baseline": baseline}
    return {"repeats": int(point.name.removeprefix("r")), "prompt_tokens": tokens, **metrics}


def _result_json(record: ParityRecord, result: ParityResult) -> dict[str, object]:
    ratio = result.ratio
    body: dict[str, object] = {
        "candidate": _side_json(result.candidate),
        "baseline": _side_json(result.baseline),
        "ratio": ratio,
        "gated": result.gated,
    }
    if result.gated and ratio is not None:
        body |= {"gate_pass": ratio >= record.gate, "goal_pass": ratio >= record.goal}
    return {**body, **({"reason": result.reason} if result.reason else {})}


def _side_json(side: Side | None) -> dict[str, object] | None:
    if side is None:
        return None
    return {"median": side.median, "samples": list(side.samples), "unit": side.unit}
