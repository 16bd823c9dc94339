"""`ci/graph_cost` runs, and says what it measured and on what."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "ci" / "graph_cost"
SAVED = ROOT / "docs" / "results" / "graph_cost.json"
OF_A_KIND = {"shape", "layers", "engine_ms", "mlx_lm_ms", "ratio", "round_ratios"}
KINDS = {"llama", "qwen2", "qwen3", "qwen3_moe", "gpt_oss", "qwen3_5", "qwen3_5_moe", "gemma4_e4b", "gemma4_26b"}


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, encoding="utf-8", timeout=240, check=False)


def check_form(result: dict[str, Any], *, rounds: int) -> None:
    assert date.fromisoformat(result["date"]) <= date.today()  # noqa: DTZ011
    assert {"mlx", "mlx-lm"} <= set(result["versions"])
    assert {"machine", "chip", "cores_logical", "memory_bytes", "os", "python"} <= set(result["machine"])
    assert isinstance(result["stand_ins"], bool)
    assert (result["rounds"], result["tokens_a_round"] > 0) == (rounds, True)
    for found in result["kinds"].values():
        assert set(found) == OF_A_KIND
        assert found["engine_ms"] > 0
        assert found["ratio"] == pytest.approx(found["engine_ms"] / found["mlx_lm_ms"], rel=0.01)
        least, greatest = found["round_ratios"]
        assert 0 < least <= greatest
    mean = math.prod(found["ratio"] for found in result["kinds"].values()) ** (1 / len(result["kinds"]))
    assert result["geomean_ratio"] == pytest.approx(mean, abs=1e-3)


def test_it_measures_both_sides_and_writes_the_result(tmp_path: Path) -> None:
    out = tmp_path / "made" / "result.json"
    done = run("qwen3", "--layers", "2", "--rounds", "1", "--out", out)
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())
    check_form(result, rounds=1)
    found = result["kinds"]["qwen3"]
    assert (list(result["kinds"]), found["shape"], found["layers"]) == (["qwen3"], "qwen3-0.6b", 2)
    assert done.stdout.splitlines()[1].split()[:2] == ["qwen3", "2"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["qwen9"], "unknown kind 'qwen9'; known: llama, "),
        (["qwen3", "--layers", "99"], "qwen3-0.6b can have 1 to 28 layers, not 99"),
        (["qwen3", "--rounds", "0"], "--rounds has to be at least 1"),
    ],
)
def test_what_it_can_not_measure_is_said(arguments: list[str], said: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert said in done.stderr


def test_the_saved_result_has_every_kind_and_is_the_one_on_the_page() -> None:
    result = json.loads(SAVED.read_text())
    check_form(result, rounds=result["rounds"])
    assert set(result["kinds"]) == KINDS
    page = (ROOT / "docs" / "engine.md").read_text(encoding="utf-8")
    for kind, found in result["kinds"].items():
        figures = " | ".join(f"{found[key]:.2f}" for key in ("engine_ms", "mlx_lm_ms", "ratio"))
        assert f"| {kind} | {found['layers']} | {figures} |" in page
    assert f"geometric mean {result['geomean_ratio']:.2f}" in page
