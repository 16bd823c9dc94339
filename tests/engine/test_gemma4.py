"""Gemma 4 against mlx-lm: shared keys and values, inputs of layers, windows, values from keys, mixture of experts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from exactness import RELATIVE, STEPS, Case, check, check_window_buffers, logits_after, prompts
from oracle import Oracle

from llmbench_engine.config import read_config
from llmbench_engine.errors import CheckpointError
from llmbench_engine.kv_cache import KeyValues, WindowKeyValues
from llmbench_engine.loader import build_model, load_model
from llmbench_engine.models.gemma4_text import softcap
from llmbench_engine.shards import read_arrays

VOCABULARY, WINDOW = 160, 8
S, F = "sliding_attention", "full_attention"
SMALL = {
    "model_type": "gemma4_text", "hidden_size": 64, "num_hidden_layers": 8, "intermediate_size": 96,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_global_key_value_heads": None, "head_dim": 32,
    "global_head_dim": 64, "rms_norm_eps": 1e-6, "vocab_size": VOCABULARY, "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size_per_layer_input": 32, "num_kv_shared_layers": 4, "sliding_window": WINDOW, "attention_k_eq_v": False,
    "final_logit_softcapping": 30.0, "use_double_wide_mlp": False, "enable_moe_block": False, "num_experts": None,
    "top_k_experts": None, "layer_types": [S, S, F, S, S, F, S, F], "tie_word_embeddings": True,
    "rope_parameters": {
        F: {"partial_rotary_factor": 0.25, "rope_theta": 1e6, "rope_type": "proportional"},
        S: {"rope_theta": 1e4, "rope_type": "default"},
    },
    "hidden_activation": "gelu_pytorch_tanh", "attention_bias": False, "attention_dropout": 0.0,
    "max_position_embeddings": 131072, "use_bidirectional_attention": None, "pad_token_id": 0, "dtype": "bfloat16",
}  # fmt: skip
LARGE = SMALL | {
    "num_hidden_layers": 6, "layer_types": [S, S, F, S, S, F], "hidden_size_per_layer_input": 0,
    "num_kv_shared_layers": 0, "attention_k_eq_v": True, "num_global_key_value_heads": 1, "enable_moe_block": True,
    "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 64, "use_bidirectional_attention": "vision",
}  # fmt: skip
REAL_HEADS = {"head_dim": 256, "global_head_dim": 512, "num_attention_heads": 2, "num_key_value_heads": 1}
FOUR = {"group_size": 32, "bits": 4, "mode": "affine"}
ROUTER_IN_EIGHT = {"router.proj": {"group_size": 64, "bits": 8}}
LENGTHS = (1, WINDOW - 1, WINDOW + 1, 40)


def whole(text: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The configuration of the model that sees and hears, around the text model's."""
    return {"model_type": "gemma4", "vocab_size": VOCABULARY, "tie_word_embeddings": True, "text_config": text, **more}


CASES = {
    "small": Case(config=SMALL),
    "small-4-bit-of-a-whole-model": Case(config=whole(SMALL), quantization=FOUR),
    "large-4-bit-of-a-whole-model": Case(config=whole(LARGE), quantization=FOUR, exceptions=ROUTER_IN_EIGHT),
    "wide-sharers-untied-no-softcap": Case(
        config=SMALL | {
            "use_double_wide_mlp": True, "tie_word_embeddings": False, "final_logit_softcapping": None,
            "num_kv_shared_layers": 5,
        },
    ),
    "only-the-last-layer-shares": Case(
        config=SMALL | {"num_kv_shared_layers": 1, "num_key_value_heads": 1, "sliding_window": 7},
        quantization={"group_size": 32, "bits": 8, "mode": "mxfp8"},
    ),
    "dense-with-values-from-keys": Case(
        config=LARGE | {"enable_moe_block": False, "layer_types": [F, S, F, S, F, S]} | REAL_HEADS,
        quantization={"group_size": 16, "bits": 4, "mode": "nvfp4"},
    ),
    "large-bfloat16": Case(config=LARGE, quantization=FOUR, exceptions=ROUTER_IN_EIGHT, dtype="bfloat16"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_equals_mlx_lm(oracle: Oracle, name: str) -> None:
    check(oracle, CASES[name], LENGTHS, VOCABULARY)


@pytest.fixture(scope="module")
def small(oracle: Oracle) -> Path:
    return CASES["small"].make(oracle)


@pytest.fixture(scope="module")
def large(oracle: Oracle) -> Path:
    return Case(config=whole(LARGE)).make(oracle)


def test_windows_keep_what_they_need(oracle: Oracle, small: Path) -> None:
    prompt = prompts([21], VOCABULARY)[0]
    (reference,) = oracle.run(small, [prompt], [STEPS])
    check_window_buffers(load_model(small), prompt, reference, reference.tolerance(RELATIVE["float32"]))


def test_layers_that_share_keys_and_values_have_no_cache(small: Path) -> None:
    kinds = [type(layer) for layer in load_model(small).make_cache(1, 16).layers]
    assert kinds == [WindowKeyValues, WindowKeyValues, KeyValues, WindowKeyValues]


def test_last_token_alone_has_the_hidden_state_of_all(small: Path, large: Path) -> None:
    """Layers behind the last cache need only see the last token of a prompt."""
    ids = mx.array(prompts([29], VOCABULARY))
    for model in map(load_model, (small, large)):
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


def bent(a: mx.array) -> mx.array:
    return a * mx.linspace(0.5, 1.5, a.size).reshape(a.shape)


def logits_with(folder: Path, change: dict[str, Any], ending: str = "") -> np.ndarray:
    """Logits with other keys in the text model's configuration, or tensors bent: multiplied by 0.5 to 1.5."""
    config = read_config(folder)
    changed = (
        config | change if "text_config" not in config else config | {"text_config": config["text_config"] | change}
    )
    arrays = {n: bent(a) if ending and n.endswith(ending) else a for n, a in read_arrays(folder).items()}
    return logits_after(build_model(changed, arrays, folder), prompts([24], VOCABULARY)[0])


@pytest.mark.parametrize(
    ("which", "change", "ending"),
    [
        ("small", {"final_logit_softcapping": None}, ""),
        ("small", {"sliding_window": 2 * WINDOW}, ""),
        ("small", {"rope_parameters": SMALL["rope_parameters"] | {F: {"rope_theta": 1e6, "rope_type": "default"}}}, ""),
        ("small", {}, "0.layer_scalar"),
        ("small", {}, "embed_tokens_per_layer.weight"),
        ("small", {}, "2.per_layer_projection.weight"),
        ("large", {"top_k_experts": 3}, ""),
        ("large", {}, "1.router.scale"),
        ("large", {}, "router.per_expert_scale"),
        ("large", {}, "1.pre_feedforward_layernorm_2.weight"),
    ],
)
def test_what_the_checkpoint_says_is_used(
    which: str, change: dict[str, Any], ending: str, request: pytest.FixtureRequest
) -> None:
    """The comparison with mlx-lm would see it: logits change by far more than the tolerance."""
    folder = request.getfixturevalue(which)
    right, wrong = logits_with(folder, {}), logits_with(folder, change, ending)
    assert np.abs(right - wrong).max() > 100 * RELATIVE["float32"] * np.abs(right).max()


def test_softcap_keeps_bfloat16_and_its_ties() -> None:
    """In bfloat16 neighbours meet in one value, of which mlx-lm takes the first; in float32 the second would win."""
    logits = mx.array([[60.0, 60.25, 3.0]], mx.bfloat16)
    capped = softcap(30.0, logits)
    assert capped.dtype == mx.bfloat16
    assert mx.argmax(capped, axis=-1).item() == 0
    assert mx.argmax(softcap(30.0, logits.astype(mx.float32)), axis=-1).item() == 1


def test_tensors_that_text_has_no_use_for_are_left_out(large: Path, small: Path) -> None:
    """Towers, leftovers of training, a copy of the tied embedding, keys and values of layers that share others'."""
    one = mx.ones((1,))
    names = [
        "vision_tower.x.weight",
        "model.audio_tower.y",
        "embed_vision.z",
        "embed_audio.z",
        "multi_modal_projector.z",
    ]
    names += ["language_model.lm_head.weight", "language_model.model.layers.0.mlp.down_proj.input_max"]
    arrays = read_arrays(large) | dict.fromkeys(names, one)
    np.testing.assert_array_equal(
        logits_after(build_model(read_config(large), arrays, large), [1, 2, 3]),
        logits_after(load_model(large), [1, 2, 3]),
    )
    names = [f"model.layers.{i}.self_attn.{p}.weight" for i in (4, 7) for p in ("k_proj", "v_proj", "k_norm")]
    build_model(read_config(small), read_arrays(small) | dict.fromkeys([*names, "lm_head.weight"], one), small)
    unknown = "language_model.model.layers.0.self_attn.sinks"
    with pytest.raises(CheckpointError, match=unknown):
        build_model(read_config(large), read_arrays(large) | {unknown: one}, large)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"hidden_activation": "silu"}, "hidden_activation"),
        ({"attention_bias": True}, "attention_bias"),
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention"),
        ({"layer_types": [F] * 7}, "layer_types"),
        ({"num_kv_shared_layers": 6}, "num_kv_shared_layers"),
        ({"rope_parameters": {S: {"rope_theta": 1e4}}}, "rope_parameters.full_attention"),
        ({"rope_parameters": {S: {"rope_theta": 1e4, "partial_rotary_factor": 0.5}, F: {}}}, "partial_rotary_factor"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ({"enable_moe_block": True}, "num_experts"),
    ],
)
def test_other_mathematics_is_refused_by_key(small: Path, change: dict[str, Any], key: str) -> None:
    with pytest.raises(CheckpointError, match=key):
        build_model(read_config(small) | change, read_arrays(small), small)


def test_whole_model_and_text_may_not_contradict_each_other(large: Path) -> None:
    config = read_config(large)
    for key, value in (("vocab_size", VOCABULARY + 1), ("tie_word_embeddings", False), ("text_config", None)):
        with pytest.raises(CheckpointError, match=key):
            build_model(config | {key: value}, read_arrays(large), large)
    assert json.loads((large / "config.json").read_text())["text_config"]["model_type"] == "gemma4_text"
