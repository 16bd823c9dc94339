"""What a live run measures of each section, and in which processes; what is selected, shown and handed on."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from parity_kit import ROOT, ParityLab

SHARED_MEMORY = Path("/dev/shm")
only_linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the cold cache is `purge`, as root")


@pytest.fixture
def disk() -> Iterator[Path]:
    """A folder on the disk of this repository: pytest's own temporary folder may lie in memory."""
    (ROOT / "checkpoints").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "checkpoints", prefix=".test-") as folder:
        yield Path(folder)


@pytest.fixture
def memory_disk() -> Iterator[Path]:
    """A folder on a file system that lives in memory."""
    if not SHARED_MEMORY.is_dir():
        pytest.skip(f"no {SHARED_MEMORY}")
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as folder:
        yield Path(folder)


def test_the_metrics_are_those_of_the_stamps(lab: ParityLab) -> None:
    lab.sides(steady={}, other={"token_ms": [2.0], "prompt_ms": 10, "load_ms": 20, "peak_bytes": 500})
    lab.plan(candidate="other")
    lab.run()
    model = lab.model()

    def candidate(point: dict[str, dict[str, dict[str, float]]], metric: str) -> float:
        return pytest.approx(point[metric]["candidate"]["median"])  # type: ignore[no-any-return]

    (r1, r4), (length,) = model["ttft"]["legacy"], model["ttft"]["lengths"]
    assert candidate(model["decode"][0], "tok_s") == 500
    assert model["decode"][0]["tok_s"]["ratio"] == pytest.approx(0.5)
    assert [point["prompt_tokens"]["candidate"] for point in (r1, r4)] == [25, 97]
    assert (candidate(length, "ttft_s"), candidate(length, "prefill_tok_s")) == (0.01, 6400)
    assert candidate(r4, "prefill_tok_s") == 9700
    assert model["memory"]["load"]["peak_bytes"]["ratio"] == 2
    assert model["memory"]["load"]["candidate_raw"] == {"active_bytes": 7}
    warm = model["load"]["warm"]
    assert (candidate(warm, "model_ready_s"), candidate(warm, "first_token_s")) == (0.02, 0.03)
    assert warm["spawn_to_first_token_s"]["candidate"]["median"] > 0.03
    two = model["concurrency"][1]
    assert candidate(two, "wall_s") == 0.01 + 7 * 0.002
    assert candidate(two, "aggregate_tok_s") == 16 / 0.024
    assert candidate(two, "decode_aggregate_tok_s") == 14 / 0.014
    assert two["total_tokens"] == 16


@pytest.mark.parametrize(
    ("words", "prompts", "points"),
    [
        ("decode-r4", {97}, {"decode": ["r4"]}),
        ("same_tokens", {25, 97}, {"decode": ["r1", "r4"]}),
        ("ttft-64", {64}, {"ttft": ["64"]}),
        ("memory-decode", {961}, {"memory": ["decode"]}),
    ],
)
def test_only_the_points_of_selected_tests_are_measured(
    lab: ParityLab, words: str, prompts: set[int], points: dict[str, list[str]]
) -> None:
    lab.plan()
    lab.run("-k", words)
    assert {event["prompt"] for event in lab.events("generate")} == prompts
    results = lab.run("out/parity.json", "--collect-only", "-q", "--llmbench-out=again").stdout.str()
    assert lab.model()["status"] == "partial"
    assert "not all points were asked for" in lab.model()["reason"] or words == "same_tokens"
    ((section, names),) = points.items()
    assert [name for name in names if f"{section}-{name}-" not in results] == ([] if section != "memory" else names)
    assert [key for key in ("decode", "ttft", "memory", "load", "concurrency") if key in lab.model()] == [section]


def test_a_sample_of_memory_and_of_loading_has_a_process_of_its_own(lab: ParityLab) -> None:
    lab.plan("memory", "load", load={"samples": 2, "cold": False}, max_rounds=2, memory={"prompt_tokens": [32]})
    lab.run()
    pids = [event["pid"] for event in lab.events("load")]
    memory, load = 2 * 3, 2 * (1 + 2)  # both sides: three points; a warm-up and two samples
    assert len(pids) == len(set(pids)) == memory + load
    assert len(lab.events("start")) == len(pids)
    assert len(lab.model()["load"]["warm"]["first_token_s"]["candidate"]["samples"]) == 2


def test_memory_that_nobody_gates_is_measured_and_says_nothing_of_better_or_worse(lab: ParityLab) -> None:
    lab.sides(steady={}, fat={"peak_bytes": 5000})
    lab.plan("memory", candidate="fat")
    lab.run()
    assert lab.outcomes() == {"test_measured[m-memory-load]": "passed", "test_measured[m-memory-decode]": "passed"}
    lab.plan("memory", candidate="fat", memory={"prompt_tokens": [], "gated": ["peak_bytes"]})
    lab.run()
    assert set(lab.outcomes().values()) == {"failed"}


@only_linux
def test_a_cold_load_of_files_that_live_in_memory_is_null_with_the_reason(lab: ParityLab, memory_disk: Path) -> None:
    lab.checkpoint(under=memory_disk)
    where = str(memory_disk / "weights")
    lab.plan(models=[{"id": "m", "path": where, "sections": ["load"]}], load={"samples": 1, "cold": True})
    lab.run()
    assert lab.outcomes() == {
        "test_parity[m-load-warm-model_ready_s]": "passed",
        "test_parity[m-load-warm-first_token_s]": "passed",
        "test_parity[m-load-cold-model_ready_s]": "skipped",
        "test_parity[m-load-cold-first_token_s]": "skipped",
    }
    cold = lab.model()["load"]["cold"]["first_token_s"]
    assert (cold["candidate"], cold["baseline"], cold["ratio"]) == (None, None, None)
    assert cold["reason"] == f"the file cache keeps 100% of {where} (its file system may live in memory)"


@only_linux
def test_a_cold_load_of_files_on_a_disk_is_measured(lab: ParityLab, disk: Path) -> None:
    from pytest_llmbench import file_cache
    from pytest_llmbench.errors import Unavailable

    folder = lab.checkpoint(under=disk)
    try:
        file_cache.drop(folder)
    except Unavailable as error:
        pytest.skip(f"this repository's disk: {error}")
    lab.plan(models=[{"id": "m", "path": str(folder), "sections": ["load"]}], load={"samples": 1, "cold": True})
    lab.run()
    assert set(lab.outcomes().values()) == {"passed"}
    assert lab.model()["load"]["cold"]["first_token_s"]["ratio"] == 1


def test_sides_that_don_t_fit_together_are_never_there_together(lab: ParityLab) -> None:
    folder = lab.checkpoint()
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(psutil.virtual_memory().total)  # sparse: it takes no place
    lab.plan("decode", "load", legacy_repeats=[1], runs_per_pass=2, max_rounds=2)
    lab.run("-k", "parity")
    assert set(lab.outcomes().values()) == {"passed"}
    assert [event["alive"] for event in lab.events("start")] == [[]] * len(lab.events("start"))
    assert len(lab.events("start")) > 4


def test_what_a_side_tells_of_its_device_counts_and_not_the_machine_s_memory(lab: ParityLab) -> None:
    lab.sides(steady={}, device={"facts": {"device.total_memory": 10_000}})
    lab.plan("decode", baseline="device", legacy_repeats=[1], runs_per_pass=2, max_rounds=2)
    lab.run("-k", "parity")
    assert set(lab.outcomes().values()) == {"passed"}
    # The first to start has no other one yet, the second tells of its device: then the first one has to go.
    assert [len(event["alive"]) for event in lab.events("start")] == [0, 1, 0]


def test_sides_that_fit_are_started_once_for_a_section(lab: ParityLab) -> None:
    lab.plan("decode", "ttft")
    lab.run()
    assert [len(event["alive"]) for event in lab.events("start")] == [0, 1, 0, 1]


def test_junit_has_flat_properties_of_each_result(lab: ParityLab) -> None:
    lab.plan("decode", legacy_repeats=[1])
    lab.run()
    found = lab.properties()["test_parity[m-decode-r1-tok_s]"]
    expected = {"model_id": "org/m", "section": "decode", "point": "r1", "metric": "tok_s"}
    expected |= {"tok_s.gate": "0.98", "tok_s.ratio": "1.0", "tok_s.outcome": "passed"}
    assert found == {f"llmbench.{name}": value for name, value in expected.items()}


def test_the_terminal_shows_the_record_s_summary(lab: ParityLab) -> None:
    lab.sides(steady={}, slower={"token_ms": [1.1]})
    lab.plan("decode", "concurrency", candidate="slower")
    result = lab.run()
    result.stdout.fnmatch_lines(
        [
            "*llmbench: parity.json*",
            "8 gated results, 8 below gate 0.98, 0 not measured",
            "batched output equals solo output at 2 of 2 points",
            "geomean decode           0.9091  (n 2)",
            "below gate: decode org/m 0.9091",
            "llmbench: wrote *run.json, *parity.json",
        ]
    )
    assert lab.record()["summary"]["decode_geomean"] == {"value": 0.9091, "n": 2}
