"""Small configurations of Qwen 3.5 and its mixture of experts, and how they are packed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from exactness import Case

from llmbench_engine.config import read_config

VOCABULARY = 160
ROPE = {
    "mrope_interleaved": True, "mrope_section": [2, 1, 1], "partial_rotary_factor": 0.25, "rope_theta": 10000000,
    "rope_type": "default",
}  # fmt: skip
TEXT = {
    "model_type": "qwen3_5_text", "rms_norm_eps": 1e-06, "vocab_size": VOCABULARY, "head_dim": 32,
    "max_position_embeddings": 262144, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 32,
    "linear_value_head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "full_attention_interval": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"], "attention_bias": False, "attention_dropout": 0.0,
    "attn_output_gate": True, "hidden_act": "silu", "initializer_range": 0.02, "mamba_ssm_dtype": "float32",
    "mtp_num_hidden_layers": 1, "tie_word_embeddings": False, "rope_parameters": ROPE, "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "use_cache": True, "eos_token_id": 2,
}  # fmt: skip
EXPERTS = {
    "model_type": "qwen3_5_moe_text", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
}  # fmt: skip
FOUR, FOUR_64 = ({"group_size": size, "bits": 4, "mode": "affine"} for size in (32, 64))
EIGHT, EIGHT_64 = ({"group_size": size, "bits": 8, "mode": "affine"} for size in (32, 64))
ROUTER_IN_EIGHT = {"mlp.gate": EIGHT_64, "shared_expert_gate": EIGHT_64}
LENGTHS = (1, 7, 9, 40)


def dense(**changes: Any) -> dict[str, Any]:
    text = TEXT | changes
    if changes.keys() & {"full_attention_interval", "num_hidden_layers"}:
        del text["layer_types"]
    return {
        "model_type": "qwen3_5", "architectures": ["Qwen3_5ForConditionalGeneration"], "image_token_id": 150,
        "vision_config": {"depth": 2}, "vision_start_token_id": 151, "tie_word_embeddings": False, "text_config": text,
    }  # fmt: skip


def sparse(**changes: Any) -> dict[str, Any]:
    without = {key: value for key, value in TEXT.items() if key != "intermediate_size"}
    return dense() | {"model_type": "qwen3_5_moe", "text_config": without | EXPERTS | changes}


CASES = {
    "plain": Case(config=dense()),
    "one-kv-head-and-equal-net-heads-mxfp4": Case(
        config=dense(num_key_value_heads=1, head_dim=64, linear_num_value_heads=2, linear_value_head_dim=64),
        quantization={"group_size": 32, "bits": 4, "mode": "mxfp4"},
    ),
    "groups-of-three-and-a-short-convolution-nvfp4": Case(
        config=dense(
            linear_num_key_heads=1, linear_num_value_heads=3, linear_conv_kernel_dim=2, full_attention_interval=2
        ),
        quantization={"group_size": 16, "bits": 4, "mode": "nvfp4"},
    ),
    "ends-with-a-net-and-biases-4-bit-64": Case(
        config=dense(num_hidden_layers=3, full_attention_interval=2, attention_bias=True), quantization=FOUR_64
    ),
    "tied": Case(config=dense(tie_word_embeddings=True), quantization=FOUR),
    "other-rotary-share-mxfp8": Case(
        config=dense(rope_parameters=ROPE | {"partial_rotary_factor": 0.5, "rope_theta": 1e4}),
        quantization={"group_size": 32, "bits": 8, "mode": "mxfp8"},
    ),
    "text-only-8-bit": Case(config=TEXT | {"model_type": "qwen3_5"}, quantization=EIGHT),
    "mixed-packing": Case(
        config=dense(), quantization=FOUR, exceptions={"in_proj_b": EIGHT, "v_proj": EIGHT_64, "up_proj": False}
    ),
    "bfloat16": Case(config=dense(), quantization=FOUR, dtype="bfloat16"),
    "float16": Case(config=dense(num_hidden_layers=2, full_attention_interval=2), dtype="float16"),
    "experts": Case(config=sparse()),
    "experts-4-bit": Case(config=sparse(), quantization=FOUR, exceptions=ROUTER_IN_EIGHT),
    "experts-one-a-token-tied": Case(
        config=sparse(num_experts_per_tok=1, tie_word_embeddings=True), quantization=EIGHT_64
    ),
    "experts-all-for-each-token": Case(config=sparse(num_experts_per_tok=8, norm_topk_prob=False)),
    "experts-mxfp4-bfloat16": Case(
        config=sparse(num_experts=12, num_experts_per_tok=3),
        quantization={"group_size": 32, "bits": 4, "mode": "mxfp4"},
        exceptions={"mlp.gate": EIGHT_64, "shared_expert_gate": False},
        dtype="bfloat16",
    ),
}


def with_config(folder: Path, **changes: Any) -> dict[str, Any]:
    """The checkpoint's configuration with changes to its text model's part."""
    values = read_config(folder)
    return values | {"text_config": values["text_config"] | changes}
