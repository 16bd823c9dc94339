"""Parameters of llama, qwen2, qwen3, qwen3_moe and gpt_oss, named as mlx-lm's modules."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_llmbench.checkpoints.random.layout import (
    ROUTER_GAIN,
    SCORE_GAIN,
    Config,
    Law,
    Parameter,
    block_norms,
    ends,
    experts,
    linear,
    mlp,
    projections,
    score_norms,
    write_gain,
)


def llama(config: Config) -> Iterator[Parameter]:
    """llama, with or without biases."""
    tied, width = config.get("tie_word_embeddings", True), config["hidden_size"]
    write, bias = write_gain(config, tied=tied), config.get("attention_bias", False)
    yield from ends("", config, tied=tied)
    for prefix in _layers(config):
        yield from block_norms(prefix, width)
        yield from projections(
            f"{prefix}.self_attn", width, _sizes(config), gain=SCORE_GAIN, write=write, bias=bias, output_bias=bias
        )
        yield from mlp(
            f"{prefix}.mlp", width, config["intermediate_size"], write=write, bias=config.get("mlp_bias", False)
        )


def qwen2(config: Config) -> Iterator[Parameter]:
    """qwen2: biases on queries, keys and values."""
    tied, width = config.get("tie_word_embeddings", True), config["hidden_size"]
    write = write_gain(config, tied=tied)
    yield from ends("", config, tied=tied)
    for prefix in _layers(config):
        yield from block_norms(prefix, width)
        yield from projections(f"{prefix}.self_attn", width, _sizes(config), gain=SCORE_GAIN, write=write, bias=True)
        yield from mlp(f"{prefix}.mlp", width, config["intermediate_size"], write=write)


def qwen3(config: Config) -> Iterator[Parameter]:
    """qwen3: norms on queries and keys."""
    tied = config["tie_word_embeddings"]
    write = write_gain(config, tied=tied)
    yield from ends("", config, tied=tied)
    for prefix in _layers(config):
        yield from _qwen3_attention(prefix, config, write=write)
        yield from mlp(f"{prefix}.mlp", config["hidden_size"], config["intermediate_size"], write=write)


def qwen3_moe(config: Config) -> Iterator[Parameter]:
    """qwen3_moe: experts in each layer that `mlp_only_layers` and `decoder_sparse_step` leave to them."""
    tied = config["tie_word_embeddings"]
    write = write_gain(config, tied=tied)
    width, count = config["hidden_size"], config["num_experts"]
    yield from ends("", config, tied=tied)
    for number, prefix in enumerate(_layers(config)):
        yield from _qwen3_attention(prefix, config, write=write)
        sparse = (number + 1) % config.get("decoder_sparse_step", 1) == 0
        if count and sparse and number not in config.get("mlp_only_layers", ()):
            yield from linear(f"{prefix}.mlp.gate", count, width, gain=ROUTER_GAIN)
            yield from experts(f"{prefix}.mlp.switch_mlp", width, config["moe_intermediate_size"], count, write=write)
        else:
            yield from mlp(f"{prefix}.mlp", width, config["intermediate_size"], write=write)


def gpt_oss(config: Config) -> Iterator[Parameter]:
    """gpt_oss: biases everywhere, attention sinks, experts in each layer, a head of its own."""
    width, count = config["hidden_size"], config["num_local_experts"]
    write, inner = write_gain(config, tied=False), config["intermediate_size"]
    yield from ends("", config, tied=False)
    for prefix in _layers(config):
        yield from block_norms(prefix, width)
        yield Parameter(name=f"{prefix}.self_attn.sinks", shape=(config["num_attention_heads"],), law=Law())
        yield from projections(
            f"{prefix}.self_attn", width, _sizes(config), gain=SCORE_GAIN, write=write, bias=True, output_bias=True
        )
        yield from linear(f"{prefix}.mlp.router", count, width, gain=ROUTER_GAIN, bias=True)
        yield from experts(f"{prefix}.mlp.experts", width, inner, count, write=write, bias=True)


def _qwen3_attention(prefix: str, config: Config, *, write: float) -> Iterator[Parameter]:
    yield from block_norms(prefix, config["hidden_size"])
    yield from projections(f"{prefix}.self_attn", config["hidden_size"], _sizes(config), gain=1.0, write=write)
    yield from score_norms(f"{prefix}.self_attn", _head_dim(config))


def _layers(config: Config) -> Iterator[str]:
    return (f"model.layers.{number}" for number in range(config["num_hidden_layers"]))


def _sizes(config: Config) -> tuple[int, int]:
    heads = config["num_attention_heads"]
    return heads * _head_dim(config), (config.get("num_key_value_heads") or heads) * _head_dim(config)


def _head_dim(config: Config) -> int:
    # qwen2 ignores the key: its heads always share the hidden size.
    stated = None if config["model_type"] == "qwen2" else config.get("head_dim")
    return int(stated or config["hidden_size"] // config["num_attention_heads"])
