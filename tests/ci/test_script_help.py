"""Each Python script of ci/ answers --help, and does nothing then."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHEBANG = b"#!/usr/bin/env python3\n"
SCRIPTS = [
    path for path in sorted((ROOT / "ci").rglob("*")) if path.is_file() and path.read_bytes().startswith(SHEBANG)
]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_answers_help(script: Path) -> None:
    done = subprocess.run([sys.executable, script, "--help"], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: ")


def test_the_scripts_were_found() -> None:
    assert {"performance", "parity", "parity_gate"} <= {path.name for path in SCRIPTS}
