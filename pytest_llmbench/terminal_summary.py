"""What the plugin prints at the end of a session."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pytest_llmbench import terminal

if TYPE_CHECKING:
    import pytest

    from pytest_llmbench.record import Result
    from pytest_llmbench.session import Bench


def write(reporter: pytest.TerminalReporter, bench: Bench, results: Iterable[Result]) -> None:
    """A table for each prompt, what is suspect, each replayed record's summary, and where the artefacts are."""
    results = list(results)
    for prompt, lines in terminal.results_by_prompt(results).items():
        _section(reporter, f"llmbench: {prompt}", lines)
    suspect = terminal.suspicion_lines(results)
    if suspect:
        _section(reporter, "llmbench: suspect figures", suspect)
    _write_records(reporter, bench, results)
    for warning in bench.warnings:
        reporter.write_line(f"llmbench: warning: {warning}", yellow=True)
    if bench.options.out is not None and results:
        reporter.write_line(f"llmbench: wrote {bench.options.out / 'run.json'}")


def _write_records(reporter: pytest.TerminalReporter, bench: Bench, results: list[Result]) -> None:
    from_records = any("section" in result.extra for result in results)
    if not from_records:
        return
    from pytest_llmbench.parity_summary import summary_lines

    options = bench.options
    gate = options.gate if "gate" in options.said else None
    goal = options.goal if "goal" in options.said else None
    for record in bench.records:
        _section(reporter, f"llmbench: {record.path.name}", summary_lines(record.summary(gate=gate, goal=goal)))


def _section(reporter: pytest.TerminalReporter, title: str, lines: Iterable[str]) -> None:
    reporter.section(title)
    for line in lines:
        reporter.write_line(line)
