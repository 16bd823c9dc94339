"""Parameters of gemma4 and gemma4_text (one text model, with or without a prefix), named as mlx-lm's modules."""

from __future__ import annotations

import math
from collections.abc import Iterator

from pytest_llmbench.checkpoints.random.layout import (
    ROUTER_GAIN,
    SCORE_GAIN,
    Config,
    Law,
    Parameter,
    embedding,
    ends,
    experts,
    linear,
    mlp,
    norm,
    write_gain,
)

_PATTERN = 5
_NORMS = ("input_layernorm", "pre_feedforward_layernorm")
_WRITING_NORMS = ("post_attention_layernorm", "post_feedforward_layernorm")
_EXPERT_NORMS = ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2")


def gemma4(config: Config) -> Iterator[Parameter]:
    """The text model inside a checkpoint of the whole one. `config` is the text model's."""
    return _text_model("language_model.", config)


def gemma4_text(config: Config) -> Iterator[Parameter]:
    """The text model alone."""
    return _text_model("", config)


def layer_types(config: Config) -> list[str]:
    """Kind of attention of each layer, by mlx-lm's pattern where the configuration doesn't say."""
    count = config["num_hidden_layers"]
    pattern = config.get("sliding_window_pattern", _PATTERN)
    kinds = (["sliding_attention"] * (pattern - 1) + ["full_attention"]) * (count // pattern + 1)
    return list(config.get("layer_types") or kinds[:count])


def _text_model(prefix: str, config: Config) -> Iterator[Parameter]:
    """What follows a block is a norm, whose gain is that of the block's write."""
    tied, width = config.get("tie_word_embeddings", True), config["hidden_size"]
    per_layer = config.get("hidden_size_per_layer_input")
    write = write_gain(config, tied=tied, scale=math.sqrt(width), blocks=3 if per_layer else 2)
    yield from ends(prefix, config, tied=tied, scale=math.sqrt(width))
    if per_layer:
        yield from _per_layer_inputs(f"{prefix}model", config)
    for number, kind in enumerate(layer_types(config)):
        layer = f"{prefix}model.layers.{number}"
        shares = number >= config["num_hidden_layers"] - config.get("num_kv_shared_layers", 0)
        yield from (norm(f"{layer}.{name}", width) for name in _NORMS)
        yield from (norm(f"{layer}.{name}", width, gain=write) for name in _WRITING_NORMS)
        yield from _attention(f"{layer}.self_attn", config, full=kind == "full_attention", shares=shares)
        yield from mlp(f"{layer}.mlp", width, _inner(config, shares=shares), write=1.0)
        if config.get("enable_moe_block"):
            yield from _expert_block(layer, config)
        if per_layer:
            yield from _per_layer_gate(layer, config, write=write)
        yield Parameter(name=f"{layer}.layer_scalar", shape=(1,), law=Law(mean=1.0, std=0.1))


def _attention(prefix: str, config: Config, *, full: bool, shares: bool) -> Iterator[Parameter]:
    """Scores aren't divided by √head_dim, so the norms are that much smaller.

    A layer that shares another's keys and values has none of its own.
    """
    width = config["hidden_size"]
    head_dim = (config.get("global_head_dim") if full else None) or config["head_dim"]
    equal = full and config.get("attention_k_eq_v", False)
    kv_heads = (config.get("num_global_key_value_heads") if equal else None) or config["num_key_value_heads"]
    queries, gain = config["num_attention_heads"] * head_dim, SCORE_GAIN / head_dim**0.25
    yield from linear(f"{prefix}.q_proj", queries, width)
    yield from linear(f"{prefix}.o_proj", width, queries)
    yield norm(f"{prefix}.q_norm", head_dim, gain=gain)
    if not shares:
        yield from linear(f"{prefix}.k_proj", kv_heads * head_dim, width)
        yield norm(f"{prefix}.k_norm", head_dim, gain=gain)
        if not equal:
            yield from linear(f"{prefix}.v_proj", kv_heads * head_dim, width)


def _inner(config: Config, *, shares: bool) -> int:
    doubled = shares and config.get("use_double_wide_mlp", True)
    return int(config["intermediate_size"]) * (2 if doubled else 1)


def _expert_block(layer: str, config: Config) -> Iterator[Parameter]:
    """The router divides its input by √hidden after the norm, which its weights make up for."""
    width, count = config["hidden_size"], config["num_experts"]
    yield from linear(f"{layer}.router.proj", count, width, gain=ROUTER_GAIN * math.sqrt(width))
    yield Parameter(name=f"{layer}.router.scale", shape=(width,), law=Law(mean=1.0, std=0.1))
    yield Parameter(name=f"{layer}.router.per_expert_scale", shape=(count,), law=Law(mean=1.0, std=0.2))
    yield from experts(f"{layer}.experts.switch_glu", width, config["moe_intermediate_size"], count, write=1.0)
    yield from (norm(f"{layer}.{name}", width) for name in _EXPERT_NORMS)


def _per_layer_inputs(prefix: str, config: Config) -> Iterator[Parameter]:
    size, count = config["hidden_size_per_layer_input"], config["num_hidden_layers"]
    rows = config.get("vocab_size_per_layer_input") or config["vocab_size"]
    yield embedding(f"{prefix}.embed_tokens_per_layer", rows, count * size, std=1 / math.sqrt(size))
    yield from linear(f"{prefix}.per_layer_model_projection", count * size, config["hidden_size"])
    yield norm(f"{prefix}.per_layer_projection_norm", size)


def _per_layer_gate(layer: str, config: Config, *, write: float) -> Iterator[Parameter]:
    size, width = config["hidden_size_per_layer_input"], config["hidden_size"]
    yield from linear(f"{layer}.per_layer_input_gate", size, width)
    yield from linear(f"{layer}.per_layer_projection", width, size)
    yield norm(f"{layer}.post_per_layer_input_norm", width, gain=write)
