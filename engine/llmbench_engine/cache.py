"""What a batch of sequences leaves behind for its next step: keys and values, windows of them, recurrent states.

All rows of a batch end at the same column; a shorter row is padded on the left. As long as all rows are equally long
(one sequence, or several prompts of one length), positions are one integer and no mask is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import mlx.core as mx

from llmbench_engine.kv_cache import KeyValues, LayerCache


class RecurrentState:
    """A gated delta net's state: its convolution's last inputs, the oldest first, and its memory matrix in float32."""

    __slots__ = ("inputs", "memory")
    cuttable: ClassVar[bool] = False

    def __init__(self) -> None:
        self.inputs: list[mx.array] = []
        self.memory: mx.array | None = None

    def select(self, rows: mx.array, longest: int) -> None:
        self.inputs = [a[rows] for a in self.inputs]
        self.memory = None if self.memory is None else self.memory[rows]

    def join(self, other: LayerCache) -> None:
        assert isinstance(other, RecurrentState)
        if self.memory is None or other.memory is None:
            raise ValueError("only caches that hold something can be joined")
        self.inputs = [mx.concatenate(list(pair)) for pair in zip(self.inputs, other.inputs, strict=True)]
        self.memory = mx.concatenate([self.memory, other.memory])

    def prefix(self, row: int, seen: int, tokens: int) -> RecurrentState:
        copy = RecurrentState()
        copy.inputs = [a[row : row + 1] for a in self.inputs]
        copy.memory = None if self.memory is None else self.memory[row : row + 1]
        return copy

    @property
    def arrays(self) -> list[mx.array]:
        return [*self.inputs, *([] if self.memory is None else [self.memory])]


class Cache:
    """All layers' caches of one batch. `lengths[row]` tokens of each row have been seen."""

    def __init__(self, layers: Sequence[LayerCache], rows: int = 1) -> None:
        self.layers = list(layers)
        self.lengths = [0] * rows
        self._offsets: mx.array | None = None

    @property
    def rows(self) -> int:
        return len(self.lengths)

    @property
    def even(self) -> bool:
        """Whether all rows are equally long."""
        return self._offsets is None

    @property
    def offset(self) -> int | mx.array:
        """Position of the next token: one integer, or one per row."""
        return self.lengths[0] if self._offsets is None else self._offsets

    def advance(self, tokens: int) -> None:
        """Every row has seen `tokens` more."""
        self.lengths = [n + tokens for n in self.lengths]
        if self._offsets is not None:
            self._offsets = self._offsets + tokens

    def mask(self, columns: int) -> mx.array | None:
        """For one new token a row and `columns` columns, its own included: [rows, 1, 1, columns], or None if even."""
        if self._offsets is None:
            return None
        first = columns - 1 - self._offsets
        return (mx.arange(columns)[None] >= first[:, None])[:, None, None]

    def select(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order."""
        index, lengths = mx.array(list(rows)), [self.lengths[row] for row in rows]
        for layer in self.layers:
            layer.select(index, max(lengths))
        self._set_lengths(lengths)

    def join(self, other: Cache) -> None:
        """Append another batch's rows."""
        for mine, theirs in zip(self.layers, other.layers, strict=True):
            mine.join(theirs)
        self._set_lengths([*self.lengths, *other.lengths])

    def expect(self, tokens: int, *, known: int = 0) -> None:
        """No row will come to more than `tokens`, and all will have `known`: how long buffers are made from now on."""
        for layer in self.layers:
            if isinstance(layer, KeyValues):
                layer.room, layer.known = tokens, known

    @property
    def cuttable(self) -> bool:
        """Whether `prefix` can give fewer tokens than a row has seen."""
        return all(layer.cuttable for layer in self.layers)

    def prefix(self, row: int, tokens: int) -> Cache:
        """A copy of one row as it was after its first `tokens` tokens; it shares no buffer that is written to.

        ValueError for fewer tokens than the row has seen where the cache isn't `cuttable`.
        """
        seen = self.lengths[row]
        if tokens > seen or (tokens < seen and not self.cuttable):
            raise ValueError(f"a row that has seen {seen} tokens can't give the state after {tokens}")
        copy = Cache([layer.prefix(row, seen, tokens) for layer in self.layers])
        copy.lengths = [tokens]
        return copy

    def compact(self) -> None:
        """Hold no larger buffers than needed: those of a `prefix` are the whole batch's until then."""
        for a in self.arrays:
            a[...] = mx.contiguous(a)
        mx.eval(self.arrays)

    @property
    def arrays(self) -> list[mx.array]:
        return [a for layer in self.layers for a in layer.arrays]

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in self.arrays)

    def _set_lengths(self, lengths: list[int]) -> None:
        self.lengths = lengths
        self._offsets = mx.array(lengths) if len(set(lengths)) > 1 else None
