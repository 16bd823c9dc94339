"""Qwen 3 with a mixture of experts in (some of) its layers."""

from __future__ import annotations

import mlx.core as mx

from llmbench_engine.config import Config
from llmbench_engine.layers import Block
from llmbench_engine.models import dense, qwen3
from llmbench_engine.sparse import SparseFeedForward, top_k
from llmbench_engine.transformer import Transformer
from llmbench_engine.weights import Linear, Weights

TIED = False


class Mixture:
    """Each token's best experts, weighted by the router's softmax."""

    __slots__ = ("chosen", "experts", "renormalize", "router")

    def __init__(self, *, router: Linear, experts: SparseFeedForward, chosen: int, renormalize: bool) -> None:
        self.router, self.experts, self.chosen, self.renormalize = router, experts, chosen, renormalize

    def __call__(self, x: mx.array) -> mx.array:
        rows = x.reshape(-1, x.shape[-1])
        scores = mx.softmax(self.router(rows), axis=-1, precise=True)
        experts = top_k(scores, self.chosen)
        weights = mx.take_along_axis(scores, experts, axis=-1)
        if self.renormalize:
            weights = weights / weights.sum(axis=-1, keepdims=True)
        y = (self.experts(rows, experts) * weights[..., None]).sum(axis=-2)
        return y.reshape(x.shape)


def build(config: Config, weights: Weights) -> Transformer:
    """The model. CheckpointError for a configuration or weights that don't fit."""
    shape, rotate = qwen3.read(config)
    count, inner = config.positive("num_experts", int), config.positive("moe_intermediate_size", int)
    chosen = config.positive("num_experts_per_tok", int, most=count)
    renormalize = config.get("norm_topk_prob", bool, False)
    step, dense_layers = config.positive("decoder_sparse_step", int, 1), config.get("mlp_only_layers", list, [])
    config.finish()

    def block(i: int) -> Block:
        name = f"model.layers.{i}.mlp"
        if i in dense_layers or (i + 1) % step:
            return dense.dense_block(weights, name, shape.width, shape.inner, dense.Variant())
        return Mixture(
            router=weights.linear(f"{name}.gate", count, shape.width),
            experts=sparse_block(weights, f"{name}.switch_mlp", shape.width, inner, count),
            chosen=chosen,
            renormalize=renormalize,
        )

    return dense.build(weights, shape, dense.Variant(head_norms=True), rotate, block)


def sparse_block(weights: Weights, name: str, width: int, inner: int, count: int) -> SparseFeedForward:
    """Gate and up of all experts fused, and down."""
    return SparseFeedForward(
        gate_up=weights.experts([(f"{name}.gate_proj", inner), (f"{name}.up_proj", inner)], width, count),
        down=weights.experts([(f"{name}.down_proj", width)], inner, count),
    )
