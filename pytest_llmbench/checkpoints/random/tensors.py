"""Arrays of a checkpoint as they are stored, and how many bytes they take."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pytest_llmbench.checkpoints.random.layout import Config, Law
from pytest_llmbench.checkpoints.random.quantization import Quant, quant_of
from pytest_llmbench.checkpoints.random.shapes import Shape

ITEM_BYTES: Mapping[str, int] = MappingProxyType({"float32": 4, "uint32": 4, "bfloat16": 2, "float16": 2, "uint8": 1})
PAGE_BYTES = 16384
_CONSTANT_BYTES = 8
_ROPE_BYTES: Mapping[str, int] = MappingProxyType({"llama3": 48, "yarn": 36, "proportional": 16})
"""What a layer's rope holds until its first use: the scalars of the formula of its frequencies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """One array in a safetensors file."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes in the file and, before rounding, in memory."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One parameter: its name as mlx-lm has it, shape before quantization, float type and quantization."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    law: Law
    quant: Quant | None = None

    @property
    def size(self) -> int:
        """Number of weights."""
        return math.prod(self.shape)

    def stored(self) -> tuple[StoredTensor, ...]:
        """The array itself or, quantized, `x.weight` (…, in · bits / 32) uint32, `x.scales` and, affine, `x.biases`.

        Scales are (…, in / group): of the float type if affine, else uint8.
        """
        if self.quant is None:
            return (StoredTensor(name=self.name, shape=self.shape, dtype=self.dtype),)
        *lead, columns = self.shape
        path, affine = self.name.removesuffix(".weight"), self.quant.mode == "affine"
        groups = (*lead, columns // self.quant.group_size)
        packed = (*lead, columns * self.quant.bits // 32)
        return (
            StoredTensor(name=self.name, shape=packed, dtype="uint32"),
            StoredTensor(name=f"{path}.scales", shape=groups, dtype=self.dtype if affine else "uint8"),
            *((StoredTensor(name=f"{path}.biases", shape=groups, dtype=self.dtype),) if affine else ()),
        )


def tensors(shape: Shape) -> Iterator[TensorSpec]:
    """Every parameter of the checkpoint. Raises UsageError when the configuration lacks a key."""
    for parameter in shape.parameters():
        yield TensorSpec(
            name=parameter.name,
            shape=parameter.shape,
            dtype="float32" if parameter.name.endswith(shape.float32) else shape.dtype,
            law=parameter.law,
            quant=quant_of(parameter, shape.quantization),
        )


def stored_tensors(shape: Shape) -> Iterator[StoredTensor]:
    """Every array of the checkpoint's files."""
    return (stored for spec in tensors(shape) for stored in spec.stored())


def stored_bytes(shape: Shape) -> int:
    """Sum of the arrays' bytes."""
    return sum(stored.nbytes for stored in stored_tensors(shape))


def in_pages(size: int) -> int:
    """What MLX's allocator takes for an array of so many bytes."""
    return size if size <= PAGE_BYTES else -(-size // PAGE_BYTES) * PAGE_BYTES


def allocator_bytes(shape: Shape) -> int:
    """What MLX's allocator on Apple Silicon says is active once mlx-lm 0.32.2 has loaded the checkpoint.

    An array above one page of 16 KiB takes whole pages; 8 bytes are constant.
    """
    paged = sum(in_pages(stored.nbytes) for stored in stored_tensors(shape))
    return paged + sum(_rope_bytes(shape.text_config)) + _CONSTANT_BYTES


def _rope_bytes(config: Config) -> Iterator[int]:
    """Of each layer; the types differ by the kind of attention in gemma4 alone."""
    by_kind = config.get("rope_parameters") or {}
    kinds = config.get("layer_types") or [""] * config["num_hidden_layers"]
    for kind in kinds:
        rope = by_kind.get(kind) or config.get("rope_scaling") or {}
        yield _ROPE_BYTES.get(rope.get("rope_type", ""), 0)
