"""Rotary position embeddings: the plain one, and those of the models that stretch it.

Each maker gives a function (x [batch, heads, tokens, width], offset) → x rotated; offset is an integer, or one per row.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import mlx.core as mx

from llmbench_engine.config import Config

Rope = Callable[[mx.array, "int | mx.array"], mx.array]


def plain(dims: int, base: float, *, scale: float = 1.0, traditional: bool = False) -> Rope:
    """Positions times `scale`, frequencies base^(-2i/dims) over the first `dims` of the width."""

    def rotate(x: mx.array, offset: int | mx.array) -> mx.array:
        return mx.fast.rope(x, dims, traditional=traditional, base=base, scale=scale, offset=offset)

    return rotate


def by_periods(dims: int, periods: mx.array, *, magnitude: float = 1.0) -> Rope:
    """Given periods (base^(2i/dims) and its like, float32 [dims / 2]); `magnitude` multiplies the rotated part."""
    mx.eval(periods)

    def rotate(x: mx.array, offset: int | mx.array) -> mx.array:
        return mx.fast.rope(x, dims, traditional=False, base=None, scale=1.0, offset=offset, freqs=periods)

    def rotate_scaled(x: mx.array, offset: int | mx.array) -> mx.array:
        if x.shape[-1] == dims:
            return rotate(x * magnitude, offset)
        return rotate(mx.concatenate([x[..., :dims] * magnitude, x[..., dims:]], axis=-1), offset)

    return rotate if magnitude == 1.0 else rotate_scaled


def llama3_periods(dims: int, base: float, scaling: Config) -> mx.array:
    """Long periods stretched by `factor`, short ones left, those between blended (Llama 3.1's "llama3" scaling)."""
    factor = scaling.positive("factor", float)
    low, high = scaling.positive("low_freq_factor", float, 1.0), scaling.positive("high_freq_factor", float, 4.0)
    context = scaling.positive("original_max_position_embeddings", int, 8192)
    periods = base ** (mx.arange(0, dims, 2) / dims)
    wavelengths = 2 * mx.pi * periods
    stretched = mx.where(wavelengths > context / low, periods * factor, periods)
    blend = (context / wavelengths - low) / (high - low)
    blended = stretched / ((1 - blend) / factor + blend)
    between = (wavelengths > context / high) & (wavelengths < context / low)
    return mx.where(between, blended, stretched)


def yarn(dims: int, base: float, scaling: Config) -> tuple[mx.array, float]:
    """YaRN (Peng et al. 2023, "YaRN: Efficient Context Window Extension"): blended periods and the magnitude."""
    factor = scaling.positive("factor", float)
    context = scaling.positive("original_max_position_embeddings", int, 4096)
    fast, slow = scaling.positive("beta_fast", float, 32.0), scaling.positive("beta_slow", float, 1.0)
    mscale, mscale_all = scaling.get("mscale", float, 1.0), scaling.get("mscale_all_dim", float, 0.0)

    def dimension(rotations: float) -> float:
        return dims * math.log(context / (rotations * 2 * math.pi)) / (2 * math.log(base))

    def magnitude(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    first, last = max(math.floor(dimension(fast)), 0), min(math.ceil(dimension(slow)), dims - 1)
    span = float(last - first) or 0.001
    kept = 1.0 - mx.clip((mx.arange(dims // 2, dtype=mx.float32) - first) / span, 0, 1)
    original = base ** (mx.arange(0, dims, 2, dtype=mx.float32) / dims)
    periods = (factor * original * original) / (factor * original * kept + original * (1 - kept))
    return periods, magnitude(mscale) / magnitude(mscale_all)


def proportional(dims: int, base: float, *, share: float, factor: float = 1.0) -> Rope:
    """Only the first `share` of the pairs turns, with the periods that the whole width would give it (Gemma 4)."""
    rotated = 2 * int(share * dims // 2)
    exponents = mx.arange(0, rotated, 2, dtype=mx.float32) / dims
    still = mx.full(((dims - rotated) // 2,), mx.inf)
    return by_periods(dims, mx.concatenate([factor * base**exponents, still]))


def make(dims: int, base: float, scaling: Config | None, *, traditional: bool = False) -> Rope:
    """The embedding that a configuration's `rope_scaling` or `rope_parameters` asks for. CheckpointError if unknown."""
    if scaling is None:
        return plain(dims, base, traditional=traditional)
    kind = scaling.get("rope_type", str, "") or scaling.get("type", str, "default")
    scaling.get("type", str, "")
    if kind in ("default", "mrope"):
        return plain(dims, base, traditional=traditional)
    if traditional:
        raise scaling.error("rope_type", f"is {kind!r} together with traditional rope, which isn't supported")
    if kind == "linear":
        return plain(dims, base, scale=1 / scaling.positive("factor", float))
    if kind == "llama3":
        return by_periods(dims, llama3_periods(dims, base, scaling))
    if kind == "yarn":
        scaling.only("truncate", True, False)
        periods, magnitude = yarn(dims, base, scaling)
        return by_periods(dims, periods, magnitude=magnitude)
    if kind == "proportional":
        share = scaling.positive("partial_rotary_factor", float, 1.0)
        return proportional(dims, base, share=share, factor=scaling.positive("factor", float, 1.0))
    raise scaling.error("rope_type", f"is {kind!r}; supported: default, mrope, linear, llama3, yarn, proportional")
