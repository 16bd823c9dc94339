"""What can't be served is refused at once, and what goes wrong later leaves an engine that can be used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from engine_kit import ids

from llmbench_engine import Engine, InvalidRequest, Request, Sampling, Token
from llmbench_engine.loader import load_model
from llmbench_engine.transformer import Model


@pytest.fixture(scope="module")
def full(tiny_checkpoints: Path) -> Model:
    return load_model(tiny_checkpoints / "tiny-random")


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"prompt": ()}, "the prompt has no tokens"),
        ({"prompt": (1, 2048)}, "id 2048; this model's ids go from 0 to 2047"),
        ({"prompt": (-1,)}, "id -1"),
        ({"prompt": (1,), "max_tokens": 0}, "max_tokens is 0"),
        ({"prompt": (1,), "max_tokens": 5.0}, "max_tokens is 5.0; it has to be an integer"),
        ({"prompt": (1,), "max_tokens": float("nan")}, "max_tokens is nan"),
        ({"prompt": (1,), "max_tokens": 3_000_000_000}, "max_tokens is 3000000000; it has to be an integer from 1 to"),
        ({"prompt": (1.0,)}, "the prompt has to hold token ids"),
        ({"prompt": (1,), "stop": ("a",)}, "stop has to hold token ids"),
    ],
)
def test_requests_that_can_not_be_served_are_refused_at_once(
    full: Model, values: dict[str, object], problem: str
) -> None:
    engine = Engine(full)
    with pytest.raises(InvalidRequest, match=problem):
        engine.submit(Request(**values))  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match=problem):
        engine.generate(values.pop("prompt"), **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"max_batch": float("nan")}, "max_batch is nan"),
        ({"chunk": 1.5}, r"chunk is 1\.5"),
        ({"chunk": 0}, "chunk is 0"),
        ({"memory_budget": float("nan")}, "memory_budget is nan"),
        ({"memory_budget": -1}, "memory_budget is -1"),
    ],
)
def test_limits_that_are_none_are_refused(full: Model, values: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        Engine(full, **values)


def test_numpys_integers_are_integers(full: Model) -> None:
    engine, prompt = Engine(full), np.array([1, 2, 3])
    warm = {"temperature": np.float32(0.5), "top_k": np.int64(9), "seed": np.uint64(4)}
    got = ids(list(engine.generate(prompt, max_tokens=np.int64(5), sampling=Sampling(**warm))))  # type: ignore[arg-type]
    same = Sampling(temperature=0.5, top_k=9, seed=4)
    assert got == ids(list(engine.generate((1, 2, 3), max_tokens=5, sampling=same)))


class Breaks:
    """A model of which one call is interrupted; the engine's first, which asks for sizes, is number 0."""

    def __init__(self, model: Model, failing: int) -> None:
        self.make_cache, self.head = model.make_cache, model.head
        self._model, self._failing, self._calls = model, failing, -1

    def __call__(self, *given: Any, **named: Any) -> mx.array:
        self._calls += 1
        if self._calls == self._failing:
            raise KeyboardInterrupt
        return self._model(*given, **named)


@pytest.mark.parametrize("failing", [1, 2, 3, 4])
def test_a_step_that_fails_drops_what_was_begun_and_serves_the_rest(full: Model, failing: int) -> None:
    engine = Engine(Breaks(full, failing), max_batch=1)
    wanted = ids(list(Engine(full).generate((4, 5), max_tokens=6)))
    first, second = (engine.submit(Request(prompt=prompt, max_tokens=6)) for prompt in ((1, 2, 3), (4, 5)))
    got: list[Token] = []
    with pytest.raises(KeyboardInterrupt) as caught:
        together_until_done(engine, got, second)
    assert f"[{first}]" in caught.value.__notes__[0]
    assert (engine.pending, engine.cancel(first)) == (1, False)
    together_until_done(engine, got, second)
    assert ids(got) == wanted


def test_a_step_that_fails_keeps_what_was_admitted_and_not_begun(full: Model) -> None:
    engine, prompts = Engine(Breaks(full, 1), max_batch=8), [(1, 2, 3), (4, 5), (6,)]
    wanted = [ids(list(Engine(full).generate(prompt, max_tokens=4))) for prompt in prompts]
    first, *others = (engine.submit(Request(prompt=prompt, max_tokens=4)) for prompt in prompts)
    with pytest.raises(KeyboardInterrupt) as caught:
        engine.step()
    assert f"dropped the requests [{first}]" in caught.value.__notes__[0]
    assert engine.pending == 2
    got: dict[int, list[Token]] = {number: [] for number in others}
    while engine.pending:
        for number, token in engine.step():
            got[number].append(token)
    assert [ids(tokens) for tokens in got.values()] == wanted[1:]


def together_until_done(engine: Engine, got: list[Token], number: int) -> None:
    while engine.pending:
        got += [token for owner, token in engine.step() if owner == number]
