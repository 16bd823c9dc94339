"""`ci/parity_gate`: arguments, the order of things, and the exit code."""

from __future__ import annotations

import argparse
import os
import secrets
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from gate import power as gate_power
from gate.changes import Choice, changed_files, choose
from gate.plan import PlanModel, named, read_models
from gate.report import Verdict, publish
from gate.results import CANNOT_JUDGE, FINE, JUNIT, RECORD, WRONG_USE, Run, read_run
from pytest_llmbench.errors import UsageError
from pytest_llmbench.power import PowerState, read_power


def main(
    argv: Sequence[str],
    root: Path,
    environ: Mapping[str, str] = os.environ,
    power: Callable[[], PowerState] = read_power,
    platform: str = sys.platform,
) -> int:
    """Run the gate for the repository at `root`; returns the exit code. `power` and `platform` say how it stands."""
    options = _parser(environ).parse_args(argv)
    try:
        verdict, code = _gate(options, root, environ, power, platform)
    except UsageError as error:
        verdict, code = _cannot(str(error)), WRONG_USE
    if verdict is not None:
        publish(verdict, environ)
    return code


def _gate(
    options: argparse.Namespace,
    root: Path,
    environ: Mapping[str, str],
    power: Callable[[], PowerState],
    platform: str,
) -> tuple[Verdict | None, int]:
    if options.judge is not None:
        return _result(read_run(options.judge, None), options.judge, ())
    models = read_models(root / options.plan)
    choice = _choice(options, models, root)
    if not choice.models:
        headline = f"Nothing to measure: {choice.reason}."
        return Verdict(outcome="skipped", headline=headline), FINE
    command = _command(options, choice)
    if options.dry_run:
        sys.stdout.write(f"{choice.reason}\n{shlex.join(command)}\n")
        return None, FINE
    before = gate_power.check(power(), platform)
    problems = (*before.problems, *(before.unknown if options.strict_power else ()))
    if problems:
        return _cannot(f"This machine can't judge now: {'; '.join(problems)}"), CANNOT_JUDGE
    run = _measure(command, root, root / options.out, environ)
    after = tuple(f"after the run: {problem}" for problem in gate_power.lasting(power(), platform))
    notes = (f"{'all' if choice.every else len(choice.models)} models, tier {options.tier}: {choice.reason}",)
    return _result(run, root / options.out, (*notes, *before.unknown), after)


def _choice(options: argparse.Namespace, models: Sequence[PlanModel], root: Path) -> Choice:
    ids = tuple(model.id for model in models)
    if options.all:
        return Choice(models=ids, every=True, reason="--all")
    if options.models:
        chosen = named(models, options.models)
        return Choice(models=chosen, every=len(chosen) == len(ids), reason=f"--models {','.join(options.models)}")
    if not options.base:
        raise UsageError("which models? give --base REF, --all or --models A,B (in a pull request's job: none of them)")
    return choose(changed_files(root, options.base), models, root)


def _command(options: argparse.Namespace, choice: Choice) -> list[str]:
    words = [sys.executable, "-m", "pytest", str(options.plan), "--llmbench-tier", options.tier, "--llmbench-require"]
    words += ["--llmbench-out", str(options.out), "--junitxml", str(options.out / JUNIT)]
    if not choice.every:
        words += ["-m", " or ".join(f'llmbench(model_id="{model}")' for model in choice.models)]
    return words


def _measure(command: Sequence[str], root: Path, out: Path, environ: Mapping[str, str]) -> Run:
    """Run pytest and read what it wrote; what an earlier run left is no answer, so it goes first."""
    for name in (JUNIT, RECORD):
        (out / name).unlink(missing_ok=True)
    with _no_workflow_commands(environ):
        status = _wait(command, root)
    return read_run(out, status)


@contextmanager
def _no_workflow_commands(environ: Mapping[str, str]) -> Iterator[None]:
    """Let GitHub's runner take lines such as `::set-env …` for text: what a model says may look like that."""
    token = secrets.token_hex(16)
    on_github = environ.get("GITHUB_ACTIONS") == "true"
    if on_github:
        sys.stdout.write(f"::stop-commands::{token}\n")
        sys.stdout.flush()
    try:
        yield
    finally:
        if on_github:
            sys.stdout.write(f"::{token}::\n")


def _wait(command: Sequence[str], root: Path) -> int:
    """The status of the command. Interrupted or told to end, it gets the time that it needs to stop its servers."""
    child = subprocess.Popen(command, cwd=root)
    # A terminal's Ctrl-C reaches the child by itself.
    handlers = {signal.SIGINT: lambda *_: None, signal.SIGTERM: lambda *_: child.terminate()}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        return child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _result(run: Run, out: Path, notes: tuple[str, ...], invalid: tuple[str, ...] = ()) -> tuple[Verdict, int]:
    code = CANNOT_JUDGE if invalid else run.code
    faults = (*run.faults, *invalid)
    headline = "; ".join([*(["Not judged"] if invalid else []), _counts(run), *faults])
    bad = [f"{case.name}: {case.message}" for case in run.bad]
    errors = (*faults, *bad) if code != FINE else ()
    verdict = Verdict(
        outcome="error" if invalid else run.outcome,
        headline=f"{headline}.",
        notes=notes,
        run=run,
        errors=errors,
        junit=_written(out / JUNIT),
        record=_written(out / RECORD),
    )
    return verdict, code


def _counts(run: Run) -> str:
    inconclusive = sum(case.inconclusive for case in run.cases)
    counts = (
        (run.count("failed"), "below the gate or wrong"),
        (run.count("error"), "not measured"),
        (run.count("skipped"), "skipped"),
        (run.count("passed"), "passed"),
        (inconclusive, "of them inconclusive"),
    )
    return ", ".join(f"{count} {what}" for count, what in counts if count) or "no results"


def _written(path: Path) -> Path | None:
    return path if path.is_file() else None


def _cannot(reason: str) -> Verdict:
    return Verdict(outcome="error", headline=reason, errors=(reason,))


def _parser(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ci/parity_gate",
        description="Measure the parity of the models that a change touches.",
        epilog="Exit: 0 fine, 1 below the gate, 2 used wrongly, 3 can't be judged here. More: docs/ci.md",
        allow_abbrev=False,
    )
    base = environ.get("GITHUB_BASE_REF")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--base",
        metavar="REF",
        default=f"origin/{base}" if base else None,
        help="the models that commits since REF touch (default: origin/$GITHUB_BASE_REF)",
    )
    which.add_argument("--all", action="store_true", help="all models of the plan")
    which.add_argument("--models", metavar="A,B", type=_names, help="these, with or without their owner")
    which.add_argument("--judge", metavar="DIR", type=Path, help="measure nothing: judge what a run left in DIR")
    parser.add_argument("--tier", choices=("quick", "full"), default="quick", help="default: quick")
    parser.add_argument("--plan", metavar="FILE", type=Path, default=Path("matrix/parity.yaml"))
    parser.add_argument("--out", metavar="DIR", type=Path, default=Path("artifacts/parity"))
    parser.add_argument("--strict-power", action="store_true", help="power that can't be read is a reason not to judge")
    parser.add_argument("--dry-run", action="store_true", help="print the command of pytest, run nothing")
    return parser


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
