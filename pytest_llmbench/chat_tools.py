"""The tool calls of a streamed answer, put together from their pieces."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_llmbench.errors import RequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call that the server understood as one. `arguments` is the model's text, which should be a JSON object."""

    name: str
    arguments: str


class ToolCalls:
    """Collects. OpenAI's form is pieces with an `index`, whose texts follow each other; others give whole calls,
    some without an index, some with their arguments as an object."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._arguments: dict[int, str] = {}

    def take(self, delta: Mapping[str, Any]) -> None:
        """RequestError where `tool_calls` is of another form than any server's."""
        found = delta.get("tool_calls") or []
        for piece in found if isinstance(found, list) else [found]:
            if not isinstance(piece, dict) or not isinstance(piece.get("function") or {}, dict):
                raise RequestError(f"the stream holds a tool call that is none: {piece!r:.200}")
            self._take_piece(piece.get("index"), piece.get("function") or {})

    def build(self) -> tuple[ToolCall, ...]:
        return tuple(ToolCall(name=name, arguments=self._arguments[at]) for at, name in self._names.items())

    def _take_piece(self, index: Any, function: Mapping[str, Any]) -> None:
        at = index if isinstance(index, int) else len(self._names)
        name, arguments = function.get("name"), function.get("arguments")
        self._names.setdefault(at, "")
        self._arguments.setdefault(at, "")
        self._names[at] += name if isinstance(name, str) else ""
        if arguments is not None:
            self._arguments[at] += arguments if isinstance(arguments, str) else json.dumps(arguments)
