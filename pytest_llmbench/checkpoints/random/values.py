"""Random values of the parameters, quantized by MLX, a part at a time."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pytest_llmbench.checkpoints.random.layout import Config, Law
from pytest_llmbench.checkpoints.random.quantization import Entry
from pytest_llmbench.checkpoints.random.shapes import Shape, shape_of
from pytest_llmbench.checkpoints.random.tensors import TensorSpec, tensors

if TYPE_CHECKING:
    import mlx.core as mx

PART_SIZE = 1 << 24
"""Weights drawn at once: 64 MiB in float32."""

_QUIET = 1 / 20


def random_weights(
    source: Shape | Config, *, quantization: Entry | str | None = None, layers: int | None = None, seed: int = 0
) -> dict[str, mx.array]:
    """The arrays that `write_checkpoint` would write, by name, evaluated on MLX's default device.

    `source` is a shape or a configuration of one of `MODEL_TYPES`; `quantization` as in
    `Shape.with_quantization`. The values depend on seed, name and shape alone. Raises UsageError.
    """
    import mlx.core as mx

    shape = (source if isinstance(source, Shape) else shape_of(source)).with_quantization(quantization)
    if layers is not None:
        shape = shape.with_layers(layers)
    weights: dict[str, mx.array] = {}
    for spec in tensors(shape):
        pieces = list(parts(spec, seed=seed))
        whole = {name: mx.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
        mx.eval(list(whole.values()))
        weights |= whole
    return weights


def parts(spec: TensorSpec, *, seed: int) -> Iterator[dict[str, mx.array]]:
    """The stored arrays of one parameter, in parts along the first axis, evaluated."""
    import mlx.core as mx

    rows, row_size = spec.shape[0], spec.size // spec.shape[0]
    step = max(1, PART_SIZE // row_size)
    for first in range(0, rows, step):
        shape = (min(step, rows - first), *spec.shape[1:])
        values = _draw(spec.law, shape, first, key=_key(f"{seed}/{spec.name}/{first}"))
        part = dict(zip((stored.name for stored in spec.stored()), _stored(spec, values), strict=True))
        mx.eval(list(part.values()))
        yield part


def _key(text: str) -> mx.array:
    """Key for MLX's counter-based generator; another text gives another stream."""
    import mlx.core as mx

    return mx.random.key(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big"))


def _draw(law: Law, shape: tuple[int, ...], first_row: int, *, key: mx.array) -> mx.array:
    """float32 values of rows `first_row` and after. Uniform ones cost a third of normal ones."""
    import mlx.core as mx

    if law.kind == "signs":
        (size,) = shape
        return mx.where(mx.random.permutation(size, key=key) < size // 2, -law.mean, law.mean)
    half = math.sqrt(3) * law.std
    values = mx.random.uniform(law.mean - half, law.mean + half, shape, key=key)
    if law.kind == "log":
        return mx.log(values)
    quiet = law.quiet_rows - first_row
    if quiet <= 0:
        return values
    return mx.concatenate([values[:quiet] * _QUIET, values[quiet:]])


def _stored(spec: TensorSpec, values: mx.array) -> tuple[mx.array, ...]:
    """The parameter, or its packed weights, scales and (affine) biases."""
    import mlx.core as mx

    rounded = values.astype(getattr(mx, spec.dtype))
    if spec.quant is None:
        return (rounded,)
    return tuple(mx.quantize(rounded, spec.quant.group_size, spec.quant.bits, mode=spec.quant.mode))
