"""The tests that a matrix file becomes: one for each enabled entry and prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_llmbench.fixtures import GateKeeper
    from pytest_llmbench.matrix import MatrixEntry
    from pytest_llmbench.measure import Measurement


def test_throughput(llmbench_entry: MatrixEntry, llmbench_measurement: Measurement, llmbench_gate: GateKeeper) -> None:
    """The prompt could be measured, and each gate of the entry holds."""
    llmbench_gate.check_all(llmbench_entry.gates)
