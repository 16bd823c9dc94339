"""LiteRT-LM: its own model names, its own name for an answer's length, and thinking that it counts but doesn't send."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from server_kit import Fake, Flavour, entry, open_target, own_environment, prompt_for

from pytest_llmbench.backends.base import Target
from pytest_llmbench.backends.litert_lm import LiteRtLm, split_model_id
from pytest_llmbench.errors import ServerStartError, Unavailable
from pytest_llmbench.matrix import MatrixEntry

MakeFake = Callable[..., Fake]
MODEL = Path(__file__).parents[1] / "data" / "tiny.litertlm"
REAL = own_environment("litert-lm", "litert-lm")
SAID = "Paris is the capital of France, with two million people."
NO_GPU = "ERROR: [delegate_webgpu.cc:359] Failed to initialize WebGPU environment: INTERNAL: No adapters found\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy: the server writes what it has compiled beside the model."""
    return Path(shutil.copy(MODEL, tmp_path_factory.mktemp("litert")))


@pytest.fixture
def served(fake: MakeFake, model: Path) -> Callable[..., Fake]:
    """A fake server of that model."""

    def make(named: str = "", **plan: Any) -> Fake:
        server = fake(backend="litert-lm", **plan)
        server.entry = replace(server.entry, model_id=f"{model}{named}")
        return server

    return make


@pytest.fixture(scope="module")
def real(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    if REAL.missing:
        pytest.skip(REAL.missing)
    with open_target(real_entry(model), tmp_path_factory.mktemp("logs")) as target:
        yield target


def real_entry(model: Path, named: str = "", **changes: Any) -> MatrixEntry:
    flavour = Flavour(name="litert-lm", backend="litert-lm", suffix=named, binary=REAL.binary)
    return entry(flavour, model, **changes)


@pytest.mark.parametrize(
    ("model_id", "parts"),
    [
        ("gemma4-e2b", ("gemma4-e2b", "")),
        ("gemma4-e2b,gpu", ("gemma4-e2b", ",gpu")),
        ("~/m.litertlm,cpu,4096", ("~/m.litertlm", ",cpu,4096")),
        ("m,,512", ("m", ",,512")),
    ],
)
def test_a_model_id_is_read_as_the_server_reads_it(model_id: str, parts: tuple[str, str]) -> None:
    assert split_model_id(model_id) == parts


@pytest.mark.parametrize("model_id", ["m,tpu", "m,gpu,many", "m,gpu,1,2"])
def test_a_model_id_that_the_server_would_refuse_is_refused_before(model_id: str) -> None:
    with pytest.raises(Unavailable, match="correct model_id"):
        split_model_id(model_id)


def test_an_imported_model_is_found_by_its_name(served: Callable[..., Fake], model: Path, tmp_path: Path) -> None:
    imported = tmp_path / "home" / "models" / "owner--small" / "model.litertlm"
    imported.parent.mkdir(parents=True)
    shutil.copy(model, imported)
    wanted = replace(served().entry, model_id="owner/small,cpu", env=(("LITERT_LM_DIR", str(tmp_path / "home")),))
    LiteRtLm().check(wanted)
    assert LiteRtLm().model(wanted) == imported
    assert LiteRtLm().model_name(wanted, imported) == "owner/small,cpu"


def test_a_model_that_was_not_imported_is_told_with_the_import(served: Callable[..., Fake]) -> None:
    wanted = replace(served().entry, model_id="gemma4-e2b,gpu", env=(("LITERT_LM_DIR", "/nowhere"),))
    with pytest.raises(Unavailable) as caught:
        LiteRtLm().check(wanted)
    assert caught.value.fix == "litert-lm import --from-huggingface-repo OWNER/NAME FILE.litertlm gemma4-e2b"


def test_a_file_of_another_kind_is_refused(served: Callable[..., Fake], tmp_path: Path) -> None:
    other = tmp_path / "x.litertlm"
    other.write_bytes(b"GGUF....")
    with pytest.raises(Unavailable, match=r"no \.litertlm file"):
        LiteRtLm().check(replace(served().entry, model_id=str(other)))


@pytest.mark.parametrize(("think", "effort"), [(None, None), (True, "medium"), (False, "none")])
def test_each_request_says_its_length_in_the_servers_words(
    served: Callable[..., Fake], tmp_path: Path, think: bool | None, effort: str | None
) -> None:
    server = served()
    with open_target(server.entry, tmp_path) as target:
        target.stream(prompt_for(target, think=think), max_tokens=7, temperature=0.0)
    *ready, asked = (event["body"] for event in server.events("chat"))
    assert [body["max_completion_tokens"] for body in ready] == [1, 1]
    assert (asked["max_completion_tokens"], asked.get("reasoning_effort")) == (7, effort)


def test_a_server_that_found_no_gpu_but_answers_is_no_gpu_server(served: Callable[..., Fake], tmp_path: Path) -> None:
    with (
        pytest.raises(ServerStartError, match="answers without one"),
        open_target(served(",gpu", output=NO_GPU).entry, tmp_path),
    ):
        pass
    with open_target(served(",cpu", output=NO_GPU).entry, tmp_path):
        pass


def test_the_real_one_says_its_text_and_keeps_its_thinking(real: Target) -> None:
    sample = real.stream(prompt_for(real), max_tokens=64, temperature=0.0)
    assert (sample.text, sample.reasoning, sample.invalid) == (SAID, "", None)
    assert (sample.completion_tokens, sample.thinking_tokens) == (21, 6)
    assert sample.unseen == "thinking"
    assert (sample.ttft_s, sample.decode_tok_s, sample.prefill_tok_s) == (None, None, None)
    assert sample.ttfv_s is not None


def test_the_real_one_keeps_the_length_asked_for(real: Target) -> None:
    sample = real.stream(prompt_for(real), max_tokens=12, temperature=0.0)
    assert sample.completion_tokens == 12
    assert SAID.startswith(sample.text)
