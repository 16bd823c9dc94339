"""The decoder that Llama, Qwen 2, Qwen 3 and Qwen 3 MoE share: norm, attention, norm, feed-forward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import mlx.core as mx

from llmbench_engine.cache import Cache
from llmbench_engine.kv_cache import KeyValues
from llmbench_engine.layers import Attention, Block, Norm, blank, first_of_each, full_mask, unchanged
from llmbench_engine.pace import Pace


class Model(Protocol):
    """A loaded model. It holds weights only; all state is in the cache."""

    def make_cache(self, rows: int, room: int) -> Cache:
        """An empty cache for `rows` sequences, with room for `room` tokens each."""

    def __call__(self, tokens: mx.array, cache: Cache, *, only_last: bool = False) -> mx.array:
        """tokens [rows, n] → hidden states [rows, n, width]; the cache has seen the tokens afterwards.

        `only_last`: those of the last token are enough, [rows, 1, width]. What follows the last keys and values that
        are kept then needn't be computed for the others.
        """

    def head(self, hidden: mx.array) -> mx.array:
        """Hidden states [..., width] → logits [..., vocabulary]."""

    def excerpt(self) -> tuple[Model, int]:
        """A model that needs only some first layers' weights, and how many.

        It has one layer of each kind, two times: what reads a prompt treats the last layer in another way. Those kinds
        count that have a cache of their own: layers that share others' come late.
        """


class DecoderLayer:
    """x + attention(norm(x)), then that + feed_forward(norm(that))."""

    __slots__ = ("attention", "attention_norm", "feed_forward", "feed_forward_norm")

    def __init__(
        self, *, attention: Attention, feed_forward: Block, attention_norm: Norm, feed_forward_norm: Norm
    ) -> None:
        self.attention, self.feed_forward = attention, feed_forward
        self.attention_norm, self.feed_forward_norm = attention_norm, feed_forward_norm


class Transformer:
    """A stack of decoder layers with full attention."""

    def __init__(self, *, embedding: Block, layers: Sequence[DecoderLayer], norm: Block, head: Block) -> None:
        self._embedding, self._layers, self._norm, self._head = embedding, layers, norm, head

    def make_cache(self, rows: int, room: int) -> Cache:
        return Cache([KeyValues(room) for _ in self._layers], rows)

    def __call__(self, tokens: mx.array, cache: Cache, *, only_last: bool = False) -> mx.array:
        x = self._embedding(tokens)
        count, offset, end = tokens.shape[1], cache.offset, len(self._layers) - 1
        only_last = only_last and count > 1
        first = cache.layers[0]
        assert isinstance(first, KeyValues)
        mask, pace = full_mask(cache, first, count), Pace(tokens.size)
        for i, (layer, past) in enumerate(zip(self._layers, cache.layers, strict=True)):
            narrow = only_last and i == end
            y = layer.attention(layer.attention_norm(x), past, offset, mask, narrow)  # type: ignore[arg-type]
            x = (x[:, -1:] if narrow else x) + y
            x = x + layer.feed_forward(layer.feed_forward_norm(x))
            pace(x, past)
        cache.advance(count)
        return self._norm(x)

    def head(self, hidden: mx.array) -> mx.array:
        return self._head(hidden)

    def excerpt(self) -> tuple[Model, int]:
        firsts = first_of_each(type(layer.feed_forward) for layer in self._layers)
        layers = [self._layers[i] for i in firsts] * 2
        part = Transformer(embedding=blank(self._embedding), layers=layers, norm=unchanged, head=unchanged)
        return part, firsts[-1] + 1
