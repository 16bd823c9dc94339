"""The blocks of Gemma 4's layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import mlx.core as mx

from llmbench_engine import rope
from llmbench_engine.kv_cache import KeyValues, WindowKeyValues
from llmbench_engine.layers import FeedForward, HeadScales, Mask, Norm, geglu, last_query
from llmbench_engine.sparse import SparseFeedForward, top_k
from llmbench_engine.weights import Embedding, Linear, Projection

KeysValues = tuple[mx.array, mx.array]


@partial(mx.compile, shapeless=True)
def plus_times(x: mx.array, y: mx.array, factor: mx.array) -> mx.array:
    """(x + y) * factor."""
    return (x + y) * factor


@partial(mx.compile, shapeless=True)
def weigh(y: mx.array, shares: mx.array, scales: mx.array) -> mx.array:
    """Experts' results [rows, k, width] times their shares and scales [rows, k, 1]."""
    return (shares * scales) * y


@partial(mx.compile, shapeless=True)
def three_times(x: mx.array, a: mx.array, b: mx.array, c: mx.array) -> tuple[mx.array, mx.array, mx.array]:
    """x * a, x * b and x * c."""
    return x * a, x * b, x * c


class Attention:
    """norm(attention(norm(x))); heads are normed, not scaled. Returns the keys and values that it used, too.

    q, k and v are one matmul, one norm (that of v has no weight), and one rotation. `norms`: of q and k; of q alone
    [head_dim] where keys and values are an earlier layer's.
    """

    __slots__ = (
        "after",
        "before",
        "eps",
        "head_dim",
        "heads",
        "kv_heads",
        "norms",
        "out",
        "projection",
        "rope",
        "values",
    )

    def __init__(
        self,
        *,
        before: Norm,
        after: Norm,
        projection: Projection,
        out: Linear,
        rope: rope.Rope,
        norms: HeadScales | mx.array,
        heads: int,
        kv_heads: int,
        head_dim: int,
        values: bool,
        eps: float,
    ) -> None:
        self.before, self.after, self.projection, self.out, self.rope, self.norms = (
            before,
            after,
            projection,
            out,
            rope,
            norms,
        )
        self.heads, self.kv_heads, self.head_dim, self.values, self.eps = heads, kv_heads, head_dim, values, eps

    def __call__(
        self, x: mx.array, past: KeyValues | WindowKeyValues, offset: int | mx.array, mask: Mask, only_last: bool
    ) -> tuple[mx.array, KeysValues]:
        """With keys and values of its own; `values`: projected, else they are the keys before norm and rotation."""
        assert isinstance(self.norms, HeadScales)
        batch, tokens, _ = x.shape
        heads, both = self.heads, self.heads + self.kv_heads
        all_heads = self.projection(self.before(x)).reshape(batch, tokens, -1, self.head_dim)
        all_heads = mx.fast.rms_norm(all_heads, None, self.eps)
        if self.values:
            qk, v = mx.split(all_heads, [both], axis=2)
        else:
            qk, v = all_heads, all_heads[:, :, heads:]
        q, k = mx.split(self.rope(self.norms(qk).swapaxes(1, 2), offset), [heads], axis=1)
        k, v = past.update(k, v.swapaxes(1, 2))
        if only_last:
            mask, (q, k, v) = None, last_query(past, q, k, v)
        return self.attend(q, k, v, mask), (k, v)

    def shared(self, x: mx.array, keys_values: KeysValues, offset: int | mx.array, mask: Mask) -> mx.array:
        """With those of an earlier layer."""
        assert isinstance(self.norms, mx.array)
        batch, tokens, _ = x.shape
        q = self.projection(self.before(x)).reshape(batch, tokens, self.heads, self.head_dim)
        q = self.rope(mx.fast.rms_norm(q, self.norms, self.eps).swapaxes(1, 2), offset)
        return self.attend(q, *keys_values, mask)

    def attend(self, q: mx.array, k: mx.array, v: mx.array, mask: Mask) -> mx.array:
        y = mx.fast.scaled_dot_product_attention(q, k, v, scale=1.0, mask=mask)
        return self.after(self.out(y.swapaxes(1, 2).flatten(-2)))


class Dense:
    """norm(mlp(norm(x)))."""

    __slots__ = ("after", "before", "mlp")

    def __init__(self, *, before: Norm, after: Norm, mlp: FeedForward) -> None:
        self.before, self.after, self.mlp = before, after, mlp

    def __call__(self, x: mx.array) -> mx.array:
        return self.after(self.mlp(self.before(x)))


class Mixture:
    """norm(norm(mlp(norm(x))) + norm(experts(norm(x)))), the router behind a norm of its own.

    The three norms of x have one root mean square: it is divided by once. `scale` is per expert.
    """

    __slots__ = (
        "after",
        "befores",
        "chosen",
        "dense",
        "dense_after",
        "eps",
        "experts",
        "experts_after",
        "router",
        "scale",
    )

    def __init__(
        self,
        *,
        befores: tuple[mx.array, mx.array, mx.array],
        dense: FeedForward,
        dense_after: Norm,
        router: Linear,
        scale: mx.array,
        experts: SparseFeedForward,
        experts_after: Norm,
        after: Norm,
        chosen: int,
        eps: float,
    ) -> None:
        self.befores, self.eps, self.chosen, self.after = befores, eps, chosen, after
        self.dense, self.dense_after = dense, dense_after
        self.router, self.scale, self.experts, self.experts_after = router, scale, experts, experts_after

    def __call__(self, x: mx.array) -> mx.array:
        rows = mx.fast.rms_norm(x, None, self.eps).flatten(0, 1)
        dense, routed, sparse = three_times(rows, *self.befores)
        scores = self.router(routed)
        chosen = top_k(scores, self.chosen)
        shares = mx.softmax(mx.take_along_axis(scores, chosen, axis=-1), axis=-1)
        y = weigh(self.experts(sparse, chosen), shares[..., None], self.scale[chosen][..., None]).sum(axis=-2)
        y = self.dense_after(self.dense(dense)) + self.experts_after(y)
        return self.after(y.reshape(x.shape))


class ExtraInput:
    """What a layer's own input of the token adds at its end: norm(projection(gelu(gate(x)) * input))."""

    __slots__ = ("after", "gate", "projection")

    def __init__(self, *, gate: Linear, projection: Linear, after: Norm) -> None:
        self.gate, self.projection, self.after = gate, projection, after

    def __call__(self, x: mx.array, extra: mx.array) -> mx.array:
        return self.after(self.projection(geglu(self.gate(x), extra)))


class ExtraInputs:
    """All layers' own inputs of the tokens: rows of a table, plus a projection of the embeddings."""

    def __init__(
        self, *, table: Embedding, projection: Linear, norm: Norm, layers: int, width: int, model_width: int
    ) -> None:
        self._table, self._projection, self._norm, self._layers, self._width = table, projection, norm, layers, width
        self._table_scale, self._projection_scale = width**0.5, model_width**-0.5

    def __call__(self, tokens: mx.array, x: mx.array) -> Sequence[mx.array]:
        """One [rows, n, width] for each layer."""
        projected = (self._projection(x) * self._projection_scale).reshape(*tokens.shape, self._layers, self._width)
        rows = (self._table(tokens) * self._table_scale).reshape(projected.shape)
        extra = (self._norm(projected) + rows) * 2.0**-0.5
        layers: Sequence[mx.array] = mx.split(extra.flatten(-2), self._layers, axis=-1)  # type: ignore[assignment]
        return layers


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer; `scalar` [1] multiplies its result."""

    kind: str
    attention: Attention
    block: Callable[[mx.array], mx.array]
    extra: ExtraInput | None
    scalar: mx.array

    def end(self, x: mx.array, attended: mx.array, extra: mx.array | None) -> mx.array:
        """What follows attention."""
        x = x + attended
        if self.extra is None or extra is None:
            return plus_times(x, self.block(x), self.scalar)
        x = x + self.block(x)
        return plus_times(x, self.extra(x, extra), self.scalar)
