"""Qwen 3.5 and what shares its architecture (3.6, 3.8): the text model of the vision checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import mlx.core as mx

from llmbench_engine import rope
from llmbench_engine.config import Config
from llmbench_engine.layers import Block
from llmbench_engine.models.dense import Variant, dense_block, head_scales, norm
from llmbench_engine.models.hybrid import GatedAttention, GatedDeltaNet, Hybrid, Layer, NetFunctions, NetShape
from llmbench_engine.weights import Weights

TIED = False

PREFIX = "language_model."
"""Before the names of all tensors of the text model."""

OTHERS = ("vision_tower.", "model.visual.", "visual.", "mtp.", f"{PREFIX}mtp.", f"{PREFIX}model.mtp.")
"""Before those of the image encoder and of heads that predict further tokens."""

FULL, LINEAR = "full_attention", "linear_attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The sizes of the decoder; `attends` says for each layer whether it is one of full attention."""

    width: int
    attends: list[bool]
    heads: int
    kv_heads: int
    head_dim: int
    net: NetShape
    vocabulary: int
    eps: float
    bias: bool
    tied: bool
    rotate: rope.Rope


def text_weights(arrays: Mapping[str, mx.array], tied: bool) -> dict[str, mx.array]:
    """The tensors of the text model. Whether it is tied, its own part of the configuration says."""
    return {name: a for name, a in arrays.items() if not name.startswith(OTHERS)}


def build(config: Config, weights: Weights) -> Hybrid:
    """The model. CheckpointError for a configuration or weights that don't fit."""
    text = read_text(config)
    shape, inner = read_shape(text), text.positive("intermediate_size", int)
    text.only("num_experts", 0)
    finish(config, text)

    def block(name: str) -> Block:
        return dense_block(weights, name, shape.width, inner, Variant())

    return assemble(weights, shape, block)


def read_text(config: Config) -> Config:
    """The text model's part: a section of its own, unless the checkpoint holds nothing else."""
    return config.section("text_config") or config


def finish(config: Config, text: Config) -> None:
    """CheckpointError for keys that nobody read."""
    if text is not config:
        # mlx-lm, too, goes by the text model's own.
        config.get("tie_word_embeddings", bool, False)
        config.finish()
    text.finish()


def read_shape(config: Config) -> Shape:
    """The sizes. CheckpointError for what isn't there or not supported."""
    width, heads = config.positive("hidden_size", int), config.positive("num_attention_heads", int)
    head_dim = config.positive("head_dim", int, width // heads)
    config.only("hidden_act", "silu")
    config.only("attn_output_gate", True)
    config.only("output_gate_type", "swish", "silu")
    config.only("mamba_ssm_dtype", "float32")
    return Shape(
        width=width,
        attends=_attending(config),
        heads=heads,
        kv_heads=config.positive("num_key_value_heads", int),
        head_dim=head_dim,
        net=_read_net(config),
        vocabulary=config.positive("vocab_size", int),
        eps=config.positive("rms_norm_eps", float),
        bias=config.get("attention_bias", bool, False),
        tied=config.get("tie_word_embeddings", bool, TIED),
        rotate=_read_rope(config, head_dim),
    )


def _attending(config: Config) -> list[bool]:
    count, interval = config.positive("num_hidden_layers", int), config.positive("full_attention_interval", int, 4)
    attends = [(i + 1) % interval == 0 for i in range(count)]
    config.only("layer_types", [FULL if full else LINEAR for full in attends])
    return attends


def _read_net(config: Config) -> NetShape:
    key_heads, heads = config.positive("linear_num_key_heads", int), config.positive("linear_num_value_heads", int)
    if heads % key_heads:
        raise config.error("linear_num_value_heads", f"is {heads}, no multiple of linear_num_key_heads, {key_heads}")
    return NetShape(
        key_heads=key_heads,
        heads=heads,
        key_width=config.positive("linear_key_head_dim", int),
        width=config.positive("linear_value_head_dim", int),
        taps=config.positive("linear_conv_kernel_dim", int),
    )


def _read_rope(config: Config, head_dim: int) -> rope.Rope:
    """Only a part of each head is rotated. For text alone, the three positions of mrope are one."""
    section = config.section("rope_parameters")
    if section is None:
        raise config.error("rope_parameters", "is missing; an object with rope_theta is needed")
    base, share = section.positive("rope_theta", float), section.positive("partial_rotary_factor", float, 0.25)
    section.get("mrope_section", list, [])
    section.get("mrope_interleaved", bool, False)
    config.only("rope_theta", base)
    config.only("partial_rotary_factor", share)
    config.only("rope_scaling")
    rotate = rope.make(int(head_dim * share), base, section)
    section.finish()
    return rotate


def assemble(weights: Weights, shape: Shape, make_block: Callable[[str], Block]) -> Hybrid:
    """The decoder; `make_block(name)` makes what follows attention."""
    name = f"{PREFIX}model"
    if shape.tied:
        weights.discard(f"{PREFIX}lm_head.")
    embedding = weights.embedding(f"{name}.embed_tokens", shape.vocabulary, shape.width)
    functions, layers = NetFunctions(shape.net, shape.eps), []
    for i, attends in enumerate(shape.attends):
        layer = f"{name}.layers.{i}"
        layers.append(
            Layer(
                mixer=_attention(weights, f"{layer}.self_attn", shape)
                if attends
                else _net(weights, f"{layer}.linear_attn", shape, functions),
                block=make_block(f"{layer}.mlp"),
                mixer_norm=norm(weights, f"{layer}.input_layernorm", shape.width, shape.eps),
                block_norm=norm(weights, f"{layer}.post_attention_layernorm", shape.width, shape.eps),
            )
        )
        weights.materialize()
    head = embedding.linear if shape.tied else weights.linear(f"{PREFIX}lm_head", shape.vocabulary, shape.width)
    last = norm(weights, f"{name}.norm", shape.width, shape.eps)
    return Hybrid(embedding=embedding, layers=layers, norm=last, head=head)


def _attention(weights: Weights, name: str, shape: Shape) -> GatedAttention:
    heads, kv_heads, head_dim = shape.heads, shape.kv_heads, shape.head_dim
    q, kv = heads * head_dim, kv_heads * head_dim
    weights.rearrange(f"{name}.q_proj", lambda rows: _gates_first(rows, heads, head_dim))
    parts = [(f"{name}.q_proj", 2 * q), (f"{name}.k_proj", kv), (f"{name}.v_proj", kv)]
    return GatedAttention(
        project=weights.together(parts, shape.width, bias=shape.bias),
        out=weights.linear(f"{name}.o_proj", shape.width, q, bias=shape.bias),
        rope=shape.rotate,
        norms=head_scales(weights, name, heads, kv_heads, head_dim),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        eps=shape.eps,
    )


def _gates_first(rows: mx.array, heads: int, head_dim: int) -> mx.array:
    """Of the output's rows, which alternate between a head's query and its gate."""
    if rows.shape[0] != 2 * heads * head_dim:
        return rows
    apart = rows.reshape(heads, 2, head_dim, -1)
    return mx.concatenate([apart[:, 1], apart[:, 0]]).reshape(rows.shape)


def _net(weights: Weights, name: str, shape: Shape, functions: NetFunctions) -> GatedDeltaNet:
    net = shape.net
    parts = [("qkv", net.mixed), ("z", net.values), ("b", net.heads), ("a", net.heads)]
    taps = weights.array(f"{name}.conv1d.weight", (net.mixed, net.taps, 1))
    rate = -mx.exp(weights.array(f"{name}.A_log", (net.heads,)).astype(mx.float32))
    columns = [mx.contiguous(taps[:, i, 0]) for i in range(net.taps)]
    weights.made(rate, *columns)
    return GatedDeltaNet(
        functions=functions,
        project=weights.together([(f"{name}.in_proj_{part}", rows) for part, rows in parts], shape.width),
        taps=columns,
        rate=rate,
        bias=weights.array(f"{name}.dt_bias", (net.heads,)),
        norm=weights.array(f"{name}.norm.weight", (net.width,)),
        out=weights.linear(f"{name}.out_proj", shape.width, net.values),
    )
