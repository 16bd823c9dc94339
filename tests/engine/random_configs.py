"""One small configuration of each model type, with the features that its layers can have."""

from __future__ import annotations

from typing import Any

VOCAB = 512
_COMMON: dict[str, Any] = {"vocab_size": VOCAB, "max_position_embeddings": 4096, "torch_dtype": "float32"}
_SIZES: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 192, "rms_norm_eps": 1e-6}
_HEADS: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
_LLAMA: dict[str, Any] = {**_COMMON, **_SIZES, **_HEADS, "rope_theta": 10000.0, "num_hidden_layers": 2}
_DELTA_NET: dict[str, Any] = {
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 32,
}
_HYBRID: dict[str, Any] = {
    **_SIZES,
    **_HEADS,
    **_DELTA_NET,
    "vocab_size": VOCAB,
    "max_position_embeddings": 4096,
    "num_hidden_layers": 4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
    "tie_word_embeddings": False,
}
_EXPERTS: dict[str, Any] = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
_GEMMA: dict[str, Any] = {
    **_SIZES,
    **_HEADS,
    "model_type": "gemma4_text",
    "global_head_dim": 128,
    "final_logit_softcapping": 30.0,
    "rope_parameters": {
        "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
    "sliding_window": 8,
    "max_position_embeddings": 4096,
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "vocab_size": VOCAB,
    "vocab_size_per_layer_input": VOCAB,
}

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {
        **_LLAMA,
        "model_type": "llama",
        "tie_word_embeddings": True,
        "attention_bias": True,
        "mlp_bias": True,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 1024,
        },
    },
    # qwen2 has no head_dim of its own.
    "qwen2": {
        **{key: value for key, value in _LLAMA.items() if key != "head_dim"},
        "model_type": "qwen2",
        "tie_word_embeddings": False,
    },
    "qwen3": {**_LLAMA, "model_type": "qwen3", "tie_word_embeddings": True},
    "qwen3_moe": {
        **_LLAMA,
        **_EXPERTS,
        "model_type": "qwen3_moe",
        "num_hidden_layers": 3,
        "mlp_only_layers": [1],
        "decoder_sparse_step": 1,
        "norm_topk_prob": True,
        "tie_word_embeddings": False,
    },
    "gpt_oss": {
        **_LLAMA,
        "model_type": "gpt_oss",
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "original_max_position_embeddings": 1024,
        },
    },
    "qwen3_5": {"model_type": "qwen3_5", "torch_dtype": "float32", "text_config": _HYBRID},
    "qwen3_5_moe": {
        "model_type": "qwen3_5_moe",
        "torch_dtype": "float32",
        "text_config": {**_HYBRID, **_EXPERTS, "shared_expert_intermediate_size": 64},
    },
    "gemma4": {
        "model_type": "gemma4",
        "torch_dtype": "float32",
        "vocab_size": VOCAB,
        "text_config": {
            **_GEMMA,
            "hidden_size_per_layer_input": 64,
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
        },
    },
    "gemma4_text": {
        **_GEMMA,
        "num_experts": 8,
        "moe_intermediate_size": 64,
        "torch_dtype": "float32",
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 1,
        "enable_moe_block": True,
        "top_k_experts": 2,
        "hidden_size_per_layer_input": 0,
        "num_kv_shared_layers": 0,
    },
}

CASES = {
    "llama": ("bf16", "4bit"),
    "qwen2": ("8bit", "nvfp4"),
    "qwen3": ("bf16", "6bit"),
    "qwen3_moe": ("4bit", "mxfp8"),
    "gpt_oss": ("mxfp4", "8bit"),
    "qwen3_5": ("bf16", "4bit"),
    "qwen3_5_moe": ("4bit", "mxfp4"),
    "gemma4": ("bf16", "5bit"),
    "gemma4_text": ("4bit", "3bit"),
}
"""Quantizations that each type is tried in."""

DEEP = 32
"""Layers of a deep model."""
