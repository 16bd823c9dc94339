"""The tests that a parity plan becomes: each gated metric, each point that is only measured, and equal tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_llmbench.fixtures_parity import require_measured, unmeasured

if TYPE_CHECKING:
    from pytest_llmbench.fixtures import GateKeeper, Recorder
    from pytest_llmbench.options import Options
    from pytest_llmbench.parity_live import MeasuredPoint, MeasuredSection
    from pytest_llmbench.parity_planned import PlannedPoint, PlannedResult


def test_parity(
    llmbench_section: MeasuredSection,
    llmbench_parity: PlannedResult,
    llmbench_gate: GateKeeper,
    llmbench_options: Options,
) -> None:
    """The candidate is at least `gate` times as good as the baseline."""
    result = llmbench_section.result(llmbench_parity.point, llmbench_parity.metric)
    require_measured(result, llmbench_options)
    plan, gate = llmbench_section.planned.plan, llmbench_section.planned.settings.gate
    llmbench_gate.check_parity(result, gate, names=(plan.candidate, plan.baseline))


def test_measured(llmbench_section: MeasuredSection, llmbench_point: PlannedPoint, llmbench_options: Options) -> None:
    """Both sides were measured at a point of which nothing is judged: says nothing about which one is better."""
    for result in llmbench_section.points[llmbench_point.point].point.results:
        require_measured(result, llmbench_options)


def test_same_tokens(llmbench_section: MeasuredSection, llmbench_record: Recorder, llmbench_options: Options) -> None:
    """The candidate's greedy output is the baseline's, token by token, as far as no near tie parts them."""
    for name, measured in llmbench_section.points.items():
        for result in measured.point.results:
            require_measured(result, llmbench_options)
        _check(name, measured, llmbench_record)


def test_batch_matches_solo(
    llmbench_section: MeasuredSection, llmbench_point: PlannedPoint, llmbench_record: Recorder
) -> None:
    """The candidate's output in a batch is its output one by one, as far as no near tie parts them."""
    measured = llmbench_section.points[llmbench_point.point]
    if measured.check is None:
        unmeasured(measured.point.results[0].reason or "the candidate gave no batch")
    _check(llmbench_point.point, measured, llmbench_record)


def _check(name: str, measured: MeasuredPoint, record: Recorder) -> None:
    check = measured.check
    assert check is not None
    if check.note:
        record(f"{name}.note", check.note)
    if check.equal is None:
        unmeasured(check.note)
    if not check.passed:
        pytest.fail(f"{measured.point.section} {name}: {check.note}", pytrace=False)
