"""Strict, typed reading of YAML nodes: what is expected is asked for, never guessed, and a complaint has a line."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple, NoReturn, TypeVar

from yaml import YAMLError
from yaml.constructor import SafeConstructor
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from pytest_llmbench.errors import MatrixError
from pytest_llmbench.yaml_source import MAX_DEPTH, Source

S = TypeVar("S")
T = TypeVar("T")
Read = Callable[[Node], Any]

MAX_MERGED_KEYS = 100_000

_TAG = "tag:yaml.org,2002:"
_UNUSABLE = re.compile("[\0\ud800-\udfff]")


class Item(NamedTuple):
    """One item of a mapping; `key` stands where the name was written."""

    key: Node
    value: Node


MOST = 1_000_000_000
"""The largest whole number that any setting takes: it fits into 32 bits."""


class NodeReader:
    """Reads the nodes of one source. Every method raises `MatrixError` with the node's line."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._mappings: dict[int, dict[str, Item]] = {}
        self._open: list[int] = []
        self._merged_keys = 0

    def is_null(self, node: Node) -> bool:
        """Whether nothing, `~` or `null` was written."""
        return bool(node.tag == _TAG + "null")

    def scalar(self, node: Node) -> str:
        """The text of a string, number or boolean, just as it was written."""
        if not isinstance(node, ScalarNode) or self.is_null(node):
            self._expected("a string or a number", node)
        return self._usable(node)

    def string(self, node: Node) -> str:
        """A string; a number, a date or `yes` has to be in quotes to be one."""
        if not isinstance(node, ScalarNode) or node.tag != _TAG + "str":
            quotes = isinstance(node, ScalarNode) and not self.is_null(node)
            self._expected("a string", node, "; put it in quotes" if quotes else "")
        return self._usable(node)

    def filled(self, node: Node) -> str:
        """A string with something in it."""
        text = self.string(node)
        if not text.strip():
            self.source.fail(node, "expected some text, found an empty string")
        return text

    def choice(self, node: Node, names: Collection[str], what: str) -> str:
        """A string that is one of `names`."""
        name = self.string(node)
        if name not in names:
            self.source.fail(node, f"unknown {what} {short(name)}; {suggestion(name, names)}")
        return name

    def boolean(self, node: Node) -> bool:
        """`true` or `false`, or YAML 1.1's other names for them."""
        if node.tag != _TAG + "bool":
            self._expected("true or false", node)
        return bool(self._construct(node, SafeConstructor().construct_yaml_bool))

    def integer(self, node: Node, *, low: int = 0, high: int = MOST) -> int:
        """A whole number from `low` to `high`."""
        if node.tag != _TAG + "int":
            self._expected("a whole number", node)
        value = int(self._construct(node, SafeConstructor().construct_yaml_int))
        if not low <= value <= high:
            bounds = f"of {low} or more" if value < low and high == MOST else f"from {low} to {high}"
            self.source.fail(node, f"expected a whole number {bounds}, found {short(node.value)}")
        return value

    def number(self, node: Node, *, positive: bool = False, high: float = math.inf) -> float:
        """A finite number from 0 to `high`; `positive`: and not 0."""
        if node.tag not in (_TAG + "int", _TAG + "float"):
            self._expected("a number", node)
        whole = node.tag == _TAG + "int"
        read = SafeConstructor().construct_yaml_int if whole else SafeConstructor().construct_yaml_float
        value = self._construct(node, lambda scalar: float(read(scalar)))
        if not math.isfinite(value) or value < 0 or (positive and value == 0):
            bound = "above 0" if positive else "of 0 or more"
            self.source.fail(node, f"expected a finite number {bound}, found {short(node.value)}")
        if value > high:
            self.source.fail(node, f"expected a number of at most {high:,g}, found {short(node.value)}")
        return value

    def items(self, node: Node) -> list[Node]:
        """The nodes of a list."""
        if not isinstance(node, SequenceNode):
            self._expected("a list", node)
        return list(node.value)

    def unique(self, node: Node, read: Callable[[Node], T], *, filled: bool = False) -> tuple[T, ...]:
        """A list with nothing in it twice; `filled`: and with something in it."""
        found: list[T] = []
        for item in self.items(node):
            value = read(item)
            if value in found:
                self.source.fail(item, f"{short(str(value))} is in this list twice")
            found.append(value)
        if filled and not found:
            self.source.fail(node, "the list is empty; name something or leave the key out")
        return tuple(found)

    def mapping(self, node: Node) -> dict[str, Item]:
        """The items by key, with `<<` merged in: the mapping's own keys win, then the first source's."""
        if not isinstance(node, MappingNode):
            self._expected("a mapping", node)
        if id(node) not in self._mappings:
            if id(node) in self._open or len(self._open) >= MAX_DEPTH:
                self.source.fail(node, "this mapping merges (`<<`) itself, or too long a chain of others")
            self._open.append(id(node))
            try:
                self._mappings[id(node)] = self._merged(node)
            finally:
                self._open.pop()
        return self._mappings[id(node)]

    def record(self, node: Node, known: Collection[str], what: str) -> dict[str, Node]:
        """The values by key of a mapping that has no keys but `known`."""

        def value(named: tuple[str, Item]) -> tuple[str, Node]:
            name, item = named
            if name not in known:
                self.source.fail(item.key, f"unknown key {short(name)} in {what}; {suggestion(name, known)}")
            return name, item.value

        return dict(self.each(self.mapping(node).items(), value))

    def values(self, nodes: Mapping[str, Node], readers: Mapping[str, Read]) -> dict[str, Any]:
        """Each node read by the reader of its name."""
        return dict(self.each(nodes.items(), lambda named: (named[0], readers[named[0]](named[1]))))

    def each(self, items: Iterable[S], read: Callable[[S], T]) -> list[T]:
        """What `read` makes of each item. One error has the faults of all of them: they can be mended at once."""
        found: list[T] = []
        wrong: list[MatrixError] = []
        for item in items:
            try:
                found.append(read(item))
            except MatrixError as error:
                wrong.append(error)
        if wrong:
            first = wrong[0]
            raise MatrixError(first.message, path=first.path, line=first.line, others=wrong) from first
        return found

    def without_nulls(self, nodes: Mapping[str, Node], keep: Collection[str] = ()) -> dict[str, Node]:
        """The nodes that have a value, and those in `keep` whether they have one or not."""
        return {name: node for name, node in nodes.items() if name in keep or not self.is_null(node)}

    def _merged(self, node: MappingNode) -> dict[str, Item]:
        own: dict[str, Item] = {}
        sources: list[Node] = []
        for key, value in node.value:
            if key.tag == _TAG + "merge":
                sources += value.value if isinstance(value, SequenceNode) else [value]
                continue
            name = self._key(key)
            if name in own:
                line = self.source.line(own[name].key)
                self.source.fail(key, f"key {short(name)} is already given in line {line}")
            own[name] = Item(key, value)
        for source in sources:
            self._merge(own, source)
        return own

    def _merge(self, own: dict[str, Item], source: Node) -> None:
        inherited = self.mapping(source)
        self._merged_keys += len(inherited)
        if self._merged_keys > MAX_MERGED_KEYS:
            self.source.fail(source, f"merges (`<<`) bring in more than {MAX_MERGED_KEYS} keys")
        for name, item in inherited.items():
            own.setdefault(name, item)

    def _key(self, key: Node) -> str:
        if not isinstance(key, ScalarNode):
            self._expected("a name as the key", key)
        if key.tag != _TAG + "str":
            self.source.fail(key, f"key {short(key.value)} is {kind(key)}, not a string; put it in quotes")
        return self._usable(key)

    def _usable(self, node: ScalarNode) -> str:
        if _UNUSABLE.search(node.value):
            self.source.fail(node, "the text holds a NUL or half a surrogate pair; no process can take that")
        return str(node.value)

    def _construct(self, node: Node, read: Callable[[Any], T]) -> T:
        try:
            return read(node)
        except (ValueError, KeyError, IndexError, OverflowError, YAMLError) as error:
            message = f"this can't be read as {kind(node)}"
            raise MatrixError(message, path=self.source.path, line=self.source.line(node)) from error

    def _expected(self, wanted: str, node: Node, hint: str = "") -> NoReturn:
        # The value itself isn't shown: it may be a secret.
        self.source.fail(node, f"expected {wanted}, found {kind(node)}{hint}")


def suggestion(word: str, names: Collection[str]) -> str:
    """What was probably meant, and what there is.

    >>> suggestion("olama", ["ollama", "omlx"])
    "did you mean 'ollama'? known: ollama, omlx"
    """
    known = f"known: {', '.join(sorted(names))}"
    folded = {name.casefold(): name for name in names}
    near = difflib.get_close_matches(word.casefold()[:80], folded, n=1)
    return f"did you mean {folded[near[0]]!r}? {known}" if near else known


def kind(node: Node) -> str:
    """What a node is, in words."""
    names = {
        "str": "a string",
        "bool": "a boolean",
        "int": "a whole number",
        "float": "a number",
        "null": "nothing",
        "timestamp": "a date",
        "map": "a mapping",
        "seq": "a list",
    }
    return names.get(node.tag.removeprefix(_TAG), f"a value tagged {short(node.tag)}")


def short(text: str) -> str:
    """`text` in quotes, cut to a length that fits into a message."""
    return repr(text if len(text) <= 60 else f"{text[:57]}…")
