"""The two halves of a generation: read the prompt, then one token after another."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx

from llmbench_engine.cache import Cache
from llmbench_engine.transformer import Model

CHUNK = 2048
"""Prompt tokens that are read at once; more of them need more memory for activations."""


def prefill(model: Model, prompt: mx.array, cache: Cache, *, chunk: int = CHUNK) -> mx.array:
    """Read prompts [rows, n] of one length; returns the last tokens' logits [rows, vocabulary], not evaluated."""
    count = prompt.shape[1]
    for start in range(0, count - chunk, chunk):
        read(model, prompt[:, start : start + chunk], cache)
        # Without this the whole prompt would be one graph, with all its activations.
        mx.eval(cache.arrays)
    rest = (count - 1) % chunk + 1
    hidden = model(prompt[:, count - rest :], cache, only_last=True)
    return model.head(hidden[:, -1])


def read(model: Model, tokens: mx.array, cache: Cache) -> None:
    """Let the cache see tokens [rows, n] that aren't the prompts' last ones.

    What else a model makes of them isn't used, so it isn't computed: the end of the last layer, and in Gemma all layers
    without a cache of their own.
    """
    model(tokens, cache, only_last=True)


def decode(model: Model, tokens: mx.array, cache: Cache) -> mx.array:
    """One more token [rows] for each row; returns the logits [rows, vocabulary], not evaluated."""
    return model.head(model(tokens[:, None], cache)[:, -1])


def greedy(model: Model, prompt: list[int], *, max_tokens: int, chunk: int = CHUNK) -> Iterator[int]:
    """The likeliest tokens after `prompt`, `max_tokens` of them, whatever they are.

    A token is given out before the next but one is begun, so that the first comes as early as it can; after it, the
    accelerator is always one token ahead.
    """
    cache = model.make_cache(1, len(prompt) + max_tokens)
    token = mx.argmax(prefill(model, mx.array([prompt]), cache, chunk=chunk), axis=-1)
    mx.eval(token)
    for left in range(max_tokens - 1, -1, -1):
        following = token
        if left:
            following = mx.argmax(decode(model, token, cache), axis=-1)
            mx.async_eval(following)  # type: ignore[no-untyped-call]
        yield int(token.item())  # type: ignore[arg-type]
        token = following
