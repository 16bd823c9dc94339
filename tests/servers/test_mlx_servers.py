"""mlx-vlm, vllm-mlx and oMLX: what each is started and asked with, what it must prove, and what it says of itself."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from server_kit import Fake, Flavour, entry, flavours, open_target, prompt_for, settings, wait_until

from pytest_llmbench.backends.mlx_vlm import MlxVlm, prove_quantization, thinks_by_default
from pytest_llmbench.backends.omlx import Omlx, read_timings
from pytest_llmbench.backends.vllm_mlx import reasoning_parser
from pytest_llmbench.chat import Reply
from pytest_llmbench.errors import ServerStartError
from pytest_llmbench.matrix import MatrixEntry
from pytest_llmbench.sample import Sample

MakeFake = Callable[..., Fake]
BY_NAME = {flavour.name: flavour for flavour in flavours()}
# As mlx-vlm 0.7.10 and vllm-mlx 0.6.0 print it.
VLM_LINE = "INFO - KV cache quantization: bits={} scheme={}"
VLLM_LINES = "Max KV size: {} (RotatingKVCache)\nKV cache quantization: {}-bit, group_size=64"


def real(name: str) -> Flavour:
    flavour = BY_NAME[name]
    if flavour.missing:
        pytest.skip(flavour.missing)
    return flavour


def words_after(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


@pytest.fixture
def vlm(fake: MakeFake, tiny_checkpoints: Path) -> Callable[..., Fake]:
    """mlx-vlm's `/health` with our model in it; `about` changes what it says."""

    def make(*extra_args: str, output: str = "", **about: Any) -> Fake:
        health = {"loaded_model": str(tiny_checkpoints / "tiny-scripted"), "configured_context_limit": None, **about}
        server = fake(backend="mlx-vlm", answers={"/health": health}, output=output)
        server.entry = replace(server.entry, extra_args=extra_args)
        return server

    return make


@pytest.fixture
def omlx(fake: MakeFake, tiny_checkpoints: Path) -> Callable[..., Fake]:
    """oMLX's `/v1/models/status`; `about` changes what it says of the model."""

    def make(*extra_args: str, **about: Any) -> Fake:
        model = {"id": "tiny-scripted", "model_path": str(tiny_checkpoints / "tiny-scripted"), "loaded": True, **about}
        server = fake(backend="omlx", answers={"/v1/models/status": {"models": [model]}})
        server.entry = replace(server.entry, extra_args=extra_args)
        return server

    return make


# --- mlx-vlm ---


def test_mlx_vlm_thinks_where_nothing_is_said_if_the_template_does(
    vlm: Callable[..., Fake], tiny_checkpoints: Path, tmp_path: Path
) -> None:
    server = vlm()
    with open_target(server.entry, tmp_path) as target:
        for think in (None, False, True):
            target.stream(prompt_for(target, think=think), max_tokens=8, temperature=0.0)
    (start,) = server.events("start")
    assert start["argv"][-1] == "--enable-thinking"
    asked = [chat["body"].get("enable_thinking") for chat in server.events("chat")]
    assert asked == [None, None, None, False, True]
    assert not thinks_by_default(tiny_checkpoints)  # a folder without a tokenizer


def test_a_template_that_has_thinking_off_leaves_it_off(tiny_checkpoints: Path, tmp_path: Path) -> None:
    for name, template in {
        "off": "{% if enable_thinking %}<think>{% endif %}x",
        "on": "{% if enable_thinking is not defined or enable_thinking %}<think>{% endif %}x",
        "without": "x",
    }.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "tokenizer.json").symlink_to(tiny_checkpoints / "tiny-scripted" / "tokenizer.json")
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
        assert thinks_by_default(folder) == (name == "on")


@pytest.mark.parametrize(
    ("extra_args", "start"),
    [
        (("--kv-bits", "3.5"), "0"),
        (("--kv-bits", "4", "--kv-quant-scheme", "turboquant"), "0"),
        (("--kv-bits=3.5", "--quantized-kv-start", "64"), "64"),
        (("--kv-bits", "4"), None),
        ((), None),
    ],
)
def test_mlx_vlm_has_a_turboquant_cache_from_the_first_token(
    tiny_checkpoints: Path, extra_args: tuple[str, ...], start: str | None
) -> None:
    flavour = Flavour(name="x", backend="mlx-vlm", suffix="", binary=sys.executable, extra_args=extra_args)
    model = tiny_checkpoints / "tiny-scripted"
    command = list(MlxVlm().launch(entry(flavour, model), settings(), 1234).command)
    assert (words_after(command, "--quantized-kv-start") if "--quantized-kv-start" in command else None) == start


def test_another_model_than_ours_in_mlx_vlm_is_an_error(vlm: Callable[..., Fake], tmp_path: Path) -> None:
    with (
        pytest.raises(ServerStartError, match="was to be loaded, but it is 'somebody/else'"),
        open_target(vlm(loaded_model="somebody/else").entry, tmp_path),
    ):
        pass


@pytest.mark.parametrize(("told", "is_right"), [(4096, True), (None, False), (2048, False)])
def test_mlx_vlm_must_say_the_context_that_was_asked(
    vlm: Callable[..., Fake], tmp_path: Path, told: int | None, is_right: bool
) -> None:
    server = vlm("--max-kv-size", "4096", configured_context_limit=told)
    if is_right:
        with open_target(server.entry, tmp_path):
            return
    with (
        pytest.raises(ServerStartError, match=f"asked for a cache of 4096 tokens, but the server says {told}"),
        open_target(server.entry, tmp_path),
    ):
        pass


@pytest.mark.parametrize(
    ("words", "output", "error"),
    [
        (("--kv-bits", "4"), VLM_LINE.format("4.0", "uniform"), None),
        (("--kv-bits", "3.5"), VLM_LINE.format("3.5", "uniform"), None),
        (("--kv-bits=4", "--kv-quant-scheme=turboquant"), VLM_LINE.format("4.0", "turboquant"), None),
        ((), "", None),
        (("--kv-bits", "4"), "", "no line of the server says"),
        (("--kv-bits", "4"), VLM_LINE.format("8.0", "uniform"), "asked for a cache of 4 bits"),
        (("--kv-bits", "4", "--kv-quant-scheme", "turboquant"), VLM_LINE.format("4.0", "uniform"), r"\(turboquant\)"),
    ],
)
def test_mlx_vlm_must_say_the_quantization_that_was_asked(
    words: tuple[str, ...], output: str, error: str | None
) -> None:
    if error is None:
        prove_quantization(words, output)
        return
    with pytest.raises(ServerStartError, match=error):
        prove_quantization(words, output)


def test_the_real_mlx_vlm_says_its_quantization_and_context(tiny_checkpoints: Path, tmp_path: Path) -> None:
    extra_args = ("--kv-bits", "3.5", "--kv-quant-scheme", "turboquant", "--max-kv-size", "512")
    wanted = entry(real("mlx-vlm"), tiny_checkpoints / "tiny-scripted", extra_args=extra_args)
    with open_target(wanted, tmp_path) as target:
        sample = target.stream(prompt_for(target), max_tokens=16, temperature=0.0)
    assert sample.completion_tokens == 16
    assert sample.timings.peak_memory_bytes is not None


def test_the_real_mlx_vlm_answers_from_a_cache_that_an_entry_turns_on(tiny_checkpoints: Path, tmp_path: Path) -> None:
    wanted = entry(
        real("mlx-vlm"), tiny_checkpoints / "tiny-scripted", env={"APC_ENABLED": "1", "APC_DISK_ENABLED": "0"}
    )
    with open_target(wanted, tmp_path, prompts=("long",)) as target:
        prompt = prompt_for(target, "long")
        target.stream(prompt, max_tokens=4, temperature=0.0, cached=True)
        again = target.stream(prompt, max_tokens=4, temperature=0.0, cached=True)
    assert again.cached_tokens is not None
    assert 64 <= again.cached_tokens < 128


def test_mlx_vlm_figures_are_in_our_units_and_a_step_is_a_round_of_its_draft() -> None:
    # A stream's last chunk; its draft's counts, null without one, as the server's schema names them.
    timings = {
        "prompt_n": 27,
        "cache_n": 0,
        "predicted_n": 21,
        "prompt_ms": 54.0,
        "prompt_per_second": 500.0,
        "predicted_ms": 350.0,
        "predicted_per_second": 60.0,
        "peak_memory": 0.002170184,
        "draft_rounds": 12,
        "draft_n": 36,
        "draft_n_accepted": 9,
    }
    reply = Reply(deltas=(), end_ns=1, finish_reason="stop", usage={}, timings=timings, model="m")
    own = MlxVlm().timings(reply)
    assert (own.prompt_tokens, own.prompt_s, own.decode_tokens, own.decode_s) == (27, 0.054, 21, 0.35)
    assert own.peak_memory_bytes == 2_170_184
    assert (own.drafted_tokens, own.accepted_tokens, own.tokens_per_step) == (36, 9, 21 / 12)
    without = replace(reply, timings=timings | {"draft_rounds": None, "draft_n": None, "draft_n_accepted": None})
    own = MlxVlm().timings(without)
    assert (own.drafted_tokens, own.accepted_tokens, own.tokens_per_step) == (None, None, None)


# --- vllm-mlx ---


@pytest.mark.parametrize(
    ("template", "parser"),
    [
        ("{% if x %}<think>{% endif %}", "qwen3"),
        ("<|channel|>analysis", "gpt_oss"),
        ("<|channel>thought", "gemma4"),
        ("plain", None),
    ],
)
def test_vllm_mlx_gets_the_parser_of_the_models_template(tmp_path: Path, template: str, parser: str | None) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}), encoding="utf-8")
    assert reasoning_parser(tmp_path) == parser


@pytest.mark.parametrize(
    ("extra_args", "output", "error"),
    [
        ((), "", None),
        (("--kv-cache-quantization",), VLLM_LINES.format(0, 8), None),
        (("--kv-cache-quantization", "--kv-cache-quantization-bits", "4"), VLLM_LINES.format(0, 4), None),
        (("--max-kv-size", "4096"), VLLM_LINES.format(4096, 8), None),
        (("--kv-cache-quantization",), "", "a prefix cache of 8 bits, but no line of the server says so"),
        (("--kv-cache-quantization",), VLLM_LINES.format(0, 4), "8 bits, but the server says: .*4-bit"),
        (("--max-kv-size", "4096"), VLLM_LINES.format(2048, 8), "4096 tokens, but the server says: .*2048"),
    ],
)
def test_vllm_mlx_must_say_the_cache_that_was_asked(
    fake: MakeFake, tmp_path: Path, extra_args: tuple[str, ...], output: str, error: str | None
) -> None:
    server = fake(backend="vllm-mlx", output=output, answers={"/v1/status": {"metal": {"peak_memory_gb": 1.25}}})
    wanted = replace(server.entry, extra_args=extra_args)
    if error is not None:
        with pytest.raises(ServerStartError, match=error), open_target(wanted, tmp_path):
            pass
        return
    with open_target(wanted, tmp_path) as target:
        sample = target.stream(prompt_for(target), max_tokens=8, temperature=0.0)
    assert sample.timings.peak_memory_bytes == 1_250_000_000
    (start,) = server.events("start")
    assert start["argv"][:2] == ["serve", server.entry.model_id]
    assert words_after(start["argv"], "--reasoning-parser") == "qwen3"


def test_the_real_vllm_mlx_in_simple_mode_leaves_its_cache_as_it_is(tiny_checkpoints: Path, tmp_path: Path) -> None:
    wanted = entry(real("vllm-mlx"), tiny_checkpoints / "tiny-scripted", extra_args=("--kv-cache-quantization",))
    with pytest.raises(ServerStartError, match="no line of the server says so"), open_target(wanted, tmp_path):
        pass


def test_the_real_vllm_mlx_batches_under_another_name_with_a_quantized_cache(
    tiny_checkpoints: Path, tmp_path: Path
) -> None:
    extra_args = ("--continuous-batching", "--kv-cache-quantization", "--served-model-name", "heron")
    wanted = entry(real("vllm-mlx"), tiny_checkpoints / "tiny-scripted", extra_args=extra_args)
    with open_target(wanted, tmp_path) as target:
        sample = target.stream(prompt_for(target), max_tokens=40, temperature=0.0, fixed_length=False)
    assert (sample.answered_by, sample.invalid) == ("heron", None)
    assert (sample.thinking_tokens, sample.visible_tokens) == (6, 12)


# --- oMLX ---


def test_omlx_gets_folders_of_its_own_which_go_with_it(
    omlx: Callable[..., Fake], tiny_checkpoints: Path, tmp_path: Path
) -> None:
    server = omlx()
    with open_target(server.entry, tmp_path) as target:
        (start,) = server.events("start")
        served = Path(words_after(start["argv"], "--model-dir"))
        assert [path.name for path in served.iterdir()] == ["tiny-scripted"]
        assert (served / "tiny-scripted").resolve() == (tiny_checkpoints / "tiny-scripted").resolve()
        assert Path(words_after(start["argv"], "--paged-ssd-cache-dir")).parent == served.parent
        assert Path(words_after(start["argv"], "--base-path")).parent == served.parent
        assert target.info.model == "tiny-scripted"
    assert not served.parent.exists()


def test_folders_that_an_entry_names_itself_are_left_to_it(omlx: Callable[..., Fake], tmp_path: Path) -> None:
    server = omlx("--base-path=/somewhere", "--no-cache")
    with open_target(server.entry, tmp_path):
        (start,) = server.events("start")
    assert "--base-path" not in start["argv"]
    assert "--paged-ssd-cache-dir" not in start["argv"]
    assert start["argv"][-2:] == ["--base-path=/somewhere", "--no-cache"]


@pytest.mark.parametrize("about", [{"model_path": "/somewhere/else"}, {"loaded": False}, {"id": "other"}])
def test_another_model_than_ours_in_omlx_is_an_error(
    omlx: Callable[..., Fake], tmp_path: Path, about: dict[str, Any]
) -> None:
    with pytest.raises(ServerStartError, match="was to be loaded, but"), open_target(omlx(**about).entry, tmp_path):
        pass


def test_a_name_without_an_owner_is_a_folder_of_omlx_or_of_mlx_community(
    tiny_checkpoints: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    checkpoint = tiny_checkpoints / "tiny-scripted"
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("OMLX_MODEL_DIR", str(tmp_path / "own"))
    snapshot = tmp_path / "hub" / "models--mlx-community--heron" / "snapshots" / "abc"
    own = tmp_path / "own" / "somebody" / "heron"
    wanted = MatrixEntry(id="x", backend="omlx", model_id="heron", path=tmp_path / "x.yaml", line=1)
    for folder in (snapshot, own):
        folder.parent.mkdir(parents=True)
        folder.symlink_to(checkpoint, target_is_directory=True)
        assert Omlx().model(wanted) == folder
    assert Omlx().model_name(replace(wanted, model_id="mlx-community/heron"), own) == "heron"


def test_omlx_figures_are_of_its_rates_and_without_what_its_cache_answered() -> None:
    # A repeated prompt of 2048 tokens on flyto-mlx 0.7.0.
    own = read_timings(
        {
            "prompt_tokens": 2048,
            "completion_tokens": 16,
            "prompt_tokens_details": {"cached_tokens": 1792},
            "prompt_eval_duration": 0.28,
            "generation_duration": 0.05,
            "prompt_tokens_per_second": 7259.34,
            "generation_tokens_per_second": 306.05,
        }
    )
    assert own.prompt_s == pytest.approx(0.28212, rel=1e-4)
    assert (own.prompt_tokens, own.decode_tokens, own.decode_tok_s) == (256, 16, 306.05)
    assert own.prefill_tok_s == pytest.approx(256 / 0.28212, rel=1e-4)
    assert own.decode_s == pytest.approx(16 / 306.05)
    assert read_timings({}).prompt_s is None


def test_the_real_omlx_answers_a_repeated_prompt_when_its_blocks_are_written(
    tiny_checkpoints: Path, tmp_path: Path
) -> None:
    wanted = entry(real("omlx"), tiny_checkpoints / "tiny-scripted")
    with open_target(wanted, tmp_path, prompts=("code",)) as target:
        prompt = prompt_for(target, "code")

        def ask() -> Sample:
            return target.stream(prompt, max_tokens=8, temperature=0.0, cached=True)

        assert ask().cached_tokens == 0
        # It writes them behind its answers, so that the next one may find some of them only.
        wait_until(lambda: ask().cached_tokens == 2047, "the cache answers all but the last token")
        assert target.info.version == "flyto-mlx 0.7.0"
