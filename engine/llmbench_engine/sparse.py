"""The sparse feed-forward block of a mixture of experts: each row goes through the few experts chosen for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import local

import mlx.core as mx

from llmbench_engine.backend import on_cuda
from llmbench_engine.layers import swiglu
from llmbench_engine.weights import Experts, Linear

SORT_FROM = 64
"""From this many (row, expert) pairs on, sorting them by expert pays for itself."""

UNPACK_FROM = 4096
"""From this many pairs on, MLX's CUDA backend multiplies faster by unpacked experts: 2 to 5 times, on an H200."""

UNPACKED_BYTES = 192 << 20
"""Memory for the experts that are unpacked at once."""


class _Indices(local):
    """Each thread's: an array can only be computed by the thread that made it, which may never have done so."""

    def __init__(self) -> None:
        self.made: dict[tuple[int, int], tuple[mx.array, mx.array]] = {}


class SparseFeedForward:
    """The experts' part of a mixture.

    x [rows, width], experts [rows, k], result [rows, k, width] (not weighted yet).
    """

    __slots__ = ("_indices", "activation", "down", "gate_up")

    def __init__(self, *, gate_up: Experts, down: Experts, activation: Callable[..., mx.array] = swiglu) -> None:
        self.gate_up, self.down, self.activation = gate_up, down, activation
        self._indices = _Indices()

    def __call__(self, x: mx.array, experts: mx.array) -> mx.array:
        rows, chosen = experts.shape
        if rows * chosen >= SORT_FROM:
            return self._sorted(x, experts)
        outer, inner = self.indices(rows, chosen)
        y = self.gate_up(x[:, None], outer, experts)
        gate, up = mx.split(y, 2, axis=-1)
        y = self.activation(gate, up).reshape(rows * chosen, 1, -1)
        return self.down(y, inner, experts).squeeze(-2)

    def indices(self, rows: int, chosen: int) -> tuple[mx.array, mx.array]:
        """Which row of the input each pair takes; made once, else each call would make them anew."""
        made = self._indices.made
        found = made.get((rows, chosen))
        if found is None:
            inner = mx.arange(rows * chosen, dtype=mx.uint32).reshape(rows, chosen)
            found = made[rows, chosen] = (inner // chosen, inner)
        return found

    def _sorted(self, x: mx.array, experts: mx.array) -> mx.array:
        """Pairs in order of their expert, so that each expert's weights are read once."""
        rows, chosen = experts.shape
        flat = experts.flatten()
        order = mx.argsort(flat)
        back = mx.argsort(order)
        # Not x[...][:, None]: MLX's CUDA backend takes rows of that for columns, and `gather_mm` gives noise (0.32.4).
        x, flat = x[(order // chosen)[:, None]], flat[order]
        if _unpacking_pays(self.gate_up, flat.size):
            y = self.unpacked(x, flat, at_once=self._experts_at_once(x.dtype))
        else:
            y = self.packed(x, flat)
        return y[back].reshape(rows, chosen, -1)

    def packed(self, x: mx.array, experts: mx.array) -> mx.array:
        """x [pairs, 1, width], their experts [pairs] in rising order; result [pairs, 1, width]."""
        return _through(self.gate_up, self.down, self.activation, x, experts)

    def unpacked(self, x: mx.array, experts: mx.array, *, at_once: int) -> mx.array:
        """`packed`, with `at_once` experts unpacked at a time.

        Waits for each lot, else all of them would be in memory.
        """
        parts = []
        for first, end, rows in blocks(experts, at_once):
            gate_up, down = (unpack(e, first, end, x.dtype) for e in (self.gate_up, self.down))
            part = _through(gate_up, down, self.activation, x[rows], experts[rows] - first)
            mx.eval(part)
            parts.append(part)
        return mx.concatenate(parts)

    def _experts_at_once(self, dtype: mx.Dtype) -> int:
        count, outputs, _ = self.gate_up.linear.weight.shape
        width = self.down.linear.weight.shape[1]
        values = outputs * width + width * (outputs // 2)
        return max(1, min(count, UNPACKED_BYTES // (values * dtype.size)))


def _through(
    gate_up: Experts, down: Experts, activation: Callable[..., mx.array], x: mx.array, experts: mx.array
) -> mx.array:
    gate, up = mx.split(gate_up(x, None, experts, ordered=True), 2, axis=-1)
    return down(activation(gate, up), None, experts, ordered=True)


def _unpacking_pays(experts: Experts, pairs: int) -> bool:
    """The one place that knows backends apart: on Metal the packed kernel reads each expert once and wins."""
    return pairs >= UNPACK_FROM and experts.linear.scales is not None and on_cuda()


def blocks(experts: mx.array, at_once: int) -> Iterator[tuple[int, int, slice]]:
    """(first expert, end, its rows) of the sorted `experts`, `at_once` experts each; those without rows left out."""
    last = int(experts[-1].item())  # type: ignore[arg-type]
    firsts = list(range(0, last + 1, at_once))
    edges = mx.array([*firsts, last + 1], dtype=experts.dtype)
    at: list[int] = (experts[None] < edges[:, None]).sum(axis=-1).tolist()  # type: ignore[assignment]
    for first, start, stop in zip(firsts, at, at[1:], strict=False):
        if start < stop:
            yield first, min(first + at_once, last + 1), slice(start, stop)


def unpack(experts: Experts, first: int, end: int, dtype: mx.Dtype) -> Experts:
    """Some of the experts, as plain matrices of this type: else those of mxfp4 would be bfloat16, whatever x is."""
    w = experts.linear
    assert w.scales is not None
    biases = None if w.biases is None else w.biases[first:end]
    weight = mx.dequantize(w.weight[first:end], w.scales[first:end], biases, w.group_size, w.bits, w.mode, dtype=dtype)
    return Experts(Linear(weight, bias=None if experts.bias is None else experts.bias[first:end]))


def top_k(scores: mx.array, k: int) -> mx.array:
    """Indices of the k largest of the last axis, in no particular order."""
    return mx.argpartition(scores, kth=-k, axis=-1)[..., -k:]
