"""Writes a live run's parity record, anew after each section that comes in: what was measured is never lost."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pytest_llmbench.json_node import JsonNode
from pytest_llmbench.parity import SECTIONS
from pytest_llmbench.parity_checkpoint import FileFacts
from pytest_llmbench.parity_json import section_json
from pytest_llmbench.parity_pair import BOTH
from pytest_llmbench.parity_planned import PlannedSection, settings_json
from pytest_llmbench.parity_record import OUR_SCHEMA, OUR_VERSION, ParityRecord, parse_parity_record
from pytest_llmbench.parity_same import UNKNOWN_VERSION
from pytest_llmbench.record import dumps, loads, write_json
from pytest_llmbench.secrets import hide_command, is_secret_name

if TYPE_CHECKING:
    from pytest_llmbench.parity_live import MeasuredSection
    from pytest_llmbench.parity_plan import PlanSide

NAME: Final = "parity.json"
EPOCH: Final = "1970-01-01T00:00:00+00:00"


def section_facts(measured: MeasuredSection) -> dict[str, Any]:
    """All that the record has to know of a measured section, as JSON: it travels on a test's report."""
    planned, limits = measured.planned, measured.planned.settings
    points = [found.point for found in measured.points.values()]
    names = {"candidate": planned.plan.candidate, "baseline": planned.plan.baseline}
    missing = [r.reason for point in points for r in point.results if r.candidate is None or r.baseline is None]
    return {
        "plan": str(planned.plan.path),
        "settings": _plain(settings_json(planned.plan, limits)),
        "asked": _asked(planned),
        "sides": {who: _side(names[who], measured.hellos[who]) for who in BOTH},
        "model": {
            "id": planned.model.id,
            "kind": planned.model.kind,
            "snapshot": measured.checkpoint.snapshot,
            "synthetic": measured.checkpoint.synthetic,
            "sections": list(planned.model.sections),
        },
        "files": _plain(measured.checkpoint.files),
        "section": planned.section,
        "complete": len(points) == len(planned.points),
        "reason": missing[0] if missing else "",
        "points": section_json(planned.section, points, gate=limits.gate, goal=limits.goal),
    }


def require_facts(node: JsonNode) -> None:
    """RecordError for what `section_facts` doesn't give: a record made of it has to be one."""
    for name in ("plan", "section"):
        node[name].text()
    for name in ("settings", "asked"):
        node[name].mapping()
    model = node["model"]
    model["id"].text()
    for section in model["sections"].array():
        section.text()
    for name in ("kind", "snapshot"):
        model[name]
    for flag in (model["synthetic"], node["complete"]):
        flag.flag()
    for side in (node["sides"][who] for who in BOTH):
        side["version"].text(), side["facts"].mapping()
    if node["reason"].value != "":
        node["reason"].text()
    node["points"]
    alone = document([node.mapping()], created=EPOCH, environment={})
    parse_parity_record(JsonNode(value=_plain(alone), file=node.file, path=node.path))


def is_measured(facts: Mapping[str, Any], planned: PlannedSection, files: FileFacts | None = None) -> bool:
    """Whether `facts` are of what is planned now: the same settings, model, points and sides.

    `files`: those of the checkpoint now, None where that isn't known; journals didn't always tell of them.
    """
    settings = _plain(settings_json(planned.plan, planned.settings))
    same_files = files is None or facts.get("files") in (None, _plain(files))
    return bool(facts["settings"] == settings and facts["asked"] == _asked(planned) and same_files)


def _asked(planned: PlannedSection) -> dict[str, Any]:
    """What the plan says beside its settings: of the model, its points, and the sides."""
    plan, model = planned.plan, planned.model
    return {
        **{name: getattr(model, name) for name in ("id", "kind", "snapshot", "shape", "path", "synthetic")},
        "points": [point.point for point in planned.points],
        "sides": [plan.candidate, plan.baseline, plan.baseline_version],
        "own_sides": [_own_side(side) for side in plan.sides if side.name in (plan.candidate, plan.baseline)],
    }


def _own_side(side: PlanSide) -> list[Any]:
    env = [[name, value] for name, value in side.env if not is_secret_name(name)]
    return [side.name, hide_command(side.command), env, side.version]


def _plain(data: Any) -> Any:
    """`data` as it comes back from a file."""
    return loads(dumps(data))


def _side(name: str, hello: Any) -> dict[str, Any]:
    if hello is None:
        return {"name": name, "version": UNKNOWN_VERSION, "facts": {}}
    return {"name": name, "version": hello.version, "facts": dict(hello.facts)}


class ParityWriter:
    """The records of one session, one file for each plan: `parity.json`, and `parity_STEM.json` for any further one."""

    def __init__(self, out: Path, *, created: str, environment: Mapping[str, Any], resumed: Iterable[str] = ()) -> None:
        """`resumed`: plans whose records in `out` are the run's that goes on; all others are an earlier one's."""
        self._out, self._created, self._environment = out, created, environment
        self._expected = set(resumed)
        self._plans: dict[str, dict[tuple[str, str], Mapping[str, Any]]] = {}
        self.records: dict[Path, ParityRecord] = {}

    def add(self, facts: Mapping[str, Any]) -> Path:
        """Take a section in, and write its plan's record; returns where."""
        self.expect(facts["plan"])
        sections = self._plans.setdefault(facts["plan"], {})
        sections[facts["model"]["id"], facts["section"]] = facts
        path = self._out / record_name(facts["plan"], list(self._plans))
        made = document(list(sections.values()), created=self._created, environment=self._environment)
        written = _plain(made)
        # By the strict reader: what nobody could replay must not be found out later.
        record = parse_parity_record(JsonNode(value=written, file=path))
        write_json(path, written | {"summary": record.summary().to_json()})
        self.records[path] = record
        return path

    def expect(self, plan: str) -> None:
        """Keep what an earlier run left of a plan under another name: this one's it isn't, if nothing is measured."""
        if plan in self._expected:
            return
        self._expected.add(plan)
        stem = re.escape(Path(plan).stem)
        for path in self._out.glob("parity*.json"):
            if path not in self.records and re.fullmatch(rf"parity(_{stem}(_\d+)?)?\.json", path.name):
                path.replace(path.with_name(f"{path.name}.previous"))


def document(sections: Sequence[Mapping[str, Any]], *, created: str, environment: Mapping[str, Any]) -> dict[str, Any]:
    """The record of these sections (`section_facts`), apart from its summary."""
    measured = {facts["section"] for facts in sections}
    return {
        "schema": OUR_SCHEMA,
        "schema_version": OUR_VERSION,
        "created": created,
        **{who: _known(who, sections) for who in BOTH},
        "environment": dict(environment),
        "settings": sections[-1]["settings"],
        "sections": [section for section in SECTIONS if section in measured],
        "models": _models(sections),
        "summary": {},
    }


def record_name(plan: str, plans: Sequence[str]) -> str:
    """Another one for each plan of a session, also for those of the same name in several folders."""
    names: dict[str, str] = {}
    for other in plans:
        stem = f"parity_{Path(other).stem}"
        free = chain([f"{stem}.json" if names else NAME], (f"{stem}_{number}.json" for number in count(2)))
        names[other] = next(name for name in free if name not in names.values())
    return names[plan]


def _known(who: str, sections: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the side said of itself, by the first section in which it said anything."""
    said: list[dict[str, Any]] = [facts["sides"][who] for facts in sections]
    return next((side for side in said if side["version"] != UNKNOWN_VERSION), said[0])


def _models(sections: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for facts in sections:
        found.setdefault(facts["model"]["id"], []).append(facts)
    return [_model(parts) for parts in found.values()]


def _model(parts: list[Mapping[str, Any]]) -> dict[str, Any]:
    """A model is `ok` when each of its sections is there, whole, with both sides."""
    facts = parts[0]["model"]
    by_section = {part["section"]: part["points"] for part in parts}
    missing = [name for name in facts["sections"] if name not in by_section]
    reasons = [part["reason"] for part in parts if part["reason"]]
    reasons += [f"{part['section']}: not all points were asked for" for part in parts if not part["complete"]]
    reasons += [f"not measured: {', '.join(missing)}"] if missing else []
    head = {name: facts[name] for name in ("id", "kind", "snapshot")}
    synthetic = {"synthetic": True} if facts["synthetic"] else {}
    status = {"status": "partial", "reason": "; ".join(reasons)} if reasons else {"status": "ok"}
    return {**head, **synthetic, **status, **{s: by_section[s] for s in SECTIONS if s in by_section}}
