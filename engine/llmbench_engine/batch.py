"""The sequences that are decoded together, one step ahead of what has been read from them."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from typing import cast

import mlx.core as mx

from llmbench_engine.cache import Cache
from llmbench_engine.generate import decode
from llmbench_engine.sampling import Sampler, logprobs
from llmbench_engine.sequence import Sequence
from llmbench_engine.transformer import Model


@dataclass(frozen=True, slots=True)
class Step:
    """Tokens that are being computed, [rows], and their log-probabilities where some row asked for them."""

    rows: tuple[Sequence, ...]
    tokens: mx.array
    logprobs: mx.array | None

    def read(self) -> Iterator[tuple[Sequence, int, float | None]]:
        """Wait for them."""
        logprobs = [None] * len(self.rows) if self.logprobs is None else cast("list[float]", self.logprobs.tolist())
        return zip(self.rows, cast("list[int]", self.tokens.tolist()), logprobs, strict=True)


class Batch:
    """One row a sequence. `tokens` [rows] are being computed; the cache hasn't seen them yet."""

    __slots__ = ("_model", "_sampler", "cache", "first", "logprobs", "rows", "tokens")

    def __init__(self, model: Model, rows: Ordered[Sequence], cache: Cache, logits: mx.array) -> None:
        self._model = model
        self.rows = list(rows)
        self.cache = cache
        self.first = True
        self._sampler = Sampler([row.request.sampling for row in self.rows])
        self.tokens: mx.array
        self.logprobs: mx.array | None
        self._choose(logits)

    def advance(self) -> None:
        """Begin the next token of every row."""
        self.first = False
        self._choose(decode(self._model, self.tokens, self.cache))

    def step(self) -> Step:
        """What is underway now; later calls don't change it."""
        return Step(tuple(self.rows), self.tokens, self.logprobs)

    def keep(self, rows: Ordered[Sequence]) -> None:
        """Drop all other rows."""
        if len(rows) == len(self.rows):
            return
        kept = [i for i, row in enumerate(self.rows) if row in rows]
        self.rows = [self.rows[i] for i in kept]
        self.cache.expect(self._longest())
        self.cache.select(kept)
        index = mx.array(kept)
        self.tokens = self.tokens[index]
        self.logprobs = None if self.logprobs is None else self.logprobs[index]
        self._sampler = Sampler([row.request.sampling for row in self.rows])

    def join(self, other: Batch) -> None:
        """Append the rows of another batch."""
        mine, theirs = self._known_logprobs(), other._known_logprobs()
        both = self.logprobs is not None or other.logprobs is not None
        self.logprobs = mx.concatenate([mine, theirs]) if both else None
        self.tokens = mx.concatenate([self.tokens, other.tokens])
        self.rows = [*self.rows, *other.rows]
        self.cache.join(other.cache)
        self.cache.expect(self._longest())
        self._sampler = Sampler([row.request.sampling for row in self.rows])

    def _longest(self) -> int:
        return max(row.request.total for row in self.rows)

    def _known_logprobs(self) -> mx.array:
        return mx.zeros(len(self.rows)) if self.logprobs is None else self.logprobs

    def _choose(self, logits: mx.array) -> None:
        keys = () if self._sampler.greedy else [row.key for row in self.rows]
        self.tokens = self._sampler(logits, keys)
        wanted = any(row.request.logprobs for row in self.rows)
        self.logprobs = logprobs(logits, self.tokens) if wanted else None
        begin([self.tokens] if self.logprobs is None else [self.tokens, self.logprobs])


def begin(arrays: Ordered[mx.array]) -> None:
    """Have these computed, without waiting."""
    mx.async_eval(*arrays)  # type: ignore[no-untyped-call]
