"""Fixtures of the plugin's tests."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from lab import ROOT, Lab, collect_items, import_lazy_modules


@pytest.fixture(scope="session")
def lazy_modules() -> None:
    """Of the session's scope: what is imported after `pytester` came up is forgotten with it."""
    import_lazy_modules()


@pytest.fixture
def no_outer_settings(lazy_modules: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables of the run that tests us say nothing to the runs that are tested."""
    for name in [name for name in os.environ if name.startswith("LLMBENCH_") or name == "PYTEST_ADDOPTS"]:
        monkeypatch.delenv(name)


@pytest.fixture
def lab(pytester: pytest.Pytester, no_outer_settings: None) -> Lab:
    """A folder with the fake backend."""
    return Lab(pytester)


@pytest.fixture
def selected(pytester: pytest.Pytester, no_outer_settings: None) -> Callable[..., list[pytest.Item]]:
    """A function that collects with this repository's own settings."""

    def select(*args: str) -> list[pytest.Item]:
        here = ("-c", str(ROOT / "pyproject.toml"), f"--rootdir={ROOT}")
        return collect_items(pytester, *here, *args)

    return select
