"""gpt-oss: attention with sinks in alternating windows, biases everywhere, a mixture of experts in every layer.

A bias is added in one compiled function with what follows it: on an accelerator each addition of its own would be one
more launch for each layer and token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import mlx.core as mx

from llmbench_engine import rope
from llmbench_engine.cache import Cache
from llmbench_engine.config import Config
from llmbench_engine.kv_cache import KeyValues, WindowKeyValues
from llmbench_engine.layers import Block, Mask, Norm, blank, first_of_each, last_query, layer_mask, unchanged
from llmbench_engine.models.dense import norm
from llmbench_engine.pace import Pace
from llmbench_engine.sparse import SORT_FROM, SparseFeedForward, top_k
from llmbench_engine.transformer import Model
from llmbench_engine.weights import Linear, Projection, Weights

TIED = False

LIMIT = 7.0
"""Where the experts' activation clips (`swiglu_limit`)."""

SLIDING, FULL = "sliding_attention", "full_attention"


@partial(mx.compile, shapeless=True)
def clipped_swiglu(gate: mx.array, up: mx.array) -> mx.array:
    """The experts' activation: gate clipped from above, up from both sides and raised by one."""
    gate, up = mx.minimum(gate, LIMIT), mx.clip(up, -LIMIT, LIMIT)
    return (up + 1.0) * (gate * mx.sigmoid(1.702 * gate))


@partial(mx.compile, shapeless=True)
def biased_clipped_swiglu(gate: mx.array, up: mx.array, gate_bias: mx.array, up_bias: mx.array) -> mx.array:
    """`clipped_swiglu` after the biases are added."""
    gate, up = mx.minimum(gate + gate_bias, LIMIT), mx.clip(up + up_bias, -LIMIT, LIMIT)
    return (up + 1.0) * (gate * mx.sigmoid(1.702 * gate))


@partial(mx.compile, shapeless=True)
def biased_times(x: mx.array, bias: mx.array, factor: mx.array) -> mx.array:
    """(x + bias) * factor."""
    return (x + bias) * factor


@partial(mx.compile, shapeless=True)
def plus_biased(x: mx.array, y: mx.array, bias: mx.array) -> mx.array:
    """x + (y + bias)."""
    return x + (y + bias)


class Attention:
    """x + attention(norm(x)), with a learned sink for each head; q, k and v fused, q and k rotated together.

    `factor` carries the magnitude of YaRN for q and k, and one for v.
    """

    __slots__ = (
        "bias", "factor", "head_dim", "heads", "kv_heads", "norm", "out", "out_bias", "qkv", "rope", "scale", "sinks",
    )  # fmt: skip

    def __init__(
        self,
        *,
        norm: Norm,
        qkv: Projection,
        bias: mx.array,
        factor: mx.array,
        rope: rope.Rope,
        sinks: mx.array,
        out: Linear,
        out_bias: mx.array,
        heads: int,
        kv_heads: int,
        head_dim: int,
    ) -> None:
        self.norm, self.qkv, self.bias, self.factor, self.rope = norm, qkv, bias, factor, rope
        self.sinks, self.out, self.out_bias = sinks, out, out_bias
        self.heads, self.kv_heads, self.head_dim, self.scale = heads, kv_heads, head_dim, head_dim**-0.5

    def __call__(
        self, x: mx.array, past: KeyValues | WindowKeyValues, offset: int | mx.array, mask: Mask, only_last: bool
    ) -> mx.array:
        batch, tokens, _ = x.shape
        qkv = biased_times(self.qkv(self.norm(x)), self.bias, self.factor).reshape(batch, tokens, -1, self.head_dim)
        qk, v = mx.split(qkv, [self.heads + self.kv_heads], axis=2)
        q, k = mx.split(self.rope(qk.swapaxes(1, 2), offset), [self.heads], axis=1)
        k, v = past.update(k, v.swapaxes(1, 2))
        if only_last:
            x, mask = x[:, -1:], None
            q, k, v = last_query(past, q, k, v)
        y = mx.fast.scaled_dot_product_attention(q, k, v, scale=self.scale, mask=mask, sinks=self.sinks)
        return plus_biased(x, self.out(y.swapaxes(1, 2).flatten(-2)), self.out_bias)


class Mixture:
    """x + experts(norm(x)): the softmax is over the chosen experts only."""

    __slots__ = ("chosen", "experts", "norm", "router")

    def __init__(self, *, norm: Norm, router: Linear, experts: SparseFeedForward, chosen: int) -> None:
        self.norm, self.router, self.experts, self.chosen = norm, router, experts, chosen

    def __call__(self, x: mx.array) -> mx.array:
        rows = self.norm(x).flatten(0, 1)
        scores = self.router(rows)
        chosen = top_k(scores, self.chosen)
        shares = mx.softmax(mx.take_along_axis(scores, chosen, axis=-1), axis=-1, precise=True)[..., None]
        many = chosen.size >= SORT_FROM
        y = self.experts(rows, chosen) * shares if many else self._few(rows, chosen, shares)
        return x + y.sum(axis=-2).reshape(x.shape)

    def _few(self, rows: mx.array, chosen: mx.array, shares: mx.array) -> mx.array:
        """The same for so few rows that launches are what it costs: [rows, chosen, width], weighted."""
        gate_up, down = self.experts.gate_up, self.experts.down
        outer, inner = self.experts.indices(*chosen.shape)
        assert gate_up.bias is not None
        assert down.bias is not None
        gate, up = mx.split(gate_up.matmul(rows[:, None], outer, chosen).squeeze(-2), 2, axis=-1)
        y = biased_clipped_swiglu(gate, up, *mx.split(gate_up.bias[chosen], 2, axis=-1))
        y = down.matmul(y.flatten(0, 1)[:, None], inner, chosen).squeeze(-2)
        return biased_times(y, down.bias[chosen], shares)


class GptOss:
    """The decoder. All rows of a batch share their masks, one for each kind of layer."""

    def __init__(
        self,
        *,
        embedding: Block,
        layers: Sequence[tuple[Attention, Mixture]],
        kinds: Sequence[str],
        window: int,
        norm: Block,
        head: Block,
    ) -> None:
        self._embedding, self._layers, self._norm, self._head = embedding, layers, norm, head
        self._kinds, self._window = kinds, window

    def make_cache(self, rows: int, room: int) -> Cache:
        return Cache([KeyValues(room) if k == FULL else WindowKeyValues(self._window) for k in self._kinds], rows)

    def __call__(self, tokens: mx.array, cache: Cache, *, only_last: bool = False) -> mx.array:
        x = self._embedding(tokens)
        count, offset, end = tokens.shape[1], cache.offset, len(self._layers) - 1
        only_last = only_last and count > 1
        masks: dict[str, Mask] = {}
        pace = Pace(tokens.size)
        for i, ((attention, mixture), kind, past) in enumerate(
            zip(self._layers, self._kinds, cache.layers, strict=True)
        ):
            if kind not in masks:
                masks[kind] = layer_mask(cache, past, count)
            x = attention(x, past, offset, masks[kind], only_last and i == end)  # type: ignore[arg-type]
            x = mixture(x)
            pace(x, past)
        cache.advance(count)
        return self._norm(x)

    def head(self, hidden: mx.array) -> mx.array:
        return self._head(hidden)

    def excerpt(self) -> tuple[Model, int]:
        firsts = first_of_each(self._kinds)
        part = GptOss(
            embedding=blank(self._embedding),
            layers=[self._layers[i] for i in firsts] * 2,
            kinds=[self._kinds[i] for i in firsts] * 2,
            window=self._window,
            norm=unchanged,
            head=unchanged,
        )
        return part, firsts[-1] + 1


def build(config: Config, weights: Weights) -> GptOss:
    """The model. CheckpointError for a configuration or weights that don't fit."""
    width, vocabulary = config.positive("hidden_size", int), config.positive("vocab_size", int)
    eps, window = config.positive("rms_norm_eps", float), config.positive("sliding_window", int)
    kinds = _layer_kinds(config)
    make_attention, make_mixture = (
        _read_attention(config, weights, width, eps),
        _read_mixture(config, weights, width, eps),
    )
    config.only("tie_word_embeddings", False)
    config.finish()
    embedding = weights.embedding("model.embed_tokens", vocabulary, width)
    layers = []
    for i in range(len(kinds)):
        layers.append((make_attention(f"model.layers.{i}"), make_mixture(f"model.layers.{i}")))
        weights.materialize()
    return GptOss(
        embedding=embedding,
        layers=layers,
        kinds=kinds,
        window=window,
        norm=norm(weights, "model.norm", width, eps),
        head=weights.linear("lm_head", vocabulary, width),
    )


def _layer_kinds(config: Config) -> list[str]:
    count = config.positive("num_hidden_layers", int)
    kinds = config.get("layer_types", list, [SLIDING, FULL] * (count // 2))
    if len(kinds) != count or not {*kinds} <= {SLIDING, FULL}:
        raise config.error("layer_types", f"has to name {count} layers, each {SLIDING!r} or {FULL!r}")
    return kinds


def _read_rope(config: Config, dims: int) -> tuple[rope.Rope, float]:
    """The rotation without its magnitude, and the magnitude."""
    base, scaling = config.positive("rope_theta", float, 150000.0), config.section("rope_scaling")
    if scaling is None:
        return rope.plain(dims, base), 1.0
    if scaling.get("rope_type", str, "") != "yarn":
        rotate, magnitude = rope.make(dims, base, scaling), 1.0
    else:
        # mlx-lm rounds the two ends of the blend, whatever `truncate` says.
        scaling.only("truncate", True, False)
        periods, magnitude = rope.yarn(dims, base, scaling)
        rotate = rope.by_periods(dims, periods)
    scaling.finish()
    return rotate, magnitude


def _read_attention(config: Config, weights: Weights, width: int, eps: float) -> Callable[[str], Attention]:
    heads, kv_heads = config.positive("num_attention_heads", int), config.positive("num_key_value_heads", int)
    head_dim = config.positive("head_dim", int)
    rotate, magnitude = _read_rope(config, head_dim)
    config.only("attention_bias", True)
    q, kv = heads * head_dim, kv_heads * head_dim

    def make(layer: str) -> Attention:
        name = f"{layer}.self_attn"
        parts = [(f"{name}.{p}_proj", w) for p, w in (("q", q), ("k", kv), ("v", kv))]
        bias = weights.vectors([(f"{part}.bias", w) for part, w in parts])
        factor = mx.concatenate([mx.full((q + kv,), magnitude, bias.dtype), mx.ones((kv,), bias.dtype)])
        weights.made(factor)
        return Attention(
            norm=norm(weights, f"{layer}.input_layernorm", width, eps),
            qkv=weights.together(parts, width),
            bias=bias,
            factor=factor,
            rope=rotate,
            sinks=weights.array(f"{name}.sinks", (heads,)),
            out=weights.linear(f"{name}.o_proj", width, q),
            out_bias=weights.array(f"{name}.o_proj.bias", (width,)),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
        )

    return make


def _read_mixture(config: Config, weights: Weights, width: int, eps: float) -> Callable[[str], Mixture]:
    count, inner = config.positive("num_local_experts", int), config.positive("intermediate_size", int)
    chosen = config.positive("num_experts_per_tok", int, most=count)
    config.only("experts_per_token", chosen)
    config.only("hidden_act", "silu")
    config.only("swiglu_limit", LIMIT)

    def make(layer: str) -> Mixture:
        name = f"{layer}.mlp.experts"
        gate_up = [(f"{name}.gate_proj", inner), (f"{name}.up_proj", inner)]
        return Mixture(
            norm=norm(weights, f"{layer}.post_attention_layernorm", width, eps),
            router=weights.linear(f"{layer}.mlp.router", count, width, bias=True),
            experts=SparseFeedForward(
                gate_up=weights.experts(gate_up, width, count, bias=True),
                down=weights.experts([(f"{name}.down_proj", width)], inner, count, bias=True),
                activation=clipped_swiglu,
            ),
            chosen=chosen,
        )

    return make
