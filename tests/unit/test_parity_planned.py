"""A plan's results are a record's: same ids, same order; what the tiers and the options change."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.errors import UsageError
from pytest_llmbench.parity import METRICS, RUN_ORDER, SECTIONS, UNJUDGED, model_names
from pytest_llmbench.parity_plan import (
    KINDS,
    ConcurrencySettings,
    LoadSettings,
    MemorySettings,
    ParityPlan,
    ParityPlanModel,
    ParitySettings,
)
from pytest_llmbench.parity_plan_file import load
from pytest_llmbench.parity_planned import planned_results, planned_sections, settings_json
from pytest_llmbench.parity_record import read_parity_record

MATRIX = Path(__file__).parents[2] / "matrix"
RECORD = read_parity_record(MATRIX / "records" / "parity_m4_pro.json")
PLAN = load(MATRIX / "parity.yaml")


def test_the_full_tier_plans_what_the_saved_record_holds() -> None:
    planned = [r for r in planned_results(PLAN, "full") if r.metric in METRICS[r.section]]
    assert [(r.id, r.kind, r.gated) for r in planned] == [(r.id, r.kind, r.gated) for r in RECORD.results]
    assert all(set(p.keywords) >= set(r.keywords) for p, r in zip(planned, RECORD.results, strict=True))
    assert [(m.id, m.name, m.snapshot) for m in PLAN.models] == [(m.id, m.name, m.snapshot) for m in RECORD.models]


def test_the_full_tier_has_the_saved_record_s_settings() -> None:
    full = PLAN.settings.for_tier("full")
    ours, theirs = json.loads(json.dumps(settings_json(PLAN, full))), RECORD.settings
    same = ("tier", "passes", "max_tokens", "prompt_tokens", "legacy_repeats", "extra_prompt_tokens", "gates")
    assert {key: ours[key] for key in same} == {key: theirs[key] for key in same}
    assert ours["concurrency"] | {"eos": "ignored"} == theirs["concurrency"]


def test_the_quick_tier_is_a_part_of_the_full_one_without_long_prompts() -> None:
    quick, full = ({r.id for r in planned_results(PLAN, tier)} for tier in ("quick", "full"))
    assert quick < full
    tokens = [r.at.prompt_tokens or 0 for r in planned_results(PLAN, "quick")]
    assert max(tokens) == 2048
    assert max(r.at.repeats or 0 for r in planned_results(PLAN, "quick")) == 40


def test_an_unknown_tier_is_refused_with_what_was_meant() -> None:
    with pytest.raises(UsageError, match="did you mean 'quick'"):
        planned_results(PLAN, "quik")


def test_only_what_a_plan_gates_in_memory_is_judged() -> None:
    gated = replace(PLAN, settings=ParitySettings(memory=MemorySettings(prompt_tokens=(), gated=("peak_bytes",))))
    memory = [s for s in planned_sections(gated, gated.settings) if s.section == "memory"]
    assert {(r.metric, r.gated) for s in memory for r in s.results} == {
        ("peak_bytes", True),
        ("os_peak_rss_bytes", False),
    }
    assert [s.ungated_points for s in memory] == [()] * len(memory)
    nothing = planned_sections(PLAN, ParitySettings())
    assert {s.section for s in nothing if s.ungated_points} == {"memory"}


def test_sections_are_run_in_an_order_that_has_each_once() -> None:
    assert sorted(RUN_ORDER) == sorted(SECTIONS)


def test_what_an_option_says_beats_the_file() -> None:
    given_settings = PLAN.settings.for_tier("quick")
    assert given_settings.overridden() == given_settings
    changed = given_settings.overridden(gate=0.9, goal=1.1, verdict="point", runs=20, max_tokens=8)
    assert (changed.gate, changed.goal, changed.verdict) == (0.9, 1.1, "point")
    assert (changed.rounds, changed.max_rounds) == (20, 20)
    assert (changed.max_tokens, changed.concurrency.max_tokens) == (8, 8)


def test_fewer_runs_leave_the_limit_of_rounds_as_it_is() -> None:
    changed = PLAN.settings.for_tier("quick").overridden(runs=2)
    assert (changed.rounds, changed.max_rounds) == (2, 9)


def test_a_model_s_name_and_path_stand_for_it_where_two_share_a_name() -> None:
    models = [replace(PLAN.models[0], id=name, name=name) for name in ("a/m", "b/m")]
    ids = [r.id for r in planned_results(replace(PLAN, models=tuple(models)), "quick")]
    assert len(set(ids)) == len(ids)


numbers = st.lists(st.integers(1, 10**6), max_size=3, unique=True).map(tuple)
some_numbers = st.lists(st.integers(1, 10**6), min_size=1, max_size=3, unique=True).map(tuple)
sections = st.lists(st.sampled_from(SECTIONS), min_size=1, unique=True).map(tuple)
any_settings = st.builds(
    ParitySettings,
    legacy_repeats=some_numbers,
    prompt_tokens=numbers,
    extra_prompts=st.booleans(),
    concurrency=st.builds(ConcurrencySettings, levels=some_numbers),
    load=st.builds(LoadSettings, cold=st.booleans()),
    memory=st.builds(
        MemorySettings,
        prompt_tokens=numbers,
        gated=st.lists(st.sampled_from(METRICS["memory"]), unique=True).map(tuple),
    ),
)


@st.composite
def plans(draw: st.DrawFn) -> ParityPlan:
    ids = draw(st.lists(st.sampled_from(["a/m", "b/m", "m", "a/n", "n-decode", "n"]), min_size=1, unique=True))
    names = model_names(ids)
    models = tuple(
        ParityPlanModel(
            id=model,
            name=names[model],
            kind=draw(st.sampled_from(KINDS)),
            line=1,
            sections=draw(sections),
            extra_prompt_tokens=draw(numbers),
            extra_memory_prompt_tokens=draw(numbers),
        )
        for model in ids
    )
    return ParityPlan(path=Path("p.yaml"), models=models, settings=draw(any_settings))


@given(plans(), st.sampled_from(["quick", "full"]))
def test_every_planned_result_has_an_id_of_its_own_and_lies_in_a_wanted_section(plan: ParityPlan, tier: str) -> None:
    results = planned_results(plan, tier)
    assert len({result.id for result in results}) == len(results)
    assert all(result.section in result.at.model.sections for result in results)
    for result in results:
        unjudged = UNJUDGED.get(result.section, ())
        assert result.metric in (*METRICS[result.section], *unjudged)
        assert not (result.gated and result.metric in unjudged)


@given(plans())
def test_each_point_is_judged_or_only_measured(plan: ParityPlan) -> None:
    for section in planned_sections(plan, plan.settings):
        judged = {result.at for result in section.results if result.gated}
        assert judged | set(section.ungated_points) == set(section.points)
        assert not judged & set(section.ungated_points)
