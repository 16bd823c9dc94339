"""Build the shared decoder from a checkpoint; what differs between the model types is in `Variant`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx

from llmbench_engine import rope
from llmbench_engine.config import Config
from llmbench_engine.layers import Attention, Block, FeedForward, HeadScales, Norm
from llmbench_engine.transformer import DecoderLayer, Transformer
from llmbench_engine.weights import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The sizes of a decoder."""

    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocabulary: int
    eps: float
    tied: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """Biases of q, k, v and of the output projection, norms of q and k, biases in the feed-forward block."""

    qkv_bias: bool = False
    out_bias: bool = False
    head_norms: bool = False
    mlp_bias: bool = False


def read_shape(config: Config, *, tied: bool) -> Shape:
    """The sizes that all of these models name alike. `tied` is the default of `tie_word_embeddings`."""
    width, heads = config.positive("hidden_size", int), config.positive("num_attention_heads", int)
    config.only("hidden_act", "silu")
    return Shape(
        width=width,
        layers=config.positive("num_hidden_layers", int),
        heads=heads,
        kv_heads=config.positive("num_key_value_heads", int, heads),
        head_dim=config.positive("head_dim", int, width // heads),
        inner=config.positive("intermediate_size", int),
        vocabulary=config.positive("vocab_size", int),
        eps=config.positive("rms_norm_eps", float),
        tied=config.get("tie_word_embeddings", bool, tied),
    )


def read_rope(config: Config, dims: int, theta: float, *, traditional: bool = False) -> rope.Rope:
    """The rotation of the first `dims`, stretched as `rope_scaling` asks for. CheckpointError for what isn't known."""
    scaling = config.section("rope_scaling")
    rotate = rope.make(dims, theta, scaling, traditional=traditional)
    if scaling is not None:
        scaling.finish()
    return rotate


def no_windows(config: Config) -> None:
    """Sliding windows of these model types aren't supported; `max_window_layers` says nothing without one."""
    config.only("use_sliding_window", False)
    config.only("sliding_window")
    config.get("max_window_layers", int, 0)
    config.only("layer_types", ["full_attention"] * config.positive("num_hidden_layers", int))


def build(
    weights: Weights,
    shape: Shape,
    variant: Variant,
    rotate: rope.Rope,
    feed_forward: Callable[[int], Block] | None = None,
) -> Transformer:
    """The decoder; `feed_forward(layer)` makes the block where it isn't the dense one."""
    make_block = feed_forward or (
        lambda i: dense_block(weights, f"model.layers.{i}.mlp", shape.width, shape.inner, variant)
    )
    embedding = weights.embedding("model.embed_tokens", shape.vocabulary, shape.width)
    layers = []
    for i in range(shape.layers):
        layers.append(
            DecoderLayer(
                attention=_attention(weights, f"model.layers.{i}.self_attn", shape, variant, rotate),
                feed_forward=make_block(i),
                attention_norm=norm(weights, f"model.layers.{i}.input_layernorm", shape.width, shape.eps),
                feed_forward_norm=norm(weights, f"model.layers.{i}.post_attention_layernorm", shape.width, shape.eps),
            )
        )
        weights.materialize()
    head = embedding.linear if shape.tied else weights.linear("lm_head", shape.vocabulary, shape.width)
    return Transformer(
        embedding=embedding, layers=layers, norm=norm(weights, "model.norm", shape.width, shape.eps), head=head
    )


def norm(weights: Weights, name: str, width: int, eps: float) -> Norm:
    return Norm(weight=weights.array(f"{name}.weight", (width,)), eps=eps)


def dense_block(weights: Weights, name: str, width: int, inner: int, variant: Variant) -> FeedForward:
    return FeedForward(
        gate_up=weights.together(
            [(f"{name}.gate_proj", inner), (f"{name}.up_proj", inner)], width, bias=variant.mlp_bias
        ),
        down=weights.linear(f"{name}.down_proj", width, inner, bias=variant.mlp_bias),
    )


def _attention(weights: Weights, name: str, shape: Shape, variant: Variant, rotate: rope.Rope) -> Attention:
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    parts = [(f"{name}.q_proj", q), (f"{name}.k_proj", kv), (f"{name}.v_proj", kv)]
    norms = head_scales(weights, name, shape.heads, shape.kv_heads, shape.head_dim) if variant.head_norms else None
    return Attention(
        qkv=weights.together(parts, shape.width, bias=variant.qkv_bias),
        out=weights.linear(f"{name}.o_proj", shape.width, q, bias=variant.out_bias),
        rope=rotate,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        norms=norms,
        eps=shape.eps,
    )


def head_scales(weights: Weights, name: str, heads: int, kv_heads: int, head_dim: int) -> HeadScales:
    q, k = (weights.array(f"{name}.{part}_norm.weight", (head_dim,)) for part in ("q", "k"))
    return HeadScales(q, k, heads, kv_heads)


def drop_computed(name: str, *, tied: bool) -> str | None:
    """Tensors that old checkpoints hold, but that follow from the configuration."""
    if "rotary_emb.inv_freq" in name or (tied and name.startswith("lm_head.")):
        return None
    return name


Arrays = dict[str, mx.array]
