"""Hooks that this plugin offers; implement them in a `conftest.py` or in a plugin of your own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_llmbench.backends.base import Backend
    from pytest_llmbench.sides.spec import SideSpec


@pytest.hookspec
def pytest_llmbench_register_backends(backends: dict[str, Backend], config: pytest.Config) -> None:
    """Add backends (or replace built-in ones) by the name that matrix entries give as `backend`."""


@pytest.hookspec
def pytest_llmbench_register_sides(sides: dict[str, SideSpec], config: pytest.Config) -> None:
    """Add engines that a live parity run can compare, by the name that parity files give (docs/sides.md)."""


@pytest.hookspec
def pytest_llmbench_update_environment(environment: dict[str, Any], config: pytest.Config) -> None:
    """Change or add facts about the machine before they go into journal and record."""


@pytest.hookspec
def pytest_llmbench_update_record(record: dict[str, Any], config: pytest.Config) -> None:
    """Change or add facts in `run.json` just before it is written."""
