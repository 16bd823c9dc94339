"""Gemma 4: norms around every block, windows with a global layer now and then, keys and values shared by late layers.

Small variants add an input of its own to every layer, large ones a mixture of experts beside the dense block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import mlx.core as mx

from llmbench_engine import rope
from llmbench_engine.cache import Cache
from llmbench_engine.config import Config
from llmbench_engine.kv_cache import KeyValues, WindowKeyValues
from llmbench_engine.layers import (
    Block,
    FeedForward,
    HeadScales,
    Mask,
    Norm,
    blank,
    first_of_each,
    geglu,
    layer_mask,
    unchanged,
)
from llmbench_engine.models.dense import head_scales, norm
from llmbench_engine.models.gemma4_config import FULL, SLIDING, Shape, read_ropes, read_shape
from llmbench_engine.models.gemma4_layers import Attention, Dense, ExtraInput, ExtraInputs, KeysValues, Layer, Mixture
from llmbench_engine.pace import Pace
from llmbench_engine.sparse import SparseFeedForward
from llmbench_engine.transformer import Model
from llmbench_engine.weights import Weights

TIED = True

Extras = Callable[[mx.array, mx.array], Sequence[mx.array]]
"""Token ids and their embeddings → an input of its own for each layer."""


@partial(mx.compile, shapeless=True)
def softcap(limit: float, x: mx.array) -> mx.array:
    """x bent so that it stays within ±limit."""
    return mx.tanh(x / limit) * limit


class Gemma4:
    """The decoder. Its last layers have no cache: they use keys and values of the last one of their kind before."""

    def __init__(
        self,
        *,
        shape: Shape,
        embedding: Block,
        extras: Extras | None,
        layers: Sequence[Layer],
        norm: Block,
        head: Block,
    ) -> None:
        self._shape, self._embedding, self._extras = shape, embedding, extras
        self._own, self._sharers, self._norm, self._head = layers[: shape.own], layers[shape.own :], norm, head
        self._embedding_scale = shape.width**0.5

    def make_cache(self, rows: int, room: int) -> Cache:
        window = self._shape.window
        return Cache([KeyValues(room) if one.kind == FULL else WindowKeyValues(window) for one in self._own], rows)

    def __call__(self, tokens: mx.array, cache: Cache, *, only_last: bool = False) -> mx.array:
        x = self._embedding(tokens) * self._embedding_scale
        extras: Sequence[mx.array | None] = [None] * len(self._shape.kinds)
        if self._extras is not None:
            extras = self._extras(tokens, x)
        count, offset, last = tokens.shape[1], cache.offset, len(self._own) - 1
        only_last = only_last and count > 1
        masks: dict[str, Mask] = {}
        newest: dict[str, KeysValues] = {}
        pace = Pace(tokens.size)
        for i, (layer, past) in enumerate(zip(self._own, cache.layers, strict=True)):
            kind = layer.kind
            if kind not in masks:
                masks[kind] = layer_mask(cache, past, count)
            narrow = only_last and i == last
            attended, newest[kind] = layer.attention(x, past, offset, masks[kind], narrow)  # type: ignore[arg-type]
            if narrow:
                x, extras = x[:, -1:], [None if extra is None else extra[:, -1:] for extra in extras]
            x = layer.end(x, attended, extras[i])
            pace(x, past)
        if only_last:
            offset, masks, newest = offset + count - 1, dict.fromkeys(masks), self._visible(newest)
        for i, layer in enumerate(self._sharers, last + 1):
            attended = layer.attention.shared(x, newest[layer.kind], offset, masks[layer.kind])
            x = layer.end(x, attended, extras[i])
            if not only_last:
                pace(x)
        cache.advance(count)
        return self._norm(x)

    def _visible(self, newest: dict[str, KeysValues]) -> dict[str, KeysValues]:
        """What the last query may see of each kind's keys and values."""
        window = self._shape.window
        return {
            kind: (k[:, :, -window:], v[:, :, -window:]) if kind == SLIDING else (k, v)
            for kind, (k, v) in newest.items()
        }

    def head(self, hidden: mx.array) -> mx.array:
        logits, limit = self._head(hidden), self._shape.softcap
        return logits if limit is None else softcap(limit, logits)

    def excerpt(self) -> tuple[Model, int]:
        firsts = first_of_each(self._shape.kinds[: self._shape.own])
        layers, kinds = [self._own[i] for i in firsts] * 2, [self._shape.kinds[i] for i in firsts] * 2
        part = Gemma4(
            shape=replace(self._shape, kinds=kinds, own=len(kinds)),
            embedding=blank(self._embedding),
            extras=None if self._extras is None else self._blank_extras(len(kinds)),
            layers=layers,
            norm=unchanged,
            head=unchanged,
        )
        return part, firsts[-1] + 1

    def _blank_extras(self, layers: int) -> Extras:
        return lambda tokens, x: [mx.zeros((*tokens.shape, self._shape.extra), x.dtype)] * layers


UNUSED = ("rotary_emb", "input_max", "input_min", "output_max", "output_min")
"""Parts of the names of tensors that follow from the configuration, or that only training needs."""


def text_weights(arrays: Mapping[str, mx.array], tied: bool) -> dict[str, mx.array]:
    """The tensors that the model may use."""
    return {
        name: a
        for name, a in arrays.items()
        if not any(part in name for part in UNUSED) and not (tied and name.startswith("lm_head."))
    }


def build(config: Config, weights: Weights) -> Gemma4:
    """The model. CheckpointError for a configuration or weights that don't fit."""
    return build_text(config, weights, "")


def build_text(config: Config, weights: Weights, prefix: str) -> Gemma4:
    """The model of a checkpoint whose tensors' names begin with `prefix`."""
    shape, ropes = read_shape(config), read_ropes(config)
    config.finish()
    maker = _Maker(weights, shape, ropes, f"{prefix}model")
    embedding = weights.embedding(f"{prefix}model.embed_tokens", shape.vocabulary, shape.width)
    extras = maker.extra_inputs() if shape.extra else None
    layers = []
    for i in range(len(shape.kinds)):
        layers.append(maker.layer(i))
        weights.materialize()
    return Gemma4(
        shape=shape,
        embedding=embedding,
        extras=extras,
        layers=layers,
        norm=norm(weights, f"{prefix}model.norm", shape.width, shape.eps),
        head=embedding.linear if shape.tied else weights.linear(f"{prefix}lm_head", shape.vocabulary, shape.width),
    )


class _Maker:
    """Takes the layers out of the weights."""

    def __init__(
        self, weights: Weights, shape: Shape, ropes: Mapping[str, Callable[[int], rope.Rope]], prefix: str
    ) -> None:
        self.weights, self.shape, self.prefix = weights, shape, prefix
        self.ropes = {SLIDING: ropes[SLIDING](shape.head_dim), FULL: ropes[FULL](shape.global_head_dim)}

    def norm(self, name: str) -> Norm:
        return norm(self.weights, name, self.shape.width, self.shape.eps)

    def extra_inputs(self) -> ExtraInputs:
        weights, shape, width = self.weights, self.shape, len(self.shape.kinds) * self.shape.extra
        return ExtraInputs(
            table=weights.embedding(f"{self.prefix}.embed_tokens_per_layer", shape.extra_vocabulary, width),
            projection=weights.linear(f"{self.prefix}.per_layer_model_projection", width, shape.width),
            norm=norm(weights, f"{self.prefix}.per_layer_projection_norm", shape.extra, shape.eps),
            layers=len(shape.kinds),
            width=shape.extra,
            model_width=shape.width,
        )

    def layer(self, i: int) -> Layer:
        name = f"{self.prefix}.layers.{i}"
        return Layer(
            kind=self.shape.kinds[i],
            attention=self._attention(name, i),
            block=self._mixture(name, i) if self.shape.experts else self._dense(name, i),
            extra=self._extra(name) if self.shape.extra else None,
            scalar=self.weights.array(f"{name}.layer_scalar", (1,)),
        )

    def _attention(self, layer: str, i: int) -> Attention:
        weights, shape, name = self.weights, self.shape, f"{layer}.self_attn"
        kind, own = shape.kinds[i], i < shape.own
        head_dim = shape.global_head_dim if kind == FULL else shape.head_dim
        kv_heads = shape.global_kv_heads if kind == FULL else shape.kv_heads
        values = not (shape.same_values and kind == FULL)
        parts = [(f"{name}.q_proj", shape.heads * head_dim)]
        if own:
            parts += [(f"{name}.{p}_proj", kv_heads * head_dim) for p in ("k", "v")[: 1 + values]]
            norms: HeadScales | mx.array = head_scales(weights, name, shape.heads, kv_heads, head_dim)
        else:
            norms = weights.array(f"{name}.q_norm.weight", (head_dim,))
            weights.discard(*(f"{name}.{unused}" for unused in ("k_proj.", "v_proj.", "k_norm.")))
        return Attention(
            before=self.norm(f"{layer}.input_layernorm"),
            after=self.norm(f"{layer}.post_attention_layernorm"),
            projection=weights.together(parts, shape.width),
            out=weights.linear(f"{name}.o_proj", shape.width, shape.heads * head_dim),
            rope=self.ropes[kind],
            norms=norms,
            heads=shape.heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            values=values,
            eps=shape.eps,
        )

    def _mlp(self, layer: str, i: int) -> FeedForward:
        shape, name = self.shape, f"{layer}.mlp"
        inner = shape.inner * (2 if shape.wide_sharers and i >= shape.own else 1)
        return FeedForward(
            gate_up=self.weights.together([(f"{name}.gate_proj", inner), (f"{name}.up_proj", inner)], shape.width),
            down=self.weights.linear(f"{name}.down_proj", shape.width, inner),
            activation=geglu,
        )

    def _dense(self, layer: str, i: int) -> Dense:
        return Dense(
            before=self.norm(f"{layer}.pre_feedforward_layernorm"),
            after=self.norm(f"{layer}.post_feedforward_layernorm"),
            mlp=self._mlp(layer, i),
        )

    def _mixture(self, layer: str, i: int) -> Mixture:
        weights, shape = self.weights, self.shape
        width, inner, count, name = shape.width, shape.expert_inner, shape.experts, f"{layer}.experts.switch_glu"
        of_router = weights.array(f"{layer}.router.scale", (width,)) * width**-0.5
        of_dense, of_experts = (
            weights.array(f"{layer}.pre_feedforward_layernorm{end}.weight", (width,)) for end in ("", "_2")
        )
        weights.made(of_router)
        gate_up = [(f"{name}.gate_proj", inner), (f"{name}.up_proj", inner)]
        return Mixture(
            befores=(of_dense, of_router, of_experts),
            dense=self._mlp(layer, i),
            dense_after=self.norm(f"{layer}.post_feedforward_layernorm_1"),
            router=weights.linear(f"{layer}.router.proj", count, width),
            scale=weights.array(f"{layer}.router.per_expert_scale", (count,)),
            experts=SparseFeedForward(
                gate_up=weights.experts(gate_up, width, count),
                down=weights.experts([(f"{name}.down_proj", width)], inner, count),
                activation=geglu,
            ),
            experts_after=self.norm(f"{layer}.post_feedforward_layernorm_2"),
            after=self.norm(f"{layer}.post_feedforward_layernorm"),
            chosen=shape.chosen,
            eps=shape.eps,
        )

    def _extra(self, layer: str) -> ExtraInput:
        weights, shape = self.weights, self.shape
        return ExtraInput(
            gate=weights.linear(f"{layer}.per_layer_input_gate", shape.extra, shape.width),
            projection=weights.linear(f"{layer}.per_layer_projection", shape.width, shape.extra),
            after=self.norm(f"{layer}.post_per_layer_input_norm"),
        )
