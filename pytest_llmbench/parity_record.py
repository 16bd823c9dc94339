"""Saved parity records: strict reading of two schemas. Our own is written by `parity_json`.

    nuvec-parity-record 1      sides are keyed `nuvec` and `mlx_lm`, versions lie in `environment`
    llmbench-parity-record 1   sides are keyed `candidate` and `baseline`, name and version in the head

What follows from samples (ratios, passes, the summary) is worked out anew; what a file says of it is kept
apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

from pytest_llmbench.json_node import JsonNode, read_json
from pytest_llmbench.parity import SECTIONS, ParityModel, ParityResult, model_names
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
    """One side's name and version, and what it said of itself: versions of libraries, device, switches."""

    name: str
    version: str
    facts: Mapping[str, object] = field(default_factory=dict)


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
    return parse_parity_record(read_json(path))


def parse_parity_record(root: JsonNode) -> ParityRecord:
    """The same for what has been read already."""
    layout = _layout(root)
    candidate, baseline = _engines(root, layout)
    sections = _sections(root["sections"])
    settings = root["settings"]
    return ParityRecord(
        path=root.file,
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
    facts = node.get("facts")
    return Engine(
        name=node["name"].text(), version=node["version"].text(), facts={} if facts is None else facts.mapping()
    )


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
        points=tuple(
            point
            for section in sections
            if _is_there(node, section, complete=status == "ok")
            for point in reader.points(node[section], section)
        ),
        synthetic=synthetic.flag() if (synthetic := node.get("synthetic")) is not None else False,
    )


def _is_there(node: JsonNode, section: str, *, complete: bool) -> bool:
    """A model that wasn't measured to its end may lack sections."""
    return complete or node.get(section) is not None
