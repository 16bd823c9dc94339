"""What Gemma 4's configuration says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from llmbench_engine import rope
from llmbench_engine.config import Config

SLIDING, FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The sizes of the decoder; `own` is the number of layers with keys and values of their own."""

    width: int
    inner: int
    heads: int
    kv_heads: int
    global_kv_heads: int
    head_dim: int
    global_head_dim: int
    window: int
    kinds: Sequence[str]
    own: int
    same_values: bool
    wide_sharers: bool
    extra: int
    experts: int
    chosen: int
    expert_inner: int
    vocabulary: int
    extra_vocabulary: int
    eps: float
    softcap: float | None
    tied: bool


def read_shape(config: Config) -> Shape:
    """The sizes. CheckpointError for what isn't there or not supported."""
    config.only("hidden_activation", "gelu_pytorch_tanh")
    config.only("attention_bias", False)
    config.only("use_bidirectional_attention", False, "vision")  # among the tokens of one image only
    layers, head_dim = config.positive("num_hidden_layers", int), config.positive("head_dim", int)
    kv_heads, vocabulary = config.positive("num_key_value_heads", int), config.positive("vocab_size", int)
    same_values, sparse = config.get("attention_k_eq_v", bool, False), config.get("enable_moe_block", bool, False)
    experts, chosen = config.get("num_experts", int, 0), config.get("top_k_experts", int, 0)
    if sparse and not 0 < chosen <= experts:
        raise config.error("top_k_experts", f"is {chosen}, of {experts} num_experts; enable_moe_block needs both")
    global_kv_heads = config.positive("num_global_key_value_heads", int, kv_heads)
    kinds, own = _layer_kinds(config, layers), layers - config.need("num_kv_shared_layers", int)
    if not {*kinds[own:]} <= {*kinds[:own]}:
        raise config.error("num_kv_shared_layers", f"leaves only {own} layers, none of one kind of the others")
    return Shape(
        width=config.positive("hidden_size", int),
        inner=config.positive("intermediate_size", int),
        heads=config.positive("num_attention_heads", int),
        kv_heads=kv_heads,
        global_kv_heads=global_kv_heads if same_values else kv_heads,
        head_dim=head_dim,
        global_head_dim=config.need_or_null("global_head_dim", int) or head_dim,
        window=config.positive("sliding_window", int),
        kinds=kinds,
        own=own,
        same_values=same_values,
        wide_sharers=config.get("use_double_wide_mlp", bool, True),
        extra=config.need("hidden_size_per_layer_input", int),
        experts=experts if sparse else 0,
        chosen=chosen,
        expert_inner=config.get("moe_intermediate_size", int, 0),
        vocabulary=vocabulary,
        extra_vocabulary=config.positive("vocab_size_per_layer_input", int, vocabulary),
        eps=config.positive("rms_norm_eps", float, 1e-6),
        softcap=config.need_or_null("final_logit_softcapping", float),
        tied=config.get("tie_word_embeddings", bool, True),
    )


def _layer_kinds(config: Config, layers: int) -> list[str]:
    pattern = config.positive("sliding_window_pattern", int, 5)
    kinds = config.get("layer_types", list, [FULL if (i + 1) % pattern == 0 else SLIDING for i in range(layers)])
    if len(kinds) != layers or not {*kinds} <= {SLIDING, FULL}:
        raise config.error("layer_types", f"has to name {layers} layers, each {SLIDING!r} or {FULL!r}")
    return kinds


def read_ropes(config: Config) -> dict[str, Callable[[int], rope.Rope]]:
    """For each kind of layer, what makes its rotation for a head's width."""
    section = config.section("rope_parameters")
    if section is None:
        raise config.error("rope_parameters", "is missing; an object for each kind of layer is needed")
    traditional = config.get("rope_traditional", bool, False)
    makers: dict[str, Callable[[int], rope.Rope]] = {}
    for kind in (SLIDING, FULL):
        own = section.section(kind)
        if own is None:
            raise section.error(kind, "is missing; an object is needed")
        base = own.positive("rope_theta", float)
        if own.get("rope_type", str, "default") == "default":
            own.only("partial_rotary_factor", 1.0)
        makers[kind] = partial(_make_rope, base, own, traditional)
    section.finish()
    return makers


def _make_rope(base: float, section: Config, traditional: bool, dims: int) -> rope.Rope:
    made = rope.make(dims, base, section, traditional=traditional)
    section.finish()
    return made
