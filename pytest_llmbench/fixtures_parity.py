"""Fixtures of a live parity run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NoReturn

import pytest

from pytest_llmbench import collect
from pytest_llmbench.errors import MeasurementError
from pytest_llmbench.fixtures import could_not_measure, errors_as_outcomes
from pytest_llmbench.session import bench_of

if TYPE_CHECKING:
    from pytest_llmbench.options import Options
    from pytest_llmbench.parity import ParityResult
    from pytest_llmbench.parity_live import MeasuredSection
    from pytest_llmbench.parity_planned import PlannedPoint, PlannedSection
    from pytest_llmbench.sides.spec import SideSpec


@pytest.fixture(scope="session")
def llmbench_point(request: pytest.FixtureRequest) -> PlannedPoint:
    """The point of a parity plan that the test runs for (indirect parameter)."""
    point: PlannedPoint = request.param
    return point


@pytest.fixture(scope="session")
def llmbench_section(request: pytest.FixtureRequest, pytestconfig: pytest.Config) -> MeasuredSection:
    """A section of a parity plan's model, measured on both sides: of its points those that the session's tests need."""
    section: PlannedSection = request.param
    bench = bench_of(pytestconfig)
    with errors_as_outcomes(bench):
        checkpoint = bench.plans.checkpoint(section.plan, section.model)
        return bench.plans.measure(section, checkpoint, _needed(request.session.items, section))


@pytest.fixture(scope="session")
def llmbench_baseline(pytestconfig: pytest.Config) -> SideSpec:
    """How the baseline of parity runs, mlx-lm, is started as a side: for tests that ask it themselves.

    `with SideProcess(llmbench_baseline, log_path) as side:` (`pytest_llmbench.sides.process`) runs it.
    """
    return bench_of(pytestconfig).plans.sides["mlx-lm"]


def _needed(items: Iterable[pytest.Item], section: PlannedSection) -> list[PlannedPoint]:
    """The points of the section that a selected test is about; all of them for one that names none."""
    wanted: set[PlannedPoint] = set()
    for item in items:
        if collect.section_of(item) != section:
            continue
        result, point = collect.planned_of(item), collect.point_of(item)
        found = result.at if result is not None else point
        wanted |= set(section.points) if found is None else {found}
    return [point for point in section.points if point in wanted]


def require_measured(result: ParityResult, options: Options) -> None:
    """Skip the test where only the baseline failed: an error with `--llmbench-require`, as the candidate's is."""
    if result.candidate_failed or (result.baseline is None and options.require):
        unmeasured(result.reason)
    if result.baseline is None:
        pytest.skip(result.reason)


def unmeasured(reason: str) -> NoReturn:
    """End the test as an error."""
    could_not_measure(MeasurementError(reason))
