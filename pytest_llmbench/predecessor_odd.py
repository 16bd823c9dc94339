"""What in the predecessor's figures can't be, or isn't what its column says."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

ANY_CHIP_FLOPS: Final = 100e12
"""More half-precision operations a second than any Apple chip of its time does."""
ANSWERED_FROM_CACHE: Final = 2.0
"""A prompt that is read this many times as fast as the same prompt the first time was in the prefix cache."""
STILL_LOADING: Final = 10.0
"""A first answer that takes this many times as long as the next, for a prompt of a few tokens, held the load."""
FEW_TOKENS: Final = 100
"""Of a prompt; the first answer to a shorter one is mostly start-up, and says nothing of prefill."""
GUESSED_CHARACTERS: Final = 4
SHORT_PROMPT_CHARACTERS: Final = 93
_ACTIVE: Final = re.compile(r"\b[AE](\d+(?:\.\d+)?)B\b", re.IGNORECASE)
_TOTAL: Final = re.compile(r"\b(\d+(?:\.\d+)?)B\b", re.IGNORECASE)
_BITS: Final = re.compile(r"(?:q|int|fp|mxfp|nvfp|iq|\b)(\d+)(?:bit|_|\b)", re.IGNORECASE)
_METAL_UNSEEN: Final = ("mlx",)
Row = Mapping[str, Any]


def suspicions(rows: Sequence[Row]) -> tuple[str, ...]:
    """One sentence for each unsound figure of an entry and prompt."""
    checks = (_prefill(rows), _loading(rows), _memory(rows), _guessed_tokens(rows))
    return tuple(found for found in checks if found)


def active_parameters(row: Row) -> float | None:
    """Parameters that each token passes, by the model's name: `35B-A3B` 3e9, `E2B` 2e9, `27B` 27e9."""
    name = f"{row.get('model', '')} {row['test_name']}"
    found = _ACTIVE.search(name) or _TOTAL.search(name)
    return float(found[1]) * 1e9 if found else None


def weight_bytes(row: Row) -> float | None:
    """Bytes of the weights by name and quantization; None where either says nothing."""
    found = _TOTAL.search(f"{row.get('model', '')} {row['test_name']}")
    bits = _BITS.search(row["quant"])
    return float(found[1]) * 1e9 * float(bits[1]) / 8 if found and bits else None


def _prefill(rows: Sequence[Row]) -> str | None:
    """A prefix cache answered: the figure is above what the chip can do, or above what it did the first time."""
    fastest = max(row["prefill_tps"] or 0.0 for row in rows)
    active = active_parameters(rows[0])
    if active and fastest > (ceiling := ANY_CHIP_FLOPS / (2 * active)):
        return f"prefill of {fastest:,.0f} tok/s is above the chip's ceiling ({ceiling:,.0f}): a prefix cache answered"
    cold, tokens = rows[0]["cold_ttft_ms"], rows[0]["prompt_tokens"]
    if not cold or (tokens or 0) <= FEW_TOKENS or fastest <= ANSWERED_FROM_CACHE * tokens / (cold / 1e3):
        return None
    first = tokens / (cold / 1e3)
    return f"prefill of {fastest:,.0f} tok/s, but {first:,.0f} the first time: a prefix cache answered"


def _loading(rows: Sequence[Row]) -> str | None:
    first = rows[0]
    warm = [row["ttft_ms"] for row in rows if row["ttft_ms"]]
    if not first["cold_ttft_ms"] or not warm or (first["prompt_tokens"] or 0) > FEW_TOKENS:
        return None
    if first["cold_ttft_ms"] < STILL_LOADING * max(warm):
        return None
    seconds = first["cold_ttft_ms"] / 1e3
    return f"the first answer took {seconds:.1f} s: the server was still loading the model, or warming up"


def _memory(rows: Sequence[Row]) -> str | None:
    """It is the resident set of the processes, in which Metal's buffers don't count."""
    peak = max(row["peak_mem_mb"] or 0.0 for row in rows)
    weights = weight_bytes(rows[0])
    if not peak or (weights is None and not rows[0]["backend"].startswith(_METAL_UNSEEN)):
        return None
    if weights is None:
        return f"peak memory of {peak:,.0f} MiB is the processes' resident set: Metal's buffers may be missing"
    if peak * 2**20 >= weights:
        return None
    return f"peak memory of {peak:,.0f} MiB is less than the weights ({weights / 2**20:,.0f} MiB): Metal's are missing"


def _guessed_tokens(rows: Sequence[Row]) -> str | None:
    guess = SHORT_PROMPT_CHARACTERS // GUESSED_CHARACTERS
    if rows[0]["prompt_type"] != "short" or rows[0]["prompt_tokens"] != guess:
        return None
    return f"{guess} prompt tokens are the prompt's characters divided by {GUESSED_CHARACTERS}, not counted"
