"""Qwen 3.5's mixture of experts: one more expert, behind a gate of its own, for every token."""

from __future__ import annotations

import mlx.core as mx

from llmbench_engine.config import Config
from llmbench_engine.layers import Block, FeedForward
from llmbench_engine.models.dense import Variant, dense_block
from llmbench_engine.models.hybrid import Hybrid
from llmbench_engine.models.qwen3_5 import TIED as TIED
from llmbench_engine.models.qwen3_5 import assemble, finish, read_shape, read_text
from llmbench_engine.models.qwen3_5 import text_weights as text_weights
from llmbench_engine.models.qwen3_moe import sparse_block
from llmbench_engine.sparse import SparseFeedForward, top_k
from llmbench_engine.weights import Projection, Weights


class Routing:
    """What the mixtures of a model compute around their matmuls; compiled for one token a row, as those of the nets."""

    def __init__(self, *, count: int, chosen: int, renormalize: bool) -> None:
        self.count, self.chosen, self.renormalize = count, chosen, renormalize
        self.choose_for_one, self.blend_for_one = mx.compile(self.choose), mx.compile(self.blend)

    def choose(self, scores: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        """[rows, experts + 1] → chosen experts [rows, k], their weights [rows, k, 1], the shared one's [rows, 1]."""
        scores, shared = mx.split(scores, [self.count], axis=-1)
        scores = mx.softmax(scores, axis=-1, precise=True)
        experts = top_k(scores, self.chosen)
        weights = mx.take_along_axis(scores, experts, axis=-1)
        if self.renormalize:
            weights = weights / weights.sum(axis=-1, keepdims=True)
        return experts, weights[..., None], mx.sigmoid(shared)

    @staticmethod
    def blend(y: mx.array, weights: mx.array, shared: mx.array, weight: mx.array) -> mx.array:
        """Σ weights * y over the chosen experts, plus the shared one's part."""
        return (y * weights).sum(axis=-2) + weight * shared


class SharedMixture:
    """Each token's best experts, weighted by the router's softmax, and the shared expert.

    `router` gives the scores of all experts, and the shared one's gate behind them.
    """

    __slots__ = ("experts", "router", "routing", "shared")

    def __init__(
        self, *, routing: Routing, router: Projection, experts: SparseFeedForward, shared: FeedForward
    ) -> None:
        self.routing, self.router, self.experts, self.shared = routing, router, experts, shared

    def __call__(self, x: mx.array) -> mx.array:
        rows, routing = x.flatten(0, -2), self.routing
        one = x.shape[-2] == 1
        experts, weights, weight = (routing.choose_for_one if one else routing.choose)(self.router(rows))
        y, shared = self.experts(rows, experts), self.shared(rows)
        return (routing.blend_for_one if one else routing.blend)(y, weights, shared, weight).reshape(x.shape)


def build(config: Config, weights: Weights) -> Hybrid:
    """The model. CheckpointError for a configuration or weights that don't fit."""
    text = read_text(config)
    shape = read_shape(text)
    count = text.positive("num_experts", int)
    chosen = text.positive("num_experts_per_tok", int, most=count)
    inner, shared = text.positive("moe_intermediate_size", int), text.positive("shared_expert_intermediate_size", int)
    renormalize = text.get("norm_topk_prob", bool, True)
    # All layers have experts, whatever the size of a dense block may be.
    text.get("intermediate_size", int, 0)
    text.only("decoder_sparse_step", 1)
    text.only("mlp_only_layers", [])
    finish(config, text)
    routing = Routing(count=count, chosen=chosen, renormalize=renormalize)

    def block(name: str) -> Block:
        router = weights.together([(f"{name}.gate", count), (f"{name}.shared_expert_gate", 1)], shape.width)
        return SharedMixture(
            routing=routing,
            router=router,
            experts=sparse_block(weights, f"{name}.switch_mlp", shape.width, inner, count),
            shared=dense_block(weights, f"{name}.shared_expert", shape.width, shared, Variant()),
        )

    return assemble(weights, shape, block)
