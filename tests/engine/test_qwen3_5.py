"""Qwen 3.5 and its mixture of experts against mlx-lm, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from exactness import RELATIVE, as_numpy, check, logits_after, prompts
from oracle import Oracle
from qwen3_5_cases import CASES, LENGTHS, ROPE, TEXT, VOCABULARY, with_config

from llmbench_engine.cache import RecurrentState
from llmbench_engine.config import read_config
from llmbench_engine.errors import CheckpointError
from llmbench_engine.generate import decode
from llmbench_engine.kv_cache import KeyValues
from llmbench_engine.loader import build_model, load_model
from llmbench_engine.shards import read_arrays


@pytest.mark.parametrize("name", CASES)
def test_equals_mlx_lm(oracle: Oracle, name: str) -> None:
    check(oracle, CASES[name], LENGTHS, VOCABULARY)


@pytest.fixture(scope="module")
def checkpoint(oracle: Oracle) -> Path:
    return CASES["plain"].make(oracle)


@pytest.fixture(scope="module")
def experts(oracle: Oracle) -> Path:
    return CASES["experts-4-bit"].make(oracle)


def test_tied_head_is_the_embedding_and_its_own_tensors_are_dropped(oracle: Oracle) -> None:
    folder = CASES["tied"].make(oracle)
    arrays, config, prompt = read_arrays(folder), read_config(folder), prompts([9], VOCABULARY)[0]
    assert not any("lm_head" in name for name in arrays)
    alone = logits_after(build_model(config, arrays, folder), prompt)
    extra = {
        f"language_model.lm_head.{part}": arrays[f"language_model.model.embed_tokens.{part}"] * 3
        for part in ("weight", "scales", "biases")
    }
    np.testing.assert_array_equal(logits_after(build_model(config, arrays | extra, folder), prompt), alone)


def test_image_encoder_and_further_heads_are_dropped(checkpoint: Path) -> None:
    arrays, config, prompt = read_arrays(checkpoint), read_config(checkpoint), prompts([9], VOCABULARY)[0]
    names = ("vision_tower.patch_embed.proj.weight", "model.visual.blocks.0.norm1.weight", "mtp.fc.weight",
             "language_model.mtp.layers.0.mlp.up_proj.weight")  # fmt: skip
    extra = dict.fromkeys(names, mx.ones((3, 3)))
    wanted = logits_after(build_model(config, arrays, checkpoint), prompt)
    np.testing.assert_array_equal(logits_after(build_model(config, arrays | extra, checkpoint), prompt), wanted)
    with pytest.raises(CheckpointError, match=r"audio_tower\.w"):
        build_model(config, arrays | {"audio_tower.w": mx.ones(3)}, checkpoint)


def test_only_last_gives_the_last_tokens_hidden_state(checkpoint: Path, experts: Path) -> None:
    for folder in (checkpoint, experts):
        model, prompt = load_model(folder), mx.array(prompts([20, 20], VOCABULARY))
        caches = [model.make_cache(2, 21) for _ in range(2)]
        whole, last = model(prompt, caches[0]), model(prompt, caches[1], only_last=True)  # type: ignore[call-arg]
        assert last.shape == (2, 1, TEXT["hidden_size"])
        np.testing.assert_allclose(as_numpy(last), as_numpy(whole[:, -1:]), rtol=0, atol=1e-5)
        following = [as_numpy(decode(model, mx.array([3, 4]), cache)) for cache in caches]
        np.testing.assert_allclose(*following, rtol=0, atol=1e-4)


def test_works_without_attention(checkpoint: Path) -> None:
    """mlx-lm doesn't: chunked reading against whole."""
    config = with_config(checkpoint, num_hidden_layers=2, layer_types=None)
    arrays = {n: a for n, a in read_arrays(checkpoint).items() if not any(f"layers.{i}." in n for i in (2, 3))}
    model, prompt = build_model(config, arrays, checkpoint), prompts([20], VOCABULARY)[0]
    whole, pieces = logits_after(model, prompt), logits_after(model, prompt, chunk=3)
    np.testing.assert_allclose(pieces, whole, rtol=0, atol=RELATIVE["float32"] * np.abs(whole).max())


def test_kinds_of_caches_follow_the_layers(checkpoint: Path) -> None:
    kinds = [type(layer) for layer in load_model(checkpoint).make_cache(1, 8).layers]
    assert kinds == [RecurrentState] * 3 + [KeyValues]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("layer_types", ["full_attention"] * 4),
        ("attn_output_gate", False),
        ("hidden_act", "gelu"),
        ("mamba_ssm_dtype", "bfloat16"),
        ("rope_parameters", ROPE | {"rope_type": "dynamic"}),
        ("rope_parameters", ROPE | {"long_factor": [1.0]}),
        ("rope_parameters", None),
        ("rope_theta", 5.0),
        ("linear_num_value_heads", 3),
        ("allow_neg_eigval", True),
        ("num_experts", 8),
    ],
)
def test_other_mathematics_is_refused_by_key(checkpoint: Path, key: str, value: Any) -> None:
    with pytest.raises(CheckpointError, match=rf"text_config\.{key}"):
        build_model(with_config(checkpoint, **{key: value}), read_arrays(checkpoint), checkpoint)


@pytest.mark.parametrize(
    "name", ["linear_attn.conv1d.weight", "linear_attn.A_log", "linear_attn.in_proj_qkv.weight", "mlp.up_proj.weight"]
)
def test_missing_and_misshapen_weights_are_named(checkpoint: Path, name: str) -> None:
    arrays, name = read_arrays(checkpoint), f"language_model.model.layers.1.{name}"
    with pytest.raises(CheckpointError, match=f"{name} is missing"):
        build_model(read_config(checkpoint), {n: a for n, a in arrays.items() if n != name}, checkpoint)
    with pytest.raises(CheckpointError, match=f"{name} has shape"):
        build_model(read_config(checkpoint), arrays | {name: arrays[name][:-1]}, checkpoint)


def test_misshapen_q_proj_is_named(checkpoint: Path) -> None:
    """Its rows are put into another order before their number is checked."""
    arrays, name = read_arrays(checkpoint), "language_model.model.layers.3.self_attn.q_proj.weight"
    with pytest.raises(CheckpointError, match=f"{name} has shape"):
        build_model(read_config(checkpoint), arrays | {name: arrays[name][:-1]}, checkpoint)


def test_configurations_of_the_real_models_are_read_whole(tmp_path: Path) -> None:
    """Every key is known: what is missing is weights."""
    shapes = Path(__file__).parents[2] / "pytest_llmbench" / "checkpoints" / "data" / "shapes.json"
    found = [s["config"] for s in json.loads(shapes.read_text()).values() if "qwen3_5" in s["config"]["model_type"]]
    assert len(found) == 3
    for config in found:
        with pytest.raises(CheckpointError, match="is missing"):
            build_model(config, {}, tmp_path)
