"""Matrix files and saved records become modules of real tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from pytest_llmbench.errors import UsageError
from pytest_llmbench.matrix import concurrency_prompt
from pytest_llmbench.session import Bench, bench_of

if TYPE_CHECKING:
    from _pytest.mark.structures import ParameterSet

    from pytest_llmbench.matrix import MatrixEntry
    from pytest_llmbench.measure import Measurement
    from pytest_llmbench.parity import ParityResult
    from pytest_llmbench.parity_plan import ParityPlanModel
    from pytest_llmbench.parity_planned import PlannedPoint, PlannedResult, PlannedSection

MARKER_HELP = (
    "llmbench(id, backend, model_id, quant, kv, group, prompt, section): on a benchmark's test, what it measures "
    "(select with -m 'llmbench(backend=\"ollama\")'); on a test of yours, the entries that it runs for"
)
ADDED = ("tools", "quality")
"""Options that add a test to each entry of a matrix."""
MEASUREMENTS = ("llmbench_measurement", "llmbench_streams")
"""Fixtures that give a measurement."""
NO_LEVEL = "no level of concurrency is given; say --llmbench-concurrency 1,4, or concurrency: [1, 4] in the matrix"
SELECTORS = ("id", "backend", "model_id", "quant", "kv", "group", "prompt", "section")


class SuiteFile(pytest.Module):
    """A data file whose tests are this plugin's own functions, parametrized by what the file holds."""

    def load(self) -> ModuleType:
        """Read the file (UsageError says what is wrong with it); returns the module with its tests."""
        raise NotImplementedError

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        try:
            self.obj = self.load()
            return list(super().collect())
        except UsageError as error:
            raise self.CollectError(str(error)) from error


class MatrixFile(SuiteFile):
    """A matrix file: each entry and prompt is a test."""

    def load(self) -> ModuleType:
        from pytest_llmbench import suite

        bench = bench_of(self.config)
        matrix = bench.matrix(self.path)
        added = [kind for kind in ADDED if getattr(bench.options, kind)]
        added += ["concurrency"] if any(bench.settings(entry).concurrency for entry in matrix.entries) else []
        module = ModuleType(suite.__name__, suite.__doc__)
        for name in ("test_throughput", *(f"test_{kind}" for kind in added)):
            setattr(module, name, getattr(suite, name))
        return module


class RecordFile(SuiteFile):
    """A saved parity record: each gated metric is a test."""

    def load(self) -> ModuleType:
        from pytest_llmbench import suite_parity

        bench_of(self.config).record(self.path)
        return suite_parity


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Give a test its entries and prompts, or its parity results, if it asks for them."""
    bench = bench_of(metafunc.config)
    if "llmbench_parity" in metafunc.fixturenames:
        _parametrize_record(metafunc, bench)
    elif "llmbench_entry" in metafunc.fixturenames:
        _parametrize_matrix(metafunc, bench)


def _parametrize_record(metafunc: pytest.Metafunc, bench: Bench) -> None:
    file = metafunc.definition.getparent(RecordFile)
    records = (bench.record(file.path),) if file is not None else bench.configured_records()
    results = [r for record in records for r in record.results if r.gated]
    params = [
        pytest.param(r, id=r.id, marks=pytest.mark.llmbench(model_id=r.model, section=r.section)) for r in results
    ]
    metafunc.parametrize("llmbench_parity", params, indirect=True)


def _parametrize_matrix(metafunc: pytest.Metafunc, bench: Bench) -> None:
    wanted = wanted_by(metafunc)
    file = metafunc.definition.getparent(MatrixFile)
    matrices = (bench.matrix(file.path),) if file is not None else bench.configured_matrices()
    entries = [e for matrix in matrices for e in matrix.entries if matches(facts_of(e), wanted)]
    if "llmbench_level" in metafunc.fixturenames:
        if not any(bench.settings(e).concurrency for e in entries):
            raise UsageError(f"{metafunc.definition.nodeid}: {NO_LEVEL}")
        names = "llmbench_entry,llmbench_level"
        params = _params(
            entries, wanted, lambda e: {level: concurrency_prompt(level) for level in bench.settings(e).concurrency}
        )
    elif "llmbench_prompt" in metafunc.fixturenames:
        names = "llmbench_entry,llmbench_prompt"
        params = _params(entries, wanted, lambda e: {prompt: prompt for prompt in bench.settings(e).prompts})
    else:
        names, params = "llmbench_entry", [pytest.param(e, id=e.id, marks=marks(e, facts_of(e))) for e in entries]
    require_some([str(param.id) for param in params], metafunc, wanted)
    metafunc.parametrize(names, params, indirect=True, scope="session")


def _params(
    entries: Iterable[MatrixEntry], wanted: Mapping[str, Any], each: Callable[[MatrixEntry], Mapping[Any, str]]
) -> list[ParameterSet]:
    """Those of each entry with every value that `each` has for it, beside the name of that value's prompt."""
    return [
        pytest.param(e, value, id=f"{e.id}-{value}", marks=marks(e, facts_of(e) | {"prompt": prompt}))
        for e in entries
        for value, prompt in each(e).items()
        if wanted.get("prompt", prompt) == prompt
    ]


def require_some(
    ids: Sequence[str], metafunc: pytest.Metafunc, wanted: Mapping[str, Any], *, of: str = "entry of the matrix"
) -> None:
    """UsageError where nothing would be tested, or where two tests would have one name."""
    where = metafunc.definition.nodeid
    if not ids:
        said = ", ".join(f"{name}={value!r}" for name, value in wanted.items())
        raise UsageError(f"{where}: no {of} matches llmbench({said}); correct the marker or that file")
    twice = [name for name, count in Counter(ids).items() if count > 1]
    if twice:
        raise UsageError(f"{where}: two tests would be called {twice[0]}; rename an entry or a custom prompt")


def facts_of(entry: MatrixEntry) -> dict[str, str]:
    """What the marker says of an entry."""
    return {
        "id": entry.id,
        "backend": entry.backend,
        "model_id": entry.model_id,
        "quant": entry.quant,
        "kv": entry.kv_cache,
        "group": entry.group,
    }


def wanted_by(metafunc: pytest.Metafunc) -> dict[str, Any]:
    """The arguments of `@pytest.mark.llmbench(…)` on a user's test; UsageError for one that means nothing."""
    wanted: dict[str, Any] = {}
    for mark in metafunc.definition.iter_markers("llmbench"):
        unknown = [name for name in mark.kwargs if name not in SELECTORS]
        if unknown or mark.args:
            raise UsageError(
                f"{metafunc.definition.nodeid}: the marker llmbench takes the keywords {', '.join(SELECTORS)}, "
                f"not {', '.join([*unknown, *map(repr, mark.args)])}"
            )
        wanted |= mark.kwargs
    return wanted


def matches(facts: Mapping[str, str], wanted: Mapping[str, Any]) -> bool:
    return all(facts[name] == value for name, value in wanted.items() if name in facts)


def marks(of: MatrixEntry | ParityPlanModel, facts: Mapping[str, str]) -> list[pytest.MarkDecorator]:
    """The marker `llmbench` with `facts`; skipped where a file says disabled, expected to fail at a known issue."""
    found = [pytest.mark.llmbench(**facts)]
    if not of.enabled:
        found.append(pytest.mark.skip(reason=f"disabled: {of.reason}"))
    if of.known_issue:
        found.append(pytest.mark.xfail(reason=of.known_issue, strict=False))
    return found


def entry_of(item: pytest.Item) -> MatrixEntry | None:
    """The matrix entry that a test runs for; None for any other test."""
    found: MatrixEntry | None = param(item, "llmbench_entry")
    return found


def prompt_of(item: pytest.Item) -> str | None:
    """The prompt that a test runs for; of several requests at once, the name under which they are recorded."""
    level: int | None = param(item, "llmbench_level")
    if level is not None:
        return concurrency_prompt(level)
    found: str | None = param(item, "llmbench_prompt")
    return found


def measurement_of(item: pytest.Item) -> Measurement | None:
    """What was measured for a test; None where nothing was (yet)."""
    found = getattr(item, "funcargs", {})
    return next((found[name] for name in MEASUREMENTS if name in found), None)


def parity_of(item: pytest.Item) -> ParityResult | PlannedResult | None:
    """The parity result that a test judges: a saved one, or one that a plan's run is to give."""
    found: ParityResult | PlannedResult | None = param(item, "llmbench_parity")
    return found


def planned_of(item: pytest.Item) -> PlannedResult | None:
    """The result of a parity plan that a test judges."""
    found = parity_of(item)
    return found if section_of(item) is not None else None  # type: ignore[return-value]


def section_of(item: pytest.Item) -> PlannedSection | None:
    """The section of a parity plan that a test belongs to."""
    found: PlannedSection | None = param(item, "llmbench_section")
    return found


def point_of(item: pytest.Item) -> PlannedPoint | None:
    """The point of a parity plan that a test is about."""
    found: PlannedPoint | None = param(item, "llmbench_point")
    return found


def is_benchmark(item: pytest.Item) -> bool:
    """Whether the test measures, or judges what was measured."""
    return any(of(item) is not None for of in (entry_of, parity_of, section_of))


def parity_facts(item: pytest.Item) -> dict[str, str]:
    """Model, section, point and metric of a parity test, as far as it is about one; nothing for any other test."""
    parity, section, point = parity_of(item), section_of(item), point_of(item)
    if parity is not None:
        return {"model_id": parity.model, "section": parity.section, "point": parity.point, "metric": parity.metric}
    if section is None:
        return {}
    facts = {"model_id": section.model.id, "section": section.section}
    return facts | {"point": point.point} if point is not None else facts


def group_by_entry(bench: Bench, items: list[pytest.Item]) -> None:
    """Put all tests of an entry behind its first one, prompts in the entry's order: each server starts once."""
    first: dict[MatrixEntry, int] = {}

    def place(position: int, item: pytest.Item) -> tuple[int, int]:
        entry, prompt = entry_of(item), prompt_of(item)
        if entry is None:
            return position, 0
        settings = bench.settings(entry)
        order = (*settings.prompts, *map(concurrency_prompt, settings.concurrency))
        return first.setdefault(entry, position), order.index(prompt) if prompt in order else len(order)

    places = {item: place(position, item) for position, item in enumerate(items)}
    items.sort(key=places.__getitem__)


def param(item: pytest.Item, name: str) -> Any:
    """The value of a test's parameter; None where it has none of that name."""
    callspec = getattr(item, "callspec", None)
    found = callspec.params.get(name) if callspec is not None else None
    # Of an empty parameter set pytest makes one skipped test, whose parameter is a sentinel.
    return found if isinstance(found, str | int) or hasattr(found, "keywords") else None


def add_keywords(item: pytest.Item) -> None:
    """Let `-k` find the test by its entry's id, model and `backend:x`, `quant:x`, `kv:x`, `group:x`, `section:x`."""
    for found in (entry_of(item), parity_of(item), section_of(item)):
        if found is not None:
            item.extra_keyword_matches.update(found.keywords)
