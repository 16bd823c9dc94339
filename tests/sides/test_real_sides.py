"""llmbench_engine and mlx-lm as sides, each in its process, on tiny checkpoints."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
from side_kit import REAL, program_side, real_side

import pytest_llmbench
from pytest_llmbench.errors import SideError
from pytest_llmbench.sides.process import SideProcess

Start = Callable[..., SideProcess]

EOS = 2
PROMPTS = [[5 + row, *range(40 + 9 * row, 60 + 9 * row + 3 * row)] for row in range(9)]


@pytest.fixture(scope="session")
def loaded(real_sides: dict[str, SideProcess], tiny_checkpoints: Path) -> dict[str, SideProcess]:
    for side in real_sides.values():
        side.load(tiny_checkpoints / "tiny-random-4bit")
    return real_sides


@pytest.fixture(scope="session", params=REAL)
def side(request: pytest.FixtureRequest, loaded: dict[str, SideProcess]) -> SideProcess:
    """Each of them, with tiny-random-4bit."""
    return loaded[request.param]


def test_each_says_its_version_and_what_it_runs_on(real_sides: dict[str, SideProcess]) -> None:
    engine, mlx_lm = (real_sides[name].hello for name in REAL)
    assert (engine.name, engine.version) == ("llmbench_engine", pytest_llmbench.__version__)
    assert (mlx_lm.name, mlx_lm.version) == ("mlx_lm", version("mlx-lm"))
    for hello in (engine, mlx_lm):
        assert {hello.facts["mlx"], hello.facts["mlx_lm"]} == {version("mlx"), version("mlx-lm")}
        assert hello.facts["device"]
        assert set(hello.capabilities) == {"batch", "margins"}


def test_mlx_lms_batches_hold_the_largest_level_at_its_defaults(real_sides: dict[str, SideProcess]) -> None:
    facts = real_sides["mlx-lm"].hello.facts
    assert isinstance(facts["completion_batch_size"], int)
    assert isinstance(facts["prefill_batch_size"], int)
    assert min(facts["completion_batch_size"], facts["prefill_batch_size"]) >= 8


@pytest.mark.parametrize("n", [1, 2, 33])
@pytest.mark.parametrize("prompt", PROMPTS[:2])
def test_both_give_the_same_tokens_and_exactly_as_many_as_asked(
    prompt: list[int], n: int, loaded: dict[str, SideProcess]
) -> None:
    answers = [loaded[name].generate(prompt, n) for name in REAL]
    assert answers[0].tokens == answers[1].tokens
    assert {len(a.tokens) for a in answers} == {len(a.token_ns) for a in answers} == {n}


@pytest.mark.parametrize("level", [1, 4, 9])
def test_a_batch_gives_each_row_what_it_gets_alone(level: int, side: SideProcess) -> None:
    batch = side.batch(PROMPTS[:level], 12)
    assert batch.tokens == tuple(side.generate(prompt, 12).tokens for prompt in PROMPTS[:level])
    assert {len(row) for row in batch.token_ns} == {12}


def test_rows_of_a_batch_come_step_by_step(side: SideProcess) -> None:
    batch = side.batch([PROMPTS[0], PROMPTS[0][::-1]], 12)
    assert batch.token_ns[0][0] < batch.token_ns[1][0] < batch.token_ns[0][-1]


WITHOUT_BATCHES = """
from mlx_lm.generate import BatchGenerator
from pytest_llmbench.sides.mlx_lm import MlxLmSide
from pytest_llmbench.sides.serve import serve

def refuse(self):
    raise RuntimeError("this is a batch")

BatchGenerator.next_generated = refuse
serve(MlxLmSide())
"""


def test_mlx_lm_streams_one_prompt_as_its_users_do(start: Start, tiny_checkpoints: Path) -> None:
    """Through its batch generator, one row is up to twice as slow: no baseline for anybody."""
    side = start(program_side(WITHOUT_BATCHES))
    side.load(tiny_checkpoints / "tiny-random-4bit")
    assert side.batch(PROMPTS[:1], 5).tokens == (side.generate(PROMPTS[0], 5).tokens,)
    with pytest.raises(SideError, match="this is a batch"):
        side.batch(PROMPTS[:2], 5)


def test_both_know_the_same_two_best_tokens_of_a_prompt_longer_than_a_chunk(loaded: dict[str, SideProcess]) -> None:
    prompt = list(range(10, 200)) * 11
    (best, most), (_, less), *_ = loaded["engine"].margins(prompt).top
    assert most > less
    assert loaded["mlx-lm"].margins(prompt).top[0] == (best, pytest.approx(most, rel=1e-3))
    assert loaded["mlx-lm"].margins(prompt[:1]).top[0] != (best, pytest.approx(most, rel=1e-3))


@pytest.mark.parametrize("prompt", [[7], PROMPTS[3]])
def test_the_better_of_them_is_what_it_generates(prompt: list[int], side: SideProcess) -> None:
    (best, most), (other, less), *_ = side.margins(prompt).top
    assert side.generate(prompt, 1).tokens == (best,) != (other,)
    assert most > less


def test_memory_is_counted_from_the_last_reset(side: SideProcess) -> None:
    side.reset()
    before = side.memory()
    side.generate(list(range(10, 200)) * 5, 4)
    after = side.memory()
    side.reset()
    again = side.memory()
    assert before.peak_bytes is not None
    assert after.peak_bytes is not None
    assert again.active_bytes is not None
    assert 0 < before.peak_bytes < after.peak_bytes > again.active_bytes > 0
    assert after.os_peak_rss_bytes >= before.os_peak_rss_bytes > 2**20


@pytest.mark.parametrize("name", REAL)
def test_an_end_token_is_a_token_like_all_others(name: str, start: Start, tiny_checkpoints: Path) -> None:
    side = start(real_side(name))
    side.load(tiny_checkpoints / "tiny-scripted")
    prompt = [1, 100, EOS, 1]
    alone = side.generate(prompt, 120).tokens
    assert EOS in alone[:-1]
    assert side.batch([prompt, prompt[:2]], 120).tokens[0] == alone


def test_a_load_is_stamped_and_replaces_the_one_before(start: Start, tiny_checkpoints: Path) -> None:
    for name in REAL:
        side = start(real_side(name))
        first = side.load(tiny_checkpoints / "tiny-random", [5, 6, 7])
        assert first.first_token_ns is not None
        assert side.spawned_ns < first.started_ns < first.ready_ns < first.first_token_ns
        assert side.load(tiny_checkpoints / "tiny-random").first_token_ns is None
        one = side.memory().active_bytes
        side.reset()
        side.load(tiny_checkpoints / "tiny-random")
        both = side.memory().peak_bytes
        assert one is not None
        assert both is not None
        assert one <= both < 1.5 * one


def broken_checkpoints(folder: Path, whole: Path) -> dict[str, Path]:
    found = {name: folder / name for name in ("empty", "other-kind", "no-config", "not-json", "cut")}
    found["empty"].mkdir()
    for name in found:
        if name != "empty":
            shutil.copytree(whole, found[name])
    (found["no-config"] / "config.json").unlink()
    (found["not-json"] / "config.json").write_text("[")
    config = json.loads((whole / "config.json").read_text())
    (found["other-kind"] / "config.json").write_text(json.dumps({**config, "model_type": "abacus"}))
    weights = found["cut"] / "model.safetensors"
    os.truncate(weights, weights.stat().st_size // 2)
    return found


def test_a_bad_checkpoint_is_refused_and_another_can_be_loaded(
    start: Start, tmp_path: Path, tiny_checkpoints: Path
) -> None:
    whole = tiny_checkpoints / "tiny-random-4bit"
    folders = broken_checkpoints(tmp_path, whole)
    for side in [start(real_side(name)) for name in REAL]:
        for folder in (tmp_path / "nowhere", *folders.values()):
            with pytest.raises(SideError) as caught:
                side.load(folder, [1, 2])
            assert (caught.value.kind, caught.value.refusal) == ("refused", "checkpoint"), caught.value
        with pytest.raises(SideError, match="nothing is loaded"):
            side.generate([1], 2)
        side.load(whole)
        assert len(side.generate([5, 6], 3).tokens) == 3


def test_a_prompt_that_it_cant_serve_is_refused(loaded: dict[str, SideProcess]) -> None:
    with pytest.raises(SideError, match="InvalidRequest") as caught:
        loaded["engine"].generate([2**30], 2)
    assert (caught.value.kind, caught.value.refusal) == ("refused", "failed")
    assert len(loaded["engine"].generate([5], 2).tokens) == 2


@pytest.mark.parametrize("name", REAL)
def test_of_the_environment_only_mlxs_switches_are_told(name: str, start: Start) -> None:
    hello = start(real_side(name, MLX_SOME_SWITCH="7", MLX_SOME_TOKEN="osprey", OTHER="feldspar")).hello
    told = {fact: value for fact, value in hello.facts.items() if fact.startswith("env.")}
    assert told.items() >= {"env.MLX_SOME_SWITCH": "7", "env.MLX_SOME_TOKEN": "***"}.items()
    assert {fact[:8] for fact in told} == {"env.MLX_"}
    assert not {"osprey", "feldspar"} & set(map(str, hello.facts.values()))
