"""`--llmbench-compare`: each test that measured something against a saved run, and the reports at the session's end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_llmbench import collect
from pytest_llmbench.errors import BenchError, MeasurementError, UsageError
from pytest_llmbench.fixtures import EXTRA, VERDICTS, could_not_measure
from pytest_llmbench.session import Bench

if TYPE_CHECKING:
    from pytest_llmbench.compare import Comparison, Limit
    from pytest_llmbench.figures import Loaded, Source, Subject
    from pytest_llmbench.options import Options
    from pytest_llmbench.parity import ParityResult
    from pytest_llmbench.parity_record import ParityRecord
    from pytest_llmbench.record import Result

NOT_SAVED = "not in the saved run"


def require_sense(options: Options) -> None:
    """UsageError for options that need another one."""
    if options.compare_fail and options.compare is None:
        raise UsageError(f"{options.said['compare_fail']}: with what? name a saved run with --llmbench-compare")
    if options.report and options.out is None:
        raise UsageError(f"{options.said['report']}: where to? name a folder with --llmbench-out")


def read_saved(bench: Bench) -> None:
    """Read what is compared with, before this run may overwrite it. UsageError for what is no record."""
    if bench.options.compare is None or bench.saved is not None:
        return
    from pytest_llmbench.figures import load

    try:
        bench.saved = load([bench.options.compare])
    except UsageError as error:
        raise UsageError(f"{bench.options.said['compare']}: {error}") from error


def check(bench: Bench, item: pytest.Item) -> None:
    """Fail a test whose figures are worse than the saved ones by more than a limit; the verdicts go into the record."""
    if not bench.options.compare_fail:
        return
    try:
        subject = _subject(bench, item)
        if subject is not None:
            read_saved(bench)
            _judge(bench, item, subject)
    except BenchError as error:
        could_not_measure(error)


def _judge(bench: Bench, item: pytest.Item, subject: Subject) -> None:
    from pytest_llmbench.compare import judge_pairs, partner

    assert bench.saved is not None
    old = partner(subject, bench.saved)
    if old is None:
        item.stash.setdefault(EXTRA, {})["compare"] = NOT_SAVED
        if bench.options.require:
            could_not_measure(MeasurementError(f"{subject.name} is {NOT_SAVED} {bench.options.compare}"))
        return
    changes, _ = judge_pairs([(old, subject)], _limits(bench))
    item.stash.setdefault(VERDICTS, []).extend(change.verdict for change in changes)
    worse = [c.verdict.message(candidate="now", baseline="saved") for c in changes if c.regressed]
    if worse:
        pytest.fail("\n".join([*worse, f"compared with {old.source.path}"]), pytrace=False)


def _limits(bench: Bench) -> tuple[Limit, ...]:
    from pytest_llmbench.compare import default_limits, parse_limits

    said = bench.options.compare_fail
    return parse_limits(",".join(said)) if said else default_limits()


def _subject(bench: Bench, item: pytest.Item) -> Subject | None:
    """What the test measured; None where it measured nothing."""
    from pytest_llmbench.figures import Subject, measured_values, result_values
    from pytest_llmbench.parity import point_id
    from pytest_llmbench.record import measurement_json

    funcargs: Mapping[str, Any] = getattr(item, "funcargs", {})
    entry, measurement = collect.entry_of(item), collect.measurement_of(item)
    if entry is not None and measurement is not None:
        values = measured_values(measurement_json(measurement))
        prompt = collect.prompt_of(item) or ""
        return Subject(id=entry.id, prompt=prompt, source=_source(bench), outcome="passed", metrics=values)
    result = _parity_result(funcargs)
    if result is None:
        return None
    name = point_id(result.name, result.section, result.point)
    return Subject(id=name, prompt="", source=_source(bench), outcome="passed", metrics=result_values(result))


def _parity_result(funcargs: Mapping[str, Any]) -> ParityResult | None:
    from pytest_llmbench.parity import ParityResult

    found, section = funcargs.get("llmbench_parity"), funcargs.get("llmbench_section")
    if isinstance(found, ParityResult):
        return found
    if found is None or section is None:
        return None
    result: ParityResult = section.result(found.point, found.metric)
    return result


def _source(bench: Bench) -> Source:
    """This machine now; looked up once."""
    from pytest_llmbench.environment import collect_environment
    from pytest_llmbench.figures import Source
    from pytest_llmbench.power import read_power
    from pytest_llmbench.record import utc_now

    if bench.here is None:
        found = collect_environment(root=bench.config.rootpath, power=read_power().facts())
        facts = found.to_json() | {"fingerprint": found.fingerprint}
        bench.here = Source(path=Path(), created=utc_now(), fingerprint=found.fingerprint, environment=facts)
    return bench.here


def measured_now(bench: Bench, results: Iterable[Result], written: Mapping[Path, ParityRecord]) -> Loaded:
    """This session's results in the form of saved ones."""
    from pytest_llmbench.figures import Loaded, parity_source, parity_subjects, run_subjects
    from pytest_llmbench.record import Run

    here = replace(_source(bench), path=(bench.options.out or Path()) / "run.json")
    run = Run(created=here.created, environment=here.environment, options={}, results=tuple(results))
    records = {**{record.path: record for record in bench.records}, **written}
    # All of them beside the run, whose tests tell of them.
    parities = tuple((parity_source(here.path.with_name(p.name), record), record) for p, record in records.items())
    subjects = [*run_subjects(run, here), *(s for source, record in parities for s in parity_subjects(record, source))]
    return Loaded(runs=((here, run),), parities=parities, subjects=tuple(subjects))


def compared(bench: Bench, now: Loaded) -> Comparison | None:
    """With the saved run, by the limits in force or the default ones; None, and a warning, where that can't be."""
    if bench.saved is None:
        return None
    from pytest_llmbench.compare import compare

    try:
        return compare(bench.saved, now, _limits(bench))
    except UsageError as error:
        bench.warnings.append(f"compared nothing: {error}")
        return None


def finish(
    bench: Bench, results: Iterable[Result], written: Mapping[Path, ParityRecord], *, complete: bool
) -> tuple[list[str], list[Path]]:
    """The comparison's lines for the terminal, and the reports that were written."""
    if bench.saved is None and not bench.options.report:
        return [], []
    from pytest_llmbench.compare_text import lines
    from pytest_llmbench.report_files import write_reports

    now = measured_now(bench, results, written)
    now = replace(now, runs=tuple((source, replace(run, complete=complete)) for source, run in now.runs))
    found = compared(bench, now)
    files: list[Path] = []
    if bench.options.report and bench.options.out is not None:
        try:
            files = write_reports(bench.options.report, bench.options.out, now, found)
        except OSError as error:
            bench.unwritten.append(f"{bench.options.out}: reports couldn't be written ({error.strerror})")
        except UsageError as error:  # two replayed records with one name; the results themselves are saved
            bench.warnings.append(f"{bench.options.out}: not all reports were written: {error}")
    return ([] if found is None else lines(found)), files
