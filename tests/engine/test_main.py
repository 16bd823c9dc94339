"""`python -m llmbench_engine`, and the example of docs/engine.md."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from llmbench_engine import Engine, Request, Sampling

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "engine.md").read_text(encoding="utf-8")


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "llmbench_engine", *map(str, arguments)],
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )


def test_it_answers_with_the_chat_template_and_with_thinking_off(tiny_checkpoints: Path) -> None:
    with Engine.load(tiny_checkpoints / "tiny-scripted") as engine:
        assert engine.tokenizer is not None
        messages = [{"role": "user", "content": "Hello"}]
        prompt = engine.tokenizer.apply_chat_template(messages, enable_thinking=False)
        wanted = "".join(token.text for token in engine.generate(prompt, max_tokens=60))
    done = run(tiny_checkpoints / "tiny-scripted", "Hello", "--no-think", "--max-tokens", "60")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{wanted}\n", "")
    assert run(tiny_checkpoints / "tiny-scripted", "Hello", "--think").stdout.startswith("<think>")


def test_raw_prompts_and_sampling_reach_the_engine(tiny_checkpoints: Path) -> None:
    with Engine.load(tiny_checkpoints / "tiny-random") as engine:
        assert engine.tokenizer is not None
        prompt = engine.tokenizer.encode_prompt("Hello")
        warm = Sampling(temperature=0.9, seed=5)
        wanted = "".join(token.text for token in engine.generate(prompt, max_tokens=9, sampling=warm))
    folder = tiny_checkpoints / "tiny-random"
    done = run(folder, "Hello", "--raw", "--temperature", "0.9", "--seed", "5", "--max-tokens", "9")
    assert (done.returncode, done.stdout) == (0, f"{wanted}\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is Linux's")
@pytest.mark.parametrize(
    ("where", "problem"), [(">/dev/full", "No space left on device"), (">&-", "no standard output")]
)
def test_an_answer_that_can_not_be_written_is_said(tiny_checkpoints: Path, where: str, problem: str) -> None:
    command = f'"$0" -m llmbench_engine "$1" Hello --max-tokens 300 {where}'
    words = ["sh", "-c", command, sys.executable, str(tiny_checkpoints / "tiny-random")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("llmbench_engine: the answer couldn't be written: ")
    assert problem in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_terminal_without_the_letters_gets_question_marks(tiny_checkpoints: Path) -> None:
    words = [sys.executable, "-m", "llmbench_engine", str(tiny_checkpoints / "tiny-random"), "Hello"]
    env = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*words, "--max-tokens", "200"], env=env, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"?" in done.stdout


def test_what_does_not_fit_is_said_in_one_line(tiny_checkpoints: Path, tmp_path: Path) -> None:
    done = run(tmp_path, "Hello")
    assert done.returncode == 2
    said = f"llmbench_engine: {tmp_path / 'config.json'}: is missing; is this a checkpoint folder? `hf download "
    assert done.stderr.startswith(said)
    assert len(done.stderr.splitlines()) == 1
    done = run(tiny_checkpoints / "tiny-random", "Hello", "--top-p", "0")
    assert (done.returncode, done.stderr.splitlines()) == (
        2,
        ["llmbench_engine: top_p is 0.0; it has to be above 0 and at most 1"],
    )


def test_a_reader_that_goes_away_ends_it_quietly(tiny_checkpoints: Path) -> None:
    command = f"{sys.executable} -m llmbench_engine {tiny_checkpoints / 'tiny-scripted'} Hello | head -c 3"
    done = subprocess.run(["sh", "-c", command], capture_output=True, encoding="utf-8", timeout=60, check=False)
    assert (len(done.stdout), done.stderr) == (3, "")


def test_the_example_on_the_page_runs(tiny_checkpoints: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example, *_ = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    exec(compile(example, "docs/engine.md", "exec"), {"path": tiny_checkpoints / "tiny-scripted"})
    first, last = capsys.readouterr().out.splitlines()
    assert first.endswith(" [stop]")
    assert last == "3 answers"


@pytest.mark.parametrize("thing", [Engine.load, Engine.generate, Sampling, Request])
def test_the_page_names_each_parameter_with_its_default(thing: object) -> None:
    assert callable(thing)
    parameters = [p for p in inspect.signature(thing).parameters.values() if p.kind is p.KEYWORD_ONLY]
    assert parameters
    for parameter in parameters:
        assert re.search(rf"\b{parameter.name}\b", PAGE), parameter.name
        if isinstance(parameter.default, int | float):
            assert f"{parameter.name}={parameter.default}" in PAGE


def test_the_public_names_can_be_imported_and_no_others() -> None:
    import llmbench_engine

    for name in (
        "Engine",
        "Request",
        "Sampling",
        "Token",
        "EngineError",
        "CheckpointError",
        "InvalidRequest",
        "EngineClosed",
    ):
        assert isinstance(getattr(llmbench_engine, name), type)
    with pytest.raises(AttributeError, match="no attribute 'Engines'"):
        _ = llmbench_engine.Engines
