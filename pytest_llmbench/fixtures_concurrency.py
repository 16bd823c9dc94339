"""The fixtures of tests that send several requests at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_llmbench.fixtures import errors_as_outcomes
from pytest_llmbench.matrix import concurrency_prompt
from pytest_llmbench.session import bench_of

if TYPE_CHECKING:
    from pytest_llmbench.matrix import MatrixEntry
    from pytest_llmbench.measure import Measurement, Meter


@pytest.fixture(scope="session")
def llmbench_level(request: pytest.FixtureRequest, llmbench_entry: MatrixEntry) -> int:
    """How many requests run at once (indirect parameter); skipped where the entry's server would let them wait."""
    level: int = request.param
    bench = bench_of(request.config)
    with errors_as_outcomes(bench):
        bench.backends[llmbench_entry.backend].check_streams(llmbench_entry, level)
    return level


@pytest.fixture(scope="session")
def llmbench_streams(
    llmbench_level: int, llmbench_meter: Meter, llmbench_entry: MatrixEntry, pytestconfig: pytest.Config
) -> Measurement:
    """The entry's measurement of that many requests at once, each with a prompt of its own, made once."""
    bench = bench_of(pytestconfig)
    with errors_as_outcomes(bench):
        return bench.measure(llmbench_meter, llmbench_entry, concurrency_prompt(llmbench_level), level=llmbench_level)
