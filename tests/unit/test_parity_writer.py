"""What a live run measured comes back from its record as it was, whichever sections came, in whatever order."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_llmbench.parity import SECTIONS, ParityPoint, ParityResult, Side, judge
from pytest_llmbench.parity_checkpoint import Checkpoint
from pytest_llmbench.parity_live import MeasuredPoint, MeasuredSection
from pytest_llmbench.parity_plan import (
    ConcurrencySettings,
    MemorySettings,
    ParityPlan,
    ParityPlanModel,
    ParitySettings,
    PlanSide,
)
from pytest_llmbench.parity_planned import PlannedPoint, PlannedResult, PlannedSection, planned_sections
from pytest_llmbench.parity_record import ParityRecord
from pytest_llmbench.parity_writer import ParityWriter, is_measured, section_facts
from pytest_llmbench.sides.messages import Hello
from pytest_llmbench.units import unit_of

SCHEMA = Path(__file__).parents[2] / "pytest_llmbench" / "schema" / "parity-record.schema.json"
CREATED = "2026-01-31T12:00:00.000+00:00"
SETTINGS = ParitySettings(
    legacy_repeats=(1, 4),
    prompt_tokens=(64,),
    concurrency=ConcurrencySettings(levels=(1, 4)),
    memory=MemorySettings(prompt_tokens=(64,), gated=("peak_bytes",)),
)
MODELS = tuple(
    ParityPlanModel(id=f"org/{name}", name=name, kind="moe", line=1, sections=sections)
    for name, sections in (("m", SECTIONS), ("n", ("decode", "load")))
)
PLAN = ParityPlan(path=Path("/plans/p.yaml"), models=MODELS)
SECTION_LIST = planned_sections(PLAN, SETTINGS)
HELLO = Hello(name="x", version="1.0", facts={"library": "2", "fast": True, "none": None})
notes = st.sampled_from(["", "token 3 is candidate 1 and baseline 2: no near tie"])
amounts = st.floats(1e-6, 1e12)


@st.composite
def results(draw: st.DrawFn, planned: PlannedResult, rule: str) -> ParityResult:
    n = draw(st.integers(1, 7))
    sides = [draw(st.none() | st.lists(amounts, min_size=n, max_size=n).map(tuple)) for _ in range(2)]
    candidate, baseline = (None if s is None else side(s, planned.metric) for s in sides)
    return ParityResult(
        model=planned.model,
        name=planned.name,
        kind=planned.kind,
        section=planned.section,
        point=planned.point,
        metric=planned.metric,
        candidate=candidate,
        baseline=baseline,
        reason="" if candidate and baseline else draw(st.sampled_from(["candidate: ended", "a — b"])),
        gated=planned.gated,
        rule=rule,
    )


def side(samples: tuple[float, ...], metric: str) -> Side:
    from pytest_llmbench import stats

    return Side(median=stats.median(samples), samples=samples, unit=unit_of(metric))


@st.composite
def points(draw: st.DrawFn, at: PlannedPoint, section: PlannedSection) -> ParityPoint:
    rule = draw(st.sampled_from(["point", "interval"]))
    found = tuple(draw(results(planned, rule)) for planned in section.results if planned.at == at)
    counted, tokens = at.section in ("decode", "ttft"), at.prompt_tokens or 25
    checked = draw(st.booleans()) if at.section in ("decode", "concurrency") and draw(st.booleans()) else None
    return ParityPoint(
        section=at.section,
        name=at.point,
        results=found,
        prompt_tokens=(tokens, tokens) if counted else None,
        total_tokens=at.streams * 128 if at.streams else None,
        matches_solo=checked if at.section == "concurrency" else None,
        same_tokens=checked if at.section == "decode" else None,
        note=draw(notes) if checked is not None else "",
        raw_memory=draw(st.none() | st.just({"active_bytes": 7.0})) if at.section == "memory" else None,
    )


@st.composite
def measured(draw: st.DrawFn, section: PlannedSection) -> MeasuredSection:
    chosen = draw(st.lists(st.sampled_from(section.points), min_size=1, unique=True))
    return MeasuredSection(
        planned=section,
        checkpoint=Checkpoint(path=Path("w"), synthetic=draw(st.booleans()), snapshot=None),
        points={p.point: MeasuredPoint(point=draw(points(p, section))) for p in section.points if p in chosen},
        hellos={"candidate": HELLO, "baseline": draw(st.none() | st.just(HELLO))},
    )


some_sections = st.lists(st.sampled_from(SECTION_LIST), min_size=1, unique=True)
runs = some_sections.flatmap(lambda sections: st.tuples(*map(measured, sections)))


def write(folder: Path, *sections: MeasuredSection) -> ParityRecord:
    """The record of these, each taken in through JSON, as it comes with a test's report."""
    writer = ParityWriter(folder, created=CREATED, environment={"chip": "none"})
    for found in sections:
        path = writer.add(json.loads(json.dumps(section_facts(found), allow_nan=False)))
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text())).validate(json.loads(path.read_text()))
    return writer.records[path]


def sortable(result: ParityResult) -> str:
    return result.id


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=60)
@given(run=runs)
def test_a_record_holds_what_was_measured(run: tuple[MeasuredSection, ...], tmp_path: Path) -> None:
    record = write(tmp_path, *run)
    wanted = [r for found in run for p in found.points.values() for r in p.point.results]
    assert sorted(record.results, key=sortable) == sorted(wanted, key=sortable)
    by_id = {result.id: result for result in wanted}
    for result in record.results:
        assert judge(result, 0.98) == judge(by_id[result.id], 0.98)
    points_read = {(m.id, p.section, p.name): p for m in record.models for p in m.points}
    for found in run:
        for point in found.points.values():
            assert points_read[found.planned.model.id, point.point.section, point.point.name] == point.point


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=40)
@given(run=runs)
def test_a_model_is_ok_when_nothing_of_it_is_missing(run: tuple[MeasuredSection, ...], tmp_path: Path) -> None:
    for model in write(tmp_path, *run).models:
        own = [found for found in run if found.planned.model.id == model.id]
        whole = {found.planned.section for found in own if len(found.points) == len(found.planned.points)}
        both = all(r.candidate and r.baseline for r in model.results)
        assert (model.status == "ok") is (both and whole == set(own[0].planned.model.sections))
        assert (model.reason == "") is (model.status == "ok")


def one(section: str = "decode", model_id: str = "org/m", /, **changes: Any) -> MeasuredSection:
    (planned,) = (s for s in SECTION_LIST if (s.section, s.model.id) == (section, model_id))
    planned = replace(planned, **changes)
    found = {at.point: MeasuredPoint(point=plain(planned, at)) for at in planned.points}
    checkpoint = Checkpoint(path=Path("w"), synthetic=False)
    return MeasuredSection(
        planned=planned, checkpoint=checkpoint, points=found, hellos={"candidate": HELLO, "baseline": None}
    )


def plain(planned: PlannedSection, at: PlannedPoint) -> ParityPoint:
    made = tuple(
        ParityResult(
            **{name: getattr(r, name) for name in ("model", "name", "kind", "section", "point", "metric", "gated")},
            candidate=side((2.0,), r.metric),
            baseline=side((1.0,), r.metric),
            reason="",
        )
        for r in planned.results
        if r.at == at
    )
    tokens = (25, 25) if at.section in ("decode", "ttft") else None
    return ParityPoint(section=at.section, name=at.point, results=made, prompt_tokens=tokens)


def test_a_section_that_is_measured_again_takes_the_place_of_the_first(tmp_path: Path) -> None:
    again = one()
    record = write(tmp_path, one(), one("load"), replace(again, hellos={"candidate": HELLO, "baseline": HELLO}))
    assert record.sections == ("decode", "load")
    assert len(record.models) == 1
    assert (record.candidate.version, record.baseline.version) == ("1.0", "1.0")
    assert record.candidate.facts == dict(HELLO.facts)


def test_a_side_that_never_said_who_it_is_has_no_known_version(tmp_path: Path) -> None:
    assert write(tmp_path, one()).baseline.version == "unknown"


def facts(found: MeasuredSection) -> dict[str, Any]:
    plain_facts: dict[str, Any] = json.loads(json.dumps(section_facts(found)))
    return plain_facts


def test_facts_are_of_the_section_that_they_were_made_of() -> None:
    for planned in SECTION_LIST:
        assert is_measured(facts(one(planned.section, planned.model.id)), planned)


@pytest.mark.parametrize(
    "changes",
    [
        {"settings": replace(SETTINGS, max_tokens=9)},
        {"settings": replace(SETTINGS, gate=0.5)},
        {"model": replace(MODELS[0], snapshot="0123456")},
        {"model": replace(MODELS[0], path="w")},
        {"points": SECTION_LIST[0].points[:1]},
        {"plan": replace(PLAN, baseline="other")},
        {"plan": replace(PLAN, baseline_version="1.0")},
        {"plan": replace(PLAN, sides=(PlanSide(name="engine", command=("side",)),))},
    ],
)
def test_facts_are_of_no_section_that_is_planned_otherwise(changes: dict[str, Any]) -> None:
    assert not is_measured(facts(one()), one(**changes).planned)


@pytest.mark.parametrize(
    "changes",
    [
        {"model": replace(MODELS[0], line=7, known_issue="slow", reason="x")},
        {"plan": replace(PLAN, sides=(PlanSide(name="unused", command=("side",)),))},
    ],
)
def test_what_says_nothing_of_the_measurement_doesn_t_count(changes: dict[str, Any]) -> None:
    assert is_measured(facts(one()), one(**changes).planned)
