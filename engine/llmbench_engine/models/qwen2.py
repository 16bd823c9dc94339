"""Qwen 2 and 2.5: Llama's decoder with biases on q, k and v."""

from __future__ import annotations

from llmbench_engine.config import Config
from llmbench_engine.models import dense
from llmbench_engine.transformer import Transformer
from llmbench_engine.weights import Weights

TIED = True


def build(config: Config, weights: Weights) -> Transformer:
    """The model. CheckpointError for a configuration or weights that don't fit."""
    shape = read_shape(config)
    dense.no_windows(config)
    theta, traditional = config.positive("rope_theta", float, 1_000_000.0), config.get("rope_traditional", bool, False)
    rotate = dense.read_rope(config, shape.head_dim, theta, traditional=traditional)
    config.finish()
    return dense.build(weights, shape, dense.Variant(qkv_bias=True), rotate)


def read_shape(config: Config) -> dense.Shape:
    """The sizes; heads share the width. mlx-lm reads no `head_dim` here, so that another one can't be meant."""
    shape = dense.read_shape(config, tied=TIED)
    shared = shape.width // shape.heads
    if shape.head_dim != shared:
        raise config.error("head_dim", f"is {shape.head_dim}; Qwen 2's is hidden_size / num_attention_heads, {shared}")
    return shape
