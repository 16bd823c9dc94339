"""Fixtures of the whole suite."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_llmbench.checkpoints import make_tiny

# What a shell script puts in the background ignores SIGINT, and so do its children: tests that send it would hang.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def tiny_checkpoints(pytestconfig: pytest.Config) -> Path:
    """Folder with the tiny checkpoints, made once (`make_tiny` locks it against parallel workers)."""
    folder = Path(os.environ.get("LLMBENCH_CHECKPOINTS") or pytestconfig.rootpath / "checkpoints")
    make_tiny(folder, report=lambda _line: None)
    return folder


@pytest.fixture(scope="session")
def tiny_kinds(pytestconfig: pytest.Config) -> Path:
    """Folder with one tiny checkpoint of each kind: `tiny-dense`, `tiny-moe`, `tiny-hybrid`, `tiny-hybrid-moe`."""
    folder = Path(os.environ.get("LLMBENCH_CHECKPOINTS") or pytestconfig.rootpath / "checkpoints")
    # In a process of its own: this one may go on to tests that must not have imported MLX.
    subprocess.run([sys.executable, "-m", "pytest_llmbench", "checkpoint", "tiny", str(folder)], check=True)
    return folder
