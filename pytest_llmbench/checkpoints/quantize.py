"""MLX's affine quantization to 4 bits, in NumPy: the same bytes as `mx.quantize`, where there is no MLX too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

GROUP_SIZE = 64
BITS = 4

_LEVELS = 2**BITS - 1
_SMALLEST_SCALE = 1e-7
_PER_WORD = 32 // BITS


class Quantized(NamedTuple):
    """`packed` (rows, columns / 8) uint32, lowest bits first; `scales`, `biases` (rows, columns / 64)."""

    packed: NDArray[np.uint32]
    scales: NDArray[Any]
    biases: NDArray[Any]


def affine(weight: NDArray[Any]) -> Quantized:
    """Quantizes `weight` (rows, columns), columns a multiple of 64; w ≈ scale · q + bias.

    As MLX does it: the edge further from 0 is met exactly, and 0 stays 0.
    """
    import numpy as np

    groups = weight.astype(np.float32).reshape(weight.shape[0], -1, GROUP_SIZE)
    scales, biases = _scales_and_biases(groups)
    levels = np.round((groups - biases[..., None]) / scales[..., None])
    levels = np.clip(levels, 0, _LEVELS).astype(np.uint32).reshape(weight.shape[0], -1, _PER_WORD)
    shifts = np.arange(_PER_WORD, dtype=np.uint32) * np.uint32(BITS)
    packed = np.bitwise_or.reduce(levels << shifts, axis=-1)
    return Quantized(packed, scales.astype(weight.dtype), biases.astype(weight.dtype))


def _scales_and_biases(groups: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    import numpy as np

    low, high = groups.min(axis=-1), groups.max(axis=-1)
    low_is_edge = np.abs(low) > np.abs(high)
    scales = np.maximum((high - low) / np.float32(_LEVELS), np.float32(_SMALLEST_SCALE))
    scales = np.where(low_is_edge, scales, -scales)
    edge = np.where(low_is_edge, low, high)
    level = np.round(edge / scales)
    met = level != 0
    scales = np.where(met, edge / np.where(met, level, np.float32(1)), scales)
    return scales, np.where(met, edge, np.float32(0))


def quantize_weights(weights: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Every matrix as `x.weight`, `x.scales`, `x.biases`; vectors (norms) as they are."""
    out: dict[str, NDArray[Any]] = {}
    for name, value in weights.items():
        if value.ndim == 1:
            out[name] = value
            continue
        stem = name.removesuffix("weight")
        out[name], out[stem + "scales"], out[stem + "biases"] = affine(value)
    return out


def quantization_config() -> dict[str, Any]:
    """What `config.json` has to say about it."""
    settings = {"group_size": GROUP_SIZE, "bits": BITS, "mode": "affine"}
    return {"quantization": settings, "quantization_config": settings}
