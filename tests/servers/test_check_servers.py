"""`ci/check_servers` measures both servers beside their own benchmarks, and docs/metrics.md says what it found."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from server_kit import LLAMA_FIX, SOURCES

SAVED = SOURCES / "docs/results/check_servers.json"
PAGE = SOURCES / "docs/metrics.md"
OF_MLX = ["decode", "decode steps", "decode batched", "decode logprob"]
OF_MLX += ["prefill", "prefill batched", "prefill logprob", "prefill client"]
OF_LLAMA = ["decode", "decode depth", "decode server", "prefill", "prefill client"]


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SOURCES / "ci/check_servers"), *map(str, words)]
    return subprocess.run(command, capture_output=True, encoding="utf-8", timeout=300, check=False)


def measured(case: str, folder: Path) -> dict[str, Any]:
    """The one case of a run of one round; what is printed has a line for each of its figures."""
    done = run("--rounds", "1", "--out", folder / "out.json", case)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = json.loads((folder / "out.json").read_text(encoding="utf-8"))["cases"]
    assert len(done.stdout.splitlines()) == 1 + len(found["rows"])
    for row in found["rows"]:
        assert row["ours_tok_s"] > 0
        assert row["ratio"] == pytest.approx(row["ours_tok_s"] / row["tok_s"], rel=1e-3)
    return dict(found)


@pytest.mark.skipif(find_spec("mlx_lm") is None, reason="pip install 'pytest-llmbench[mlx]'")
def test_mlx_lm_beside_its_own_benchmark(tiny_checkpoints: Path, tmp_path: Path) -> None:
    found = measured(f"mlx-lm:64:16:{tiny_checkpoints / 'tiny-random'}", tmp_path)
    assert [row["figure"] for row in found["rows"]] == OF_MLX
    told = {row["figure"]: row["tok_s"] for row in found["rows"]}
    # 16 tokens are 15 steps.
    assert told["decode steps"] / told["decode"] == pytest.approx(15 / 16, rel=1e-3)


def test_llama_server_beside_llama_bench(tiny_checkpoints: Path, tmp_path: Path) -> None:
    server = os.environ.get("LLAMA_SERVER") or shutil.which("llama-server")
    if server is None or not (Path(server).resolve().parent / "llama-bench").is_file():
        pytest.skip(f"{LLAMA_FIX}, with llama-bench beside it")
    found = measured(f"llama-server:64:16:{tiny_checkpoints / 'tiny-random.gguf'}", tmp_path)
    assert [row["figure"] for row in found["rows"]] == OF_LLAMA


def test_the_page_has_each_ratio_of_the_saved_result() -> None:
    page = PAGE.read_text(encoding="utf-8").splitlines()
    saved = json.loads(SAVED.read_text(encoding="utf-8"))
    assert len(saved["cases"]) == 3
    columns = [{row["figure"]: f"{row['ratio']:.2f}" for row in case["rows"]} for case in saved["cases"]]
    for figure in dict.fromkeys([*OF_LLAMA, *OF_MLX]):
        cells = [column.get(figure, "") for column in columns]
        (line,) = [line for line in page if line.startswith(f"| {figure} |")]
        assert [cell.strip() for cell in line.split("|")[3:6]] == cells, line
