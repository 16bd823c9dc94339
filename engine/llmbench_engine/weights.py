"""A checkpoint's weights: read lazily, taken by name, checked for shape, fused where one kernel can do for several."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import mlx.core as mx

from llmbench_engine.config import Quantization, QuantizationTable
from llmbench_engine.errors import CheckpointError
from llmbench_engine.reading import Behind, Part, Reading

PACKED_BITS = 32
"""Quantized values lie packed in 32-bit words."""

FLOATS = (mx.bfloat16, mx.float16, mx.float32)
WORDS = (mx.uint32,)
BYTES = (mx.uint8,)
"""What plain weights, packed ones, and the scales of small floating-point numbers are made of."""


class Linear:
    """x @ W.T + b, the weight packed or plain. Shapes: x [..., in], weight [out, in], result [..., out]."""

    __slots__ = ("bias", "biases", "bits", "group_size", "mode", "scales", "weight")

    def __init__(
        self,
        weight: mx.array,
        *,
        scales: mx.array | None = None,
        biases: mx.array | None = None,
        bias: mx.array | None = None,
        quantization: Quantization | None = None,
    ) -> None:
        self.weight = weight
        self.scales = scales
        self.biases = biases
        self.bias = bias
        self.bits = quantization.bits if quantization else 0
        self.group_size = quantization.group_size if quantization else 0
        self.mode = quantization.mode if quantization else ""

    def __call__(self, x: mx.array) -> mx.array:
        if self.scales is None:
            return x @ self.weight.T if self.bias is None else mx.addmm(self.bias, x, self.weight.T)
        y = mx.quantized_matmul(x, self.weight, self.scales, self.biases, True, self.group_size, self.bits, self.mode)
        return y if self.bias is None else y + self.bias

    @property
    def arrays(self) -> list[mx.array]:
        """Everything that has to be in memory before the first call."""
        return [a for a in (self.weight, self.scales, self.biases, self.bias) if a is not None]


class Experts:
    """A stack of linear layers of which each row of x uses some. weight [experts, out, in]."""

    __slots__ = ("bias", "linear")

    def __init__(self, linear: Linear) -> None:
        self.linear = linear
        self.bias = linear.bias
        linear.bias = None

    def __call__(self, x: mx.array, rows: mx.array | None, experts: mx.array, *, ordered: bool = False) -> mx.array:
        """x [rows, 1, in], indices [...]: result [..., 1, out]. `ordered`: `experts` is sorted."""
        y = self.matmul(x, rows, experts, ordered=ordered)
        return y if self.bias is None else y + mx.expand_dims(self.bias[experts], -2)

    def matmul(self, x: mx.array, rows: mx.array | None, experts: mx.array, *, ordered: bool = False) -> mx.array:
        """The same without the bias."""
        w = self.linear
        if w.scales is None:
            return mx.gather_mm(x, w.weight.swapaxes(-1, -2), rows, experts, sorted_indices=ordered)
        return mx.gather_qmm(
            x, w.weight, w.scales, w.biases, rows, experts, True, w.group_size, w.bits, w.mode,
            sorted_indices=ordered,
        )  # fmt: skip

    @property
    def arrays(self) -> list[mx.array]:
        return [*self.linear.arrays, *([] if self.bias is None else [self.bias])]


class Parallel:
    """Layers with one input that can't be fused, since they are packed in different ways."""

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[Linear]) -> None:
        self.parts = parts

    def __call__(self, x: mx.array) -> mx.array:
        return mx.concatenate([part(x) for part in self.parts], axis=-1)


Projection = Callable[[mx.array], mx.array]


class Embedding:
    """Rows of a table by token id; also its own output head where the two are tied."""

    __slots__ = ("linear",)

    def __init__(self, linear: Linear) -> None:
        self.linear = linear

    def __call__(self, ids: mx.array) -> mx.array:
        w = self.linear
        if w.scales is None:
            return w.weight[ids]
        return mx.dequantize(
            w.weight[ids],
            w.scales[ids],
            None if w.biases is None else w.biases[ids],
            group_size=w.group_size,
            bits=w.bits,
            mode=w.mode,
        )


class Weights:
    """Takes each weight out of a checkpoint once; what is left at the end is an error."""

    def __init__(
        self,
        arrays: Mapping[str, mx.array],
        quantization: QuantizationTable,
        path: Path,
        reading: Reading | None = None,
    ) -> None:
        self._arrays = dict(arrays)
        self._quantization = quantization
        self.path = path
        self.reading = Behind() if reading is None else reading
        self._part, self._embeddings = Part(), Part()
        self._before: dict[str, mx.array] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def array(self, name: str, shape: Sequence[int]) -> mx.array:
        """The array `name`. CheckpointError where it is missing or has another shape."""
        found = self._checked(name, tuple(shape))
        self.made(found)
        return found

    def made(self, *arrays: mx.array) -> None:
        """Arrays of which the model is made: they are computed while it is loaded."""
        self._part.results.extend(arrays)

    def vectors(self, parts: Sequence[tuple[str, int]]) -> mx.array:
        """Several vectors behind each other."""
        found = [self._checked(name, (width,)) for name, width in parts]
        joined = found[0] if len(found) == 1 else mx.concatenate(found)
        self.made(joined)
        return joined

    def rearrange(self, name: str, how: Callable[[mx.array], mx.array]) -> None:
        """Put the rows of the layer `name` into another order: `how` is given all of its arrays, rows first."""
        for suffix in ("weight", "scales", "biases", "bias"):
            if (full := f"{name}.{suffix}") in self._arrays:
                self._before[full] = self._arrays[full]
                self._arrays[full] = how(self._arrays[full])

    def discard(self, *prefixes: str) -> None:
        """Forget tensors that the checkpoint holds, but the model has no use for."""
        for name in [n for n in self._arrays if n.startswith(prefixes)]:
            del self._arrays[name]

    def linear(self, name: str, outputs: int, inputs: int, *, bias: bool = False) -> Linear:
        """The linear layer `name`, packed or not."""
        return self.fused([(name, outputs)], inputs, bias=bias)

    def fused(self, parts: Sequence[tuple[str, int]], inputs: int, *, bias: bool = False) -> Linear:
        """Several layers with one input as one, their outputs behind each other.

        Rows of a packed matrix don't depend on each other, so the results are those of the parts. CheckpointError
        where the parts are packed in different ways: see `together`.
        """
        built = self._build(parts, inputs, bias=bias, experts=None)
        self.made(*built.arrays)
        return built

    def together(self, parts: Sequence[tuple[str, int]], inputs: int, *, bias: bool = False) -> Projection:
        """Several layers with one input: fused where they are packed alike, else one after the other."""
        if self.can_fuse(*(name for name, _ in parts)):
            return self.fused(parts, inputs, bias=bias)
        return Parallel([self.linear(name, outputs, inputs, bias=bias) for name, outputs in parts])

    def experts(self, parts: Sequence[tuple[str, int]], inputs: int, count: int, *, bias: bool = False) -> Experts:
        """The same for stacks of `count` experts."""
        built = self._build(parts, inputs, bias=bias, experts=count)
        self.made(*built.arrays)
        return Experts(built)

    def can_fuse(self, *names: str) -> bool:
        """Whether all of these are plain, or all packed in the same way."""
        kinds = {self._quantization.of(n) if f"{n}.scales" in self._arrays else None for n in names}
        return len(kinds) == 1

    def embedding(self, name: str, rows: int, width: int) -> Embedding:
        """The table `name`, which is read last: until then there is room for the parts of fused weights."""
        part, self._part = self._part, self._embeddings
        try:
            return Embedding(self.linear(name, rows, width))
        finally:
            self._part = part

    def finish(self) -> None:
        """CheckpointError, with the first names, where the checkpoint holds weights that the model doesn't have."""
        if self._arrays:
            names = sorted(self._arrays)
            shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            problem = f"holds weights that the model has no place for: {shown}"
            raise CheckpointError(problem, path=self.path, key=names[0])

    def _build(self, parts: Sequence[tuple[str, int]], inputs: int, *, bias: bool, experts: int | None) -> Linear:
        if not self.can_fuse(*(name for name, _ in parts)):
            names = ", ".join(name for name, _ in parts)
            raise CheckpointError(f"these are packed in different ways: {names}", path=self.path, key=parts[0][0])
        lead = () if experts is None else (experts,)
        packed = f"{parts[0][0]}.scales" in self._arrays
        quantization = self._quantization.of(parts[0][0]) if packed else None

        def join(suffix: str, width: int, kinds: Sequence[mx.Dtype] = FLOATS) -> mx.array:
            pieces = [self._checked(f"{name}.{suffix}", (*lead, rows, width), kinds) for name, rows in parts]
            if len(pieces) == 1:
                return pieces[0]
            self._part.fused += sum(piece.nbytes for piece in pieces)
            return mx.concatenate(pieces, axis=-2)

        if quantization is None:
            weight, scales, biases = join("weight", inputs), None, None
        else:
            groups, affine = inputs // quantization.group_size, quantization.mode == "affine"
            weight = join("weight", inputs * quantization.bits // PACKED_BITS, WORDS)
            scales = join("scales", groups, FLOATS if affine else BYTES)
            biases = join("biases", groups) if affine else None
        added = None
        if bias:
            vectors = [self._checked(f"{name}.bias", (*lead, rows)) for name, rows in parts]
            added = vectors[0] if len(vectors) == 1 else mx.concatenate(vectors, axis=-1)
        return Linear(weight, scales=scales, biases=biases, bias=added, quantization=quantization)

    def _checked(self, name: str, shape: tuple[int, ...], kinds: Sequence[mx.Dtype] = FLOATS) -> mx.array:
        found = self._arrays.pop(name, None)
        if found is None:
            raise CheckpointError("is missing", path=self.path, key=name)
        if found.shape != shape:
            raise CheckpointError(f"has shape {found.shape}, not {shape}", path=self.path, key=name)
        if found.dtype not in kinds:
            raise CheckpointError(f"is {_names([found.dtype])}, not {_names(kinds)}", path=self.path, key=name)
        self._part.tensors[name] = self._before.pop(name, found)
        return found

    def materialize(self) -> None:
        """Begin to read what was taken since the last call, and to make of it what the model wants."""
        part, self._part = self._part, Part()
        self.reading.begin(part, sum(array.nbytes for array in (*self._arrays.values(), *self._embeddings.results)))

    def begin_rest(self) -> None:
        """Wait for the layers, then begin to read all else that was taken."""
        self.reading.wait()
        rest, last = self._part, self._embeddings
        self.reading.begin(Part(rest.tensors | last.tensors, [*rest.results, *last.results], rest.fused), unread=0)


def _names(kinds: Sequence[mx.Dtype]) -> str:
    return " or ".join(str(kind).removeprefix("mlx.core.") for kind in kinds)
