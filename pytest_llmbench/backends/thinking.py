"""Which of an answer's tokens are thought, which are said, and which only mark where one ends and the other begins."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence

from pytest_llmbench.sample import Kind

_SINGLE = re.compile(r"<[^>]*>")
_FAMILIES: tuple[tuple[tuple[str, Kind], ...], ...] = (
    (("<think>", "reasoning"), ("</think>", "content")),
    # Gemma 4
    (("<|channel>thought", "reasoning"), ("<channel|>", "content")),
    # gpt-oss; it may answer without a thought, too
    (
        ("<|channel|>analysis<|message|>", "reasoning"),
        ("<|end|><|start|>assistant<|channel|>final<|message|>", "content"),
        ("<|channel|>final<|message|>", "content"),
    ),
)
"""What markers models write, and what follows each. A vocabulary has one family, whose tags are single tokens of it."""


class Thinking:
    """A model's markers, in tokens of its vocabulary (`text_ids`); `silent` are single tokens that show no text."""

    def __init__(self, text_ids: Callable[[str], Sequence[int]], *, silent: Collection[int] = ()) -> None:
        self._silent = frozenset(silent)
        self._markers: tuple[tuple[list[int], Kind], ...] = ()
        for family in _FAMILIES:
            tags = [tag for text, _ in family for tag in _SINGLE.findall(text)]
            if all(len(text_ids(tag)) == 1 for tag in tags):
                self._markers = tuple((list(text_ids(text)), kind) for text, kind in family)
                return

    def kinds(self, prompt: Sequence[int], answer: Sequence[int]) -> list[Kind | None]:
        """The kind of each of the answer's tokens, None where it shows no text. A prompt may leave a thought open."""
        ids, found = [*prompt, *answer], list[Kind | None]()
        kind: Kind = "content"
        first = {marker[0] for marker, _ in self._markers}
        while len(found) < len(ids):
            at = len(found)
            length = 0
            if ids[at] in first:
                length, kind = self._marker(ids, at, kind)
            if length:
                found += [None] * length
            else:
                found.append(None if ids[at] in self._silent else kind)
        return found[len(prompt) :]

    def _marker(self, ids: list[int], at: int, kind: Kind) -> tuple[int, Kind]:
        """Length of the marker that begins there, and what follows it; 0 and `kind` without one."""
        for marker, following in self._markers:
            if ids[at : at + len(marker)] == marker:
                return len(marker), following
        return 0, kind
