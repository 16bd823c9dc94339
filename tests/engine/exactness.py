"""What every architecture has to show against mlx-lm and against itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from oracle import Oracle, Reference, assert_follows

from llmbench_engine.generate import decode, greedy, prefill
from llmbench_engine.kv_cache import WindowKeyValues
from llmbench_engine.loader import load_model
from llmbench_engine.transformer import Model

CHUNK = 8
STEPS = 64

RELATIVE = {"float32": 1e-4, "float16": 8 * 2.0**-11, "bfloat16": 8 * 2.0**-8}
"""Tolerances relative to the largest logit. In half precision eight roundings of it: the same operations in another
order (fused, split over the inner dimension) differ by a few. In float32 about a thousand roundings: far less than any
difference in the mathematics makes (`test_what_the_checkpoint_says_is_used`), far more than the order of sums does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A checkpoint and how mlx-lm sees it."""

    config: Mapping[str, Any]
    quantization: Mapping[str, Any] | None = None
    exceptions: Mapping[str, Any] | None = None
    dtype: str = "float32"
    seed: int = 0

    def make(self, oracle: Oracle) -> Path:
        return oracle.make(
            self.config,
            quantization=self.quantization,
            exceptions=self.exceptions,
            dtype=self.dtype,
            seed=self.seed,
        )


def prompts(lengths: Sequence[int], vocabulary: int) -> list[list[int]]:
    rng = np.random.default_rng(7)
    return [rng.integers(0, vocabulary, n).tolist() for n in lengths]


def as_numpy(logits: mx.array) -> np.ndarray:
    return np.array(logits.astype(mx.float32))


def logits_after(model: Model, prompt: Sequence[int], *, chunk: int = 2048) -> np.ndarray:
    """The last token's logits [vocabulary] after an empty cache has read the prompt."""
    return as_numpy(prefill(model, mx.array([list(prompt)]), model.make_cache(1, len(prompt)), chunk=chunk)[0])


def check(oracle: Oracle, case: Case, lengths: Sequence[int], vocabulary: int) -> None:
    """Prefill, whole and in chunks, greedy decoding, with and without a cache, alone and in a batch.

    Half precision is only compared with what mlx-lm does in the same chunks: where the scores of two experts are
    nearly equal, a rounding decides which one a token goes to, and mlx-lm with a cache and without one differ by a
    fifth of the largest logit.
    """
    folder = case.make(oracle)
    asked = prompts(lengths, vocabulary)
    references = oracle.run(folder, asked, [2] * (len(asked) - 1) + [STEPS])
    again = [[*prompt, *reference.tokens[:-1]] for prompt, reference in zip(asked, references, strict=True)]
    uncached = oracle.run(folder, again, [1] * len(again))
    model = load_model(folder)
    for prompt, longer, reference, whole in zip(asked, again, references, uncached, strict=True):
        close = {"rtol": 0, "atol": reference.tolerance(RELATIVE[case.dtype]), "err_msg": f"{len(prompt)} tokens"}
        np.testing.assert_allclose(logits_after(model, prompt), reference.logits[0], **close)
        np.testing.assert_allclose(logits_after(model, longer), whole.logits[0], **close)
        if case.dtype == "float32":
            np.testing.assert_allclose(logits_after(model, prompt, chunk=CHUNK), reference.logits[0], **close)
            np.testing.assert_allclose(logits_after(model, longer), reference.logits[-1], **close)
        assert_follows(list(greedy(model, prompt, max_tokens=len(reference.tokens))), reference, close["atol"])
    longest = references[-1]
    assert len(set(longest.tokens)) >= STEPS // 8, "it repeats itself; equal tokens would say little: take another seed"
    check_batch(model, asked, longest.tolerance(RELATIVE[case.dtype]))


def check_batch(model: Model, asked: Sequence[Sequence[int]], tolerance: float, *, steps: int = 24) -> None:
    """Rows of different lengths join and leave; each one's logits are those of its solo run.

    The rows get the solo runs' tokens, so that one choice between equals doesn't end the comparison.
    """
    solo = [_solo(model, prompt, steps) for prompt in asked]
    wanted = [np.stack([as_numpy(x) for x in logits]) for logits, _ in solo]
    cache = model.make_cache(1, 256)
    prefill(model, mx.array([list(asked[0])]), cache)
    rows, done = [0], [0]
    for step in range(steps - 1):
        if (joins := step // 2 + 1) < len(asked) and step % 2 == 0:
            other = model.make_cache(1, 256)
            prefill(model, mx.array([list(asked[joins])]), other)
            cache.join(other)
            rows, done = [*rows, joins], [*done, 0]
        if step == steps // 2:  # The longest leaves, the rest changes places.
            kept = [i for i in range(len(rows)) if len(asked[rows[i]]) < max(map(len, asked))][::-1]
            cache.select(kept)
            rows, done = [rows[i] for i in kept], [done[i] for i in kept]
        tokens = [solo[row][1][n] for row, n in zip(rows, done, strict=True)]
        logits = as_numpy(decode(model, mx.array(tokens), cache))
        done = [n + 1 for n in done]
        for got, row, n in zip(logits, rows, done, strict=True):
            np.testing.assert_allclose(got, wanted[row][n], rtol=0, atol=tolerance, err_msg=f"row {row}, step {n}")


def _solo(model: Model, prompt: Sequence[int], steps: int) -> tuple[list[mx.array], list[int]]:
    cache = model.make_cache(1, len(prompt) + steps)
    last = prefill(model, mx.array([list(prompt)]), cache)
    logits, tokens = [], []
    for _ in range(steps):
        token = mx.argmax(last, axis=-1)
        logits.append(last[0])
        tokens.append(int(token.item()))
        last = decode(model, token, cache)
    return logits, tokens


def check_window_buffers(model: Model, prompt: Sequence[int], reference: Reference, tolerance: float) -> None:
    """Windows' buffers with little room beyond the window: filled often, and too small for a chunk of the prompt."""
    for slack in (1, 5, 16):
        cache = model.make_cache(1, 256)
        windows = [i for i, layer in enumerate(cache.layers) if isinstance(layer, WindowKeyValues)]
        assert windows
        for i in windows:
            cache.layers[i] = WindowKeyValues(cache.layers[i].window, slack)  # type: ignore[attr-defined]
        logits = [prefill(model, mx.array([list(prompt)]), cache, chunk=CHUNK)]
        logits += [decode(model, mx.array([token]), cache) for token in reference.tokens[:-1]]
        got = np.stack([as_numpy(x[0]) for x in logits])
        np.testing.assert_allclose(got, reference.logits, rtol=0, atol=tolerance, err_msg=f"slack {slack}")
        sizes = {cache.layers[i].arrays[0].shape[2] - cache.layers[i].window for i in windows}  # type: ignore[attr-defined]
        assert sizes == {slack}
