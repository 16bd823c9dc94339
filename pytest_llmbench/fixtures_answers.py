"""The fixtures of tests on what a model answers: each asks once, and leaves the judging to the test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_llmbench.fixtures import errors_as_outcomes
from pytest_llmbench.session import bench_of

if TYPE_CHECKING:
    from pytest_llmbench.measure import Meter
    from pytest_llmbench.quality import QualityCheck
    from pytest_llmbench.tools import ToolCheck


@pytest.fixture(scope="session")
def llmbench_tool_check(llmbench_meter: Meter, pytestconfig: pytest.Config) -> ToolCheck:
    """The entry's model, asked once for something that a tool knows."""
    from pytest_llmbench import tools

    with errors_as_outcomes(bench_of(pytestconfig)):
        return tools.check(llmbench_meter)


@pytest.fixture(scope="session")
def llmbench_quality_check(llmbench_meter: Meter, pytestconfig: pytest.Config) -> QualityCheck:
    """The entry's model, asked once for a function, which was then run in the sandbox."""
    from pytest_llmbench import quality

    with errors_as_outcomes(bench_of(pytestconfig)):
        return quality.check(llmbench_meter)
