"""dflash answers to any model's name and may answer without its draft: what it says of itself is read each time."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from server_kit import Fake, Flavour, entry, flavours, make_draft, open_target, prompt_for

from pytest_llmbench.backends.dflash import DFlash, read_timings
from pytest_llmbench.errors import RequestError, ServerStartError, Unavailable

MakeFake = Callable[..., Fake]
(REAL,) = (flavour for flavour in flavours() if flavour.name == "dflash")
RECORDED = Path(__file__).parents[1] / "data" / "dflash_metrics.json"


@pytest.fixture
def draft(tmp_path: Path, tiny_checkpoints: Path) -> Path:
    return make_draft(tmp_path / "draft", tiny_checkpoints)


def metrics(model: str, draft: Path, **last: Any) -> dict[str, Any]:
    """What dflash-mlx 0.1.8 gave for a repeated prompt, with our model and draft in it."""
    recorded: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
    recorded["server"] |= {"model": model, "draft": str(draft)}
    recorded["last_request"] |= last
    return recorded


@pytest.fixture
def replayed(fake: MakeFake, tiny_checkpoints: Path, draft: Path) -> Callable[..., Fake]:
    """A server whose `/metrics` says the recorded values; `about` changes what it says of itself."""

    def make(*, about: dict[str, Any] | None = None, **last: Any) -> Fake:
        said = metrics(str(tiny_checkpoints / "tiny-scripted"), draft, **last)
        said["server"] |= about or {}
        server = fake(backend="dflash", answers={"/metrics": said})
        server.entry = replace(server.entry, extra_args=("--draft-model", str(draft)))
        return server

    return make


def test_the_recorded_figures_are_read_in_our_units(tmp_path: Path) -> None:
    own = read_timings(metrics("m", tmp_path)["last_request"])
    # 20 passes for 21 tokens: one token came of a draft, and a rate over the 21 of the answer says so.
    assert (own.decode_tokens, own.accepted_tokens, own.drafted_tokens) == (21, 1, None)
    assert own.tokens_per_step == pytest.approx(21 / 20)
    assert own.decode_s is not None
    assert own.decode_tok_s == pytest.approx(21 / own.decode_s)
    # All of its prompt came from the cache: there is no rate of what wasn't read.
    assert (own.prompt_tokens, own.prefill_tok_s) == (0, None)


def test_a_server_with_our_model_and_draft_is_taken(replayed: Callable[..., Fake], draft: Path, tmp_path: Path) -> None:
    server = replayed()
    with open_target(server.entry, tmp_path):
        (start,) = server.events("start")
    assert start["argv"][0] == "serve"
    assert start["argv"][-3:] == ["--no-prefix-cache-l2", "--draft-model", str(draft)]


@pytest.mark.parametrize(
    "about", [{"model": "somebody/else"}, {"draft": "somebody/else"}, {"draft": None}, {"mode": "target-only"}]
)
def test_a_server_with_another_model_draft_or_mode_is_an_error(
    replayed: Callable[..., Fake], tmp_path: Path, about: dict[str, Any]
) -> None:
    ((what, value),) = about.items()
    with (
        pytest.raises(ServerStartError) as caught,
        open_target(replayed(about=about).entry, tmp_path),
    ):
        pass
    assert f"dflash was to have the {what} " in str(caught.value)
    assert f"but says {value!r}" in str(caught.value)


def test_an_answer_without_the_draft_is_an_error(replayed: Callable[..., Fake], tmp_path: Path) -> None:
    with open_target(replayed(mode_used="dflash_fallback").entry, tmp_path) as target:
        prompt = prompt_for(target)
        with pytest.raises(RequestError, match="without its draft: mode 'dflash_fallback'"):
            target.stream(prompt, max_tokens=8, temperature=0.0)


def test_figures_of_another_request_are_not_taken(replayed: Callable[..., Fake], tmp_path: Path) -> None:
    with open_target(replayed(prompt_tokens=999_999).entry, tmp_path) as target:
        sample = target.stream(prompt_for(target), max_tokens=8, temperature=0.0)
    assert (sample.timings.decode_tokens, sample.timings.tokens_per_step) == (None, None)


@pytest.mark.parametrize(
    ("extra_args", "words"),
    [((), "no draft model"), (("--draft-model", "some/draft"), "some/draft is not in the Hugging Face cache")],
)
def test_an_entry_without_a_draft_that_is_here_can_not_run(
    fake: MakeFake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, extra_args: tuple[str, ...], words: str
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(Unavailable, match=words):
        DFlash().check(replace(fake(backend="dflash").entry, extra_args=extra_args))


def test_the_real_server_tells_what_its_draft_was_good_for(tiny_checkpoints: Path, draft: Path, tmp_path: Path) -> None:
    flavour: Flavour = REAL
    if flavour.missing:
        pytest.skip(flavour.missing)
    extra_args = (f"--draft-model={draft}", "--draft-quant", "none")
    with open_target(entry(flavour, tiny_checkpoints / "tiny-scripted", extra_args=extra_args), tmp_path) as target:
        sample = target.stream(prompt_for(target), max_tokens=40, temperature=0.0, fixed_length=False)
        assert target.info.version == "0.1.8"
    own = sample.timings
    assert sample.completion_tokens is not None
    assert own.decode_tokens is not None
    assert own.decode_tokens >= sample.completion_tokens == 21
    assert own.prompt_tokens == sample.prompt_tokens == 64
    assert own.accepted_tokens is not None
    assert own.tokens_per_step == pytest.approx(own.decode_tokens / (own.decode_tokens - own.accepted_tokens))
