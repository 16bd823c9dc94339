"""Many together give what each gives alone, whatever they are and whenever they come and go."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pytest
from engine_kit import CACHES, KINDS, WINDOW, Watched, ids, long_prompt, make_model, together
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmbench_engine import Engine, InvalidRequest, Request, Sampling, Token
from llmbench_engine.loader import load_model
from llmbench_engine.transformer import Model

few = settings(deadline=None, max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module", params=KINDS)
def each_model(request: pytest.FixtureRequest) -> Model:
    return make_model(request.param)


@pytest.fixture(scope="module", params=CACHES)
def model(request: pytest.FixtureRequest) -> Model:
    return make_model(request.param)


@pytest.fixture
def watched(tiny_checkpoints: Path) -> Watched:
    return Watched(load_model(tiny_checkpoints / "tiny-random"))


@dataclass(frozen=True)
class Arrival:
    """A request that comes before step `at`; cancelled after `cancelled` steps of its own, if it still runs."""

    request: Request
    at: int
    cancelled: int | None


def arrivals(vocabulary: int) -> st.SearchStrategy[list[Arrival]]:
    token = st.integers(0, vocabulary - 1)
    lengths = st.sampled_from([1, 2, 5, 5, 5, WINDOW - 1, WINDOW, WINDOW + 1, 21])
    prompt = lengths.flatmap(lambda n: st.tuples(*[token] * n))
    sampling = st.builds(
        Sampling, temperature=st.sampled_from([0.0, 0.0, 1.0]), top_k=st.just(9), seed=st.integers(0, 99)
    )
    request = st.builds(
        Request, prompt=prompt, max_tokens=st.integers(1, 14), sampling=sampling, logprobs=st.booleans()
    )
    return st.lists(
        st.builds(Arrival, request, st.integers(0, 12), st.none() | st.integers(0, 9)), min_size=1, max_size=7
    )


@few
@given(data=st.data())
def test_each_request_gets_the_tokens_that_it_gets_alone(each_model: Model, data: st.DataObject) -> None:
    engine = Engine(each_model, max_batch=4, chunk=16)
    coming = data.draw(arrivals(engine.vocabulary))
    stop = frozenset(range(0, engine.vocabulary, 9))
    coming = [replace(a, request=replace(a.request, stop=stop)) for a in coming]
    numbers: dict[int, int] = {}
    got: dict[int, list[Token]] = {i: [] for i in range(len(coming))}
    for step in range(150):
        if step > 12 and not engine.pending:
            break
        for i, arrival in enumerate(coming):
            if arrival.at == step:
                numbers[engine.submit(arrival.request)] = i
            if arrival.cancelled is not None and step == arrival.at + arrival.cancelled:
                number = next(n for n, j in numbers.items() if j == i)
                ended = bool(got[i]) and got[i][-1].finish is not None
                assert engine.cancel(number) is not ended
        for number, token in engine.step():
            got[numbers[number]].append(token)
    assert engine.pending == 0
    for arrival, tokens in zip(coming, got.values(), strict=True):
        request = arrival.request
        solo = list(
            engine.generate(request.prompt, max_tokens=request.max_tokens, sampling=request.sampling, stop=stop)
        )
        assert ids(tokens) == ids(solo)[: len(tokens)]
        assert arrival.cancelled is not None or len(tokens) == len(solo)
        assert all((token.logprob is not None) == request.logprobs for token in tokens)


def test_equal_prompts_are_read_as_one_group_and_their_cache_is_the_batch(watched: Watched) -> None:
    engine = Engine(watched)
    watched.forget()
    together(engine, [Request(prompt=(i, 5, 6), max_tokens=4) for i in range(3)])
    assert watched.shapes == [(3, 3), (3, 1), (3, 1), (3, 1)]
    assert len(set(map(id, watched.caches))) == 1


def test_nothing_is_computed_beyond_the_last_token(watched: Watched) -> None:
    engine = Engine(watched)
    watched.forget()
    list(engine.generate((1, 2, 3), max_tokens=5))
    assert watched.tokens == 3 + 4
    watched.forget()
    together(engine, [Request(prompt=(1, 2, 3), max_tokens=5), Request(prompt=(1, 2), max_tokens=2)])
    assert watched.tokens == (3 + 4) + (2 + 1)


def test_a_long_prompt_is_read_between_the_steps_of_those_that_run(watched: Watched) -> None:
    engine = Engine(watched, chunk=10)
    first = engine.submit(Request(prompt=(1,), max_tokens=12))
    engine.step()
    engine.submit(Request(prompt=long_prompt, max_tokens=2))
    assert [[number for number, _ in engine.step()] for _ in range(7)] == [[first]] * 7


def test_caches_stay_within_the_memory_budget(watched: Watched) -> None:
    token = 2 * 2 * 2 * 64 * 4  # layers, keys and values, heads, width, bytes
    budget = 120 * token
    engine = Engine(watched, memory_budget=budget)
    watched.forget()
    requests = [Request(prompt=(1,) * (1 + 7 * i % 20), max_tokens=3 + 5 * i % 11) for i in range(12)]
    assert all(got[-1].finish == "length" for got in together(engine, requests))
    assert budget / 2 < watched.largest <= budget
    watched.forget()
    requests = [Request(prompt=(1,) * 40, max_tokens=2), *[Request(prompt=(1,), max_tokens=20)] * 6]
    together(engine, requests)
    assert budget / 2 < watched.largest <= budget
    with pytest.raises(InvalidRequest, match="memory_budget"):
        engine.submit(Request(prompt=(1,) * 100, max_tokens=21))


@settings(few, max_examples=4)
@given(data=st.data())
def test_reused_beginnings_change_no_token(model: Model, data: st.DataObject) -> None:
    engine, plain = Engine(model, prefix_reuse=True, chunk=24), Engine(model)
    prompts = [long_prompt[: data.draw(st.integers(17, 60))]]
    answers: list[list[int]] = []
    for i in range(data.draw(st.integers(1, 3))):
        base = data.draw(st.sampled_from(prompts)) + tuple(data.draw(st.sampled_from([[], *answers])))
        prompts.append((*base[: data.draw(st.integers(17, 80))], *range(300 + i, 302 + i)))
    for one, two in pairwise(prompts):
        requests = [Request(prompt=p, max_tokens=6) for p in (one, two)]
        got = [ids(tokens) for tokens in together(engine, requests)]
        assert got == [ids(list(plain.generate(r.prompt, max_tokens=6))) for r in requests]
        assert got[0] == ids(list(engine.generate(one, max_tokens=6)))


@pytest.mark.parametrize("steps", range(9))
def test_a_beginning_kept_in_the_step_that_reads_a_prompt_changes_no_token(model: Model, steps: int) -> None:
    """The prompt was planned before the other one's end left its cache: the two must not be mixed up."""
    first = Request(prompt=long_prompt, max_tokens=6)
    answer = ids(list(Engine(model).generate(first.prompt, max_tokens=6)))
    second = Request(prompt=(*long_prompt, *answer, 300), max_tokens=6)
    engine = Engine(model, prefix_reuse=True)
    engine.submit(first)
    for _ in range(steps):
        engine.step()
    number, got = engine.submit(second), list[int]()
    while engine.pending:
        got += [token.id for row, token in engine.step() if row == number]
    assert got == ids(list(Engine(model).generate(second.prompt, max_tokens=6)))


def test_only_what_is_new_in_a_prompt_is_read_again(model: Model) -> None:
    watched = Watched(model)

    def cost(engine: Engine, prompt: tuple[int, ...]) -> int:
        watched.forget()
        together(engine, [Request(prompt=prompt, max_tokens=1)])
        return watched.tokens

    off, on = Engine(watched), Engine(watched, prefix_reuse=True)
    longer = (*long_prompt, 300, 301)
    assert [cost(off, long_prompt), cost(off, longer)] == [70, 72]
    assert [cost(on, long_prompt), on.reusable(longer), cost(on, longer)] == [70, 70, 2]


@pytest.mark.parametrize("kind", ["qwen3_5", "qwen3_5_moe"])
def test_prompts_read_together_are_cut_where_one_alone_is(kind: str) -> None:
    """The chunked delta rule rounds by where its blocks begin: a step of 100 // 3 columns gave other tokens."""
    engine = Engine(make_model(kind, packed="4bit"), chunk=100)
    for seed in range(2):
        rng = random.Random(seed)
        prompts = [tuple(rng.randrange(engine.vocabulary) for _ in range(90)) for _ in range(3)]
        alone = [list(engine.generate(p, max_tokens=8, ignore_eos=True, logprobs=True)) for p in prompts]
        requests = [Request(prompt=p, max_tokens=8, ignore_eos=True, logprobs=True) for p in prompts]
        assert together(engine, requests) == alone
