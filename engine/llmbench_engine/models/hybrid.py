"""What Qwen 3.5 and its mixture of experts share: gated delta nets, with gated attention every few layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import mlx.core as mx

from llmbench_engine.cache import Cache, RecurrentState
from llmbench_engine.gated_delta import update
from llmbench_engine.kv_cache import KeyValues
from llmbench_engine.layers import Block, HeadScales, Mask, Norm, blank, first_of_each, full_mask, last_query, unchanged
from llmbench_engine.pace import Pace
from llmbench_engine.rope import Rope
from llmbench_engine.transformer import Model
from llmbench_engine.weights import Linear, Projection

L2_EPS = 1e-6
"""Added to the sum of squares of q and of k."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetShape:
    """The sizes of a gated delta net; `taps` is the length of its convolution."""

    key_heads: int
    heads: int
    key_width: int
    width: int
    taps: int

    @property
    def keys(self) -> int:
        return self.key_heads * self.key_width

    @property
    def values(self) -> int:
        return self.heads * self.width

    @property
    def mixed(self) -> int:
        """Channels that go through the convolution: q, k and v."""
        return 2 * self.keys + self.values


@partial(mx.compile, shapeless=True)
def convolve(taps: Sequence[mx.array], inputs: Sequence[mx.array]) -> mx.array:
    """silu(Σ taps[i] * inputs[i]), each channel by itself, summed in float32."""
    total = sum(w.astype(mx.float32) * x.astype(mx.float32) for w, x in zip(taps, inputs, strict=True))
    y = total.astype(inputs[0].dtype)  # type: ignore[union-attr]
    return y * mx.sigmoid(y)


@partial(mx.compile, shapeless=True)
def gates(rate: mx.array, bias: mx.array, a: mx.array, b: mx.array) -> tuple[mx.array, mx.array]:
    """γ = exp(rate * softplus(a + bias)), with rate = -exp(A_log) in float32; and β = sigmoid(b)."""
    return mx.exp(rate * mx.logaddexp(a + bias, 0)), mx.sigmoid(b)


@partial(mx.compile, shapeless=True)
def gate_in_float32(x: mx.array, gate: mx.array) -> mx.array:
    """silu(gate) * x, rounded once."""
    gate = gate.astype(mx.float32)
    return (gate * mx.sigmoid(gate) * x.astype(mx.float32)).astype(x.dtype)


@partial(mx.compile, shapeless=True)
def times_sigmoid(x: mx.array, gate: mx.array) -> mx.array:
    return x * mx.sigmoid(gate)


NetOutputs = tuple[mx.array, mx.array]


class NetFunctions:
    """What gated delta nets of one shape compute between their projections; all layers of a model share it.

    For one token a row it is compiled: building its graph then takes a quarter of the time, and one trace does for all
    layers, since their weights are arguments.
    """

    def __init__(self, shape: NetShape, eps: float) -> None:
        self.shape = shape
        self._mixed, self._keys = shape.mixed, 2 * shape.keys
        self._cuts = [shape.mixed, shape.mixed + shape.values, shape.mixed + shape.values + shape.heads]
        self._eps = eps
        # x / sqrt(Σx² + ε) = rms_norm(x, ε / width) / sqrt(width)
        self._l2_eps, self._for_k = L2_EPS / shape.key_width, shape.key_width**-0.5
        self.one = mx.compile(self._one)

    def _one(
        self,
        projected: mx.array,
        before: Sequence[mx.array],
        memory: mx.array,
        taps: Sequence[mx.array],
        rate: mx.array,
        bias: mx.array,
        norm: mx.array,
    ) -> tuple[mx.array, mx.array, mx.array]:
        """One token a row: result, what the convolution has to keep of it, and the memory."""
        last = projected[:, 0, : self._mixed]
        mixed = convolve(taps, [*before, last])[:, None]
        y, memory = self.many(projected, mixed, memory, rate, bias, norm)
        return y, last, memory

    def many(
        self,
        projected: mx.array,
        mixed: mx.array,
        memory: mx.array,
        rate: mx.array,
        bias: mx.array,
        norm: mx.array,
    ) -> NetOutputs:
        """From the convolution's result to that of the net before its last projection; and the memory."""
        batch, tokens, _ = projected.shape
        shape = self.shape
        _, z, b, a = mx.split(projected, self._cuts, axis=-1)
        qk, v = mx.split(mixed, [self._keys], axis=-1)
        qk = mx.fast.rms_norm(qk.reshape(batch, tokens, 2, shape.key_heads, shape.key_width), None, self._l2_eps)
        # Rounded before they become float32, as mlx-lm does.
        q, k = qk[:, :, 0] * self._for_k**2, qk[:, :, 1] * self._for_k
        v = v.reshape(batch, tokens, shape.heads, shape.width)
        decay, beta = gates(rate, bias, a, b)
        y, memory = update(q.astype(mx.float32), k.astype(mx.float32), v, decay, beta, memory)
        y = mx.fast.rms_norm(y.astype(projected.dtype), norm, self._eps)
        return gate_in_float32(y, z.reshape(v.shape)).reshape(batch, tokens, -1), memory


class GatedDeltaNet:
    """x [batch, tokens, width] → the same; `past` holds the state of every row.

    `project` gives q, k, v, z, b and a behind each other.
    """

    __slots__ = ("bias", "functions", "norm", "out", "project", "rate", "taps")

    def __init__(
        self,
        *,
        functions: NetFunctions,
        project: Projection,
        taps: Sequence[mx.array],
        rate: mx.array,
        bias: mx.array,
        norm: mx.array,
        out: Linear,
    ) -> None:
        self.functions, self.project, self.taps, self.rate, self.bias = functions, project, list(taps), rate, bias
        self.norm, self.out = norm, out

    def __call__(self, x: mx.array, past: RecurrentState) -> mx.array:
        projected = self.project(x)
        if past.memory is None:
            self._begin(past, x)
        assert past.memory is not None
        if x.shape[1] == 1:
            y, last, past.memory = self.functions.one(
                projected, past.inputs, past.memory, self.taps, self.rate, self.bias, self.norm
            )
            past.inputs = [*past.inputs[1:], last]
        else:
            mixed = self._convolved(projected[..., : self.functions.shape.mixed], past)
            y, past.memory = self.functions.many(projected, mixed, past.memory, self.rate, self.bias, self.norm)
        return self.out(y)

    def _begin(self, past: RecurrentState, x: mx.array) -> None:
        batch, shape = x.shape[0], self.functions.shape
        past.inputs = [mx.zeros((batch, shape.mixed), x.dtype) for _ in range(shape.taps - 1)]
        past.memory = mx.zeros((batch, shape.heads, shape.width, shape.key_width))

    def _convolved(self, inputs: mx.array, past: RecurrentState) -> mx.array:
        """The convolution over the tokens and those before; keeps the last inputs for the next call."""
        tokens, before = inputs.shape[1], len(past.inputs)
        padded = mx.concatenate([*(a[:, None] for a in past.inputs), inputs], axis=1)
        # A view would keep the whole chunk's inputs in memory.
        kept = mx.contiguous(padded[:, tokens:])
        past.inputs = [kept[:, i] for i in range(before)]
        return convolve(self.taps, [padded[:, i : i + tokens] for i in range(before + 1)])


class GatedAttention:
    """Full attention whose result is gated: out(attention(x) * sigmoid(gate(x))).

    `project` gives the gates, q, k and v behind each other.
    """

    __slots__ = ("cut", "eps", "head_dim", "heads", "kv_heads", "norms", "out", "project", "rope")

    def __init__(
        self,
        *,
        project: Projection,
        out: Linear,
        rope: Rope,
        norms: HeadScales,
        heads: int,
        kv_heads: int,
        head_dim: int,
        eps: float,
    ) -> None:
        self.project, self.out, self.rope, self.norms, self.eps = project, out, rope, norms, eps
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.cut = heads * head_dim

    def __call__(self, x: mx.array, past: KeyValues, offset: int | mx.array, mask: Mask, only_last: bool) -> mx.array:
        batch, tokens, _ = x.shape
        gate, qkv = mx.split(self.project(x), [self.cut], axis=-1)
        qk, v = mx.split(qkv.reshape(batch, tokens, -1, self.head_dim), [self.heads + self.kv_heads], axis=2)
        qk = self.norms(mx.fast.rms_norm(qk, None, self.eps))
        q, k = mx.split(self.rope(qk.swapaxes(1, 2), offset), [self.heads], axis=1)
        k, v = past.update(k, v.swapaxes(1, 2))
        if only_last:
            mask, gate = None, gate[:, -1:]
            q, k, v = last_query(past, q, k, v)
        y = mx.fast.scaled_dot_product_attention(q, k, v, scale=self.head_dim**-0.5, mask=mask)
        return self.out(times_sigmoid(y.swapaxes(1, 2).flatten(-2), gate))


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """x + mixer(norm(x)), then that + block(norm(that))."""

    mixer: GatedDeltaNet | GatedAttention
    block: Block
    mixer_norm: Norm
    block_norm: Norm


class Hybrid:
    """The decoder."""

    def __init__(self, *, embedding: Block, layers: Sequence[Layer], norm: Block, head: Block) -> None:
        self._embedding, self._layers, self._norm, self._head = embedding, layers, norm, head
        kinds = [isinstance(layer.mixer, GatedAttention) for layer in layers]
        self._attending = [i for i, attends in enumerate(kinds) if attends]

    def make_cache(self, rows: int, room: int) -> Cache:
        attending = set(self._attending)
        return Cache([KeyValues(room) if i in attending else RecurrentState() for i in range(len(self._layers))], rows)

    def __call__(self, tokens: mx.array, cache: Cache, *, only_last: bool = False) -> mx.array:
        x = self._embedding(tokens)
        count, offset, end = tokens.shape[1], cache.offset, len(self._layers) - 1
        only_last = only_last and count > 1
        mask, pace = self._mask(cache, count), Pace(tokens.size)
        for i, (layer, past) in enumerate(zip(self._layers, cache.layers, strict=True)):
            mixer, narrow = layer.mixer, only_last and i == end
            if isinstance(mixer, GatedDeltaNet):
                mixed = mixer(layer.mixer_norm(x), past)  # type: ignore[arg-type]
            else:
                mixed = mixer(layer.mixer_norm(x), past, offset, mask, narrow)  # type: ignore[arg-type]
            if narrow:
                x, mixed = x[:, -1:], mixed[:, -1:]
            x = x + mixed
            x = x + layer.block(layer.block_norm(x))
            pace(x, past)
        cache.advance(count)
        return self._norm(x)

    def _mask(self, cache: Cache, tokens: int) -> Mask:
        if not self._attending:
            return None
        first = cache.layers[self._attending[0]]
        assert isinstance(first, KeyValues)
        return full_mask(cache, first, tokens)

    def head(self, hidden: mx.array) -> mx.array:
        return self._head(hidden)

    def excerpt(self) -> tuple[Model, int]:
        firsts = first_of_each(i in self._attending for i in range(len(self._layers)))
        layers = [self._layers[i] for i in firsts] * 2
        return Hybrid(embedding=blank(self._embedding), layers=layers, norm=unchanged, head=unchanged), firsts[-1] + 1
