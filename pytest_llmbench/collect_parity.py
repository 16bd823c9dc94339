"""A parity plan becomes a module of real tests, those of a model's section side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, Final

import pytest

from pytest_llmbench import collect
from pytest_llmbench.parity import RUN_ORDER
from pytest_llmbench.session import bench_of

if TYPE_CHECKING:
    from pytest_llmbench.parity_planned import PlannedSection

Case = tuple[str, tuple[Any, ...]]
"""A test's id, and the values of its fixtures, the section first."""

FIXTURES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "test_parity": ("llmbench_section", "llmbench_parity"),
        "test_measured": ("llmbench_section", "llmbench_point"),
        "test_same_tokens": ("llmbench_section",),
        "test_batch_matches_solo": ("llmbench_section", "llmbench_point"),
    }
)
"""The tests of a plan, as `suite_live` has them."""


class ParityFile(collect.SuiteFile):
    """A parity plan: each gated metric of each model is a test, and what must hold of its tokens."""

    def load(self) -> ModuleType:
        from pytest_llmbench import suite_live

        sections = bench_of(self.config).plans.planned(self.path)
        # pytest takes a test without parameters for a mistake: here it is a plan without that section.
        module = ModuleType(suite_live.__name__, suite_live.__doc__)
        for name in FIXTURES:
            if any(_cases(name, sections)):
                setattr(module, name, getattr(suite_live, name))
        return module


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Give a test that asks for `llmbench_section` its sections, with their results or points if it asks for them."""
    file = metafunc.definition.getparent(ParityFile)
    bench = bench_of(metafunc.config)
    if file is not None:
        name = metafunc.function.__name__
        fixtures, cases = FIXTURES[name], list(_cases(name, bench.plans.planned(file.path)))
    else:
        fixtures, cases = _users(metafunc, bench.plans.configured())
    params = [pytest.param(*values, id=name, marks=_marks(*values)) for name, values in cases]
    metafunc.parametrize(",".join(fixtures), params, indirect=True, scope="session")


def _cases(test: str, sections: Iterable[PlannedSection]) -> Iterator[Case]:
    for section in sections:
        if test == "test_parity":
            yield from ((result.id, (section, result)) for result in section.results if result.gated)
        elif test == "test_measured":
            yield from ((point.id, (section, point)) for point in section.ungated_points)
        elif test == "test_same_tokens" and section.section == "decode":
            yield section.model.name, (section,)
        elif test == "test_batch_matches_solo" and section.section == "concurrency":
            yield from ((f"{section.model.name}-{point.point}", (section, point)) for point in section.points)


def _users(metafunc: pytest.Metafunc, sections: Sequence[PlannedSection]) -> tuple[tuple[str, ...], list[Case]]:
    """The fixtures that a user's own test asks for, and every case that its marker `llmbench` lets through."""
    wanted = collect.wanted_by(metafunc)
    chosen = [section for section in sections if collect.matches(_facts(section), wanted)]
    if "llmbench_parity" in metafunc.fixturenames:
        cases: list[Case] = [(result.id, (section, result)) for section in chosen for result in section.results]
        fixtures: tuple[str, ...] = ("llmbench_section", "llmbench_parity")
    elif "llmbench_point" in metafunc.fixturenames:
        cases = [(point.id, (section, point)) for section in chosen for point in section.points]
        fixtures = ("llmbench_section", "llmbench_point")
    else:
        cases, fixtures = [(section.id, (section,)) for section in chosen], ("llmbench_section",)
    collect.require_some([name for name, _ in cases], metafunc, wanted, of="parity plan")
    return fixtures, cases


def _facts(section: PlannedSection) -> dict[str, str]:
    """What the marker says of a section."""
    return {"model_id": section.model.id, "section": section.section}


def _marks(section: PlannedSection, *_: Any) -> list[pytest.MarkDecorator]:
    return collect.marks(section.model, _facts(section))


def group_by_section(items: list[pytest.Item]) -> None:
    """Put all tests of a model behind its first one, its sections in the order in which they are run, each whole."""
    first: dict[tuple[object, str], int] = {}

    def place(position: int, item: pytest.Item) -> tuple[int, int]:
        section = collect.section_of(item)
        if section is None:
            return position, 0
        start = first.setdefault((section.plan.path, section.model.id), position)
        return start, RUN_ORDER.index(section.section)

    places = {item: place(position, item) for position, item in enumerate(items)}
    items.sort(key=places.__getitem__)
