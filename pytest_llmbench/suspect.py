"""Figures that can't be: a wrong number is worse than none, so what physics forbids is said beside it."""

from __future__ import annotations

from collections.abc import Mapping

CACHE_MARGIN = 0.8
"""A cold prompt this much quicker than a cached one was no cold prompt (noise moves them by less)."""

NOISE_S = 0.02
"""Times that differ by less than this, on a tiny model, say nothing."""

CLOCK_MARGIN = 1.25
"""Our clock brackets the server's: a server that says it is this much slower than we see counts otherwise."""

ENOUGH_TOKENS = 8
"""Over fewer tokens than these the window is too short for a comparison."""


def suspicions(metrics: Mapping[str, float | None]) -> tuple[str, ...]:
    """One sentence for each contradiction among a measurement's figures; () where there is none."""
    checks = (_cold_below_cached(metrics), _faster_than_server(metrics))
    return tuple(found for found in checks if found is not None)


def _cold_below_cached(metrics: Mapping[str, float | None]) -> str | None:
    cold, cached = metrics.get("ttft_s"), metrics.get("ttft_cached_s")
    if cold is None or cached is None or cold >= CACHE_MARGIN * cached or cached - cold < NOISE_S:
        return None
    return f"a new prompt's first token came after {cold:.3g} s, a repeated one's after {cached:.3g} s"


def _faster_than_server(metrics: Mapping[str, float | None]) -> str | None:
    ours, theirs = metrics.get("decode_tok_s"), metrics.get("server_decode_tok_s")
    if ours is None or not theirs or (metrics.get("completion_tokens") or 0) < ENOUGH_TOKENS:
        return None
    if ours <= CLOCK_MARGIN * theirs:
        return None
    return f"our clock saw {ours:.4g} tok/s, the server itself says {theirs:.4g} tok/s"
