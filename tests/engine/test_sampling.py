"""Sampling against a reference in numpy, and where its randomness comes from."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmbench_engine.errors import InvalidRequest
from llmbench_engine.parameters import COLDEST, Key, Sampling, key
from llmbench_engine.sampling import logprobs, sample

VOCABULARY = 40

samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 2, 7, VOCABULARY, VOCABULARY + 5]),
    top_p=st.sampled_from([1.0, 0.9, 0.5, 0.05]),
    min_p=st.sampled_from([0.0, 0.02, 0.3, 1.0]),
)


def random_logits(seed: int, rows: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 2, (rows, VOCABULARY)).astype(np.float32)


def allowed(logits: np.ndarray, how: Sampling) -> np.ndarray:
    """The scores of one row that the filters leave, -inf for the others: one filter after the other, as documented."""
    scores = logits.astype(np.float64) / how.temperature
    scores[scores < scores.max() + np.log(how.min_p or 1e-300) - 1e-9] = -np.inf
    order = np.argsort(-scores, kind="stable")
    scores[order[how.top_k or VOCABULARY :]] = -np.inf
    likely = np.exp(scores - scores.max())
    likely /= likely.sum()
    before = np.cumsum(likely[order]) - likely[order]
    scores[order[before >= how.top_p - 1e-6]] = -np.inf
    return scores


def reference(logits: np.ndarray, how: Sampling, row_key: Key) -> int:
    if how.temperature == 0:
        return int(logits.argmax())
    noise = np.array(mx.random.gumbel(shape=(VOCABULARY,), key=mx.array(list(row_key), dtype=mx.uint32)))
    return int((allowed(logits, how) + noise).argmax())


@settings(deadline=None, max_examples=60)
@given(st.lists(samplings, min_size=1, max_size=5), st.integers(0, 2**32))
def test_each_row_of_a_mixed_batch_is_chosen_as_the_reference_does(rows: list[Sampling], seed: int) -> None:
    logits = random_logits(seed, len(rows))
    keys = [key(seed, i) for i in range(len(rows))]
    got = sample(mx.array(logits), rows, keys).tolist()
    assert got == [reference(row, how, k) for row, how, k in zip(logits, rows, keys, strict=True)]


@settings(deadline=None, max_examples=30)
@given(st.lists(samplings, min_size=2, max_size=5), st.integers(0, 2**32))
def test_a_row_does_not_depend_on_the_others(rows: list[Sampling], seed: int) -> None:
    logits = mx.array(random_logits(seed, len(rows)))
    keys = [key(seed, i) for i in range(len(rows))]
    together = sample(logits, rows, keys).tolist()
    assert together == [sample(logits[i : i + 1], [how], [keys[i]]).item() for i, how in enumerate(rows)]


def test_frequencies_are_the_probabilities() -> None:
    draws, logits = 20_000, np.array([2.0, 1.0, 0.0, -1.0, -9.0], np.float32)
    how = Sampling(temperature=0.7, top_k=4)
    keys = [key(7, i) for i in range(draws)]
    tokens = np.array(sample(mx.array(np.tile(logits, (draws, 1))), [how] * draws, keys))
    likely = np.exp(logits[:4] / 0.7)
    likely /= likely.sum()
    assert np.bincount(tokens, minlength=5)[:4] / draws == pytest.approx(likely, abs=4 * 0.5 / draws**0.5)
    assert 4 not in tokens


def test_greedy_takes_the_first_of_equals() -> None:
    assert sample(mx.array([[1.0, 5.0, 5.0], [5.0, 1.0, 5.0]], dtype=mx.bfloat16), [Sampling()] * 2).tolist() == [1, 0]


def test_greedy_is_the_same_beside_a_sampled_row() -> None:
    logits = mx.array(random_logits(3, 2)).astype(mx.bfloat16)
    mixed = sample(logits, [Sampling(), Sampling(temperature=1)], [key(0, 0), key(0, 1)])
    assert mixed[0].item() == mx.argmax(logits[0]).item()


def test_a_greedy_batch_is_nothing_but_an_argmax(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("softmax", "logsumexp", "argsort"):
        monkeypatch.setattr(mx, name, None)
    assert sample(mx.array([[0.0, 1.0]]), [Sampling(top_k=3, top_p=0.5)]).tolist() == [1]


@pytest.mark.parametrize("temperature", [5e-324, 1e-40, 1e-38, 1e-30, 9e-6])
@pytest.mark.parametrize("filters", [{}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.1}])
def test_a_temperature_that_would_overflow_takes_the_likeliest(temperature: float, filters: dict[str, float]) -> None:
    logits = np.array([[-50.0, 40.0, 60.0, 50.0]] * 2, np.float32)
    rows = [Sampling(temperature=temperature, **filters), Sampling(temperature=1)]  # type: ignore[arg-type]
    assert sample(mx.array(logits), rows, [key(0, 0), key(0, 1)])[0].item() == 2


@pytest.mark.parametrize("temperature", [COLDEST, 1e300])
def test_at_the_ends_of_temperature_probabilities_are_numbers(temperature: float) -> None:
    logits = np.array([[-3e4, 2.9e4, 3e4]] * 200, np.float32)
    keys = [key(0, i) for i in range(200)]
    tokens = sample(mx.array(logits), [Sampling(temperature=temperature, top_p=0.99)] * 200, keys).tolist()
    assert set(tokens) == ({2} if temperature == COLDEST else {0, 1, 2})


def test_logprobs_are_those_of_the_model_in_float32() -> None:
    logits = random_logits(5, 3)
    tokens = [4, 0, 39]
    wanted = [row[t] - np.log(np.exp(row.astype(np.float64)).sum()) for row, t in zip(logits, tokens, strict=True)]
    assert np.array(logprobs(mx.array(logits), mx.array(tokens))) == pytest.approx(wanted, abs=1e-5)


def test_keys_differ_between_seeds_and_positions() -> None:
    assert len({key(seed, position) for seed in range(100) for position in range(100)}) == 10_000


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_k", -1),
        ("top_k", 1.5),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", -0.1),
        ("min_p", 1.5),
        ("seed", -1),
        ("seed", 1 << 64),
    ],
)
def test_values_out_of_range_are_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(InvalidRequest, match=f"{name} is {value}"):
        Sampling(**{name: value})  # type: ignore[arg-type]
