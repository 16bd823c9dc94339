"""What is wrong with the arguments of the scripts that measure the engine is said in a line."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def script(name: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "ci" / name), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["gone"], "gone: no checkpoint, it has no config.json"),
        ([], "give a checkpoint folder or --shape"),
        (["--shape", "nope"], "unknown shape 'nope': known: gemma-4-26b-a4b"),
        (["--shape", "qwen3-0.6b", "--layers", "0"], "'0' is no number above 0"),
        (["--shape", "qwen3-0.6b", "--repeats", "5,"], "'' is no number above 0"),
        (["--shape", "qwen3-0.6b", "--prompts", "-3"], "'-3' is no number above 0"),
        (["--shape", "qwen3-0.6b", "--sections", "decode,foo"], "'foo' is no section; there are decode, ttft,"),
        (["--shape", "qwen3-0.6b", "--out", "/dev/null"], "/dev/null: File exists; --out and --folder name other"),
        (["--shape", "qwen3-0.6b", "--out", "/dev/null/x"], "/dev/null/x: Not a directory; --out and --folder name"),
    ],
)
def test_bench_engine_says_what_it_cannot_take(words: list[str], said: str, tmp_path: Path) -> None:
    place = [] if "--out" in words else ["--out", str(tmp_path / "out")]
    done = script("bench_engine", *words, *place, "--folder", tmp_path)
    assert done.returncode == 2
    assert said in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_a_second_bench_engine_leaves_the_plan_of_the_first(tiny_kinds: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text("the first one's")
    with plan.open("a") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        done = script("bench_engine", tiny_kinds / "tiny-dense", "--out", tmp_path)
    said = f"bench_engine: another bench_engine writes to {tmp_path}; wait for its end, or name another --out\n"
    assert (done.returncode, done.stderr) == (2, said)
    assert plan.read_text() == "the first one's"


def test_bench_engine_prints_no_record_but_its_own(tiny_kinds: Path, tmp_path: Path) -> None:
    """In a folder whose name pytest would take for a test's parameters, too."""
    out = tmp_path / "runs[x]"
    out.mkdir()
    (out / "parity.json").write_text("an earlier run's")
    broken = tmp_path / "broken"
    broken.mkdir()
    shutil.copy(tiny_kinds / "tiny-dense/config.json", broken)
    done = script("bench_engine", broken, "--out", out, "--sections", "decode", "--repeats", "1")
    assert done.returncode == 1
    assert f"{broken} is incomplete: model.safetensors missing" in done.stdout
    assert "decode r1" not in done.stdout
    assert (out / "parity.json.previous").read_text() == "an earlier run's"


@pytest.mark.parametrize("lengths", ["", "5,", "a", "0", "-3"])
def test_exactness_takes_lengths_above_0(lengths: str, tiny_kinds: Path) -> None:
    done = script("exactness", tiny_kinds / "tiny-dense", f"--prompts={lengths}")
    assert done.returncode == 2
    assert "is no number above 0" in done.stderr.splitlines()[-1]


def test_exactness_and_the_profile_say_what_is_wrong_with_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    for name in ("exactness", "load_profile"):
        done = script(name, tmp_path)
        assert done.returncode != 0
        assert f"{tmp_path}/" in done.stderr.splitlines()[-1]
    assert "no config.json" in script("load_profile", tmp_path / "gone").stderr


def test_the_gpu_run_knows_its_shapes(tmp_path: Path) -> None:
    done = script("gpu/parity", "--out", tmp_path, "nope:decode")
    assert done.returncode == 2
    assert "nope:decode: no such shape; there are qwen3-0.6b, " in done.stderr
    sections = script("gpu/parity", "--out", tmp_path, "qwen3-0.6b:dekode")
    assert (sections.returncode, "qwen3-0.6b:dekode: sections are decode," in sections.stderr) == (2, True)
    for words in (("--out", __file__), ("--out", tmp_path, "--ptx", __file__), ("--out", tmp_path, "--limit", "nan")):
        refused = script("gpu/parity", *words, "qwen3-0.6b")
        assert (refused.returncode, len(refused.stderr.split("error: "))) == (2, 2)


def test_a_checkpoints_folder_may_have_any_name(tiny_kinds: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_kinds / "tiny-dense", tmp_path / "real😀")
    few = ["--sections", "decode", "--repeats", "1", "--rounds", "1", "--max-rounds", "1", "--max-tokens", "2"]
    done = script("bench_engine", tmp_path / "real😀", *few, "--out", tmp_path / "out", "--id", "me/real")
    assert done.returncode in (0, 1), done.stdout + done.stderr
    assert "decode r1" in done.stdout
