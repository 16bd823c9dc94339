"""Llama 3.1, 3.2 and what shares their architecture."""

from __future__ import annotations

from llmbench_engine.config import Config
from llmbench_engine.models import dense
from llmbench_engine.transformer import Transformer
from llmbench_engine.weights import Weights

TIED = True
"""Where the configuration doesn't say."""


def build(config: Config, weights: Weights) -> Transformer:
    """The model. CheckpointError for a configuration or weights that don't fit."""
    shape = dense.read_shape(config, tied=TIED)
    dense.no_windows(config)
    bias = config.get("attention_bias", bool, False)
    variant = dense.Variant(qkv_bias=bias, out_bias=bias, mlp_bias=config.get("mlp_bias", bool, False))
    theta, traditional = config.positive("rope_theta", float, 10000.0), config.get("rope_traditional", bool, False)
    rotate = dense.read_rope(config, shape.head_dim, theta, traditional=traditional)
    config.finish()
    return dense.build(weights, shape, variant, rotate)
