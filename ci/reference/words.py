"""What a reader of YAML would take, in words: it reads with `Words` in place of a `NodeReader`, and nothing is read."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, is_dataclass
from functools import partial
from typing import Any, cast

from pytest_llmbench.yaml_nodes import MOST, NodeReader, Read
from reference.text import codes


class Words:
    """`NodeReader`'s methods, each of which returns what it would have asked for."""

    def is_null(self, node: None) -> bool:
        return False

    def scalar(self, node: None) -> str:
        return "text or number"

    def string(self, node: None) -> str:
        return "text"

    def filled(self, node: None) -> str:
        return "text, not empty"

    def choice(self, node: None, names: Collection[str], what: str) -> str:
        return codes(names)

    def boolean(self, node: None) -> str:
        return "true or false"

    def integer(self, node: None, *, low: int = 0, high: int = MOST) -> str:
        return f"whole number, {low} or more" if high == MOST else f"whole number, {low} to {high:,}"

    def number(self, node: None, *, positive: bool = False, high: float = math.inf) -> str:
        least = "above 0" if positive else "0 or more"
        return f"number, {least}" + ("" if math.isinf(high) else f", at most {high:,g}")

    def unique(self, node: None, read: Callable[[Any], Any], *, filled: bool = False) -> str:
        return f"list{' (not empty)' if filled else ''}, each once, of: {self.describe(read)}"

    def record(self, node: None, known: Collection[str], what: str) -> dict[str, None]:
        return dict.fromkeys(known)

    def values(self, nodes: Mapping[str, None], readers: Mapping[str, Read]) -> dict[str, str]:
        return {name: self.describe(readers[name]) for name in nodes}

    def describe(self, read: Read) -> str:
        """What `read`, made for this object, takes: by its own docstring where it is more than a method of ours."""
        if isinstance(read, partial) and self in read.args:
            text: str = read.keywords.get("what") or (read.func.__doc__ or "").partition("\n")[0]
            return text.rstrip(".")
        found = cast(Callable[[None], Any], read)(None)
        if not is_dataclass(found) or isinstance(found, type):
            return str(found)
        return "; ".join(f"`{name}`: {value}" for name, value in asdict(found).items())


def described(make: Callable[[NodeReader], Mapping[str, Read]]) -> dict[str, str]:
    """What each key takes whose readers `make` makes."""
    words = Words()
    readers = make(cast(NodeReader, words))
    return words.values(dict.fromkeys(readers), readers)
