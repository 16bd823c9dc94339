"""Prompts of exact length for a parity run, as token ids: both sides get the very same."""

from __future__ import annotations

from pathlib import Path

from pytest_llmbench import tokenizer
from pytest_llmbench.errors import MeasurementError

TEXT = "The quick brown fox jumps over the lazy dog near the river bank while seven wise owls watch from the old oak. "
TOKENS_PER_REPEAT = 24
"""A point `rN` has N times as many tokens and one more, whatever the tokenizer makes of the text."""


class ParityPrompts:
    """Makes the prompts of one checkpoint. MeasurementError where its tokenizer can't be read."""

    def __init__(self, folder: Path) -> None:
        found = tokenizer.load(folder)
        if found is None:
            raise MeasurementError(
                f"{folder}: no tokenizer that the plugin can read (tokenizer.json, a chat template; libraries "
                "tokenizers and jinja2), so no prompt of exact length can be made"
            )
        self._tokenizer = found

    def repeats(self, count: int) -> tuple[int, ...]:
        """The prompt of a point `r{count}`."""
        return self.exact(count * TOKENS_PER_REPEAT + 1)

    def exact(self, tokens: int, *, stream: int = 0) -> tuple[int, ...]:
        """`tokens` ids; those of another `stream` differ from the start on."""
        text = f"{stream + 1}. {TEXT}" if stream else TEXT
        once = len(self._tokenizer.text_ids(TEXT))
        ids = self._tokenizer.text_ids(text + TEXT * (tokens // max(once, 1) + 1))
        while len(ids) < tokens:  # pieces at the seams may merge
            ids = [*ids, *ids]
        return tuple(ids[:tokens])

    def streams(self, count: int, tokens: int) -> tuple[tuple[int, ...], ...]:
        """`count` prompts of `tokens` ids each."""
        return tuple(self.exact(tokens, stream=number) for number in range(1, count + 1))
