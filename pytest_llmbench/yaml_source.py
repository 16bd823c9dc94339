"""A YAML file as nodes with positions.

Method: PyYAML's composer (YAML 1.1) gives the tree with marks and resolved tags. Aliases stay references to one
node, so a file of nested aliases costs no more than its text.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import yaml
from yaml.composer import ComposerError
from yaml.error import Mark
from yaml.nodes import Node
from yaml.reader import ReaderError

from pytest_llmbench.errors import MatrixError

MAX_DEPTH = 50

# A piece of a line: a quoted string, a comment, a word (quotes and # inside it mean nothing), any one character.
_PIECE = re.compile(
    r'"(?:\\.|[^"\\])*(?:"|$)'
    r"|'(?:[^']|'')*(?:'|$)"
    r"|(?<=\s)\#(?P<comment>.*)"
    r"|[^\s\"'#:,\[\]{}][^\s,\[\]{}]*"
    r"|."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A parsed file: its text and its root node (None: no content). Lines count from 1."""

    path: Path
    text: str
    root: Node | None
    line_starts: tuple[int, ...]

    def line(self, node: Node) -> int:
        """The line on which `node` starts."""
        return bisect_right(self.line_starts, node.start_mark.index)

    def fail(self, node: Node, message: str) -> NoReturn:
        """Raise a `MatrixError` that points at `node`."""
        raise MatrixError(message, path=self.path, line=self.line(node))

    def comment(self, node: Node) -> str:
        """The comment behind `node` on the line where it ends; "" without one."""
        end = node.end_mark.index
        line_end = self.text.find("\n", end)
        rest = self.text[end : None if line_end < 0 else line_end]
        return next((m["comment"].strip() for m in _PIECE.finditer(rest) if m["comment"] is not None), "")


def parse(path: Path) -> Source:
    """Read and compose a file. `MatrixError` where it can't be read, isn't UTF-8 or isn't YAML."""
    text = _text(path)
    starts = (0, *(match.end() for match in re.finditer("\n", text)))
    with _yaml_errors(path, starts):
        loader = _Loader(text)
        try:
            root = loader.get_single_node()
        finally:
            loader.dispose()
    return Source(path=path, text=text, root=root, line_starts=starts)


class _Loader(yaml.SafeLoader):
    """PyYAML composes by recursion: the bound keeps nested lists from exhausting the stack."""

    def __init__(self, text: str) -> None:
        self._depth = 0
        super().__init__(text)

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            mark = Mark(self.name, self.index, self.line, self.column, None, 0)
            raise ComposerError(None, None, f"nested more than {MAX_DEPTH} levels deep", mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise MatrixError(f"can't be read: {error.strerror or error}", path=path, line=1) from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise MatrixError("isn't UTF-8 text; save the file as UTF-8", path=path, line=line) from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


@contextmanager
def _yaml_errors(path: Path, starts: tuple[int, ...]) -> Iterator[None]:
    try:
        yield
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = bisect_right(starts, mark.index) if mark else 1
        reason = ", ".join(part for part in (error.context, error.problem) if part)
        raise MatrixError(f"isn't valid YAML: {reason}", path=path, line=line) from error
    except ReaderError as error:
        line = bisect_right(starts, error.position)
        raise MatrixError(f"isn't valid YAML: {error.reason}", path=path, line=line) from error
    except (ValueError, OverflowError) as error:
        # PyYAML lets these through for an escape or a %YAML version that is out of range.
        raise MatrixError(f"isn't valid YAML: {error}", path=path, line=1) from error
