"""Several pytest workers, one accelerator: no two servers run at the same time."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from server_kit import Recorder, flavours, pinned, recorded_entry

from processes import is_running


def test_two_workers_never_run_two_servers_at_once(
    bench: pytest.Pytester, tiny_checkpoints: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    mlx, llama = (pinned(flavour, tmp_path_factory.mktemp("flavour")) for flavour in flavours()[:2])
    if mlx.missing or llama.missing:
        pytest.skip(mlx.missing or llama.missing)
    pairs = ((mlx, "tiny-scripted"), (llama, "tiny-scripted"), (llama, "tiny-random"))
    entries = [recorded_entry(Recorder(bench.path, f), f, tiny_checkpoints / name) for f, name in pairs]
    settings = {"runs": 1, "warmup": 0, "max_tokens": 24, "server_timeout": 120, "fixed_length": False}
    matrix = {"settings": settings, "prompts": ["short", "long"], "tests": entries}
    # Two files: their entries may not run beside each other either.
    for number, part in enumerate((entries[:2], entries[2:])):
        (bench.path / f"part{number}.yaml").write_text(json.dumps({**matrix, "tests": part}), encoding="utf-8")
    result = bench.runpytest_subprocess(
        "part0.yaml", "part1.yaml", "-n", "2", "--llmbench-out=out", "-p", "no:cacheprovider", timeout=120
    )
    result.assert_outcomes(passed=6)
    recorder = Recorder(bench.path, llama)
    spans = sorted(
        (start["ns"], stop["ns"], start["pid"])
        for start in recorder.events("start")
        for stop in recorder.events("stop")
        if start["pid"] == stop["pid"]
    )
    # Each entry's server is started once for all of its prompts.
    assert len(recorder.events("start")) == len(spans) == 3
    for (_, stopped, _), (started, _, _) in itertools.pairwise(spans):
        assert stopped < started
    assert [pid for _, _, pid in spans if is_running(pid)] == []
    results = json.loads((bench.path / "out" / "run.json").read_text(encoding="utf-8"))["results"]
    assert len(results) == 6


def test_a_benchmark_in_a_python_file_waits_for_the_accelerator_too(
    bench: pytest.Pytester, tiny_checkpoints: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    llama = pinned(flavours()[1], tmp_path_factory.mktemp("flavour"))
    if llama.missing:
        pytest.skip(llama.missing)
    recorder = Recorder(bench.path, llama)
    entries = [
        recorded_entry(recorder, llama, tiny_checkpoints / "tiny-random", id=f"entry-{number}") for number in range(4)
    ]
    settings = {"runs": 1, "warmup": 0, "max_tokens": 8}
    matrix = {"settings": settings, "prompts": ["short"], "tests": entries}
    (bench.path / "mine.yaml").write_text(json.dumps(matrix), encoding="utf-8")
    bench.makepyfile(test_mine="def test_counts(llmbench_measurement): assert llmbench_measurement.valid")
    result = bench.runpytest_subprocess(
        "test_mine.py", "--llmbench-matrix=mine.yaml", "-n", "2", "-p", "no:cacheprovider", timeout=120
    )
    result.assert_outcomes(passed=4)
    stamps = sorted((e["ns"], e["event"]) for name in ("start", "stop") for e in recorder.events(name))
    assert [event for _, event in stamps] == ["start", "stop"] * (len(stamps) // 2)
    assert len(stamps) >= 8
