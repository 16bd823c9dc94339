"""The tiny models' weights: what the script says, and 4 bits as MLX makes them."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmbench.checkpoints import model, quantize, script
from pytest_llmbench.checkpoints.tokenizer import (
    VOCAB_SIZE,
    Vocabulary,
    make_vocabulary,
)

RANDOM_WEIGHTS_SHA256 = "582342616981282d71d4fddaa1a9c05a4be4b757db2a8a335f5c4ba9b4da65ce"
SCRIPTED_WEIGHTS_SHA256 = "f35e38c5a8af1761fa2e38680fef550ab92b5ce3c91ef051bfacfcb54a3cb40b"


def weights_sha256(weights: dict[str, Any]) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(weights.items()):
        digest.update(name.encode() + value.tobytes())
    return digest.hexdigest()


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    return make_vocabulary()


@pytest.fixture(scope="session")
def scripted(vocabulary: Vocabulary) -> dict[str, Any]:
    return model.scripted_weights(model.Shape(), vocabulary, seed=1)


def test_the_weights_are_those_that_tests_and_records_were_made_with(
    vocabulary: Vocabulary, scripted: dict[str, Any]
) -> None:
    assert weights_sha256(scripted) == SCRIPTED_WEIGHTS_SHA256
    assert weights_sha256(model.random_weights(model.Shape(), vocabulary, seed=2)) == RANDOM_WEIGHTS_SHA256


def test_normals_have_mean_0_and_deviation_1() -> None:
    values = model.Normals(0).draw(400, 500)
    assert values.dtype == np.float32
    assert abs(float(values.mean())) < 0.01
    assert abs(float(values.std()) - 1) < 0.01


def test_the_table_leads_from_each_token_of_the_script_to_the_next(
    vocabulary: Vocabulary, scripted: dict[str, Any]
) -> None:
    logits = scripted["model.embed_tokens.weight"] @ scripted["lm_head.weight"].T
    following = dict(zip(("\n", *script.WITH_THINKING), script.WITH_THINKING, strict=False))
    following["\n\n"] = script.ANSWER[0]
    want = np.full(VOCAB_SIZE, vocabulary.token_id(script.THINK))
    for before, after in following.items():
        want[vocabulary.token_id(before)] = vocabulary.token_id(after)
    assert np.array_equal(logits.argmax(axis=1), want)


def test_where_the_end_token_is_forbidden_the_script_starts_again(
    vocabulary: Vocabulary, scripted: dict[str, Any]
) -> None:
    full_stop = scripted["model.embed_tokens.weight"][vocabulary.token_id(".")]
    logits = scripted["lm_head.weight"] @ full_stop
    logits[vocabulary.token_id(script.IM_END)] = -np.inf
    assert logits.argmax() == vocabulary.token_id(script.THINK)


@settings(deadline=None)
@given(seed=st.integers(0, 2**32), scale=st.sampled_from([1e-3, 1.0, 50.0]), shift=st.sampled_from([-3, 0, 3]))
def test_4_bit_values_are_within_one_step(seed: int, scale: float, shift: int) -> None:
    weight = (model.Normals(seed).draw(3, 128) + np.float32(shift)) * np.float32(scale)
    steps = dequantized(quantize.affine(weight)) - weight
    spread = np.ptp(weight.reshape(3, 2, 64), axis=-1, keepdims=True) / 15
    # Half a step by rounding; making 0 a level cuts the inner edge, by half a step more, and widens steps by 1/15.
    assert np.all(np.abs(steps.reshape(3, 2, 64)) <= spread * 1.07)


def test_4_bits_keep_zeros_and_the_outer_edge() -> None:
    weight = np.zeros((1, 128), np.float32)
    weight[0, 64:] = np.linspace(-1, 0.5, 64, dtype=np.float32)
    got = dequantized(quantize.affine(weight))
    assert not got[0, :64].any()
    assert got[0, 64] == -1


def dequantized(quantized: quantize.Quantized) -> np.ndarray[Any, Any]:
    """The values that the packed ones stand for, nibble by nibble."""
    rows = quantized.packed.shape[0]
    nibbles = np.stack([(quantized.packed >> np.uint32(4 * place)) & np.uint32(15) for place in range(8)], -1)
    levels = nibbles.reshape(rows, -1, quantize.GROUP_SIZE).astype(np.float32)
    values: np.ndarray[Any, Any] = levels * quantized.scales[..., None] + quantized.biases[..., None]
    return values.reshape(rows, -1)
