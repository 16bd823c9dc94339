"""The tests that a matrix file becomes: one for each enabled entry and prompt, and those that options add."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_llmbench.fixtures import GateKeeper, Recorder
    from pytest_llmbench.matrix import MatrixEntry
    from pytest_llmbench.measure import Measurement
    from pytest_llmbench.quality import QualityCheck
    from pytest_llmbench.tools import ToolCheck


def test_throughput(llmbench_entry: MatrixEntry, llmbench_measurement: Measurement, llmbench_gate: GateKeeper) -> None:
    """The prompt could be measured, and each gate of the entry holds."""
    llmbench_gate.check_all(llmbench_entry.gates)


def test_concurrency(llmbench_entry: MatrixEntry, llmbench_streams: Measurement, llmbench_gate: GateKeeper) -> None:
    """Where levels of concurrency are given: so many requests at once could be measured, and their gates hold."""
    llmbench_gate.check_all(llmbench_entry.gates)


def test_tools(llmbench_entry: MatrixEntry, llmbench_tool_check: ToolCheck, llmbench_record: Recorder) -> None:
    """With `--llmbench-tools`: the model calls the right tool, with arguments that fit it."""
    _judge(llmbench_tool_check, llmbench_record)


def test_quality(llmbench_entry: MatrixEntry, llmbench_quality_check: QualityCheck, llmbench_record: Recorder) -> None:
    """With `--llmbench-quality`: the function that the model writes does what was asked."""
    _judge(llmbench_quality_check, llmbench_record)


def _judge(check: ToolCheck | QualityCheck, record: Recorder) -> None:
    for name, value in check.facts.items():
        record(name, value)
    if check.problem is not None:
        pytest.fail(check.problem, pytrace=False)
