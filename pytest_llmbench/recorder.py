"""From pytest's reports to results: junit properties, the journal while the session runs, `run.json` at its end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_llmbench import collect, comparing
from pytest_llmbench.errors import UNWRITTEN, BenchError, RecordError, UsageError
from pytest_llmbench.fixtures import EXTRA, VERDICTS, CouldNotMeasure
from pytest_llmbench.resume import ResumedFailure, is_replay, options_json
from pytest_llmbench.session import Bench, bench_of

if TYPE_CHECKING:
    from pytest_llmbench.journal import Journal
    from pytest_llmbench.parity_record import ParityRecord
    from pytest_llmbench.parity_writer import ParityWriter
    from pytest_llmbench.record import Outcome, Result

ATTRIBUTE = "llmbench_record"
REASON_CHARACTERS = 4000
PLAN = "llmbench_plan"
FINISHED = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)


def attach(item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport) -> None:
    """Put what the test measured on its report, which xdist carries to the controller as JSON."""
    benchmark = collect.is_benchmark(item)
    if call.excinfo is not None:
        # An error is what couldn't be measured, a failure what was measured and is worse, in whatever phase.
        unmeasured = CouldNotMeasure | BenchError if benchmark else CouldNotMeasure
        if isinstance(call.excinfo.value, unmeasured) and report.when == "call":
            report.when = "setup"
        elif isinstance(call.excinfo.value, ResumedFailure):
            report.when = "call"
    if not benchmark or (report.when != "call" and report.passed):
        return  # says nothing new, and each report travels with its facts
    setattr(report, ATTRIBUTE, _facts(item))
    section = collect.section_of(item)
    setattr(report, PLAN, None if section is None else str(section.plan.path))
    # junit takes them from the teardown's report, which is made from the item's.
    if report.when != "teardown":
        item.user_properties.extend(_properties(getattr(report, ATTRIBUTE)))


def _facts(item: pytest.Item) -> dict[str, Any]:
    from pytest_llmbench.record import entry_json, measurement_json, verdict_json

    entry = collect.entry_of(item)
    measurement = collect.measurement_of(item)
    recorded = item.stash.get(EXTRA, {})
    return {
        "entry": entry_json(entry) if entry is not None else None,
        "prompt": collect.prompt_of(item),
        "measurement": measurement_json(measurement) if measurement is not None else None,
        "verdicts": [verdict_json(v) for v in item.stash.get(VERDICTS, [])],
        "extra": dict(recorded) | collect.parity_facts(item),
        "parity": _section_facts(item),
    }


def _section_facts(item: pytest.Item) -> dict[str, Any] | None:
    """A measured section of a parity plan, with the first of its tests that is done."""
    measured = getattr(item, "funcargs", {}).get("llmbench_section")
    if measured is None:
        return None
    from pytest_llmbench.parity_writer import section_facts

    reported = bench_of(item.config).plans.reported
    if measured.planned in reported:
        return None
    reported.add(measured.planned)
    return section_facts(measured)


def _properties(facts: Mapping[str, Any]) -> list[tuple[str, str | float]]:
    """Flat scalars for junit: what was measured, on what, and how each gate went."""
    flat: dict[str, Any] = dict(facts["entry"] or {}) | {"prompt": facts["prompt"]}
    if facts["measurement"] is not None:
        flat |= facts["measurement"]["metrics"]
        flat["suspicions"] = "; ".join(facts["measurement"]["suspicions"])
    for verdict in facts["verdicts"]:
        name = f"compare.{verdict['metric']}" if verdict["rule"] == "compare" else verdict["metric"]
        flat |= {f"{name}.{part}": verdict[part] for part in ("gate", "ratio", "outcome")}
    flat |= facts["extra"]
    return [(f"llmbench.{name}", value) for name, value in flat.items() if value not in (None, "")]


class ResultRecorder:
    """The controller's (or only) process: collects results and writes the artefacts."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._journal: Journal | None = None
        self._head: dict[str, Any] | None = None
        self._setup_s: dict[str, float] = {}
        self._parity: ParityWriter | None = None
        self.results: dict[str, Result] = {}
        self.comparison: list[str] = []
        self.files: list[Path] = []

    @pytest.hookimpl(tryfirst=True)  # the live line goes before the terminal reporter writes
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # The measurement is taken by a fixture: a test's duration is its setup's too.
        if report.when == "setup" and report.passed:
            self._setup_s[report.nodeid] = report.duration
        facts = getattr(report, ATTRIBUTE, None)
        outcome = _outcome(report)
        if facts is None or outcome is None:
            return
        self._bench.progress.finish_test()
        if hasattr(report, "node"):  # of a worker of xdist: this process has collected nothing
            self._bench.learn_record(report.nodeid)
        if report.nodeid in self._bench.resumed and is_replay(_reason(report)):
            self.results[report.nodeid] = self._bench.resumed[report.nodeid]
            return
        self._take(_result(report, outcome, facts, self._setup_s.pop(report.nodeid, 0.0)), getattr(report, PLAN, None))

    def begin(self, plans: Iterable[str]) -> None:
        """Make the folder and the journal's head, before anything is measured. UsageError where that can't be done.

        `plans` are the parity plans of which a test is selected; those of workers come to light with their results.
        """
        if self._bench.options.out is None:
            return
        try:
            self._open_journal()
            for plan in plans:
                self._expect(plan)
        except OSError as error:
            place = self._bench.options.out
            raise UsageError(
                f"--llmbench-out {place}: can't be written to ({error.strerror}); name a folder"
            ) from error

    def _expect(self, plan: str | None) -> None:
        if plan is not None and self._parity is not None:
            self._parity.expect(plan)

    def _take(self, result: Result, plan: str | None) -> None:
        self.results[result.nodeid] = result
        if self._bench.options.out is None:
            return
        try:
            self._open_journal().write(result)
            self._expect(plan)
            self._write_parity(result)
        except OSError as error:
            said = f"llmbench: {self._bench.options.out}: can't be written to any more ({error.strerror}); stopped"
            pytest.exit(said, returncode=UNWRITTEN)

    def _write_parity(self, result: Result) -> None:
        if result.parity is None:
            return
        assert self._parity is not None
        try:
            self._parity.add(result.parity)
        except RecordError as error:
            self._bench.warnings.append(f"{result.nodeid}: its section isn't in the parity record: {error}")

    def _open_journal(self) -> Journal:
        from pytest_llmbench import journal

        if self._journal is None:
            out, resumed = self._bench.options.out, self._bench.options.resume
            assert out is not None
            goes_on = resumed is not None and resumed.resolve() == out.resolve()
            if not goes_on:
                journal.set_aside(out / journal.NAME)
            self._journal = journal.Journal(out / journal.NAME, **self._head_facts())
            self._parity = self._begin_parity(out, goes_on)
            if not goes_on:
                for result in self._bench.resumed.values():
                    self._journal.write(result)
        return self._journal

    def _begin_parity(self, out: Path, goes_on: bool) -> ParityWriter:
        """A writer that knows the sections of the resumed run; `goes_on`: their records are in `out`."""
        from pytest_llmbench.parity_writer import ParityWriter

        head = self._head_facts()
        plans = [facts["plan"] for facts in self._bench.resumed_sections.values()] if goes_on else []
        writer = ParityWriter(out, resumed=plans, created=head["created"], environment=head["environment"])
        for facts in self._bench.resumed_sections.values():
            writer.add(facts)
        return writer

    @property
    def parity_records(self) -> Mapping[Path, ParityRecord]:
        """The parity records written so far."""
        return {} if self._parity is None else self._parity.records

    def _head_facts(self) -> dict[str, Any]:
        """Environment and options, looked up at the first result and not before."""
        from pytest_llmbench.environment import collect_environment
        from pytest_llmbench.power import read_power
        from pytest_llmbench.record import utc_now

        if self._head is None:
            config = self._bench.config
            found = collect_environment(root=config.rootpath, power=read_power().facts())
            environment = found.to_json() | {"fingerprint": found.fingerprint}
            config.hook.pytest_llmbench_update_environment(environment=environment, config=config)
            self._head = {"created": utc_now(), "environment": environment, "options": options_json(self._bench)}
        return self._head

    @pytest.hookimpl(tryfirst=True)  # another plugin whose own file can't be written would end the session before ours
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self._journal is not None:
            self._journal.close()
        stopped = bool(session.shouldstop or session.shouldfail) or exitstatus not in FINISHED
        merged = self._bench.resumed | self.results
        # Where nothing was selected, by a wrong -k for instance, the folder keeps what an earlier run left.
        if merged or exitstatus != pytest.ExitCode.NO_TESTS_COLLECTED:
            self._write_run(merged, stopped=stopped)
        if merged:
            finished = comparing.finish(self._bench, merged.values(), self.parity_records, complete=not stopped)
            self.comparison, reports = finished
            self.files += [*self.parity_records, *reports]
        if self._bench.unwritten and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = UNWRITTEN

    def _write_run(self, merged: Mapping[str, Result], *, stopped: bool) -> None:
        out = self._bench.options.out
        if out is None or self._journal is None:
            return
        from pytest_llmbench.record import Run, write_json

        record = Run(results=tuple(merged.values()), complete=not stopped, **self._head_facts()).to_json()
        self._bench.config.hook.pytest_llmbench_update_record(record=record, config=self._bench.config)
        try:
            write_json(out / "run.json", record)
        except OSError as error:
            self._bench.unwritten.append(f"{out / 'run.json'} couldn't be written ({error.strerror})")
        else:
            self.files.append(out / "run.json")


def _outcome(report: pytest.TestReport) -> Outcome | None:
    """What a phase's report means for the test; None for a phase that says nothing new."""
    if report.when == "call" or not report.passed:
        if hasattr(report, "wasxfail"):
            return "xpassed" if report.passed else "xfailed"
        if report.failed:
            return "failed" if report.when == "call" else "error"
        return "passed" if report.passed else "skipped"
    return None


def _result(report: pytest.TestReport, outcome: Outcome, facts: Mapping[str, Any], setup_s: float) -> Result:
    from pytest_llmbench.record import Result, utc_now

    return Result(
        nodeid=report.nodeid,
        outcome=outcome,
        duration_s=setup_s + report.duration,
        finished_at=utc_now(),
        reason=_reason(report),
        **facts,
    )


def _reason(report: pytest.TestReport) -> str | None:
    if report.passed:
        return None
    if hasattr(report, "wasxfail"):
        return str(report.wasxfail).removeprefix("reason: ")
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    return report.longreprtext[-REASON_CHARACTERS:]  # of a long traceback, the end says what happened
