"""The README's table of servers is what the saved result says, and has every backend."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from pytest_llmbench.backends import builtin_backends

ROOT = Path(__file__).resolve().parents[2]
RESULT = "docs/results/servers.json"


def test_the_table_is_that_of_the_saved_result(tmp_path: Path) -> None:
    for name in ("README.md", RESULT, "ci/verify_servers"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    subprocess.run([sys.executable, str(tmp_path / "ci/verify_servers"), "--table"], check=True)
    assert (tmp_path / "README.md").read_text("utf-8") == (ROOT / "README.md").read_text("utf-8")


def test_every_backend_has_a_row() -> None:
    rows = json.loads((ROOT / RESULT).read_text("utf-8"))["servers"]
    assert {row["backend"] for row in rows.values()} == set(builtin_backends())
    page = (ROOT / "README.md").read_text("utf-8")
    assert all(f"\n| {name} | " in page for name in rows)


def test_a_replay_has_no_version_of_the_server_that_it_stands_for() -> None:
    rows = json.loads((ROOT / RESULT).read_text("utf-8"))["servers"]
    assert {name for name, row in rows.items() if not row["real"]} >= {"ollama", "lm-studio", "unsloth-studio"}
    assert [name for name, row in rows.items() if row["version"] and not row["real"]] == []


def test_what_was_left_out_has_a_reason() -> None:
    rows = json.loads((ROOT / RESULT).read_text("utf-8"))["servers"].values()
    assert all(row["passed"] for row in rows)
    assert all(reason for row in rows for reason in row["left_out"].values())
