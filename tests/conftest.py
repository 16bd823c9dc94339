"""Fixtures of the whole suite."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_llmbench.checkpoints import make_tiny


@pytest.fixture(scope="session")
def tiny_checkpoints(pytestconfig: pytest.Config) -> Path:
    """Folder with the tiny checkpoints, made once (`make_tiny` locks it against parallel workers)."""
    folder = Path(os.environ.get("LLMBENCH_CHECKPOINTS") or pytestconfig.rootpath / "checkpoints")
    make_tiny(folder, report=lambda _line: None)
    return folder
