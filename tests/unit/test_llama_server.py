"""llama-server's command and dialect, and the launcher that runs the same server out of a wheel."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from process_helpers import REPOSITORY
from run_examples import entry, settings

from pytest_llmbench.backends import xllamacpp_launcher
from pytest_llmbench.backends.flags import value_of
from pytest_llmbench.backends.llama_dialect import parse_version
from pytest_llmbench.backends.llama_server import LlamaServer
from pytest_llmbench.backends.room import CONTEXT_STEP, context_tokens
from pytest_llmbench.chat import Reply
from pytest_llmbench.matrix import CustomPrompt
from pytest_llmbench.prompts import Prompt

SHOW = """
import sys
from pytest_llmbench.backends.xllamacpp_launcher import parameters, parser
p = parameters(parser().parse_args(sys.argv[1:]))
print(eval(sys.stdin.read(), {"p": p}))
"""


def arguments(*extra: str, **changes: object) -> list[str]:
    found = LlamaServer().arguments(entry(extra_args=extra), settings(**changes), model=Path("/m.gguf"), port=81)
    return list(found)


def test_the_command_names_model_address_and_alias() -> None:
    words = arguments()
    assert value_of(words, ["-m"]) == "/m.gguf"
    assert value_of(words, ["--host"]) == "127.0.0.1"
    assert value_of(words, ["--port"]) == "81"
    assert value_of(words, ["--alias"]) == "org/m"
    assert value_of(words, ["-ngl"]) == "99"
    assert value_of(words, ["-np"]) == "1"


@pytest.mark.parametrize(
    ("extra", "left_out"),
    [
        (("-c", "8192"), "-c"),
        (("--ctx-size", "8192"), "-c"),
        (("--ctx-size=8192",), "-c"),
        (("-ngl", "0"), "-ngl"),
        (("--n-gpu-layers", "0"), "-ngl"),
        (("--gpu-layers", "0"), "-ngl"),
        (("-np", "4"), "-np"),
        (("--parallel", "4"), "-np"),
    ],
)
def test_a_default_leaves_room_for_the_entrys_own_flag(extra: tuple[str, ...], left_out: str) -> None:
    assert left_out not in arguments(*extra)
    assert {"-c", "-ngl", "-np"} - {left_out} <= set(arguments(*extra))


def test_each_of_several_slots_gets_the_whole_context() -> None:
    alone, four = (int(value_of(words, ["-c"]) or 0) for words in (arguments(), arguments("--parallel", "4")))
    assert four == 4 * alone


@pytest.mark.parametrize(
    ("prompts", "max_tokens", "least"), [(("short",), 512, 64 + 512), (("short", "context-32k"), 100, 32768 + 100)]
)
def test_the_context_holds_the_longest_prompt_and_its_answer(
    prompts: tuple[str, ...], max_tokens: int, least: int
) -> None:
    tokens = context_tokens(settings(prompts=prompts, max_tokens=max_tokens))
    assert least < tokens < least + 1024
    assert tokens % CONTEXT_STEP == 0


def test_the_context_holds_a_custom_prompts_longer_answer() -> None:
    custom = CustomPrompt(name="mine", text="Hi", max_tokens=9000)
    chosen = settings(prompts=("mine",), custom_prompts=(custom,), prompt_max_tokens=(("mine", 9000),))
    assert context_tokens(chosen) > 9000


@pytest.mark.parametrize(
    ("words", "value"),
    [([], None), (["-c"], ""), (["-c", "5"], "5"), (["--ctx=5"], "5"), (["x", "-c", "-b"], "-b"), (["-cx", "5"], None)],
)
def test_a_flags_value_is_found_in_both_spellings(words: list[str], value: str | None) -> None:
    assert value_of(words, ["-c", "--ctx"]) == value


@pytest.mark.parametrize(("think", "cached", "fixed"), [(None, False, True), (False, True, False), (True, False, True)])
def test_the_dialect_says_cache_length_and_thinking(think: bool | None, cached: bool, fixed: bool) -> None:
    prompt = Prompt(name="x", messages=(), tokens=None, exact=False, shared_tokens=0, think=think)
    fields = LlamaServer().request_fields(prompt, max_tokens=5, fixed_length=fixed, cached=cached)
    assert fields["cache_prompt"] is cached
    assert fields["ignore_eos"] is fixed
    assert fields.get("chat_template_kwargs") == (None if think is None else {"enable_thinking": think})


def reply(timings: Mapping[str, object], usage: Mapping[str, object]) -> Reply:
    return Reply(deltas=(), end_ns=1, finish_reason="stop", usage=usage, timings=timings, model="m")


def test_the_servers_milliseconds_become_seconds() -> None:
    given = {"prompt_n": 27, "prompt_ms": 300.0, "prompt_per_second": 90.0, "predicted_n": 1, "predicted_ms": 0.0}
    timings = LlamaServer().timings(reply(given | {"predicted_per_second": 0.0}, {}))
    assert (timings.prompt_tokens, timings.prompt_s, timings.prefill_tok_s) == (27, 0.3, 90.0)
    assert (timings.decode_tokens, timings.decode_s) == (1, 0.0)
    assert timings.decode_tok_s is None, "one token has no rate; the server's 0 means nothing"


def test_cached_tokens_come_from_timings_else_from_usage_and_zero_is_a_value() -> None:
    usage = {"prompt_tokens_details": {"cached_tokens": 9}}
    assert LlamaServer().cached_tokens(reply({"cache_n": 0}, usage)) == 0
    assert LlamaServer().cached_tokens(reply({}, usage)) == 9
    assert LlamaServer().cached_tokens(reply({}, {})) is None


def launcher(program: list[str], *flags: str, expression: str = "") -> subprocess.CompletedProcess[str]:
    words = [sys.executable, *program, "-m", "x.gguf", "--port", "1", *flags]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(words, input=expression, capture_output=True, text=True, env=environment, check=False)


def test_each_flag_of_the_launcher_reaches_llama_cpp() -> None:
    pytest.importorskip("xllamacpp")
    flags = (
        "--host 127.0.0.2 --alias me -c 512 -np 2 -ngl 7 -t 3 -b 64 -ub 32 -ctk q8_0 -ctv q4_0 -fa on "
        "--cache-reuse 5 --no-warmup --metrics"
    )
    expression = (
        "(p.model.path, list(p.hostnames), p.port, set(p.model_alias), p.n_ctx, p.n_parallel, p.n_gpu_layers, "
        "p.cpuparams.n_threads, p.n_batch, p.n_ubatch, p.cache_type_k.name, p.cache_type_v.name, "
        "p.flash_attn_type.name, p.n_cache_reuse, p.warmup, p.endpoint_metrics)"
    )
    done = launcher(["-c", SHOW], *flags.split(), expression=expression)
    assert done.stdout.strip() == str(
        (
            *("x.gguf", ["127.0.0.2"], 1, {"me"}, 512, 2, 7, 3, 64, 32),
            *("GGML_TYPE_Q8_0", "GGML_TYPE_Q4_0", "LLAMA_FLASH_ATTN_TYPE_ENABLED", 5, False, True),
        )
    ), done.stderr


def test_the_launcher_takes_every_default_that_the_backend_sets() -> None:
    given = xllamacpp_launcher.parser().parse_args(arguments())
    assert (given.model, given.port, given.alias, given.parallel, given.n_gpu_layers) == ("/m.gguf", 81, "org/m", 1, 99)
    assert given.ctx_size == context_tokens(settings())


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--no-such-flag"], "unrecognized arguments: --no-such-flag"),
        (["--cache-type", "f16"], "--cache-type"),
        (["-fa", "maybe"], "invalid choice"),
        (["-c", "many"], "invalid int"),
        (["-ctk", "q99"], "unknown cache type 'q99'"),
    ],
)
def test_a_flag_that_the_launcher_does_not_know_is_a_usage_error(flags: list[str], words: str) -> None:
    pytest.importorskip("xllamacpp")
    done = launcher(["-m", "pytest_llmbench.backends.xllamacpp_launcher"], *flags)
    assert done.returncode == 2
    assert words in done.stderr
    assert "usage:" in done.stderr


def test_the_version_is_read_from_what_the_binary_prints() -> None:
    printed = "version: 0.6.0-dev (build 0, commit unknown)\nbuilt with GNU 12.2.0 for Linux x86_64\n"
    assert parse_version(printed) == "0.6.0-dev (build 0, commit unknown)"
    assert parse_version("error: unknown argument\n") is None
