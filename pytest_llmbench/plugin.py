"""The pytest plugin: hooks only. Each hands over to the module that does the work.

Nothing here, or in what it imports at the start, imports mlx, numpy, httpx or transformers, starts a process or writes
a file: a session without a benchmark pays nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench import collect, collect_parity, comparing, hookspec, listing, options, recorder, resume
from pytest_llmbench.errors import UsageError
from pytest_llmbench.fixtures import (
    llmbench_accelerator,
    llmbench_engine,
    llmbench_entry,
    llmbench_gate,
    llmbench_measurement,
    llmbench_meter,
    llmbench_options,
    llmbench_out,
    llmbench_parity,
    llmbench_prompt,
    llmbench_record,
    llmbench_server,
    llmbench_target,
)
from pytest_llmbench.fixtures_answers import llmbench_quality_check, llmbench_tool_check
from pytest_llmbench.fixtures_concurrency import llmbench_level, llmbench_streams
from pytest_llmbench.fixtures_parity import llmbench_baseline, llmbench_point, llmbench_section
from pytest_llmbench.progress import Progress
from pytest_llmbench.recorder import ResultRecorder
from pytest_llmbench.session import BENCH, Bench, bench_of

__all__ = [
    "llmbench_accelerator",
    "llmbench_baseline",
    "llmbench_engine",
    "llmbench_entry",
    "llmbench_gate",
    "llmbench_level",
    "llmbench_measurement",
    "llmbench_meter",
    "llmbench_options",
    "llmbench_out",
    "llmbench_parity",
    "llmbench_point",
    "llmbench_prompt",
    "llmbench_quality_check",
    "llmbench_record",
    "llmbench_section",
    "llmbench_server",
    "llmbench_streams",
    "llmbench_target",
    "llmbench_tool_check",
]

RECORDER = pytest.StashKey[ResultRecorder]()
OPEN_TARGET = pytest.StashKey[tuple[pytest.FixtureDef[Any], pytest.FixtureRequest]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    options.add_options(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(hookspec)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", collect.MARKER_HELP)
    try:
        bench = Bench(config, options.resolve(config, os.environ))
        comparing.require_sense(bench.options)
        resume.read_resumed(bench)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error
    config.stash[BENCH] = bench
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        # Without a path on the command line, what the options name is run beside the usual tests.
        config.args += [str(path) for path in bench.options.given_paths]
    if bench.options.list:
        listing.take_over(bench)
    if not _is_worker(config):
        config.stash[RECORDER] = ResultRecorder(bench)
        config.pluginmanager.register(config.stash[RECORDER], "llmbench-recorder")


def pytest_report_header(config: pytest.Config) -> str | None:
    bench = bench_of(config)
    if not _runs_benchmarks(config):
        return None
    return f"llmbench: gate {bench.options.gate:g}, artefacts: {bench.options.out or 'none (--llmbench-out DIR)'}"


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    bench = bench_of(parent.config)
    if bench.is_plan_file(file_path):
        return collect_parity.ParityFile.from_parent(parent, path=file_path)
    if bench.is_matrix_file(file_path):
        return collect.MatrixFile.from_parent(parent, path=file_path)
    if bench.is_record_file(file_path):
        return collect.RecordFile.from_parent(parent, path=file_path)
    return None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    try:
        if "llmbench_section" in metafunc.fixturenames:
            collect_parity.parametrize(metafunc)
        else:
            collect.parametrize(metafunc)
    except UsageError as error:
        # Within a file of ours its own collector says it; for a user's module this is the place.
        if metafunc.definition.getparent(collect.SuiteFile) is not None:
            raise
        pytest.fail(str(error), pytrace=False)


def pytest_itemcollected(item: pytest.Item) -> None:
    collect.add_keywords(item)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    collect.group_by_entry(bench_of(config), items)
    collect_parity.group_by_section(items)
    try:
        resume.resume(bench_of(config), items)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, Any, Any]:
    bench = bench_of(session.config)
    benchmarks = [item for item in session.items if collect.is_benchmark(item)]
    if not bench.options.list:
        _begin(session, bool(benchmarks))
    with _progress(session.config, bool(benchmarks)) as bench.progress:
        bench.progress.total = len(benchmarks)
        return (yield)


def _begin(session: pytest.Session, benchmarks: bool) -> None:
    """Open the journal. xdist's controller has no tests of its own: there the arguments tell."""
    controls = session.config.pluginmanager.hasplugin("dsession") and _runs_benchmarks(session.config)
    if (benchmarks or controls) and not session.config.option.collectonly:
        try:
            comparing.read_saved(bench_of(session.config))
            if not _is_worker(session.config):
                session.config.stash[RECORDER].begin(_plans(session))
        except UsageError as error:
            raise pytest.UsageError(str(error)) from error


def _plans(session: pytest.Session) -> list[str]:
    """The parity plans of the tests; none in xdist's controller, which has collected nothing."""
    sections = (section for item in session.items if (section := collect.section_of(item)) is not None)
    return list(dict.fromkeys(str(section.plan.path) for section in sections))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    resume.fail_again(bench_of(item.config), item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    result = yield
    comparing.check(bench_of(item.config), item)
    return result


def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> None:
    if fixturedef.argname == llmbench_target.__name__:
        request.config.stash[OPEN_TARGET] = (fixturedef, request)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Stop an entry's server with its last test: pytest would keep it for a test that wants the accelerator itself."""
    entry, opened = collect.entry_of(item), item.config.stash.get(OPEN_TARGET, None)
    if entry is None or opened is None or (nextitem is not None and collect.entry_of(nextitem) == entry):
        return
    fixture, request = opened
    fixture.finish(request)  # type: ignore[arg-type]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    recorder.attach(item, call, report)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    from pytest_llmbench import terminal_summary

    found = config.stash[RECORDER]
    terminal_summary.write(
        terminalreporter,
        bench_of(config),
        found.results.values(),
        found.parity_records,
        found.comparison,
        found.files,
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Only for xdist's default distribution: an explicit `--dist` is the user's word."""
    from pytest_llmbench.distribute import make_scheduler

    return make_scheduler(config, log) if config.getoption("dist") == "load" and _runs_benchmarks(config) else None


def _runs_benchmarks(config: pytest.Config) -> bool:
    bench = bench_of(config)
    roots: Iterable[Path] = bench.matrix_roots
    named = [(config.invocation_params.dir / a.partition("::")[0]).resolve() for a in config.args]
    return any(
        bench.is_matrix_file(path)
        or bench.is_plan_file(path)
        or any(path == root or path in root.parents or root in path.parents for root in roots)
        for path in named
    )


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


@contextmanager
def _progress(config: pytest.Config, wanted: bool) -> Iterator[Progress]:
    """Writes past pytest's capture, through a descriptor of its own; silent with -q.

    An xdist worker's standard output is its line to the controller: it says what it does on standard error, plainly.
    """
    descriptor, worker = None, _is_worker(config)
    if wanted and config.get_verbosity() >= 0:
        # Without a real standard output (a test of a plugin, an embedding program) there is nobody to tell.
        with suppress(OSError, ValueError, AttributeError):
            descriptor = os.dup((sys.stderr if worker else sys.stdout).fileno())
    live = descriptor is not None and not worker and os.isatty(descriptor)
    try:
        with Progress(descriptor, live=live) as progress:
            yield progress
    finally:
        if descriptor is not None:
            os.close(descriptor)
