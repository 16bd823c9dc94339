"""The fixtures that the plugin offers; their work is done by the layers below, which know nothing of pytest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from pytest_llmbench import verdict
from pytest_llmbench.collect import MEASUREMENTS
from pytest_llmbench.errors import BenchError, MeasurementError, Unavailable, UsageError
from pytest_llmbench.options import Options
from pytest_llmbench.session import Bench, bench_of
from pytest_llmbench.units import plain

if TYPE_CHECKING:
    from llmbench_engine import Engine
    from pytest_llmbench.accelerator import Accelerator
    from pytest_llmbench.backends.base import Target, TargetInfo
    from pytest_llmbench.matrix import Gate, MatrixEntry
    from pytest_llmbench.measure import Measurement, Meter
    from pytest_llmbench.parity import ParityResult
    from pytest_llmbench.parity_planned import PlannedResult

VERDICTS = pytest.StashKey[list[verdict.Verdict]]()
EXTRA = pytest.StashKey[dict[str, Any]]()


class CouldNotMeasure(pytest.fail.Exception):  # type: ignore[name-defined,misc]
    """Nothing was measured: an error, wherever in the test it comes up, never a failure."""

    __module__ = "builtins"  # as pytest's own: summaries show the bare name


def could_not_measure(error: BenchError) -> NoReturn:
    """End the test as an error that says what happened, without our own frames."""
    raise CouldNotMeasure(plain(str(error)), pytrace=False) from None


@pytest.fixture(scope="session")
def llmbench_options(pytestconfig: pytest.Config) -> Options:
    """The options in force, frozen."""
    return bench_of(pytestconfig).options


@pytest.fixture(scope="session")
def llmbench_entry(request: pytest.FixtureRequest) -> MatrixEntry:
    """The matrix entry that the test runs for (indirect parameter)."""
    entry: MatrixEntry = request.param
    return entry


@pytest.fixture(scope="session")
def llmbench_prompt(request: pytest.FixtureRequest) -> str:
    """The name of the prompt that the test runs for (indirect parameter)."""
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def llmbench_parity(request: pytest.FixtureRequest) -> ParityResult | PlannedResult:
    """The parity result that the test judges, a record's or a plan's (indirect parameter)."""
    result: ParityResult | PlannedResult = request.param
    return result


@pytest.fixture(scope="session")
def llmbench_accelerator(pytestconfig: pytest.Config) -> Accelerator:
    """The host's accelerator; `with llmbench_accelerator.hold(print):` keeps every other benchmark off it."""
    return bench_of(pytestconfig).accelerator


@pytest.fixture(scope="session")
def llmbench_target(llmbench_entry: MatrixEntry, pytestconfig: pytest.Config) -> Iterator[Target]:
    """The entry's model, loaded and answering, with the accelerator to itself; stopped when its last test is done."""
    bench = bench_of(pytestconfig)
    skip_unavailable(bench, bench.unavailable(llmbench_entry))
    opened = bench.open(llmbench_entry)
    try:
        target = opened.__enter__()
    except BenchError as error:
        could_not_measure(error)
    try:
        yield target
    finally:
        opened.__exit__(None, None, None)


def skip_unavailable(bench: Bench, error: Unavailable | None) -> None:
    """Skip the test with what is missing and the fix; with `--llmbench-require` that is an error."""
    if error is None:
        return
    if bench.options.require:
        could_not_measure(error)
    pytest.skip(plain(str(error)))


@contextmanager
def errors_as_outcomes(bench: Bench) -> Iterator[None]:
    """What the block can't do for want of something is a skip (see `skip_unavailable`), any other of our errors one."""
    try:
        yield
    except Unavailable as error:
        skip_unavailable(bench, error)
        raise
    except BenchError as error:
        could_not_measure(error)


@pytest.fixture(scope="session")
def llmbench_server(llmbench_target: Target) -> TargetInfo:
    """The running server's base URL, pid, log path and command, for tests that want raw HTTP."""
    return llmbench_target.info


@pytest.fixture(scope="session")
def llmbench_engine(pytestconfig: pytest.Config) -> Iterator[Callable[[str | Path], Engine]]:
    """`llmbench_engine(path)`: the checkpoint folder's `llmbench_engine.Engine`, loaded in this process.

    One is loaded at a time: the same path gives the same engine, another one closes it first; the end of the session
    closes the last. It doesn't keep other benchmarks away: time it `with llmbench_accelerator.hold(print):`.
    """
    from pytest_llmbench.backends.engine import EngineSlot

    slot = EngineSlot()

    def load(path: str | Path) -> Engine:
        with errors_as_outcomes(bench_of(pytestconfig)):
            return slot.load(path)

    yield load
    slot.close()


@pytest.fixture(scope="session")
def llmbench_meter(llmbench_target: Target, llmbench_entry: MatrixEntry, pytestconfig: pytest.Config) -> Meter:
    """Measures on the open target; knows every prompt that it was sent, so that no two are alike."""
    from pytest_llmbench.measure import Meter
    from pytest_llmbench.power import read_power
    from pytest_llmbench.prompts import PromptMaker

    bench = bench_of(pytestconfig)
    settings = bench.settings(llmbench_entry)
    return Meter(
        target=llmbench_target,
        maker=PromptMaker(llmbench_target.tokenizer, think=settings.think),
        settings=settings,
        progress=bench.progress.for_entry(llmbench_entry.id),
        conditions=lambda: read_power().facts(),
    )


@pytest.fixture(scope="session")
def llmbench_measurement(
    llmbench_meter: Meter, llmbench_entry: MatrixEntry, llmbench_prompt: str, pytestconfig: pytest.Config
) -> Measurement:
    """The entry's measurement of the prompt, made once."""
    bench = bench_of(pytestconfig)
    with errors_as_outcomes(bench):
        return bench.measure(llmbench_meter, llmbench_entry, llmbench_prompt)


def _count(measurement: Measurement, metric: str) -> int:
    """How many values the metric's figure is made of: its runs, or 1 for what is taken once."""
    of_requests = sum(getattr(sample, metric, None) is not None for sample in measurement.valid)
    return of_requests or sum(r.metrics().get(metric) is not None for r in measurement.valid_rounds) or 1


class GateKeeper:
    """Asserts metrics, and keeps each verdict for the record."""

    def __init__(self, request: pytest.FixtureRequest, verdicts: list[verdict.Verdict]) -> None:
        self._request = request
        self._verdicts = verdicts

    def __call__(self, metric: str, *, at_least: float | None = None, at_most: float | None = None) -> verdict.Verdict:
        """Assert that the measurement's median of `metric` is within the bound; seconds, bytes or tok/s by its name."""
        __tracebackhide__ = True
        found = self._threshold(metric, at_least, at_most)
        self._assert([found])
        return found

    def check_all(self, gates: Iterable[Gate]) -> None:
        """Assert those of a matrix entry's gates that are for what was measured, all before the first complaint."""
        __tracebackhide__ = True
        level = self._measurement().level
        self._assert(
            [
                self._threshold(gate.metric, low, high)
                for gate in gates
                if gate.applies_to(level)
                for low, high in ((gate.at_least, None), (None, gate.at_most))
                if low is not None or high is not None
            ]
        )

    def check_parity(self, result: ParityResult, gate: float, *, names: tuple[str, str]) -> None:
        """Assert that candidate / baseline (or its inverse, so that more is better) is at least `gate`.

        `names` are those of candidate and baseline.
        """
        from pytest_llmbench.parity import judge

        __tracebackhide__ = True
        try:
            found = judge(result, gate)
        except BenchError as error:
            could_not_measure(error)
        if found is None or result.candidate is None or result.baseline is None:
            could_not_measure(MeasurementError(f"the candidate failed: {result.reason or 'the record says no more'}"))
        sides = zip(names, (result.candidate, result.baseline), strict=True)
        samples = "; ".join(f"{name} {list(side.samples)} {side.unit}" for name, side in sides)
        self._assert([found], names, f"samples: {samples}")

    def check_verdicts(
        self, found: Iterable[verdict.Verdict], *, candidate: str, baseline: str, detail: str = ""
    ) -> None:
        """Assert verdicts on two sides, all of them before the first complaint; `detail` follows those."""
        __tracebackhide__ = True
        self._assert(list(found), (candidate, baseline), detail)

    def _threshold(self, metric: str, at_least: float | None, at_most: float | None) -> verdict.Verdict:
        __tracebackhide__ = True
        try:
            measurement = self._measurement()
            metrics = measurement.metrics()
            if metric not in metrics:
                raise UsageError(f"no metric {metric!r}; there are: {', '.join(metrics)}")
            found = verdict.threshold(metric, metrics[metric], at_least=at_least, at_most=at_most)
        except BenchError as error:
            could_not_measure(error)
        return replace(found, n=_count(measurement, metric))

    def _measurement(self) -> Measurement:
        asked = next((name for name in MEASUREMENTS if name in self._request.fixturenames), None)
        if asked is None:
            raise UsageError(f"llmbench_gate needs a measurement: let the test ask for {' or '.join(MEASUREMENTS)} too")
        measurement: Measurement = self._request.getfixturevalue(asked)
        return measurement

    def _assert(self, found: list[verdict.Verdict], names: tuple[str, str] = ("", ""), detail: str = "") -> None:
        __tracebackhide__ = True
        for v in found:
            if v.outcome is verdict.Outcome.UNDECIDED:
                could_not_measure(MeasurementError(v.message(candidate=names[0], baseline=names[1])))
        self._verdicts.extend(found)
        failed = [v.message(candidate=names[0], baseline=names[1]) for v in found if not v.passed]
        if failed:
            pytest.fail("\n".join([*failed, detail]).strip(), pytrace=False)


@pytest.fixture
def llmbench_gate(request: pytest.FixtureRequest) -> GateKeeper:
    """`llmbench_gate("decode_tok_s", at_least=40)` fails the test with value, gate and n if it doesn't hold."""
    return GateKeeper(request, request.node.stash.setdefault(VERDICTS, []))


class Recorder:
    """Puts facts of the test's own into its record and into junit's properties."""

    def __init__(self, extra: dict[str, Any]) -> None:
        self._extra = extra

    def __call__(self, name: str, value: str | float | bool | None) -> None:
        """Record one flat fact under `name`."""
        self._extra[name] = value

    @property
    def facts(self) -> Mapping[str, Any]:
        return dict(self._extra)


@pytest.fixture
def llmbench_record(request: pytest.FixtureRequest) -> Recorder:
    """`llmbench_record("answer", 42)` adds to the test's record and junit properties."""
    return Recorder(request.node.stash.setdefault(EXTRA, {}))


@pytest.fixture(scope="session")
def llmbench_out(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder for artefacts: `--llmbench-out`, else a temporary one."""
    out = bench_of(pytestconfig).options.out
    if out is None:
        return tmp_path_factory.mktemp("llmbench-out")
    out.mkdir(parents=True, exist_ok=True)
    return out
