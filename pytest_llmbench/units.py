"""Values as people read them. Everything else keeps SI units and raw numbers.

The unit is in a metric's name: `_s`, `_ns`, `_bytes`, `tok_s`, `_ratio`, `_tokens`.
"""

from __future__ import annotations

import re

MISSING = "–"
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


def plain(text: str) -> str:
    """`text` of a program or a server, harmless to a terminal: no colours, other control characters as `\\x07`."""
    bare = _COLOUR.sub("", text)
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in bare)


def seconds(value: float | None) -> str:
    """`0.0123` → `12.3 ms`, `3.2` → `3.20 s`, `75` → `75.0 s`."""
    if value is None:
        return MISSING
    if abs(value) < 1:
        return f"{value * 1e3:.3g} ms" if abs(value) < 0.9995 else "1.00 s"
    return f"{value:.2f} s" if abs(value) < 10 else f"{value:.1f} s"


def rate(value: float | None) -> str:
    """Tokens per second with four significant digits at most: `1,234`, `56.7`."""
    if value is None:
        return MISSING
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def memory(value: float | None) -> str:
    """Bytes in binary units: `335380488` → `320 MiB`."""
    if value is None:
        return MISSING
    for unit in ("B", "KiB", "MiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.2f} GiB"


def ratio(value: float | None) -> str:
    """Four decimals, as the saved records print it: `0.9796`."""
    return MISSING if value is None else f"{value:.4f}"


def count(value: float | None) -> str:
    """A whole number with thousands separators."""
    return MISSING if value is None else f"{value:,.0f}"


_METRIC_UNITS = (
    ("tok_s", lambda v: f"{rate(v)} tok/s"),
    ("_bytes", memory),
    ("_ratio", ratio),
    ("_tokens", count),
    ("_s", seconds),
)


_UNITS = (("tok_s", "tok/s"), ("_ratio", "ratio"), ("_tokens", "tokens"), ("_s", "s"), ("_bytes", "bytes"))


def unit_of(metric: str) -> str:
    """The unit that a metric's name ends with, as records and exports write it; "" for none."""
    return next((unit for suffix, unit in _UNITS if metric.endswith(suffix)), "")


def metric(name: str, value: float | None) -> str:
    """`value` in the unit that the metric's name ends with."""
    if value is None:
        return MISSING
    for suffix, fmt in _METRIC_UNITS:
        if name.endswith(suffix):
            return fmt(value)
    return f"{value:g}"
