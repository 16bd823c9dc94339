"""The host waits for layers of a long prompt, and that changes nothing of the result."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from engine_kit import KINDS, make_model
from exactness import logits_after, prompts

from llmbench_engine import pace
from llmbench_engine.generate import read


@pytest.mark.parametrize("kind", KINDS)
def test_a_paced_prompt_gives_the_same_logits(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model(kind)
    (prompt,) = prompts([24], 32)
    free = logits_after(model, prompt, chunk=10)
    monkeypatch.setattr(pace, "PACED_FROM", 2)
    monkeypatch.setattr(pace, "LAYERS_AHEAD", 1)
    np.testing.assert_array_equal(logits_after(model, prompt, chunk=10), free)


@pytest.mark.parametrize("kind", KINDS)
def test_of_a_chunk_that_is_not_the_last_only_what_caches_keep_is_computed(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """mlx-lm evaluates nothing but the caches there; Gemma's layers without one would be a third of its work."""
    model, rows = make_model(kind), []
    cache = model.make_cache(1, 24)
    monkeypatch.setattr(pace, "PACED_FROM", 2)
    monkeypatch.setattr(mx, "async_eval", lambda x, _past=None: rows.append(x.shape[1]))
    read(model, mx.array(prompts([10], 32)), cache)
    assert rows == [10] * (len(cache.layers) - 1) + [1]


def test_only_the_newest_layers_of_a_long_step_may_be_underway(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[int] = []
    monkeypatch.setattr(mx, "eval", lambda x: waited.append(int(x.item())))
    paced, short = pace.Pace(pace.PACED_FROM), pace.Pace(pace.PACED_FROM - 1)
    for layer in range(5):
        paced(mx.array(layer))
        short(mx.array(layer))
    assert waited == list(range(5 - pace.LAYERS_AHEAD))
