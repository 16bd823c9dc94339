"""Caches of sequences that have ended, kept so that a prompt which begins alike needn't be read again."""

from __future__ import annotations

from collections.abc import Sequence as Ordered

from llmbench_engine.cache import Cache
from llmbench_engine.sequence import Sequence

ENTRIES = 16
"""Sequences that are kept at most."""

SHORTEST = 16
"""A shorter common beginning isn't worth a group of its own."""

Ids = tuple[int, ...]


class Prefixes:
    """Pairs of ids and the cache that has seen them, the longest unused first.

    Keys and values of full attention serve every prompt that shares some beginning with them. Windows and recurrent
    states can't be cut: they serve prompts that begin with all of their ids.
    """

    def __init__(self, *, capacity: int | None = None, entries: int = ENTRIES, shortest: int = SHORTEST) -> None:
        self._capacity, self._count, self._shortest = capacity, entries, shortest
        self._kept: list[tuple[Ids, Cache]] = []

    def common(self, sequence: Sequence) -> int:
        """Tokens of the prompt that need not be read; its last always is, since its logits are needed."""
        return self._find(sequence.request.prompt)[0]

    def take(self, sequence: Sequence, room: int) -> Cache | None:
        """A cache of its own for this prompt, of which it has seen `common` tokens; None where that is 0."""
        tokens, place = self._find(sequence.request.prompt)
        if not tokens:
            return None
        entry = self._kept.pop(place)
        self._kept.append(entry)
        cache = entry[1].prefix(0, tokens)
        cache.expect(room, known=len(sequence.request.prompt))
        return cache

    def put(self, ids: Ordered[int], cache: Cache, row: int) -> None:
        """Keep a copy of the row, which has seen exactly `ids`. What it makes superfluous goes."""
        ids = tuple(ids)
        if any(_covers(kept, ids, cut=cache.cuttable) for kept, _ in self._kept):
            return
        copy = cache.prefix(row, len(ids))
        copy.compact()
        self._kept = [entry for entry in self._kept if not _covers(ids, entry[0], cut=cache.cuttable)]
        self._kept.append((ids, copy))
        while len(self._kept) > self._count or (self._capacity is not None and self.nbytes > self._capacity):
            del self._kept[0]

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def nbytes(self) -> int:
        return sum(cache.nbytes for _, cache in self._kept)

    def _find(self, prompt: Ids) -> tuple[int, int]:
        """The longest usable beginning, and which entry has it; (0, -1) if none."""
        best, place = 0, -1
        for i, (ids, cache) in enumerate(self._kept):
            shared = min(_shared(ids, prompt), len(prompt) - 1)
            if shared > best and shared >= self._shortest and (cache.cuttable or shared == len(ids)):
                best, place = shared, i
        return best, place


def _covers(longer: Ids, shorter: Ids, *, cut: bool) -> bool:
    return longer[: len(shorter)] == shorter if cut else longer == shorter


def _shared(a: Ids, b: Ids) -> int:
    """Length of the common beginning. Halving, since slices are compared much faster than elements in a loop."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle - 1)
    return low
