"""Where the weights of a plan's model are found, and what to type where they aren't."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench import parity_checkpoint
from pytest_llmbench.errors import Unavailable
from pytest_llmbench.parity_checkpoint import Checkpoint, find
from pytest_llmbench.parity_plan import ParityPlan, ParityPlanModel

PINNED, NEWER = "a" * 40, "b" * 40


def model(**changes: Any) -> ParityPlanModel:
    given: dict[str, Any] = {
        "id": "org/m", "name": "m", "kind": "dense", "line": 1, "snapshot": PINNED, "shape": "qwen3-0.6b"
    }  # fmt: skip
    return ParityPlanModel(**given | changes)


@pytest.fixture
def plan_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A plan in a folder where nothing else is, and an empty cache."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix").mkdir()
    return tmp_path / "matrix" / "p.yaml"


def whole(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def snapshot(root: Path, commit: str, *, main: bool = False) -> Path:
    folder = root / "hub" / "models--org--m"
    if main:
        (folder / "refs").mkdir(parents=True)
        (folder / "refs" / "main").write_text(commit)
    return whole(folder / "snapshots" / commit)


def test_the_plan_s_snapshot_comes_before_the_newest_one(plan_file: Path, tmp_path: Path) -> None:
    newer = snapshot(tmp_path, NEWER, main=True)
    assert find(model(), beside=plan_file) == Checkpoint(path=newer.resolve(), synthetic=False, snapshot=NEWER)
    pinned = snapshot(tmp_path, PINNED)
    assert find(model(), beside=plan_file) == Checkpoint(path=pinned, synthetic=False, snapshot=PINNED)
    assert find(model(snapshot=PINNED[:7]), beside=plan_file).path == pinned
    assert find(model(snapshot=None), beside=plan_file).snapshot == NEWER


def test_a_torn_download_of_the_plan_s_snapshot_isn_t_taken(plan_file: Path, tmp_path: Path) -> None:
    newer = snapshot(tmp_path, NEWER, main=True)
    (snapshot(tmp_path, PINNED) / "model.safetensors").write_bytes(b"")
    assert find(model(), beside=plan_file).path == newer


def test_random_weights_stand_in_only_where_the_real_ones_are_missing(plan_file: Path, tmp_path: Path) -> None:
    random = whole(tmp_path / "checkpoints" / "qwen3-0.6b")
    assert find(model(), beside=plan_file) == Checkpoint(path=random, synthetic=True)
    real = snapshot(tmp_path, PINNED)
    assert find(model(), beside=plan_file) == Checkpoint(path=real, synthetic=False, snapshot=PINNED)
    assert find(model(synthetic=True), beside=plan_file) == Checkpoint(path=random, synthetic=True)


def test_nothing_stands_in_where_the_plan_forbids_it(plan_file: Path, tmp_path: Path) -> None:
    whole(tmp_path / "checkpoints" / "qwen3-0.6b")
    with pytest.raises(Unavailable) as caught:
        find(model(synthetic=False), beside=plan_file)
    assert caught.value.fix == f"hf download org/m --revision {PINNED}"


def test_what_is_missing_is_named_with_both_ways_to_get_it(plan_file: Path) -> None:
    with pytest.raises(Unavailable) as caught:
        find(model(), beside=plan_file)
    assert str(caught.value) == (
        "org/m is not in the Hugging Face cache, and no file or folder checkpoints/qwen3-0.6b; fix: "
        f"hf download org/m --revision {PINNED}  (or, with random weights: "
        "llmbench checkpoint random --shape qwen3-0.6b checkpoints/qwen3-0.6b)"
    )
    with pytest.raises(Unavailable, match=r"fix: hf download org/m$"):
        find(model(shape=None, snapshot=None), beside=plan_file)


def test_a_path_is_the_only_place_where_it_is_given(plan_file: Path, tmp_path: Path) -> None:
    snapshot(tmp_path, PINNED)
    with pytest.raises(Unavailable, match="fix: llmbench checkpoint tiny checkpoints"):
        find(model(path="checkpoints/tiny-dense", synthetic=True), beside=plan_file)
    tiny = whole(tmp_path / "checkpoints" / "tiny-dense")
    assert find(model(path="checkpoints/tiny-dense"), beside=plan_file) == Checkpoint(path=tiny, synthetic=False)
    assert find(model(path="checkpoints/tiny-dense", synthetic=True), beside=plan_file).synthetic


def test_a_requirement_of_the_model_comes_first(plan_file: Path) -> None:
    wanting = model(requires=("binary:no-such-program",))
    with pytest.raises(Unavailable, match="no-such-program is not on PATH"):
        parity_checkpoint.check(ParityPlan(path=plan_file, models=(wanting,)), wanting)


def test_a_side_whose_packages_are_missing_is_named_with_the_fix(
    plan_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot(tmp_path, PINNED)
    monkeypatch.setattr("pytest_llmbench.parity_checkpoint.find_spec", lambda name: None if name == "mlx_lm" else name)
    plan = ParityPlan(path=plan_file, models=(model(),))
    with pytest.raises(Unavailable, match=r"^mlx-lm needs mlx_lm; fix: pip install 'pytest-llmbench\[mlx\]'$"):
        parity_checkpoint.check(plan, plan.models[0])
    other = ParityPlan(path=plan_file, models=(model(),), candidate="mine", baseline="engine")
    assert parity_checkpoint.check(other, other.models[0]).snapshot == PINNED
