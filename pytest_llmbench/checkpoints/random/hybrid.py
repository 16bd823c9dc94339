"""Parameters of qwen3_5 and qwen3_5_moe: gated delta net with attention in between, named as mlx-lm's modules."""

from __future__ import annotations

import math
from collections.abc import Iterator

from pytest_llmbench.checkpoints.random.layout import (
    ROUTER_GAIN,
    Config,
    Law,
    Parameter,
    block_norms,
    ends,
    experts,
    linear,
    mlp,
    norm,
    score_norms,
    write_gain,
)

_PREFIX = "language_model."


def qwen3_5(config: Config) -> Iterator[Parameter]:
    """Both kinds; experts where `num_experts` is more than 0. `config` is the text model's."""
    tied = config.get("tie_word_embeddings", False)
    write = write_gain(config, tied=tied)
    yield from ends(_PREFIX, config, tied=tied)
    for number in range(config["num_hidden_layers"]):
        prefix = f"{_PREFIX}model.layers.{number}"
        yield from block_norms(prefix, config["hidden_size"])
        if (number + 1) % config.get("full_attention_interval", 4):
            yield from _delta_net(f"{prefix}.linear_attn", config, write=write)
        else:
            yield from _attention(f"{prefix}.self_attn", config, write=write)
        yield from _feed_forward(f"{prefix}.mlp", config, write=write)


def _delta_net(prefix: str, config: Config, *, write: float) -> Iterator[Parameter]:
    """The decay of a state in one step is exp(−exp(A_log) · softplus(a + dt_bias)): here 0.8 to 1."""
    width, heads = config["hidden_size"], config["linear_num_value_heads"]
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    values = heads * config["linear_value_head_dim"]
    kernel = config["linear_conv_kernel_dim"]
    channels = 2 * keys + values
    # An average of `kernel` values would shrink them; silu does too.
    law = Law(std=2 / math.sqrt(kernel))
    yield Parameter(name=f"{prefix}.conv1d.weight", shape=(channels, kernel, 1), law=law)
    yield from linear(f"{prefix}.in_proj_qkv", channels, width)
    yield from linear(f"{prefix}.in_proj_z", values, width)
    yield from linear(f"{prefix}.in_proj_b", heads, width)
    yield from linear(f"{prefix}.in_proj_a", heads, width)
    yield Parameter(name=f"{prefix}.dt_bias", shape=(heads,), law=Law(mean=-4.0, std=0.5))
    yield Parameter(name=f"{prefix}.A_log", shape=(heads,), law=Law(mean=4.0, std=2.0, kind="log"))
    yield norm(f"{prefix}.norm", config["linear_value_head_dim"])
    yield from linear(f"{prefix}.out_proj", width, values, gain=write)


def _attention(prefix: str, config: Config, *, write: float) -> Iterator[Parameter]:
    """q_proj gives queries and, for each, a gate on the output."""
    width, bias = config["hidden_size"], config.get("attention_bias", False)
    head_dim = config.get("head_dim") or width // config["num_attention_heads"]
    queries, keys = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    yield from linear(f"{prefix}.q_proj", 2 * queries, width, bias=bias)
    yield from linear(f"{prefix}.k_proj", keys, width, bias=bias)
    yield from linear(f"{prefix}.v_proj", keys, width, bias=bias)
    yield from linear(f"{prefix}.o_proj", width, queries, gain=2 * write, bias=bias)
    yield from score_norms(prefix, head_dim)


def _feed_forward(prefix: str, config: Config, *, write: float) -> Iterator[Parameter]:
    width, count = config["hidden_size"], config.get("num_experts") or 0
    if not count:
        yield from mlp(prefix, width, config["intermediate_size"], write=write)
        return
    yield from linear(f"{prefix}.gate", count, width, gain=ROUTER_GAIN)
    yield from experts(f"{prefix}.switch_mlp", width, config["moe_intermediate_size"], count, write=write)
    yield from mlp(f"{prefix}.shared_expert", width, config["shared_expert_intermediate_size"], write=write)
    yield from linear(f"{prefix}.shared_expert_gate", 1, width)
