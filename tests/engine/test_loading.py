"""Loading: how much memory it needs, and that nothing of it is left for later."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from engine_kit import KINDS, arrays_of, ids, make_model
from random_configs import CONFIGS

from llmbench_engine import CheckpointError, Engine
from llmbench_engine.shards import read_arrays
from pytest_llmbench.checkpoints.random import shape_of, write_checkpoint

PROMPT = (1, 2, 3)
LEEWAY = 1 << 16
"""Bytes. Far below the parts of any weight that is fused here."""
CONSTANTS = 1 << 10
"""Bytes. Numbers in the layers, and in the graph of one step that tells the engine the sizes of its caches."""

DEEPER = {**CONFIGS["qwen3"], "num_hidden_layers": 6, "hidden_size": 512, "intermediate_size": 1536}
"""A layer has 3.7 MB of parts in bfloat16."""
SPARSE = {**CONFIGS["qwen3_moe"], "hidden_size": 256, "moe_intermediate_size": 512, "mlp_only_layers": []}
"""A layer has 4.5 MB of parts."""


def loaded_in_a_child(folder: Path, threads: bool) -> dict[str, Any]:
    """What MLX says of a process that has loaded this checkpoint and done nothing else.

    `threads`: read as on CUDA, but not rehearsed: without a GPU, MLX multiplies experts in float32 only.
    """
    program = (
        "import json, sys, mlx.core as mx; from llmbench_engine import Engine, loader; from pathlib import Path\n"
        f"loader.on_cuda, Engine.rehearse = lambda: {threads}, lambda excerpt: None\n"
        "engine = Engine.load(Path(sys.argv[1]))\n"
        "print(json.dumps({'peak': mx.get_peak_memory(), 'active': mx.get_active_memory(),"
        " 'cache': mx.get_cache_memory()}))"
    )
    done = subprocess.run([sys.executable, "-c", program, str(folder)], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("threads", [False, True], ids=["MLX's threads", "threads of its own"])
@pytest.mark.parametrize(
    ("config", "vocabulary"),
    [
        pytest.param(DEEPER, 16384, id="embedding of four layers' parts"),
        pytest.param(DEEPER, 5120, id="embedding of one layer's parts"),
        pytest.param(SPARSE, 10240, id="embedding of one layer's parts, experts"),
    ],
)
def test_loading_needs_no_more_memory_than_the_loaded_weights(
    tmp_path: Path, config: dict[str, Any], vocabulary: int, threads: bool
) -> None:
    folder = tmp_path / "checkpoint"
    shape = shape_of({**config, "vocab_size": vocabulary, "torch_dtype": "bfloat16"})
    write_checkpoint(shape, folder, report=lambda _line: None)
    said, stored = loaded_in_a_child(folder, threads), sum(array.nbytes for array in read_arrays(folder).values())
    assert stored <= said["active"] <= said["peak"] <= stored + CONSTANTS
    assert said["cache"] <= LEEWAY


@pytest.mark.parametrize("kind", KINDS)
def test_a_loaded_model_has_nothing_left_to_compute(tmp_path: Path, kind: str) -> None:
    found = list(arrays_of(make_model(kind)))
    assert len(found) > 10
    for array in found:
        # A dot file has a rectangle for each computation that an array still waits for.
        mx.export_to_dot(str(tmp_path / "graph.dot"), array)
        assert "rectangle" not in (tmp_path / "graph.dot").read_text()


def test_a_loaded_engine_reads_no_more_files(tiny_checkpoints: Path, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    shutil.copytree(tiny_checkpoints / "tiny-random-4bit", folder)
    with Engine.load(tiny_checkpoints / "tiny-random-4bit") as untouched:
        wanted = ids(list(untouched.generate(PROMPT, max_tokens=20)))
    with Engine.load(folder) as engine:
        for path in folder.iterdir():
            os.truncate(path, 0)  # an open file that is removed could still be read
        assert ids(list(engine.generate(PROMPT, max_tokens=20))) == wanted
        assert engine.tokenizer is not None
        assert engine.tokenizer.encode_prompt("Hello")


def test_a_damaged_tokenizer_is_told_of_although_the_weights_fit(tiny_checkpoints: Path, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    shutil.copytree(tiny_checkpoints / "tiny-random", folder)
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        Engine.load(folder)


def test_a_missing_tokenizer_is_told_of_before_weights_are_read(tiny_checkpoints: Path, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    shutil.copytree(tiny_checkpoints / "tiny-random", folder)
    (folder / "tokenizer.json").unlink()
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        Engine.load(folder)
