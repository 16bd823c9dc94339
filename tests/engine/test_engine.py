"""The engine's interface, on real (tiny) checkpoints."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from engine_kit import KINDS, ids, long_prompt, make_model, together

from llmbench_engine import CheckpointError, Engine, EngineClosed, Request, Sampling, Token
from llmbench_engine.generate import decode, greedy, prefill
from llmbench_engine.loader import load_model
from llmbench_engine.sampling import key, sample
from llmbench_engine.transformer import Model
from llmbench_engine.wired import WIRED_LIMIT


@pytest.fixture(scope="module")
def full(tiny_checkpoints: Path) -> Model:
    return load_model(tiny_checkpoints / "tiny-random")


@pytest.fixture
def scripted(tiny_checkpoints: Path) -> Iterator[Engine]:
    with Engine.load(tiny_checkpoints / "tiny-scripted") as engine:
        yield engine


def test_generate_gives_the_greedy_tokens(full: Model) -> None:
    engine = Engine(full)
    got = list(engine.generate(long_prompt, max_tokens=40))
    assert ids(got) == list(greedy(full, list(long_prompt), max_tokens=40))
    assert [token.finish for token in got] == [None] * 39 + ["length"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_can_be_used_in_another_thread_than_its_first_engine(kind: str) -> None:
    model = make_model(kind)

    def answer() -> list[int]:
        return ids(list(Engine(model).generate(long_prompt, max_tokens=4, ignore_eos=True)))

    Engine(model).close()
    with ThreadPoolExecutor(1) as thread:
        there = thread.submit(answer).result()
    assert there == answer()


def test_the_same_seed_gives_the_same_tokens_and_another_one_others(full: Model) -> None:
    engine = Engine(full)

    def run(seed: int) -> list[int]:
        return ids(list(engine.generate((1, 2, 3), max_tokens=20, sampling=Sampling(temperature=1.5, seed=seed))))

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_each_token_is_drawn_with_a_key_of_its_own(full: Model) -> None:
    warm = Sampling(temperature=1.5, top_k=50, seed=4)
    got = ids(list(Engine(full).generate((1, 2, 3), max_tokens=12, sampling=warm)))
    cache = full.make_cache(1, 20)
    logits = prefill(full, mx.array([[1, 2, 3]]), cache)
    for position, token in enumerate(got, start=1):
        assert sample(logits, [warm], [key(4, position)]).item() == token
        logits = decode(full, mx.array([token]), cache)


def test_without_a_seed_each_request_has_its_own(full: Model) -> None:
    hot = Request(prompt=(1, 2, 3), max_tokens=20, sampling=Sampling(temperature=1.5))
    first, second = together(Engine(full), [hot, hot])
    assert ids(first) != ids(second)


def test_logprobs_are_those_of_the_logits_and_none_unless_asked_for(full: Model) -> None:
    engine = Engine(full)
    got = list(engine.generate((1, 2, 3), max_tokens=6, logprobs=True))
    cache = full.make_cache(1, 20)
    logits = prefill(full, mx.array([[1, 2, 3]]), cache)
    for token in got:
        row = np.array(logits[0].astype(mx.float32), np.float64)
        assert token.logprob == pytest.approx(row[token.id] - np.log(np.exp(row).sum()), abs=1e-4)
        logits = decode(full, mx.array([token.id]), cache)
    assert all(token.logprob is None for token in engine.generate((1, 2, 3), max_tokens=6))


def test_the_checkpoints_end_token_ends_a_sequence_unless_it_is_ignored(scripted: Engine) -> None:
    assert scripted.tokenizer is not None
    prompt = scripted.tokenizer.encode_prompt("Hello")
    ended = list(scripted.generate(prompt, max_tokens=60))
    assert ended[-1].finish == "stop"
    assert ended[-1].id in scripted.tokenizer.eos_ids
    assert all(token.finish is None for token in ended[:-1])
    assert together(scripted, [Request(prompt=tuple(prompt), max_tokens=60)]) == [ended]
    ignored = list(scripted.generate(prompt, max_tokens=60, ignore_eos=True))
    assert len(ignored) == 60
    assert ignored[-1].finish == "length"
    assert ids(ignored)[: len(ended)] == ids(ended)


def test_stop_ids_end_a_sequence_too(scripted: Engine) -> None:
    assert scripted.tokenizer is not None
    prompt = scripted.tokenizer.encode_prompt("Hello")
    whole = list(scripted.generate(prompt, max_tokens=60))
    stop = whole[3].id
    got = list(scripted.generate(prompt, max_tokens=60, stop=[stop], ignore_eos=True))
    assert ids(got) == ids(whole)[: ids(whole).index(stop) + 1]
    assert (got[-1].finish, got[-1].text) == ("stop", "")


def test_texts_add_up_to_the_decoded_tokens(tiny_checkpoints: Path) -> None:
    with Engine.load(tiny_checkpoints / "tiny-random") as engine:
        assert engine.tokenizer is not None
        requests = [Request(prompt=(i, 7), max_tokens=30, ignore_eos=True) for i in range(3)]
        for tokens in together(engine, requests):
            assert "".join(token.text for token in tokens) == engine.tokenizer.decode(ids(tokens))


@pytest.mark.parametrize("state", ["waiting", "being read", "running"])
def test_a_request_can_be_cancelled_in_any_state(full: Model, state: str) -> None:
    engine = Engine(full, max_batch=2, chunk=8)
    other = engine.submit(Request(prompt=(1, 2, 3), max_tokens=20))
    engine.step()
    blocked = engine.submit(Request(prompt=(4,), max_tokens=40)) if state == "waiting" else None
    number = engine.submit(Request(prompt=long_prompt if state == "being read" else (5, 6), max_tokens=30))
    for _ in range(3 if state == "running" else 2):
        engine.step()
    assert engine.cancel(number)
    assert not engine.cancel(number)
    later = [n for _ in range(40) for n, _ in engine.step()]
    assert number not in later
    assert set(later) == {other, blocked} - {None}
    assert engine.pending == 0


def test_two_engines_do_not_disturb_each_other(tiny_checkpoints: Path) -> None:
    names = ("tiny-random", "tiny-scripted-4bit")
    prompts = [tuple(range(3 + i, 20 + i)) for i in range(3)]

    def alone(name: str) -> list[list[Token]]:
        with Engine.load(tiny_checkpoints / name) as engine:
            return together(engine, [Request(prompt=p, max_tokens=15) for p in prompts])

    wanted = [alone(name) for name in names]
    first, second = (Engine.load(tiny_checkpoints / name) for name in names)
    got: tuple[dict[int, list[Token]], dict[int, list[Token]]] = ({}, {})
    for engine, tokens in zip((first, second), got, strict=True):
        tokens.update({engine.submit(Request(prompt=p, max_tokens=15)): [] for p in prompts})
    beside = first.generate(prompts[0], max_tokens=15)
    crossed = []
    while first.pending or second.pending:
        for engine, tokens in zip((first, second), got, strict=True):
            for number, token in engine.step():
                tokens[number].append(token)
        crossed += [token for token in [next(beside, None)] if token]
    first.close()
    assert list(second.generate(prompts[1], max_tokens=15)) == wanted[1][1]
    second.close()
    assert [list(tokens.values()) for tokens in got] == wanted
    assert crossed == wanted[0][0][: len(crossed)]


def test_closing_frees_the_weights_and_ends_all_use(tiny_checkpoints: Path) -> None:
    gc.collect()
    before = mx.get_active_memory()
    engine = Engine.load(tiny_checkpoints / "tiny-random")
    engine.submit(Request(prompt=(1, 2), max_tokens=9))
    engine.step()
    running = engine.generate((1, 2), max_tokens=9)
    next(running)
    assert mx.get_active_memory() > before + 1_000_000
    assert not engine.closed
    engine.close()
    engine.close()
    assert engine.closed
    uses: list[Callable[[], object]] = [
        engine.step,
        lambda: engine.generate((1,)),
        lambda: engine.submit(Request(prompt=(1,))),
        lambda: engine.cancel(0),
        lambda: engine.pending,
        lambda: engine.model,
        lambda: engine.reusable((1,)),
        lambda: next(running),
    ]
    for use in uses:
        with pytest.raises(EngineClosed, match="closed"):
            use()
    gc.collect()
    assert mx.get_active_memory() <= before + 100_000


def test_engines_of_one_model_share_its_weights_and_no_cache(tiny_checkpoints: Path) -> None:
    with Engine.load(tiny_checkpoints / "tiny-random") as engine:
        loaded = mx.get_active_memory()
        keeping = Engine(engine.model, engine.tokenizer, prefix_reuse=True)
        assert mx.get_active_memory() < loaded + 100_000
        answers = [list(e.generate(long_prompt, max_tokens=8)) for e in (engine, keeping)]
        assert answers[0] == answers[1]
        # The last token of a prompt is always read: its logits are needed.
        assert [e.reusable(long_prompt) for e in (engine, keeping)] == [0, len(long_prompt) - 1]
        keeping.close()
        assert list(engine.generate(long_prompt, max_tokens=8)) == answers[0]


def test_a_folder_without_tokenizer_or_weights_is_refused_by_name(tiny_checkpoints: Path, tmp_path: Path) -> None:
    source = tiny_checkpoints / "tiny-random"
    (tmp_path / "config.json").write_bytes((source / "config.json").read_bytes())
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        Engine.load(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes((source / "tokenizer.json").read_bytes())
    with pytest.raises(CheckpointError, match=r"model\.safetensors: is missing"):
        Engine.load(tmp_path)


def test_the_wired_limit_is_raised_once_and_put_back_by_the_last(full: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [77]

    def set_limit(limit: int) -> int:
        limits.append(limit)
        return limits[-2]

    monkeypatch.setattr(WIRED_LIMIT, "_holders", 0)  # engines of other tests may have been left with work
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    monkeypatch.setattr(mx, "device_info", lambda: {"max_recommended_working_set_size": 1000})
    monkeypatch.setattr(mx, "set_wired_limit", set_limit)
    first, second = Engine(full), Engine(full)
    one = first.generate((1, 2), max_tokens=3)
    assert limits == [77]
    next(one)
    second.submit(Request(prompt=(1,), max_tokens=9))
    second.step()
    list(one)
    assert limits == [77, 1000]
    second.close()
    assert limits == [77, 1000, 77]
    together(first, [Request(prompt=(1,), max_tokens=2)])
    assert limits == [77, 1000, 77, 1000, 77]
    number = first.submit(Request(prompt=(1,), max_tokens=9))
    first.step()
    first.cancel(number)
    assert limits[-2:] == [1000, 77]
    abandoned = first.generate((1, 2), max_tokens=3)
    next(abandoned)
    assert limits[-1] == 1000
    del abandoned
    assert limits[-1] == 77
