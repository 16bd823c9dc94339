"""Several requests at once, on real servers: those that answer them together, and those that let them wait."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from threading import Barrier

import pytest
from running_kit import Running
from server_kit import Fake, Flavour, entry, flavours, open_target, settings

from pytest_llmbench.backends import builtin_backends
from pytest_llmbench.backends.base import ServesMany, Target
from pytest_llmbench.backends.llama_server import LlamaServer
from pytest_llmbench.backends.together import together
from pytest_llmbench.errors import RequestError, Unavailable
from pytest_llmbench.measure import Measurement, Meter
from pytest_llmbench.prompts import PromptMaker, concurrency

LEVEL = 4
TOKENS = 96
BATCHING = "--continuous-batching"
ENGINE = Flavour(name="engine", backend="engine", suffix="")


def check(flavour: Flavour, streams: int = LEVEL, extra_args: tuple[str, ...] = ()) -> None:
    wanted = entry(flavour, Path("model"), extra_args=(*flavour.extra_args, *extra_args))
    builtin_backends()[flavour.backend].check_streams(wanted, streams)


def measure(target: Target, level: int) -> Measurement:
    given = settings(runs=2, max_tokens=TOKENS, fixed_length=True, concurrency=(level,))
    maker = PromptMaker(target.tokenizer)
    meter = Meter(target=target, maker=maker, settings=given, progress=lambda *_: None, conditions=dict)
    return meter.measure("tried", concurrency(level), level=level)


def measured(flavour: Flavour, checkpoints: Path, folder: Path, **changes: object) -> Measurement:
    wanted = entry(flavour, checkpoints / "tiny-random", **changes)
    with open_target(wanted, folder, max_tokens=TOKENS, concurrency=(1, LEVEL)) as target:
        return measure(target, LEVEL)


def require_together(found: Measurement) -> None:
    """Each request was answered whole, by itself and beside the others."""
    assert [(s.invalid, s.prompt_tokens) for s in found.samples] == [(None, 512)] * 2 * LEVEL
    assert {s.completion_tokens for s in found.samples} == {TOKENS}
    assert not [odd for odd in found.suspicions if "one after the other" in odd]
    assert all((r.streams_at_once or 0) > 1 for r in found.rounds)
    for taken in found.rounds:
        assert min(s.sent_ns or 0 for s in taken.samples) == 0
        assert None not in taken.metrics().values()
    assert found.memory is not None
    assert found.memory.peak_bytes


def test_a_server_answers_several_together_or_lets_them_wait_as_its_backend_says(
    flavour: Flavour, tiny_checkpoints: Path, tmp_path: Path
) -> None:
    more = (BATCHING,) if flavour.backend == "vllm-mlx" else ()
    found = measured(flavour, tiny_checkpoints, tmp_path, extra_args=(*flavour.extra_args, *more))
    try:
        check(flavour, extra_args=more)
    except Unavailable:
        assert f"{LEVEL} requests were answered one after the other" in " ".join(found.suspicions)
    else:
        require_together(found)


@pytest.mark.parametrize("slots", [LEVEL, 1])
def test_a_server_of_somebody_elses_gets_them_at_once_and_is_found_out_if_they_wait(
    tiny_checkpoints: Path, tmp_path: Path, slots: int
) -> None:
    flavour = flavours()[1]
    if flavour.missing:
        pytest.skip(flavour.missing)
    wanted = entry(flavour, tiny_checkpoints / "tiny-random")
    with open_target(wanted, tmp_path, max_tokens=TOKENS, concurrency=(slots,)) as served:
        there = replace(
            wanted,
            id="there",
            backend="openai",
            server_url=served.info.base_url,
            fixed_length=True,
            server_binary=None,
            extra_args=(),
        )
        check(Flavour(name="x", backend="openai", suffix=""))
        with open_target(there, tmp_path, concurrency=(LEVEL,)) as target:
            found = measure(target, LEVEL)
    assert {(s.invalid, s.completion_tokens) for s in found.samples} == {(None, TOKENS)}
    # How its answers lie beside each other is told by the clock alone: it has no tokenizer and no backend that knows.
    at_once = {r.streams_at_once for r in found.rounds}
    assert at_once == {1} if slots == 1 else 1 not in at_once
    assert [odd for odd in found.suspicions if "one after the other" in odd] == found_waiting(slots)
    assert found.memory is not None
    assert found.memory.peak_bytes


def found_waiting(slots: int) -> list[str]:
    return [f"{LEVEL} requests were answered one after the other: this server lets them wait"] * (slots == 1)


@pytest.mark.skipif(find_spec("mlx") is None, reason="pip install 'pytest-llmbench[mlx]'")
def test_the_engine_answers_several_in_one_batch(tiny_checkpoints: Path, tmp_path: Path) -> None:
    found = measured(ENGINE, tiny_checkpoints, tmp_path)
    require_together(found)
    # A token of each comes with every step.
    assert {r.streams_at_once for r in found.rounds} == {LEVEL}


# --- what is known without a server ---


@pytest.mark.parametrize("backend", builtin_backends())
def test_one_request_at_a_time_is_always_possible(backend: str) -> None:
    check(Flavour(name="x", backend=backend, suffix=""), streams=1)


@pytest.mark.parametrize(
    ("backend", "extra_args", "why"),
    [
        ("litert-lm", (), "its HTTP server has one thread"),
        ("diffusion-cli", (), "a process for each answer"),
        ("dflash", (), "a draft is for one sequence"),
        ("lm-studio", (), "set in the app"),
        ("docker-model-runner", (), "divides the context"),
        ("unsloth-studio", (), "one slot"),
        ("vllm-mlx", (), r"extra_args: \[--continuous-batching\]"),
        ("mlx-lm", ("--kv-bits", "8"), "with --kv-bits mlx-lm answers one request at a time"),
        ("mlx-lm", ("--draft-model=m",), "with --draft-model"),
        ("llama-server", ("-np", "2"), "room for 2 of 4"),
        ("llama-server", ("-c", "4096"), "room for 1 of 4.*leave out -c and -np"),
    ],
)
def test_a_server_that_would_let_them_wait_says_why(backend: str, extra_args: tuple[str, ...], why: str) -> None:
    with pytest.raises(Unavailable, match=why):
        check(Flavour(name="x", backend=backend, suffix=""), extra_args=extra_args)


def test_llama_server_has_a_slot_and_a_whole_context_for_each(tiny_checkpoints: Path) -> None:
    flavour = Flavour(name="x", backend="llama-server", suffix="")

    def words(*extra_args: str, levels: tuple[int, ...] = (1, LEVEL), **changes: object) -> dict[str, str]:
        wanted = entry(flavour, tiny_checkpoints / "m", extra_args=extra_args)
        given = settings(concurrency=levels, **changes)
        line = LlamaServer().arguments(wanted, given, model=Path("m"), port=1)
        return dict(zip(line[::2], line[1::2], strict=True))

    assert (words()["-np"], words()["-c"]) == ("4", "4096")
    # 512 tokens of each prompt, 1000 of the answer, and what the template adds.
    assert words(max_tokens=1000)["-c"] == str(LEVEL * 1792)
    assert (words(levels=())["-np"], words(levels=())["-c"]) == ("1", "1024")
    assert words("-np", "8", "-c", "9999") == {k: v for k, v in words().items() if k not in ("-np", "-c")}
    assert words("-c", "9999")["-np"] == "1"


def test_an_ollama_that_runs_doesnt_tell_its_slots_and_one_of_our_own_has_as_many_as_are_asked_for(
    running: Callable[..., Running],
) -> None:
    wanted = running("ollama").entry()
    check_streams = builtin_backends()["ollama"].check_streams
    check_streams(wanted, 1)
    with pytest.raises(Unavailable, match=r"doesn't tell how many.*env: \{OLLAMA_NUM_PARALLEL: 4\}"):
        check_streams(wanted, LEVEL)
    check_streams(replace(wanted, env=(("OLLAMA_NUM_PARALLEL", "4"),)), LEVEL)
    with pytest.raises(Unavailable, match="OLLAMA_NUM_PARALLEL is 2: 4 requests"):
        check_streams(replace(wanted, env=(("OLLAMA_NUM_PARALLEL", "2"),)), LEVEL)


# --- faults ---


def test_calls_are_made_at_the_same_moment_and_their_results_keep_their_order() -> None:
    meeting = Barrier(3, timeout=60)  # no call returns before the others have come

    def call(number: int) -> int:
        meeting.wait()
        return number

    assert together([partial(call, number) for number in range(3)]) == [0, 1, 2]


def run_python(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps a process below its limit of address space")
def test_too_few_threads_are_an_error_and_no_thread_waits_for_ever() -> None:
    program = (
        "import resource, threading\n"
        "from pytest_llmbench.backends.together import together\n"
        "threading.stack_size(256 * 1024**2)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2 * 1024**3,) * 2)\n"
        "together([int] * 64)\n"
    )
    done = run_python(program)
    assert "MeasurementError: this process can't have 64 threads for as many requests at once" in done.stderr
    assert done.returncode == 1


def test_an_interrupted_session_ends_while_a_server_is_silent() -> None:
    program = (
        "import os, signal, threading, time\n"
        "from pytest_llmbench.backends.together import together\n"
        "main = os.getpid()\n"
        "together([lambda: (os.kill(main, signal.SIGINT), time.sleep(600)), lambda: time.sleep(600)])\n"
    )
    done = run_python(program)
    assert "KeyboardInterrupt" in done.stderr


def test_one_broken_answer_is_the_error_of_all(fake: Callable[..., Fake], tmp_path: Path) -> None:
    server = fake(faults=["", "cut", ""])
    with open_target(server.entry, tmp_path) as target:
        maker = PromptMaker(target.tokenizer)
        assert isinstance(target, ServesMany)
        with pytest.raises(RequestError, match="server log"):
            target.stream_many([maker.make(concurrency(LEVEL)) for _ in range(LEVEL)], max_tokens=8, temperature=0.0)
    assert len(server.events("chat")) == 2 + LEVEL


def test_an_error_comes_when_no_call_is_underway() -> None:
    ended = []

    def call(number: int) -> None:
        ended.append(number)
        if number == 0:
            raise RequestError("refused")

    with pytest.raises(RequestError, match="refused"):
        together([partial(call, number) for number in range(4)])
    assert sorted(ended) == [0, 1, 2, 3]
