"""The scripts that measure the engine and publish what came of it."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from pytest_llmbench.parity_record import read_parity_record

ROOT = Path(__file__).resolve().parents[2]
FEW = ["--repeats", "1", "--levels", "1", "--max-tokens", "4", "--max-rounds", "5"]


def bench_engine(*words: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, ROOT / "ci/bench_engine", *words]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def script(name: str) -> ModuleType:
    """A script of ci as a module."""
    loader = importlib.machinery.SourceFileLoader(Path(name).name, str(ROOT / "ci" / name))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def performance() -> ModuleType:
    return script("performance")


def test_bench_engine_prints_a_ratio_for_each_point_and_leaves_a_record(tiny_kinds: Path, tmp_path: Path) -> None:
    sections = ["--sections", "decode,concurrency"]
    child = bench_engine(tiny_kinds / "tiny-dense", *sections, *FEW, "--out", tmp_path, "--id", "me/dense")
    text, _ = child.communicate(timeout=240)
    record = read_parity_record(tmp_path / "parity.json")
    assert [(m.id, {p.section for p in m.points}) for m in record.models] == [("me/dense", {"decode", "concurrency"})]
    for result in record.results:
        assert f"{result.section} {result.point}" in text
        assert f"{result.ratio:.4f}" in text
    # Which engine is faster on a busy machine with a tiny model isn't ours to say; that all could be measured is.
    assert child.returncode in (0, 1), text


def test_an_interrupted_bench_keeps_the_sections_that_were_measured(tiny_kinds: Path, tmp_path: Path) -> None:
    child = bench_engine(tiny_kinds / "tiny-dense", "--sections", "decode,load", *FEW, "--out", tmp_path)
    record, deadline = tmp_path / "parity.json", time.monotonic() + 200
    while not record.is_file() and time.monotonic() < deadline:
        time.sleep(0.05)
    # To the whole group, as Ctrl-C does it.
    os.killpg(child.pid, signal.SIGINT)
    text, _ = child.communicate(timeout=60)
    found = read_parity_record(record)
    assert [point.section for model in found.models for point in model.points] == ["decode"]
    assert found.models[0].status == "partial"
    assert "decode r1" in text


def test_the_profile_of_a_load_has_a_line_for_each_stage_of_both_sides(tiny_kinds: Path) -> None:
    command = [sys.executable, str(ROOT / "ci/load_profile"), str(tiny_kinds / "tiny-dense"), "--rounds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    head, *rows = done.stdout.splitlines()
    assert head.split() == ["ms", "engine", "mlx-lm"]
    figures = {row[:22].strip(): [float(cell) for cell in row[22:].split()] for row in rows}
    both = dict.fromkeys(("import", "model", "tokenizer", "first token", "second prompt's"), 2)
    assert {name: len(cells) for name, cells in figures.items()} == both | {"rest of the weights": 1}
    assert all(cell >= 0 for cells in figures.values() for cell in cells)


def test_exactness_tells_how_far_rounding_moves_each_way_of_computing(tmp_path: Path) -> None:
    checkpoint = tmp_path / "one-layer"
    words = ["checkpoint", "random", "--shape", "qwen3-0.6b", "--layers", "1", str(checkpoint)]
    subprocess.run([sys.executable, "-m", "pytest_llmbench", *words], check=True)
    command = [sys.executable, str(ROOT / "ci/exactness"), str(checkpoint), "--prompts", "1,3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    largest = {
        (row[:14].strip(), row[14:34].strip()): float(row[34:].split()[0]) for row in done.stdout.splitlines()[1:]
    }
    for length in ("1 tokens", "3 tokens"):
        whole, users, engine = (largest[length, way] for way in ("mlx-lm, whole", "mlx-lm, as users", "engine"))
        assert 0 < engine <= 2 * max(whole, users)


def test_the_gpu_run_names_what_its_time_was_too_short_for(tmp_path: Path) -> None:
    command = [
        sys.executable,
        ROOT / "ci/gpu/parity",
        "--out",
        tmp_path,
        "--limit",
        "1",
        "qwen3-0.6b",
        "qwen3-8b:decode",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "out of time: qwen3-0.6b qwen3-8b:decode not measured\n")


def test_both_sides_of_all_checkpoints_are_warmed_and_one_that_fails_says_why(tiny_kinds: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "ci/gpu/warm"), "--ptx", str(tmp_path), "--lengths", "3", "--levels", "2"]
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/config.json").write_text("{}")
    folders = [str(tiny_kinds / "tiny-dense"), str(tmp_path / "broken")]
    done = subprocess.run([*command, *folders], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    said = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert set(said) == {f"{name} {side}" for name in ("tiny-dense", "broken") for side in ("engine", "mlx-lm")}
    assert re.fullmatch(r"\d+ s", said["tiny-dense engine"])
    assert "broken/config.json" in said["broken engine"]


def test_a_side_that_is_not_warm_in_time_says_so(tiny_kinds: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "ci/gpu/warm"), str(tiny_kinds / "tiny-dense"), "--ptx", str(tmp_path)]
    # Far more than the seconds allow, on whatever machine.
    hurry = ["--limit", "5", "--levels", "1", "--lengths", ",".join(["4000"] * 5000)]
    done = subprocess.run([*command, *hurry], capture_output=True, text=True, check=False)
    said = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert (done.returncode, set(said)) == (1, {"tiny-dense engine", "tiny-dense mlx-lm"}), done.stderr
    assert all(re.match(r"no answer to \w+ within [0-9.]+ s", why) for why in said.values())


def test_of_what_a_side_compiled_only_whole_kernels_are_kept(tmp_path: Path) -> None:
    ptx, kept = tmp_path / "ptx", tmp_path / "kept"
    names = ["unary.ptx", "unary.txt", "unary.cu", "long/name.ptx", "long/name.txt", "long/name.cu", "half.ptx"]
    for name in names:
        (ptx / name).parent.mkdir(parents=True, exist_ok=True)
        (ptx / name).write_text(name)
    script("gpu/warm").keep(ptx, kept)
    found = {str(path.relative_to(kept)): path.read_text() for path in kept.rglob("*.*")}
    assert found == {name: name for name in names[:-1]}


def test_the_page_of_performance_is_what_the_records_say() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "ci/performance", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("shape", "share_of_weights"),
    [("qwen3-0.6b", (0.99, 1.0)), ("qwen3-8b", (0.9, 0.95)), ("qwen3-30b-a3b", (0.08, 0.12))],
)
def test_a_token_needs_the_weights_that_it_reads(
    performance: ModuleType, shape: str, share_of_weights: tuple[float, float]
) -> None:
    from pytest_llmbench.checkpoints.random import load_shape, stored_bytes

    low, high = share_of_weights
    assert low <= performance.bytes_per_token(shape) / stored_bytes(load_shape(shape)) <= high


def test_published_records_hide_which_machine_it_was() -> None:
    for path in (ROOT / "docs/results").glob("parity_*.json"):
        facts = json.loads(path.read_text(encoding="utf-8"))["baseline"]["facts"]
        assert not {"device.uuid", "device.pci_bus_id"} & set(facts), path
