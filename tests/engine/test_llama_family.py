"""Llama, Qwen 2, Qwen 3 and its mixture of experts against mlx-lm: heads, rope, biases, tying, packing, routing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from exactness import CHUNK, Case, check, logits_after, prompts
from oracle import Oracle

from llmbench_engine.config import read_config
from llmbench_engine.errors import CheckpointError
from llmbench_engine.generate import prefill
from llmbench_engine.loader import build_model, load_model
from llmbench_engine.shards import read_arrays
from pytest_llmbench.checkpoints.random import random_weights

VOCABULARY = 160
LENGTHS = (1, CHUNK - 1, CHUNK, CHUNK + 1, 30)
BASE = {
    "num_hidden_layers": 3, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": VOCABULARY, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    "max_position_embeddings": 4096, "tie_word_embeddings": False, "hidden_act": "silu", "use_cache": True,
    "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": [2, 3], "transformers_version": "4.51.0",
}  # fmt: skip
TIED = {"tie_word_embeddings": True}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
LLAMA = BASE | {"model_type": "llama", "rope_scaling": LLAMA3, "attention_bias": False, "pretraining_tp": 1}
QWEN2 = BASE | {"model_type": "qwen2", "use_sliding_window": False, "sliding_window": None, "max_window_layers": 3}
QWEN3 = BASE | {"model_type": "qwen3", "head_dim": 32, "attention_bias": False, "rope_scaling": None}
MOE = QWEN3 | {
    "model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 64,
    "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
}  # fmt: skip


def packed(bits: int, group_size: int, mode: str = "affine") -> dict[str, Any]:
    return {"group_size": group_size, "bits": bits, "mode": mode}


CASES = {
    "llama": Case(config=LLAMA),
    "llama-tied-4-bit": Case(config=LLAMA | TIED, quantization=packed(4, 64)),
    "llama-biases-one-kv-head-linear-rope": Case(
        config=LLAMA | {
            "attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1, "head_dim": 24,
            "rope_scaling": {"type": "linear", "factor": 2.0},
        },
        seed=1,
    ),
    "llama-traditional-rope-mxfp4": Case(
        config=LLAMA | {"rope_scaling": None, "rope_traditional": True}, quantization=packed(4, 32, "mxfp4")
    ),
    "llama-float16": Case(config=LLAMA, quantization=packed(4, 32), dtype="float16"),
    "qwen2-8-bit": Case(config=QWEN2, quantization=packed(8, 32)),
    "qwen2-tied-nvfp4": Case(config=QWEN2 | TIED, quantization=packed(4, 16, "nvfp4"), seed=3),
    "qwen3-tied": Case(config=QWEN3 | TIED),
    "qwen3-bits-by-path": Case(
        config=QWEN3 | {"num_key_value_heads": 4},
        quantization=packed(4, 64),
        exceptions={"v_proj": packed(6, 64), "0.mlp.down_proj": packed(8, 32), "1.mlp.up_proj": False},
    ),
    "qwen3-yarn-mxfp8": Case(
        config=QWEN3 | {
            "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
        },
        quantization=packed(8, 32, "mxfp8"),
    ),
    "qwen3-bfloat16": Case(config=QWEN3, quantization=packed(4, 64), dtype="bfloat16"),
    "moe": Case(config=MOE),
    "moe-4-bit-router-in-8": Case(
        config=MOE | {"norm_topk_prob": False}, quantization=packed(4, 32), exceptions={"mlp.gate": packed(8, 64)}
    ),
    "moe-some-layers-dense": Case(config=MOE | {"mlp_only_layers": [0], "num_experts_per_tok": 1}),
    "moe-every-second-layer-all-experts": Case(config=MOE | {"decoder_sparse_step": 2, "num_experts_per_tok": 8}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_equals_mlx_lm(oracle: Oracle, name: str) -> None:
    check(oracle, CASES[name], LENGTHS, VOCABULARY)


@pytest.fixture(scope="module")
def llama(oracle: Oracle) -> Path:
    return Case(config=LLAMA).make(oracle)


@pytest.mark.parametrize("config", [LLAMA, QWEN2, QWEN3, MOE], ids=lambda c: c["model_type"])
def test_last_token_alone_has_the_hidden_state_of_all(oracle: Oracle, config: dict[str, Any]) -> None:
    model, ids = load_model(Case(config=config).make(oracle)), mx.array(prompts([29], VOCABULARY))
    for before in (0, 5):
        hidden = []
        for only_last in (False, True):
            cache = model.make_cache(1, 64)
            if before:
                model(ids[:, :before], cache)
            hidden.append(model(ids[:, before:], cache, only_last=only_last))
            assert cache.lengths == [29]
        every, last = hidden
        assert last.shape[1] == 1
        np.testing.assert_allclose(np.array(last[:, 0]), np.array(every[:, -1]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows", [2, 3])
def test_prompts_of_one_length_are_read_together(llama: Path, rows: int) -> None:
    model, asked = load_model(llama), prompts([11] * rows, VOCABULARY)
    got = prefill(model, mx.array(asked), model.make_cache(rows, 16), chunk=CHUNK)
    wanted = np.stack([logits_after(model, prompt) for prompt in asked])
    np.testing.assert_allclose(np.array(got), wanted, rtol=0, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"sliding_window": 64}, "sliding_window"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "rope_scaling.rope_type"),
        ({"rope_scaling": LLAMA3 | {"attention_factor": 2.0}}, "rope_scaling.attention_factor"),
        ({"attention_multiplier": 2.0}, "attention_multiplier"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"model_type": "llama5"}, "model_type"),
        ({"num_hidden_layers": 2}, "model.layers.2"),
        ({"num_hidden_layers": 4}, "model.layers.3"),
        ({"intermediate_size": 96}, "gate_proj.weight"),
    ],
)
def test_what_does_not_fit_is_named(llama: Path, change: dict[str, Any], key: str) -> None:
    with pytest.raises(CheckpointError, match=key):
        build_model(read_config(llama) | change, read_arrays(llama), llama)


def test_tied_head_of_a_checkpoint_is_left_out(oracle: Oracle) -> None:
    """Some checkpoints hold a copy of the embedding, or computed frequencies."""
    folder = Case(config=LLAMA | TIED).make(oracle)
    more = {"lm_head.weight": mx.ones((1,)), "model.layers.0.self_attn.rotary_emb.inv_freq": mx.ones((8,))}
    model = build_model(read_config(folder), read_arrays(folder) | more, folder)
    np.testing.assert_array_equal(logits_after(model, [1, 2, 3]), logits_after(load_model(folder), [1, 2, 3]))


def test_heads_of_qwen2_share_the_width_and_another_head_dim_is_refused() -> None:
    """mlx-lm reads no `head_dim` for it: a checkpoint made with another one would be run with the wrong heads."""
    config = QWEN2 | {"head_dim": 16}
    weights = random_weights(config)
    build_model(config, dict(weights), Path("qwen2"))
    wrong = config | {"head_dim": 32}
    with pytest.raises(CheckpointError, match=r"head_dim is 32; .* num_attention_heads, 16"):
        build_model(wrong, weights, Path("qwen2"))
    assert {n: a.shape for n, a in random_weights(wrong).items()} == {n: a.shape for n, a in weights.items()}
