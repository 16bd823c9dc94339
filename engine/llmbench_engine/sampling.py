"""From logits to tokens.

A request's randomness depends on its seed and on the position of the token, never on what else is in the batch: each
row draws its own noise, made from a key of its own (the Gumbel-max trick: argmax(log p + noise) is a sample of p).
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from llmbench_engine.parameters import GREEDY, Key, Sampling, key

__all__ = ["GREEDY", "Key", "Sampler", "Sampling", "key", "logprobs", "sample"]

EVERY = 1 << 30
"""More tokens than any vocabulary has."""


class Sampler:
    """Chooses a token for each row of a batch. Made once for its rows, called once a step."""

    __slots__ = ("_hot", "_min_p", "_temperature", "_top_k", "_top_p", "greedy")

    def __init__(self, rows: Sequence[Sampling]) -> None:
        self.greedy = all(row.greedy for row in rows)
        if self.greedy:
            return
        self._hot = mx.array([[not row.greedy] for row in rows])
        self._temperature = mx.array([[1.0 if row.greedy else row.temperature] for row in rows])
        self._min_p = _column([row.min_p for row in rows], 0.0)
        self._top_k = _column([row.top_k or EVERY for row in rows], EVERY)
        self._top_p = _column([row.top_p for row in rows], 1.0)

    def __call__(self, logits: mx.array, keys: Sequence[Key] = ()) -> mx.array:
        """logits [rows, vocabulary] → tokens [rows]. `keys`, one a row, count only where some row isn't greedy."""
        if self.greedy:
            return mx.argmax(logits, axis=-1)
        scores = logits.astype(mx.float32) / self._temperature
        noise = mx.where(self._hot, _noise(keys, logits.shape[-1]), 0.0)
        if self._min_p is not None:
            floor = scores.max(axis=-1, keepdims=True) + mx.log(self._min_p)
            scores = mx.where(scores >= floor, scores, -mx.inf)
        if self._top_k is None and self._top_p is None:
            return mx.argmax(scores + noise, axis=-1)
        return self._by_rank(scores, noise)

    def _by_rank(self, scores: mx.array, noise: mx.array) -> mx.array:
        """The choice among the first of the sorted tokens."""
        order = mx.argsort(-scores, axis=-1)
        ranked = mx.take_along_axis(scores, order, axis=-1)
        if self._top_k is not None:
            ranked = mx.where(mx.arange(ranked.shape[-1])[None] < self._top_k, ranked, -mx.inf)
        if self._top_p is not None:
            likely = mx.softmax(ranked, axis=-1)
            ranked = mx.where(likely.cumsum(axis=-1) - likely < self._top_p, ranked, -mx.inf)
        chosen = mx.argmax(ranked + mx.take_along_axis(noise, order, axis=-1), axis=-1, keepdims=True)
        return mx.take_along_axis(order, chosen, axis=-1)[:, 0]


def _column(values: Sequence[float], neutral: float) -> mx.array | None:
    """[rows, 1], or None where every row is neutral, so that the filter isn't there at all."""
    return None if all(v == neutral for v in values) else mx.array([[v] for v in values])


def _noise(keys: Sequence[Key], width: int) -> mx.array:
    draw = mx.vmap(lambda row: mx.random.gumbel(shape=(width,), key=row))
    noise: mx.array = draw(mx.array(list(keys), dtype=mx.uint32))
    return noise


def sample(logits: mx.array, rows: Sequence[Sampling], keys: Sequence[Key] = ()) -> mx.array:
    """logits [rows, vocabulary], each row's parameters and key → tokens [rows], not evaluated."""
    return Sampler(rows)(logits, keys)


def logprobs(logits: mx.array, tokens: mx.array) -> mx.array:
    """Natural log-probabilities of `tokens` [rows] under the model itself, unfiltered, float32 [rows]."""
    logits = logits.astype(mx.float32)
    chosen = mx.take_along_axis(logits, tokens[:, None], axis=-1)[:, 0]
    return chosen - mx.logsumexp(logits, axis=-1)
