"""The engine as a matrix entry's backend: what the servers are held to, and what is its own."""

from __future__ import annotations

import gc
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from server_kit import Flavour, entry, open_target, prompt_for, settings

import pytest_llmbench
from pytest_llmbench.backends import builtin_backends
from pytest_llmbench.backends.base import Target
from pytest_llmbench.backends.engine import EngineSlot
from pytest_llmbench.checkpoints import script
from pytest_llmbench.errors import RequestError, ServerStartError, Unavailable, UsageError
from pytest_llmbench.measure import Meter
from pytest_llmbench.prompts import Message, Prompt, PromptMaker, builtin
from pytest_llmbench.sample import Sample

mx = pytest.importorskip("mlx.core", reason="pip install 'pytest-llmbench[mlx]'")

ENGINE = Flavour(name="engine", backend="engine", suffix="")
ANSWER = "".join(script.ANSWER)
REASONING = "".join(script.REASONING)
RANDOM_TOKENS = 96


@pytest.fixture(scope="module")
def scripted(tiny_checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with open_target(entry(ENGINE, tiny_checkpoints / "tiny-scripted"), tmp_path_factory.mktemp("logs")) as target:
        yield target


@pytest.fixture(scope="module")
def maker(scripted: Target) -> PromptMaker:
    return PromptMaker(scripted.tokenizer)


@pytest.fixture(scope="module")
def babble(tiny_checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Prompt, Sample]]:
    """A long answer of tiny-random, which never ends by itself."""
    with open_target(entry(ENGINE, tiny_checkpoints / "tiny-random"), tmp_path_factory.mktemp("logs")) as target:
        prompt = prompt_for(target)
        yield prompt, target.stream(prompt, max_tokens=RANDOM_TOKENS, temperature=0.0)


@pytest.fixture
def copied(tiny_checkpoints: Path, tmp_path: Path) -> Path:
    """A checkpoint to spoil."""
    return Path(shutil.copytree(tiny_checkpoints / "tiny-scripted", tmp_path / "copied"))


def change_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")


def active_bytes() -> int:
    """What MLX's living arrays take, once nothing is under way: the token after an answer's last one may be."""
    gc.collect()
    mx.synchronize()
    return int(mx.get_active_memory())


def stream(target: Target, prompt: Prompt, *, max_tokens: int = 64, cached: bool = False) -> Sample:
    return target.stream(prompt, max_tokens=max_tokens, temperature=0.0, fixed_length=False, cached=cached)


# --- answers ---


def test_each_token_with_text_is_a_delta_with_a_stamp_of_its_own(scripted: Target, maker: PromptMaker) -> None:
    sample = stream(scripted, maker.make(builtin("short")))
    assert [d.text for d in sample.deltas] == [*script.REASONING, *script.ANSWER]
    assert sample.itl_unit == "per_token"
    stamps = [d.at_ns for d in sample.deltas]
    assert stamps == sorted(set(stamps))
    assert 0 < stamps[0] < stamps[-1] <= sample.end_ns
    assert (sample.first_delta_tokens, sample.first_delta_source) == (1, "engine")
    window_s = (stamps[-1] - stamps[0]) / 1e9
    assert sample.decode_tok_s == pytest.approx(17 / window_s)
    assert sample.ttft_s is not None
    assert sample.prefill_tok_s == pytest.approx(64 / sample.ttft_s)


@pytest.mark.parametrize(("name", "tokens"), [("short", 64), ("long", 128), ("code", 2048), ("context-4k", 4096)])
def test_prompts_are_exactly_as_long_as_they_say(scripted: Target, maker: PromptMaker, name: str, tokens: int) -> None:
    prompt = maker.make(builtin(name))
    sample = stream(scripted, prompt)
    assert prompt.exact
    assert prompt.tokens == sample.prompt_tokens == tokens
    assert (sample.invalid, sample.cached_tokens, sample.completion_tokens) == (None, 0, 21)


def test_an_answer_of_fixed_length_goes_on_after_its_end(scripted: Target, maker: PromptMaker) -> None:
    sample = scripted.stream(maker.make(builtin("short")), max_tokens=42, temperature=0.0, fixed_length=True)
    assert (sample.completion_tokens, sample.finish_reason, sample.stopped_early) == (42, "length", False)
    assert (sample.text, sample.reasoning) == (ANSWER * 2, REASONING * 2)
    assert (sample.thinking_tokens, sample.visible_tokens, sample.silent_tokens) == (12, 24, 6)


def test_characters_of_several_tokens_are_one_delta_and_counted_as_they_are(
    babble: tuple[Prompt, Sample], tiny_checkpoints: Path
) -> None:
    from llmbench_engine import Engine

    prompt, sample = babble
    with Engine.load(tiny_checkpoints / "tiny-random") as engine:
        assert engine.tokenizer is not None
        ids = engine.tokenizer.apply_chat_template([{"role": "user", "content": prompt.messages[0].content}])
        tokens = list(engine.generate(ids, max_tokens=RANDOM_TOKENS, ignore_eos=True))
    assert sample.text == "".join(token.text for token in tokens)
    assert [d.text for d in sample.deltas] == [token.text for token in tokens if token.text]
    assert 2 < len(sample.deltas) < RANDOM_TOKENS
    assert sample.completion_tokens == RANDOM_TOKENS
    assert sample.first_delta_tokens == 1 + next(i for i, token in enumerate(tokens) if token.text)
    assert sample.itl_unit == "per_chunk"
    window_s = (sample.deltas[-1].at_ns - sample.deltas[0].at_ns) / 1e9
    assert sample.decode_tok_s == pytest.approx((RANDOM_TOKENS - sample.first_delta_tokens) / window_s)


def test_with_a_temperature_answers_differ(tiny_checkpoints: Path, tmp_path: Path) -> None:
    with open_target(entry(ENGINE, tiny_checkpoints / "tiny-random"), tmp_path) as target:
        prompt = prompt_for(target)
        one, other = (target.stream(prompt, max_tokens=24, temperature=2.0).text for _ in range(2))
    assert one != other


# --- repetitions ---


def test_a_repetition_is_answered_from_a_kept_cache_all_but_its_last_token(
    scripted: Target, maker: PromptMaker
) -> None:
    prompt = maker.make(builtin("long"))
    primed, again = (stream(scripted, prompt, cached=True) for _ in range(2))
    assert primed.cached_tokens is not None
    assert primed.cached_tokens < maker.template_tokens
    assert (again.cached_tokens, again.prompt_tokens, again.invalid) == (127, 128, None)
    assert primed.text == again.text == ANSWER


def test_a_prompt_that_is_no_repetition_is_read_whole_even_if_it_is_known(scripted: Target, maker: PromptMaker) -> None:
    prompt = maker.make(builtin("long"))
    for cached in (True, False, False):
        sample = stream(scripted, prompt, cached=cached)
        assert (sample.cached_tokens, sample.invalid) == (0, None)


def test_what_is_kept_for_repetitions_is_gone_with_the_next_new_prompt(scripted: Target, maker: PromptMaker) -> None:
    def resident(prompt: str, *, cached: bool) -> int:
        stream(scripted, maker.make(builtin(prompt)), cached=cached)
        return active_bytes()

    before = resident("short", cached=False)
    assert resident("code", cached=True) > before
    assert resident("short", cached=False) == before


# --- measuring ---


def test_an_open_engine_is_described(scripted: Target, tiny_checkpoints: Path) -> None:
    info = scripted.info
    assert (info.backend, info.version, info.pid) == ("engine", pytest_llmbench.__version__, os.getpid())
    assert info.model == str((tiny_checkpoints / "tiny-scripted").resolve())
    assert (info.command, info.base_url, info.log_path) == (None, None, None)


def test_load_time_lies_within_the_time_that_opening_took(tiny_checkpoints: Path, tmp_path: Path) -> None:
    started = time.monotonic()
    with open_target(entry(ENGINE, tiny_checkpoints / "tiny-random"), tmp_path) as target:
        opened_s = time.monotonic() - started
        assert target.info.load_s is not None
        assert 0 < target.info.load_s < opened_s


def test_a_whole_measurement_has_every_figure(scripted: Target, maker: PromptMaker) -> None:
    meter = Meter(
        target=scripted,
        maker=maker,
        settings=settings(runs=2, warmup=1),
        progress=lambda _done, _total, _what: None,
        conditions=dict,
    )
    measured = meter.measure("scripted", builtin("short"))
    metrics = measured.metrics()
    assert (len(measured.warmups), len(measured.valid)) == (1, 2)
    assert measured.prompt_exact
    assert measured.cached is not None
    assert measured.cached.cached_tokens == 63
    assert (metrics["prompt_tokens"], metrics["completion_tokens"]) == (64, 21)
    named = ("load_s", "ttft_s", "ttfv_s", "ttft_cached_s", "prefill_tok_s", "decode_tok_s", "peak_memory_bytes")
    assert [name for name in named if metrics[name] is None] == []


def test_peaks_of_the_process_and_of_mlx_are_told_apart(scripted: Target, maker: PromptMaker) -> None:
    scripted.reset_peak_memory()
    stream(scripted, maker.make(builtin("code")))
    peak = scripted.peak_memory()
    assert peak.source in ("pss", "rss", "phys_footprint")
    assert peak.peak_bytes is not None
    assert peak.mlx_peak_bytes is not None
    # The weights alone are this much.
    assert peak.peak_bytes > active_bytes() > 1_000_000
    assert peak.mlx_peak_bytes > active_bytes()


def test_each_window_has_a_peak_of_its_own(scripted: Target, maker: PromptMaker) -> None:
    peaks = []
    for name in ("context-4k", "short"):
        scripted.reset_peak_memory()
        stream(scripted, maker.make(builtin(name)))
        peaks.append(scripted.peak_memory().mlx_peak_bytes or 0)
    assert peaks[0] > peaks[1] > 0


def test_closing_frees_the_model_and_what_was_kept(tiny_checkpoints: Path, tmp_path: Path) -> None:
    before = active_bytes()
    with open_target(entry(ENGINE, tiny_checkpoints / "tiny-random"), tmp_path) as target:
        stream(target, prompt_for(target), cached=True)
        assert active_bytes() > before + 1_000_000
    assert active_bytes() == before


# --- what can't be opened or asked ---


def why_unavailable(model: Path, **fields: Any) -> Unavailable:
    with pytest.raises(Unavailable) as caught:
        builtin_backends()["engine"].check(entry(ENGINE, model, **fields))
    return caught.value


def test_a_checkpoint_of_a_supported_kind_is_ready(tiny_checkpoints: Path) -> None:
    builtin_backends()["engine"].check(entry(ENGINE, tiny_checkpoints / "tiny-scripted"))


@pytest.mark.parametrize(
    ("field", "value"),
    [("extra_args", ("--max-batch", "2")), ("env", (("A", "1"),)), ("server_binary", "/usr/bin/true")],
)
def test_what_only_a_process_could_be_given_is_refused(
    tiny_checkpoints: Path, tmp_path: Path, field: str, value: object
) -> None:
    model = tiny_checkpoints / "tiny-scripted"
    error = why_unavailable(model, **{field: value})
    assert (error.reason, error.fix) == (f"the engine starts no process that could get {field}", f"take out {field}")
    with (
        pytest.raises(Unavailable, match=field),
        open_target(replace(entry(ENGINE, model), **{field: value}), tmp_path),  # type: ignore[arg-type]
    ):
        raise AssertionError("opened")


def test_a_model_that_is_not_here_is_unavailable_with_the_fix(tmp_path: Path) -> None:
    assert why_unavailable(tmp_path / "none").reason == f"no file or folder {tmp_path / 'none'}"


def test_a_gguf_file_is_no_folder(tiny_checkpoints: Path) -> None:
    assert why_unavailable(tiny_checkpoints / "tiny-scripted.gguf").reason.endswith(
        "is a file; the engine loads folders"
    )


def test_a_kind_of_model_that_the_engine_doesnt_know_is_named_with_those_that_it_does(copied: Path) -> None:
    change_json(copied / "config.json", model_type="mamba")
    error = why_unavailable(copied)
    assert "config.json: model_type is 'mamba'; supported: gemma4, " in error.reason
    assert error.fix == "name another checkpoint, or use backend mlx-lm"


def test_a_damaged_configuration_is_unavailable(copied: Path) -> None:
    (copied / "config.json").write_text("{", encoding="utf-8")
    assert "config.json: is not JSON" in why_unavailable(copied).reason


def test_without_mlx_the_extra_to_install_is_named(tiny_checkpoints: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlx", None)
    error = why_unavailable(tiny_checkpoints / "tiny-scripted")
    assert (error.reason, error.fix) == ("the engine needs mlx", "pip install 'pytest-llmbench[mlx]'")


def test_a_checkpoint_that_doesnt_fit_is_an_error_in_the_engines_words(copied: Path, tmp_path: Path) -> None:
    change_json(copied / "config.json", rope_magic=3)
    before = active_bytes()
    with (
        pytest.raises(ServerStartError, match=r"can't load this checkpoint: .*config\.json: rope_magic is not known"),
        open_target(entry(ENGINE, copied), tmp_path),
    ):
        raise AssertionError("opened")
    assert active_bytes() == before


def test_a_checkpoint_without_a_chat_template_cannot_answer(copied: Path, tmp_path: Path) -> None:
    (copied / "chat_template.jinja").unlink()
    change_json(copied / "tokenizer_config.json", chat_template=None)
    with (
        pytest.raises(RequestError, match=r"can't answer: .* has no chat template default"),
        open_target(entry(ENGINE, copied), tmp_path),
    ):
        raise AssertionError("opened")


def test_a_template_that_refuses_a_prompt_is_told_in_its_own_words(copied: Path, tmp_path: Path) -> None:
    template = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}Hello"
    (copied / "chat_template.jinja").write_text(template, encoding="utf-8")
    with open_target(entry(ENGINE, copied), tmp_path) as target:
        assert target.tokenizer is not None
        with pytest.raises(UsageError, match=r"no system; name prompts of another form"):
            target.tokenizer.prompt_ids([Message(role="system", content="x")], think=None)


# --- one engine at a time ---


def test_a_slot_gives_the_same_engine_until_another_is_loaded(tiny_checkpoints: Path) -> None:
    slot = EngineSlot()
    first = slot.load(tiny_checkpoints / "tiny-scripted")
    assert slot.load(str(tiny_checkpoints / "tiny-random" / ".." / "tiny-scripted")) is first
    second = slot.load(tiny_checkpoints / "tiny-random")
    assert (first.closed, second.closed) == (True, False)
    slot.close()
    slot.close()
    assert second.closed


def test_an_engine_that_its_user_has_closed_is_loaded_again(tiny_checkpoints: Path) -> None:
    slot = EngineSlot()
    with slot.load(tiny_checkpoints / "tiny-scripted") as first:
        pass
    again = slot.load(tiny_checkpoints / "tiny-scripted")
    assert (again is first, again.closed) == (False, False)
    slot.close()


def test_after_a_load_that_fails_nothing_is_loaded(tiny_checkpoints: Path, tmp_path: Path) -> None:
    slot = EngineSlot()
    first = slot.load(tiny_checkpoints / "tiny-scripted")
    with pytest.raises(ServerStartError, match=r"config\.json: is missing; is this a checkpoint folder\?"):
        slot.load(tmp_path)
    assert first.closed
    slot.load(tiny_checkpoints / "tiny-scripted")
    slot.close()
