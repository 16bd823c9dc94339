"""Qwen 2 and 2.5: Llama's decoder with biases on q, k and v."""

from __future__ import annotations

from llmbench_engine import rope
from llmbench_engine.config import Config
from llmbench_engine.models import dense
from llmbench_engine.transformer import Transformer
from llmbench_engine.weights import Weights

TIED = True


def build(config: Config, weights: Weights) -> Transformer:
    """The model. CheckpointError for a configuration or weights that don't fit."""
    shape = dense.read_shape(config, tied=TIED)
    dense.no_windows(config)
    scaling = config.section("rope_scaling")
    rotate = rope.make(
        shape.head_dim,
        config.get("rope_theta", float, 1_000_000.0),
        scaling,
        traditional=config.get("rope_traditional", bool, False),
    )
    if scaling is not None:
        scaling.finish()
    config.finish()
    return dense.build(weights, shape, dense.Variant(qkv_bias=True), rotate)
