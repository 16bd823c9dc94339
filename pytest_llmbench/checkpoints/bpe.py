"""Byte-level byte-pair encoding: training (Sennrich et al. 2016) and GPT-2's spelling of bytes.

Written out here, so that the vocabulary depends on no library's version or order of hashing.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

Pair = tuple[str, str]


class Bpe(NamedTuple):
    """A trained vocabulary: `tokens` in id order (256 bytes first), `merges` in order of priority."""

    tokens: tuple[str, ...]
    merges: tuple[Pair, ...]


def byte_alphabet() -> tuple[str, ...]:
    """Printable character for each of the 256 bytes, as in GPT-2's `bytes_to_unicode`."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return tuple(chr(byte) if byte in printable else chr(next(spare)) for byte in range(256))


def spell(text: str) -> str:
    """`text`'s UTF-8 bytes in the printable alphabet: `" a"` → `"Ġa"`."""
    alphabet = byte_alphabet()
    return "".join(alphabet[byte] for byte in text.encode("utf-8"))


def train(pretokens: Mapping[str, int], size: int) -> Bpe:
    """Vocabulary of `size` tokens. Equal counts are decided by the pair's text.

    Raises ValueError when the pre-tokens hold too few different pairs.
    """
    merger = _Merger(pretokens)
    tokens = dict.fromkeys(byte_alphabet())
    merges: list[Pair] = []
    while len(tokens) < size:
        pair = merger.most_frequent()
        merger.merge(pair)
        merges.append(pair)
        tokens[pair[0] + pair[1]] = None
    return Bpe(tuple(tokens), tuple(merges))


class _Merger:
    """Words as lists of symbols, with the counts of neighbours kept up to date."""

    def __init__(self, pretokens: Mapping[str, int]) -> None:
        self._words = [list(spell(text)) for text in pretokens]
        self._weights = list(pretokens.values())
        self._counts: Counter[Pair] = Counter()
        self._places: defaultdict[Pair, set[int]] = defaultdict(set)
        for index in range(len(self._words)):
            self._count(index, sign=1)
        self._heap = [(-count, pair) for pair, count in self._counts.items()]
        heapq.heapify(self._heap)

    def most_frequent(self) -> Pair:
        """Pair with the highest count. The heap keeps old counts, which are dropped here."""
        while self._heap:
            negative, pair = heapq.heappop(self._heap)
            if self._counts[pair] == -negative > 0:
                return pair
        raise ValueError("the corpus has too few different pairs for this vocabulary size")

    def merge(self, pair: Pair) -> None:
        """Joins `pair` in every word that has it."""
        changed: set[Pair] = set()
        for index in sorted(self._places[pair]):
            changed |= self._count(index, sign=-1)
            self._words[index] = _joined(self._words[index], pair)
            changed |= self._count(index, sign=1)
        for other in changed:
            heapq.heappush(self._heap, (-self._counts[other], other))

    def _count(self, index: int, *, sign: int) -> set[Pair]:
        pairs = list(pairwise(self._words[index]))
        for pair in pairs:
            self._counts[pair] += sign * self._weights[index]
            (self._places[pair].add if sign > 0 else self._places[pair].discard)(index)
        return set(pairs)


def _joined(word: list[str], pair: Pair) -> list[str]:
    """`word` with each occurrence of `pair`, from the left, as one symbol."""
    out: list[str] = []
    position = 0
    while position < len(word):
        width = 2 if tuple(word[position : position + 2]) == pair else 1
        out.append("".join(word[position : position + width]))
        position += width
    return out
