"""llama.cpp's diffusion program: a process for each answer, whose steps are its figures; nothing is a first token."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from diffusion_kit import MISSING, REAL, make_llada
from server_kit import Flavour, entry, open_target, prompt_for, settings, write_program

from pytest_llmbench.backends.diffusion_cli import DiffusionCli, architecture, arguments
from pytest_llmbench.backends.diffusion_target import LOST, parse_output
from pytest_llmbench.backends.flags import value_of
from pytest_llmbench.errors import RequestError, ServerStartError, ServerTimeout, Unavailable
from pytest_llmbench.matrix import MatrixEntry
from pytest_llmbench.measure import Meter
from pytest_llmbench.prompts import PromptMaker, builtin

needs_real = pytest.mark.skipif(bool(MISSING), reason=MISSING)
# As llama.cpp 0.6.0-dev prints it, on standard error.
PRINTED = (
    "0.00.024.770 I diffusion_params: - steps                     u32              = 32\n"
    "0.00.024.793 I diffusion_params: - max_length                u32              = 128\n"
    "0.00.025.015 I \rdiffusion step: 0/32 [      ] 0%0.00.035.126 I \rdiffusion step: 31/32 [===== ] 96%\n"
    "total time: 275.54ms, time per step: 8.61ms, sampling time per step: 0.23ms\n"
    "0.00.300.698 I \n Paris is\n\nit.\n"
)
RECORD = """
import json, sys, time
words = sys.argv[1:]
prompt = open(words[words.index("-f") + 1]).read() if "-f" in words else ""
with open({record!r}, "a") as file:
    file.write(json.dumps({{"words": words, "prompt": prompt}}) + "\\n")
runs = len(open({record!r}).readlines())
time.sleep({sleep})
sys.stderr.write({printed!r} if runs <= {whole} else {printed!r}.partition("total")[0])
sys.exit({code} if runs > {good} else 0)
"""


class Program:
    """A stand-in that prints what the real one printed."""

    def __init__(self, folder: Path, model: Path, **changes: Any) -> None:
        self.record = folder / "runs.jsonl"
        given = {"sleep": 0, "printed": PRINTED, "whole": 99, "code": 0, "good": 99, **changes}
        script = folder / "program.py"
        script.write_text(RECORD.format(record=str(self.record), **given), encoding="utf-8")
        program = write_program(folder / "llama-diffusion-cli", [sys.executable, "-I", str(script)])
        self.entry = real_entry(model, binary=str(program))

    @property
    def runs(self) -> list[dict[str, Any]]:
        runs = [json.loads(line) for line in self.record.read_text(encoding="utf-8").splitlines()]
        return [run for run in runs if run["words"] != ["--version"]]


def real_entry(model: Path, *, binary: str | None = REAL, **changes: Any) -> MatrixEntry:
    return entry(Flavour(name="cli", backend="diffusion-cli", suffix="", binary=binary), model, **changes)


@pytest.fixture
def program(tmp_path: Path, tiny_checkpoints: Path) -> Callable[..., Program]:
    def make(**changes: Any) -> Program:
        return Program(tmp_path, tiny_checkpoints / "tiny-random.gguf", **changes)

    return make


@pytest.fixture(scope="module")
def llada(tiny_checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llada(tmp_path_factory.mktemp("llada") / "tiny-llada.gguf", tiny_checkpoints)


def test_text_and_times_are_read_from_what_it_prints() -> None:
    found = parse_output(PRINTED)
    assert found is not None
    assert (found.text, found.steps) == (" Paris is\n\nit.", 32)
    assert (found.total_s, found.step_s) == (pytest.approx(0.27554), pytest.approx(0.00861))


@pytest.mark.parametrize("end", range(len(PRINTED) - 60, len(PRINTED) + 1))
def test_output_that_was_cut_is_no_answer_or_the_start_of_one(end: int) -> None:
    found = parse_output(PRINTED[:end])
    assert (found is None) == ("total time" not in PRINTED[:end] or not PRINTED[:end].endswith("\n"))
    assert found is None or " Paris is\n\nit.".startswith(found.text)


def test_text_without_a_log_prefix_is_read_too() -> None:
    found = parse_output("total time: 1.00ms, time per step: 0.50ms, sampling time per step: 0.1ms\n\n 3.5 B it.\n")
    assert found is not None
    assert (found.text, found.steps) == (" 3.5 B it.", None)


@pytest.mark.parametrize("length", [1, 32, 33, 700])
@pytest.mark.parametrize("given", [(), ("--diffusion-block-length", "64"), ("-ub", "96")])
def test_blocks_are_whole_and_share_the_steps(length: int, given: tuple[str, ...]) -> None:
    words = [*given, *arguments(given, length=length, architecture="llada")]
    block, whole, steps = (
        int(value_of(words, (name,)) or 0) for name in ("--diffusion-block-length", "-ub", "--diffusion-steps")
    )
    assert whole % block == 0
    assert whole >= length or "-ub" in given
    assert steps % (whole // block) == 0
    assert value_of(words, ("-c",)) == str(whole)


def test_one_schedule_is_named_and_only_one() -> None:
    dream = arguments((), length=64, architecture="dream")
    assert ("--diffusion-eps" in dream, "--diffusion-block-length" in dream) == (True, False)
    chosen = arguments(("--diffusion-eps", "0.01"), length=64, architecture="llada")
    assert not {"--diffusion-eps", "--diffusion-block-length"} & set(chosen)


def test_what_the_entry_says_is_not_said_again() -> None:
    given = ("-ub", "256", "-c", "512", "-ngl", "0", "--diffusion-steps", "8", "--seed", "4", "--diffusion-eps=0.1")
    assert arguments(given, length=64, architecture=None) == ()


def test_the_architecture_stands_at_the_files_start(tiny_checkpoints: Path, tmp_path: Path) -> None:
    assert architecture(tiny_checkpoints / "tiny-random.gguf") == "qwen3"
    (tmp_path / "short.gguf").write_bytes(b"GGUF")
    assert architecture(tmp_path / "short.gguf") is None


def test_an_answer_has_steps_and_no_first_token(program: Callable[..., Program], tmp_path: Path) -> None:
    stand_in = program()
    with open_target(stand_in.entry, tmp_path / "logs") as target:
        sample = target.stream(prompt_for(target), max_tokens=40, temperature=0.5)
        assert (tmp_path / "logs" / "made.tried.log").stat().st_size > 2 * len(PRINTED) - 2
    assert (sample.text, sample.invalid, sample.unseen) == (" Paris is\n\nit.", None, "answer")
    assert (sample.diffusion_steps, sample.diffusion_step_s) == (32, pytest.approx(0.00861))
    figures = {name for name, value in sample.metrics().items() if value is not None}
    assert figures == {"total_s", "diffusion_steps", "diffusion_step_s"}
    words = stand_in.runs[-1]["words"]
    assert (value_of(words, ["--temp"]), "--no-escape" in words) == ("0.5", True)


def test_the_prompt_goes_by_file_and_the_system_message_by_flag(
    program: Callable[..., Program], tmp_path: Path
) -> None:
    stand_in = program()
    with open_target(stand_in.entry, tmp_path / "logs") as target:
        prompt = prompt_for(target, "code")
        target.stream(prompt, max_tokens=8, temperature=0.0)
    system, user = prompt.messages
    run = stand_in.runs[-1]
    assert (run["prompt"], value_of(run["words"], ["-sys"])) == (user.content, system.content)
    assert not list((tmp_path / "logs").glob("*.prompt.txt"))


def test_a_measurement_can_be_made_of_it(program: Callable[..., Program], tmp_path: Path) -> None:
    with open_target(program().entry, tmp_path / "logs") as target:
        meter = Meter(
            target=target,
            maker=PromptMaker(target.tokenizer, think=None),
            settings=settings(runs=2),
            progress=lambda *_: None,
            conditions=dict,
        )
        metrics = meter.measure("tried", builtin("short")).metrics()
    assert metrics["diffusion_step_s"] == pytest.approx(0.00861)
    assert (metrics["ttft_s"], metrics["ttft_cached_s"], metrics["decode_tok_s"]) == (None, None, None)


def test_an_answer_whose_end_is_missing_is_invalid(program: Callable[..., Program], tmp_path: Path) -> None:
    # The question for the version is a run, too.
    with open_target(program(whole=2).entry, tmp_path / "logs") as target:
        sample = target.stream(prompt_for(target), max_tokens=8, temperature=0.0)
    assert (sample.invalid, sample.text) == (LOST, "")


def test_a_program_that_fails_is_told_with_its_command_and_output(
    program: Callable[..., Program], tmp_path: Path
) -> None:
    stand_in = program(good=2, code=1)
    with (
        open_target(stand_in.entry, tmp_path / "logs") as target,
        pytest.raises(RequestError, match=r"exit 1\ncommand: (.|\n)*time per step"),
    ):
        target.stream(prompt_for(target), max_tokens=8, temperature=0.0)
    with pytest.raises(ServerStartError, match="exit 1"), open_target(stand_in.entry, tmp_path / "logs"):
        pass


def test_a_program_that_takes_too_long_is_stopped(program: Callable[..., Program], tmp_path: Path) -> None:
    with (
        pytest.raises(ServerTimeout, match=r"no answer for 0\.3 s"),
        open_target(program(sleep=60).entry, tmp_path / "logs", server_timeout=0.3),
    ):
        pass
    own = str(tmp_path / "program.py")
    assert not [p for p in psutil.process_iter(["cmdline"]) if own in (p.info["cmdline"] or [])]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"extra_args": ("-p", "hello")}, "extra_args set -p"),
        ({"server_url": "http://127.0.0.1:1"}, "take out server_url"),
        ({"model_id": "checkpoints/tiny-random", "path": Path("/nowhere/a.yaml")}, "checkpoint tiny|no GGUF file"),
    ],
)
def test_an_entry_that_means_nothing_here_is_refused(
    program: Callable[..., Program], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(Unavailable, match=message):
        DiffusionCli().check(replace(program().entry, **changes))


@needs_real
def test_the_real_one_refines_an_answer(llada: Path, tmp_path: Path) -> None:
    wanted = real_entry(llada, extra_args=("-t", "1", "-ub", "192", "--diffusion-steps", "12"))
    with open_target(wanted, tmp_path / "logs") as target:
        samples = [target.stream(prompt_for(target), max_tokens=32, temperature=0.0) for _ in range(2)]
        memory = target.peak_memory()
    for sample in samples:
        assert sample.invalid in (None, LOST)
    whole = next(sample for sample in samples if sample.invalid is None)
    assert whole.diffusion_steps == 12
    assert whole.diffusion_step_s is not None
    assert 0 < 12 * whole.diffusion_step_s < whole.total_s
    assert target.info.version is not None
    assert target.info.load_s is not None
    assert memory.peak_bytes is not None
    assert memory.peak_bytes > 1e6


@needs_real
def test_the_real_one_says_that_another_model_is_none_of_its_own(tiny_checkpoints: Path, tmp_path: Path) -> None:
    with (
        pytest.raises(ServerStartError, match="unsupported model for diffusion"),
        open_target(real_entry(tiny_checkpoints / "tiny-random.gguf"), tmp_path / "logs"),
    ):
        pass
