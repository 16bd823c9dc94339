"""The text that the tiny tokenizer learns from: how often each pre-token occurs.

The words and snippets lie in `data/`, so the result can't change with Python's own texts.
"""

from __future__ import annotations

import re
from collections import Counter
from importlib import resources

from pytest_llmbench.checkpoints import script

GPT2_SPLIT = re.compile(
    r"'s|'t|'re|'ve|'m|'ll|'d| ?[^\W\d_]+| ?\d+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+",
)
"""GPT-2's pre-tokenizer, with `re`'s spelling of \\p{L} and \\p{N} (the same on the corpus)."""

_ZIPF_TOTAL = 40_000
_SNIPPET_WEIGHT = 40
_SCRIPT_WEIGHT = 100_000


def data(name: str) -> str:
    """Text of one file of this package's `data` folder."""
    folder = resources.files("pytest_llmbench.checkpoints") / "data"
    return (folder / name).read_text(encoding="utf-8")


def pretoken_counts() -> Counter[str]:
    """Pre-token → how often it occurs."""
    counts: Counter[str] = Counter()
    _add_words(counts)
    for pretoken in GPT2_SPLIT.findall(data("snippets.txt")):
        counts[pretoken] += _SNIPPET_WEIGHT
    for pretoken in (*script.WITHOUT_THINKING[:-1], *script.REASONING, script.NO_THINK_PROMPT_END):
        counts[pretoken] += _SCRIPT_WEIGHT
    return counts


def _add_words(counts: Counter[str]) -> None:
    """Each word as often as Zipf's law says for its place in the list, sometimes without its space."""
    for rank, word in enumerate(data("words.txt").split(), start=1):
        frequency = _ZIPF_TOTAL // (rank + 10)
        counts[" " + word] += frequency
        counts[word] += frequency // 10
        counts[word.capitalize()] += frequency // 20
