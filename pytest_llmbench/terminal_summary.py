"""What the plugin prints at the end of a session."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_llmbench import terminal

if TYPE_CHECKING:
    import pytest

    from pytest_llmbench.parity_record import ParityRecord
    from pytest_llmbench.record import Result
    from pytest_llmbench.session import Bench


def write(
    reporter: pytest.TerminalReporter,
    bench: Bench,
    results: Iterable[Result],
    written: Mapping[Path, ParityRecord],
    comparison: Sequence[str] = (),
    files: Sequence[Path] = (),
) -> None:
    """A table for each prompt, what is suspect or inconclusive, each record's summary, and the artefacts.

    `written` are the parity records of this run, `comparison` the lines on how it compares with a saved one, `files`
    the artefacts.
    """
    results = list(results)
    for prompt, lines in terminal.results_by_prompt(results).items():
        _section(reporter, f"llmbench: {prompt}", lines)
    suspect = terminal.suspicion_lines(results)
    if suspect:
        _section(reporter, "llmbench: suspect figures", suspect)
    inconclusive = terminal.inconclusive_lines(results)
    if inconclusive:
        _section(reporter, "llmbench: inconclusive", inconclusive)
    _write_records(reporter, bench, results, written)
    if comparison:
        _section(reporter, f"llmbench: compared with {bench.options.compare}", comparison)
    for warning in [*bench.warnings, *bench.unwritten]:
        reporter.write_line(f"llmbench: warning: {warning}", yellow=True)
    if files and results:
        reporter.write_line(f"llmbench: wrote {', '.join(map(str, files))}")


def _write_records(
    reporter: pytest.TerminalReporter, bench: Bench, results: list[Result], written: Mapping[Path, ParityRecord]
) -> None:
    if not any("section" in result.extra for result in results):
        return
    from pytest_llmbench.parity_summary import summary_lines

    options = bench.options
    gate = options.gate if "gate" in options.said else None
    goal = options.goal if "goal" in options.said else None
    for record in bench.records:
        _section(reporter, f"llmbench: {record.path.name}", summary_lines(record.summary(gate=gate, goal=goal)))
    for path, record in written.items():
        _section(reporter, f"llmbench: {path.name}", summary_lines(record.summary(gate=gate, goal=goal)))


def _section(reporter: pytest.TerminalReporter, title: str, lines: Iterable[str]) -> None:
    reporter.section(title)
    for line in lines:
        reporter.write_line(line)
