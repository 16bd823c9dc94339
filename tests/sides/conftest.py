"""Fixtures of the tests that run sides of a parity run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from side_kit import REAL, real_side

from pytest_llmbench.sides.process import SideProcess
from pytest_llmbench.sides.spec import SideSpec

# A busy machine makes any example slow: a deadline would test the machine.
settings.register_profile("llmbench", deadline=None)
settings.load_profile("llmbench")

Start = Callable[..., SideProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a side and ends it with the test: `start(spec, timeout_s=1)`."""
    with ExitStack() as stack:

        def entered(spec: SideSpec, **limits: Any) -> SideProcess:
            return stack.enter_context(SideProcess(spec, tmp_path / "side.log", **limits))

        yield entered


@pytest.fixture(scope="session")
def real_sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, SideProcess]]:
    """Both built-in sides, running, nothing loaded."""
    pytest.importorskip("mlx", reason="pip install 'pytest-llmbench[mlx]'")
    folder = tmp_path_factory.mktemp("sides")
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(SideProcess(real_side(name), folder / f"{name}.log", timeout_s=120))
            for name in REAL
        }


@pytest.fixture(scope="session", params=REAL)
def real(request: pytest.FixtureRequest, real_sides: dict[str, SideProcess]) -> SideProcess:
    """Each of them."""
    return real_sides[request.param]
