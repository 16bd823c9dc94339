"""The tests that a saved parity record becomes: one for each gated metric of each model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_llmbench.session import bench_of

if TYPE_CHECKING:
    from pytest_llmbench.fixtures import GateKeeper
    from pytest_llmbench.options import Options
    from pytest_llmbench.parity import ParityResult


def test_parity(
    llmbench_parity: ParityResult,
    llmbench_gate: GateKeeper,
    llmbench_options: Options,
    request: pytest.FixtureRequest,
) -> None:
    """The candidate is at least `gate` times as good as the baseline: the record's gate, unless an option gives one."""
    if llmbench_parity.baseline is None and not llmbench_parity.candidate_failed:
        pytest.skip(llmbench_parity.reason or "the record gives no ratio and no reason")
    record = bench_of(request.config).record(request.node.path)
    names = (record.candidate_name, record.baseline_name)
    gate = llmbench_options.gate if "gate" in llmbench_options.said else record.gate
    llmbench_gate.check_parity(llmbench_parity, gate, names=names)
