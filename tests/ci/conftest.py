"""Fixtures of the tests of ci/parity_gate."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "ci"))  # as ci/parity_gate does

from gate_kit import RECORD_FILE, Repository, replay  # noqa: E402


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """A git repository with the gate, a plan and the engine's model files, at the start of a branch off `main`."""
    return Repository(tmp_path / "repository")


@pytest.fixture(scope="session")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a run leaves it: the saved record, and junit's file of real tests that judge it."""
    folder = tmp_path_factory.mktemp("replayed")
    replay(folder, RECORD_FILE)
    return folder
