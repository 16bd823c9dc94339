"""What the models have in common: norm, gated activations, attention, feed-forward blocks.

Plain functions and small objects over `mlx.core`: the graph is built anew for each token, so that each call that isn't
made is time that the accelerator doesn't wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from threading import local

import mlx.core as mx

from llmbench_engine.cache import Cache
from llmbench_engine.kv_cache import KeyValues, LayerCache, WindowKeyValues
from llmbench_engine.rope import Rope
from llmbench_engine.weights import Linear, Projection

Mask = mx.array | str | None
Block = Callable[[mx.array], mx.array]


@partial(mx.compile, shapeless=True)
def swiglu(gate: mx.array, x: mx.array) -> mx.array:
    """silu(gate) * x."""
    return gate * mx.sigmoid(gate) * x


@partial(mx.compile, shapeless=True)
def geglu(gate: mx.array, x: mx.array) -> mx.array:
    """gelu(gate) * x, with the tanh form of gelu."""
    inner = 0.7978845608028654 * (gate + 0.044715 * gate**3)
    return 0.5 * gate * (1 + mx.tanh(inner)) * x


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """Root mean square norm over the last axis."""

    weight: mx.array | None
    eps: float

    def __call__(self, x: mx.array) -> mx.array:
        return mx.fast.rms_norm(x, self.weight, self.eps)


def first_of_each(kinds: Iterable[object]) -> list[int]:
    """Where the first layer of each kind is."""
    firsts: dict[object, int] = {}
    for i, kind in enumerate(kinds):
        firsts.setdefault(kind, i)
    return list(firsts.values())


def blank(embedding: Block) -> Block:
    """Zeros in place of the rows of a table that isn't read yet."""
    return lambda ids: mx.zeros_like(embedding(ids))


def unchanged(x: mx.array) -> mx.array:
    """In place of a norm and a head that aren't read yet."""
    return x


class _Repeated(local):
    """Each thread's: an array can only be computed by the thread that made it, which may never have done so."""

    rows: mx.array | None = None


class HeadScales:
    """The weights `q` and `k` [head_dim] of the norms of q and k: x [..., heads + kv_heads, head_dim] times both.

    They are repeated for each head when they are first used, so that loading takes no memory for it.
    """

    __slots__ = ("_counts", "_repeated", "k", "q")

    def __init__(self, q: mx.array, k: mx.array, heads: int, kv_heads: int) -> None:
        self.q, self.k, self._counts = q, k, (heads, kv_heads)
        self._repeated = _Repeated()

    def __call__(self, x: mx.array) -> mx.array:
        rows = self._repeated.rows
        if rows is None:
            pairs = zip((self.q, self.k), self._counts, strict=True)
            rows = mx.concatenate([mx.repeat(w[None], count, axis=0) for w, count in pairs])
            self._repeated.rows = rows
        return x * rows


class Attention:
    """Self-attention with fused q, k and v; q and k are normed (where the model has it) and rotated together.

    x [batch, tokens, width]; `layer` holds what came before; result [batch, tokens, width]. `only_last`: the result is
    the last token's.
    """

    __slots__ = ("eps", "head_dim", "heads", "kv_heads", "norms", "out", "qkv", "rope", "scale")

    def __init__(
        self,
        *,
        qkv: Projection,
        out: Linear,
        rope: Rope,
        heads: int,
        kv_heads: int,
        head_dim: int,
        norms: HeadScales | None = None,
        eps: float = 0.0,
    ) -> None:
        self.qkv, self.out, self.rope, self.norms, self.eps = qkv, out, rope, norms, eps
        self.heads, self.kv_heads, self.head_dim, self.scale = heads, kv_heads, head_dim, head_dim**-0.5

    def __call__(
        self, x: mx.array, layer: KeyValues | WindowKeyValues, offset: int | mx.array, mask: Mask, only_last: bool
    ) -> mx.array:
        batch, tokens, _ = x.shape
        qkv = self.qkv(x).reshape(batch, tokens, -1, self.head_dim)
        qk, v = mx.split(qkv, [self.heads + self.kv_heads], axis=2)
        if self.norms is not None:
            qk = self.norms(mx.fast.rms_norm(qk, None, self.eps))
        q, k = mx.split(self.rope(qk.swapaxes(1, 2), offset), [self.heads], axis=1)
        k, v = layer.update(k, v.swapaxes(1, 2))
        if only_last:
            mask, (q, k, v) = None, last_query(layer, q, k, v)
        y = mx.fast.scaled_dot_product_attention(q, k, v, scale=self.scale, mask=mask)
        return self.out(y.swapaxes(1, 2).flatten(-2))


class FeedForward:
    """down(activation(gate(x), up(x))), gate and up fused."""

    __slots__ = ("activation", "down", "gate_up")

    def __init__(self, *, gate_up: Projection, down: Linear, activation: Callable[..., mx.array] = swiglu) -> None:
        self.gate_up, self.down, self.activation = gate_up, down, activation

    def __call__(self, x: mx.array) -> mx.array:
        gate, up = mx.split(self.gate_up(x), 2, axis=-1)
        return self.down(self.activation(gate, up))


def full_mask(cache: Cache, layer: KeyValues, tokens: int) -> Mask:
    """For full attention. Several new tokens a row only come to rows of one length (see `cache`)."""
    if tokens > 1:
        return "causal"
    return cache.mask(layer.length + 1)


def window_mask(cache: Cache, layer: WindowKeyValues, tokens: int) -> Mask:
    """For attention to the last `window` tokens, the current one included."""
    before = min(layer.end - layer.start, layer.window - 1)
    if tokens == 1:
        return cache.mask(before + 1)
    if before + tokens <= layer.window:
        return "causal"
    rows = mx.arange(before, before + tokens)[:, None]
    columns = mx.arange(before + tokens)[None]
    return (columns <= rows) & (columns > rows - layer.window)


def layer_mask(cache: Cache, layer: LayerCache, tokens: int) -> Mask:
    """`full_mask` or `window_mask`, as the layer's cache asks for."""
    if isinstance(layer, WindowKeyValues):
        return window_mask(cache, layer, tokens)
    assert isinstance(layer, KeyValues)
    return full_mask(cache, layer, tokens)


def last_query(
    layer: KeyValues | WindowKeyValues, q: mx.array, k: mx.array, v: mx.array
) -> tuple[mx.array, mx.array, mx.array]:
    """Of several new tokens a row only the last one's query, and all that it may see: it needs no mask."""
    if isinstance(layer, WindowKeyValues):
        k, v = k[:, :, -layer.window :], v[:, :, -layer.window :]
    return q[:, :, -1:], k, v
