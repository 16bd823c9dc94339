"""The columns of tables on several requests at once, on the terminal and in Markdown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pytest_llmbench import units

Value = Callable[[str], float | None]
"""Takes a metric's name and gives its figure."""

_COLUMNS: Final[tuple[tuple[str, Callable[[float | None], str], str], ...]] = (
    ("tok/s of all", units.rate, "aggregate_tok_s"),
    ("decode of all", units.rate, "decode_aggregate_tok_s"),
    ("decode of each", units.rate, "decode_tok_s"),
    ("TTFT", units.seconds, "ttft_s"),
    ("TTFT spread", units.seconds, "ttft_spread_s"),
    ("wall", units.seconds, "wall_s"),
    ("fairness", units.ratio, "fairness_ratio"),
    ("at once", units.count, "streams_at_once"),
)
CONCURRENCY_HEAD: Final = (*(title for title, _, _ in _COLUMNS), "tokens in/out", "memory")


def concurrency_cells(value: Value) -> tuple[str, ...]:
    """Under `CONCURRENCY_HEAD`, with units."""
    return (*(show(value(metric)) for _, show, metric in _COLUMNS), tokens(value), memory(value))


def tokens(value: Value) -> str:
    """How many tokens went in and came out."""
    return f"{units.count(value('prompt_tokens'))}/{units.count(value('completion_tokens'))}"


def memory(value: Value) -> str:
    """The peak of the serving processes."""
    return units.memory(value("peak_memory_bytes"))
