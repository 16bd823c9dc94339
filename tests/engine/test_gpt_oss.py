"""gpt-oss against mlx-lm: sinks, biases, windows, clipping, YaRN, packing by path."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from exactness import RELATIVE, STEPS, Case, check, check_window_buffers, logits_after, prompts
from oracle import Oracle

from llmbench_engine.config import read_config
from llmbench_engine.errors import CheckpointError
from llmbench_engine.loader import build_model, load_model
from llmbench_engine.models.gpt_oss import biased_clipped_swiglu, clipped_swiglu
from llmbench_engine.shards import read_arrays

VOCABULARY, WINDOW = 160, 8
SLIDING, FULL = "sliding_attention", "full_attention"
YARN = {
    "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096, "rope_type": "yarn",
    "truncate": False,
}  # fmt: skip
CONFIG = {
    "model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], "num_hidden_layers": 4, "num_local_experts": 8,
    "num_experts_per_tok": 2, "experts_per_token": 2, "vocab_size": VOCABULARY, "rms_norm_eps": 1e-5, "hidden_size": 64,
    "intermediate_size": 96, "head_dim": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
    "sliding_window": WINDOW, "rope_theta": 150000, "rope_scaling": YARN, "layer_types": [SLIDING, FULL] * 2,
    "tie_word_embeddings": False, "attention_bias": True, "attention_dropout": 0.0, "swiglu_limit": 7.0,
    "hidden_act": "silu", "max_position_embeddings": 131072, "initial_context_length": 4096,
    "output_router_logits": False, "router_aux_loss_coef": 0.9, "use_cache": True, "eos_token_id": 2,
}  # fmt: skip
MXFP4 = {"group_size": 32, "bits": 4, "mode": "mxfp4"}
EIGHT = {"group_size": 32, "bits": 8, "mode": "affine"}
REST_IN_EIGHT = dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj", "router", "embed_tokens", "lm_head"), EIGHT)
LENGTHS = (1, WINDOW - 1, WINDOW, WINDOW + 1, 40)

CASES = {
    "plain": Case(config=CONFIG),
    "mxfp4-experts-and-8-bit-rest": Case(config=CONFIG, quantization=MXFP4, exceptions=REST_IN_EIGHT),
    "8-bit": Case(config=CONFIG | {"num_key_value_heads": 4, "head_dim": 16}, quantization=EIGHT),
    "mixed-packing-of-q-k-v": Case(
        config=CONFIG | {"num_key_value_heads": 1},
        quantization={"group_size": 32, "bits": 4, "mode": "affine"},
        exceptions={"v_proj": EIGHT, "router": False},
    ),
    "no-scaling-and-odd-windows": Case(
        config=CONFIG | {"rope_scaling": None, "layer_types": [FULL, SLIDING, SLIDING, FULL], "sliding_window": 7},
        quantization={"group_size": 32, "bits": 8, "mode": "mxfp8"},
        exceptions={"router": EIGHT},
    ),
    "many-experts-a-token": Case(config=CONFIG | {"num_experts_per_tok": 8, "experts_per_token": 8}),
    "bfloat16": Case(config=CONFIG, quantization=MXFP4, exceptions=REST_IN_EIGHT, dtype="bfloat16"),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_mlx_lm(oracle: Oracle, name: str) -> None:
    check(oracle, CASES[name], LENGTHS, VOCABULARY)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_equals_mlx_lm_with_the_real_windows_and_heads(oracle: Oracle, dtype: str) -> None:
    """Eight query heads of width 64 to a key head, four of 32 experts, windows of 128 tokens and longer prompts."""
    layers = {"num_hidden_layers": 2, "layer_types": [SLIDING, FULL]}
    experts = {"num_local_experts": 32, "num_experts_per_tok": 4, "experts_per_token": 4}
    heads = {"head_dim": 64, "num_attention_heads": 16, "num_key_value_heads": 2, "sliding_window": 128}
    case = Case(config=CONFIG | layers | experts | heads, quantization=MXFP4, exceptions=REST_IN_EIGHT, dtype=dtype)
    folder, asked = case.make(oracle), prompts([128, 129, 200], VOCABULARY)
    model = load_model(folder)
    for prompt, reference in zip(asked, oracle.run(folder, asked, [1] * len(asked)), strict=True):
        close = reference.tolerance(RELATIVE[dtype])
        np.testing.assert_allclose(logits_after(model, prompt), reference.logits[0], rtol=0, atol=close)


def test_windows_keep_what_they_need(oracle: Oracle, checkpoint: Path) -> None:
    prompt = prompts([21], VOCABULARY)[0]
    (reference,) = oracle.run(checkpoint, [prompt], [STEPS])
    check_window_buffers(load_model(checkpoint), prompt, reference, reference.tolerance(RELATIVE["float32"]))


def test_ties_between_experts_go_as_in_mlx_lm(oracle: Oracle, checkpoint: Path, tmp_path: Path) -> None:
    arrays = {n: mx.zeros_like(a) if ".router." in n else a for n, a in read_arrays(checkpoint).items()}
    mx.save_safetensors(str(tmp_path / "model.safetensors"), arrays)
    shutil.copy(checkpoint / "config.json", tmp_path)
    asked = prompts([1, 24], VOCABULARY)
    for prompt, reference in zip(asked, oracle.run(tmp_path, asked, [1, 1]), strict=True):
        close = reference.tolerance(RELATIVE["float32"])
        np.testing.assert_allclose(logits_after(load_model(tmp_path), prompt), reference.logits[0], rtol=0, atol=close)


@pytest.fixture(scope="module")
def checkpoint(oracle: Oracle) -> Path:
    return CASES["plain"].make(oracle)


def changed(folder: Path, ending: str, factor: float) -> np.ndarray:
    """Logits after all tensors with this ending of their names are multiplied."""
    arrays = {n: a * factor if n.endswith(ending) else a for n, a in read_arrays(folder).items()}
    return logits_after(build_model(read_config(folder), arrays, folder), prompts([24], VOCABULARY)[0])


@pytest.mark.parametrize(
    "ending",
    [
        "sinks", "q_proj.bias", "v_proj.bias", "o_proj.bias", "router.bias", "gate_proj.bias", "up_proj.bias",
        "experts.down_proj.bias",
    ],
)  # fmt: skip
def test_no_bias_or_sink_is_left_out(checkpoint: Path, ending: str) -> None:
    """The comparison with mlx-lm would see it: without them logits are other ones by far more than the tolerance."""
    right, wrong = changed(checkpoint, ending, 1.0), changed(checkpoint, ending, 0.0)
    assert np.abs(right - wrong).max() > 100 * RELATIVE["float32"] * np.abs(right).max()


def test_activation_clips_gate_above_and_up_on_both_sides() -> None:
    values = np.array([-30, -7.5, -7, -1, 0, 1, 6.9, 7, 7.5, 30], np.float32)
    gate, up = (a.ravel() for a in np.meshgrid(values, values))
    clipped = np.minimum(gate, 7.0).astype(np.float64)
    wanted = (np.clip(up, -7, 7) + 1) * clipped / (1 + np.exp(-1.702 * clipped))
    halves = mx.array(gate / 2), mx.array(up / 2)
    for got in (clipped_swiglu(mx.array(gate), mx.array(up)), biased_clipped_swiglu(*halves, *halves)):
        np.testing.assert_allclose(np.array(got), wanted, rtol=1e-5, atol=1e-5)


def test_magnitude_of_yarn_multiplies_q_and_k(oracle: Oracle, checkpoint: Path) -> None:
    """With `mscale` 0 in the configuration the magnitude is 1, and logits are far from mlx-lm's with it."""
    config = read_config(checkpoint)
    flat = config | {"rope_scaling": YARN | {"mscale": 0.0}}
    arrays, prompt = read_arrays(checkpoint), prompts([24], VOCABULARY)[0]
    (reference,) = oracle.run(checkpoint, [prompt], [1])
    tolerance = reference.tolerance(RELATIVE["float32"])
    with_it, without = (logits_after(build_model(c, arrays, checkpoint), prompt) for c in (config, flat))
    np.testing.assert_allclose(with_it, reference.logits[0], rtol=0, atol=tolerance)
    assert np.abs(without - reference.logits[0]).max() > 100 * tolerance


def test_many_pairs_are_sorted_by_expert_with_the_same_result(checkpoint: Path) -> None:
    """From 64 pairs of a token and an expert on, another path is taken; its results are those of few tokens at once."""
    model, prompt = load_model(checkpoint), prompts([40], VOCABULARY)[0]
    whole, few = logits_after(model, prompt), logits_after(model, prompt, chunk=5)
    np.testing.assert_allclose(whole, few, rtol=0, atol=RELATIVE["float32"] * np.abs(whole).max())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("swiglu_limit", 5.0),
        ("hidden_act", "gelu"),
        ("attention_bias", False),
        ("layer_types", [FULL] * 3),
        ("layer_types", [FULL, "chunked_attention", FULL, FULL]),
        ("tie_word_embeddings", True),
        ("rope_scaling", YARN | {"attention_factor": 2.0}),
        ("mlp_alpha", 1.5),
    ],
)
def test_other_mathematics_is_refused_by_key(checkpoint: Path, key: str, value: Any) -> None:
    with pytest.raises(CheckpointError, match=key):
        build_model(read_config(checkpoint) | {key: value}, read_arrays(checkpoint), checkpoint)


@pytest.mark.parametrize("name", ["model.layers.2.self_attn.sinks", "model.layers.0.mlp.experts.down_proj.bias"])
def test_missing_and_misshapen_weights_are_named(checkpoint: Path, name: str) -> None:
    arrays = read_arrays(checkpoint)
    with pytest.raises(CheckpointError, match=f"{name} is missing"):
        build_model(read_config(checkpoint), {n: a for n, a in arrays.items() if n != name}, checkpoint)
    with pytest.raises(CheckpointError, match=f"{name} has shape"):
        build_model(read_config(checkpoint), arrays | {name: arrays[name][..., :-1]}, checkpoint)
