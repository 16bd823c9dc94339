"""Fixtures of the tests that run parity plans for real, with scripted sides."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings
from parity_kit import ParityLab

# A busy machine makes any example slow: a deadline would test the machine.
settings.register_profile("llmbench", deadline=None)
settings.load_profile("llmbench")


@pytest.fixture
def lab(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> ParityLab:
    """A folder for plans. Variables of the run that tests us say nothing to the tested one."""
    for name in [name for name in os.environ if name.startswith("LLMBENCH_") or name == "PYTEST_ADDOPTS"]:
        monkeypatch.delenv(name)
    return ParityLab(pytester)
