"""Flags among the words of a command line."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence


def value_of(words: Sequence[str], names: Sequence[str]) -> str | None:
    """The value that `words` give to a flag of these names (`--flag value` or `--flag=value`); None without one."""
    for word, following in itertools.zip_longest(words, words[1:], fillvalue=""):
        name, equals, value = word.partition("=")
        if name in names:
            return value if equals else following
    return None


def left_open(given: Sequence[str], defaults: Mapping[tuple[str, ...], str]) -> list[str]:
    """Words for those of the flags, by their names, to which `given` gives no value."""
    return [word for names, value in defaults.items() if value_of(given, names) is None for word in (names[0], value)]
