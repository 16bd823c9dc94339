"""`llmbench compare`, `history`, `import`, `merge` and `report`: what is done with saved records."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_llmbench import units
from pytest_llmbench.errors import UsageError

if TYPE_CHECKING:
    from pytest_llmbench.figures import Subject
    from pytest_llmbench.history import Series

OK, FAULT = 0, 1
Say = Callable[[str], None]
BARS = "▁▂▃▄▅▆▇█"


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser], *, say: Say) -> None:
    """Adds them to `llmbench`; `say` prints a line."""
    _add_compare(commands, say)
    _add_history(commands, say)
    _add_import(commands, say)
    _add_merge(commands, say)
    _add_report(commands, say)


def _add_compare(commands: argparse._SubParsersAction[argparse.ArgumentParser], say: Say) -> None:
    parser = commands.add_parser("compare", help="say what got worse from one run or parity record to another")
    parser.add_argument("old", type=Path, metavar="A", help="the old one: a file, or a run's folder")
    parser.add_argument("new", type=Path, metavar="B", help="the new one")
    parser.add_argument("--fail", metavar="M:P%,…", help="limits, such as decode_tok_s:5%%,ttft_s:10%%")
    parser.add_argument("--all", action="store_true", help="list every figure, not only what changed")
    parser.add_argument("--require", action="store_true", help="what is missing in B is a fault too")
    parser.add_argument("--format", choices=("text", "md"), default="text")
    parser.set_defaults(run=lambda arguments: _compare(arguments, say))


def _compare(arguments: argparse.Namespace, say: Say) -> int:
    from pytest_llmbench import compare_text
    from pytest_llmbench.compare import compare, default_limits, parse_limits
    from pytest_llmbench.figures import load

    limits = default_limits() if arguments.fail is None else parse_limits(arguments.fail)
    found = compare(load([arguments.old]), load([arguments.new]), limits)
    lines = compare_text.page(found) if arguments.format == "md" else compare_text.lines(found, every=arguments.all)
    for line in lines:
        say(line)
    return FAULT if found.faulty or (arguments.require and found.gone) else OK


def _add_history(commands: argparse._SubParsersAction[argparse.ArgumentParser], say: Say) -> None:
    from pytest_llmbench.history import METRICS, WORSE

    followed = ",".join(METRICS)
    parser = commands.add_parser("history", help="show how figures changed over a folder of records (needs [report])")
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--metrics", default=followed, metavar="A,B", help=f"default: {followed}")
    parser.add_argument("--entry", default="", metavar="TEXT", help="only entries whose id has this in it")
    parser.add_argument("--last", type=int, metavar="N", help="only the last N records of each")
    said = f"what is a fault: P %% worse (default: {100 * WORSE:g})"
    parser.add_argument("--fail", type=float, default=100 * WORSE, metavar="P", help=said)
    parser.add_argument("--all", action="store_true", help="show the series without a change too")
    parser.set_defaults(run=lambda arguments: _history(arguments, say))


def _history(arguments: argparse.Namespace, say: Say) -> int:
    from pytest_llmbench.history import FEWEST, all_series, read_history

    if arguments.last is not None and arguments.last < 1:
        raise UsageError(f"--last {arguments.last}: give 1 or more")
    if not 0 <= arguments.fail < math.inf:  # with nan nothing would ever be a fault
        raise UsageError(f"--fail {arguments.fail:g}: give a percentage of 0 or more")
    loaded, skipped = read_history(arguments.folder)
    subjects = [subject for subject in loaded.subjects if arguments.entry in subject.name]
    series = all_series(subjects, _metrics(arguments.metrics), last=arguments.last)
    if not series:
        raise UsageError(f"{arguments.folder}: no such figure in its records")
    enough = [one for one in series if len(one.points) >= FEWEST]
    worse = [one for one in series if one.worsened(arguments.fail / 100) is not None]
    for one in sorted(series, key=lambda one: one not in worse):
        if arguments.all or one.shifts or one.drift is not None:
            for line in series_lines(one, worse=one in worse):
                say(line)
    for line in [*_ended_lines(series, subjects), *(f"not read: {line}" for line in skipped)]:
        say(line)
    say(f"{len(series)} series, {len(enough)} of them with {FEWEST} records or more, {len(worse)} got worse")
    return FAULT if worse else OK


def _ended_lines(series: Iterable[Series], subjects: Sequence[Subject]) -> list[str]:
    from pytest_llmbench.history import ended

    return [
        f"not measured any more: {one.name} {one.metric}, the last time {one.points[-1].source.created[:19]}; "
        f"{last.source.created[:19]}: {last.outcome} {last.reason.partition(chr(10))[0]}".rstrip()
        for one, last in ended(series, subjects)
    ]


def _metrics(text: str) -> tuple[str, ...]:
    from pytest_llmbench import verdict

    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        verdict.direction(name)
    return names


def series_lines(series: Series, *, worse: bool) -> list[str]:
    """A line with the curve, then one for each change of level and for the drift."""
    values = [point.value for point in series.points]
    ends = f"{units.metric(series.metric, values[0])} → {units.metric(series.metric, values[-1])}"
    head = f"{series.name} {series.metric} {sparkline(values)} {ends} (n {len(values)}, machine {series.machine})"
    lines = [f"worse: {head}" if worse else head]
    for shift in series.shifts:
        at = series.points[shift.index].source
        levels = f"{units.metric(series.metric, shift.before)} → {units.metric(series.metric, shift.after)}"
        commit = f", commit {at.commit[:12]}" if at.commit else ""
        lines.append(f"  from {at.created[:19]}{commit}: {levels} ({shift.share:+.1%})")
        lines += [f"    upgraded there: {', '.join(found)}"] if (found := series.upgrades(shift)) else []
    if series.drift is not None:
        lines.append(f"  drifts: {series.drift:+.1%} over the whole series")
    return lines


def sparkline(values: Sequence[float]) -> str:
    """A bar for each value, from the least to the greatest."""
    low, high = min(values), max(values)
    if high <= low:
        return BARS[3] * len(values)
    return "".join(BARS[min(7, int((value - low) / (high - low) * 8))] for value in values)


def _add_import(commands: argparse._SubParsersAction[argparse.ArgumentParser], say: Say) -> None:
    parser = commands.add_parser("import", help="make a run.json of the predecessor's CSV files")
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE.csv")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the run to write")
    parser.add_argument("--machine", default="", metavar="NAME", help="what it was measured on: the files don't say")
    parser.set_defaults(run=lambda arguments: _import(arguments, say))


def _import(arguments: argparse.Namespace, say: Say) -> int:
    from pytest_llmbench.predecessor import import_csv
    from pytest_llmbench.record import write_json

    _require_new(arguments.out, arguments.files)
    run = import_csv(arguments.files, machine=arguments.machine)
    with _writing(arguments.out):
        write_json(arguments.out, run.to_json())
    odd = [(r.nodeid, found) for r in run.results if r.measurement for found in r.measurement["suspicions"]]
    for nodeid, found in odd:
        say(f"suspect: {nodeid}: {found}")
    say(f"{arguments.out}: {len(run.results)} results, {len({name for name, _ in odd})} of them with suspect figures")
    return OK


def _add_merge(commands: argparse._SubParsersAction[argparse.ArgumentParser], say: Say) -> None:
    parser = commands.add_parser("merge", help="make one record of several: shards, machines, models")
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the record to write")
    parser.set_defaults(run=lambda arguments: _merge(arguments, say))


def _merge(arguments: argparse.Namespace, say: Say) -> int:
    from pytest_llmbench.merge import merge
    from pytest_llmbench.record import write_json

    _require_new(arguments.out, arguments.files)
    merged = merge(arguments.files)
    with _writing(arguments.out):
        write_json(arguments.out, merged.data)
    for line in merged.duplicates:
        say(f"duplicate: {line}")
    say(f"{arguments.out}: {len(arguments.files)} records merged, {len(merged.duplicates)} duplicates resolved")
    return OK


def _add_report(commands: argparse._SubParsersAction[argparse.ArgumentParser], say: Say) -> None:
    from pytest_llmbench.report_files import RENDER

    parser = commands.add_parser("report", help="make a report of runs and parity records")
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="records, or folders that runs left")
    parser.add_argument("--format", choices=tuple(RENDER), help="default: by the ending of --out, else md")
    parser.add_argument("--out", type=Path, metavar="FILE", help="default: standard output")
    parser.add_argument("--compare", type=Path, metavar="PATH", help="md: a saved run to compare with")
    parser.set_defaults(run=lambda arguments: _report(arguments, say))


def _report(arguments: argparse.Namespace, say: Say) -> int:
    from pytest_llmbench.compare import compare, default_limits
    from pytest_llmbench.figures import load
    from pytest_llmbench.record import write_text
    from pytest_llmbench.report_files import RENDER

    kind = _kind(arguments.format, arguments.out)
    loaded = load(arguments.files)
    if arguments.compare is not None and kind != "md":
        raise UsageError(f"--compare: there is no comparison in a report {kind}; use --format md, or llmbench compare")
    saved = load([arguments.compare]) if arguments.compare is not None else None
    found = compare(saved, loaded, default_limits()) if saved is not None else None
    text = RENDER[kind](loaded, found)
    if arguments.out is None:
        sys.stdout.write(text)
        return OK
    _require_new(arguments.out, arguments.files)
    with _writing(arguments.out):
        write_text(arguments.out, text)
    say(f"{arguments.out}: {kind} of {len(loaded.sources)} records, {len(loaded.subjects)} results")
    return OK


def _kind(given: str | None, out: Path | None) -> str:
    """Which report: as was said, or by the ending of its file's name. UsageError for an ending that says nothing."""
    from pytest_llmbench.report_files import RENDER

    kind = given or ("md" if out is None else out.suffix.removeprefix("."))
    if kind not in RENDER:
        raise UsageError(f"--out {out}: its ending names no report; add --format {'|'.join(RENDER)}")
    return kind


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """UsageError where the file can't be written."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"--out {path}: can't be written ({error.strerror}); name another file") from error


def _require_new(out: Path, files: Sequence[Path]) -> None:
    """UsageError rather than a file that is read and written at once."""
    from pytest_llmbench.figures import files_of

    if any(out.resolve() == file.resolve() for given in files for file in files_of(given)):
        raise UsageError(f"--out {out}: is one of the files that are read; name another")
