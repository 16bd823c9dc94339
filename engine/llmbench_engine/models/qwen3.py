"""Qwen 3: norms on the heads of q and k."""

from __future__ import annotations

from llmbench_engine import rope
from llmbench_engine.config import Config
from llmbench_engine.models import dense
from llmbench_engine.transformer import Transformer
from llmbench_engine.weights import Weights

TIED = False


def build(config: Config, weights: Weights) -> Transformer:
    """The model. CheckpointError for a configuration or weights that don't fit."""
    shape, rotate = read(config)
    config.finish()
    return dense.build(weights, shape, dense.Variant(head_norms=True), rotate)


def read(config: Config) -> tuple[dense.Shape, rope.Rope]:
    """What Qwen 3 and its mixture of experts have in common."""
    shape = dense.read_shape(config, tied=TIED)
    dense.no_windows(config)
    config.only("attention_bias", False)
    return shape, dense.read_rope(config, shape.head_dim, config.positive("rope_theta", float))
