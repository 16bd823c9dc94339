"""`llmbench merge`: shards and machines become one record, and every duplicate is told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from record_kit import PARITY, command, result, run, save

from pytest_llmbench.errors import RecordError
from pytest_llmbench.figures import load
from pytest_llmbench.parity_record import read_parity_record
from pytest_llmbench.record import Run, read_run

LATER = "2026-01-02T00:00:00.000+00:00"
SPEED = {"decode_tok_s": [50.0]}


def merged(tmp_path: Path, *runs: Run) -> Run:
    files = [save(tmp_path / f"{number}.json", one) for number, one in enumerate(runs)]
    assert command("merge", *files, "--out", tmp_path / "merged.json") == 0
    found = read_run(tmp_path / "merged.json")
    save(tmp_path / "checked.json", found)
    return found


def test_shards_become_one_run(tmp_path: Path) -> None:
    found = merged(tmp_path, run(result("a", SPEED)), run(result("b", SPEED), created=LATER))
    assert [r.nodeid for r in found.results] == [
        "m.yaml::test_throughput[a-short]",
        "m.yaml::test_throughput[b-short]",
    ]
    assert (found.created, found.complete, found.environment["fingerprint"]) == (
        LATER,
        True,
        run().environment["fingerprint"],
    )


def test_a_test_that_ran_twice_counts_once_and_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    again = result("a", {"decode_tok_s": [60.0]}, finished_at=LATER)
    found = merged(tmp_path, run(again, created=LATER), run(result("a", SPEED)))
    assert [r.measurement["metrics"]["decode_tok_s"] for r in found.results if r.measurement] == [60.0]
    assert "duplicate: m.yaml::test_throughput[a-short]" in capsys.readouterr().out


def test_a_skip_never_replaces_a_measurement(tmp_path: Path) -> None:
    skipped = result("a", None, outcome="skipped", reason="not here", finished_at=LATER)
    found = merged(tmp_path, run(result("a", SPEED)), run(skipped, created=LATER))
    assert [r.outcome for r in found.results] == ["passed"]


def test_machines_stay_apart(tmp_path: Path) -> None:
    found = merged(tmp_path, run(result("a", SPEED)), run(result("a", {"decode_tok_s": [9.0]}), chip="Apple M9"))
    subjects = load([tmp_path / "merged.json"]).subjects
    assert {(s.source.chip, s.metrics["decode_tok_s"].value) for s in subjects if s.source.chip == "Apple M9"} == {
        ("Apple M9", 9.0)
    }
    assert len(subjects) == 2
    own = {head["environment"]["fingerprint"] for head in found.sources.values()}
    assert found.environment["fingerprint"] not in own


def test_merging_again_changes_nothing(tmp_path: Path) -> None:
    first = merged(tmp_path, run(result("a", SPEED)), run(result("a", {"decode_tok_s": [9.0]}), chip="Apple M9"))
    again = merged(tmp_path, first, first)
    assert (again.results, again.sources) == (first.results, first.sources)


def test_a_run_that_was_stopped_makes_the_merged_one_incomplete(tmp_path: Path) -> None:
    stopped = replace(run(result("b", SPEED)), complete=False)
    assert not merged(tmp_path, run(result("a", SPEED)), stopped).complete


def test_parity_records_of_other_models_become_one(tmp_path: Path) -> None:
    data = json.loads(PARITY.read_text(encoding="utf-8"))
    for name, models in (("a", data["models"][:5]), ("b", data["models"][5:])):
        (tmp_path / f"{name}.json").write_text(json.dumps(data | {"models": models}), encoding="utf-8")
    assert command("merge", tmp_path / "a.json", tmp_path / "b.json", "--out", tmp_path / "m.json") == 0
    assert read_parity_record(tmp_path / "m.json").summary() == read_parity_record(PARITY).summary()


def test_a_model_that_stands_twice_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("merge", PARITY, PARITY, "--out", tmp_path / "m.json") == 0
    assert "duplicate: mlx-community/Qwen3-0.6B-4bit decode: twice" in capsys.readouterr().out
    assert read_parity_record(tmp_path / "m.json").summary() == read_parity_record(PARITY).summary()


def test_records_of_other_sides_or_kinds_are_refused(tmp_path: Path) -> None:
    data = json.loads(PARITY.read_text(encoding="utf-8"))
    data["environment"]["mlx_lm"] = "0.99"
    (tmp_path / "other.json").write_text(json.dumps(data), encoding="utf-8")
    ours = save(tmp_path / "run.json", run(result("a", SPEED)))
    assert command("merge", PARITY, tmp_path / "other.json", "--out", tmp_path / "m.json") == 2
    assert command("merge", PARITY, ours, "--out", tmp_path / "m.json") == 2
    assert command("merge", ours, ours, "--out", ours) == 2
    assert not (tmp_path / "m.json").exists()


def test_a_fact_of_the_users_own_called_source_is_kept_and_parts_no_entry(tmp_path: Path) -> None:
    tools = result("a", SPEED, nodeid="m.yaml::test_tools[a]", extra={"source": "book"})
    found = merged(
        tmp_path, run(result("a", SPEED, extra={"source": "web"}), tools), run(result("b", SPEED), created=LATER)
    )
    assert [r.extra.get("source") for r in found.results] == ["web", "book", None]
    assert [s.name for s in load([tmp_path / "0.json"]).subjects] == ["a-short"]
    assert [s.name for s in load([tmp_path / "merged.json"]).subjects] == ["a-short", "b-short"]


def test_a_merged_result_of_no_source_is_refused(tmp_path: Path) -> None:
    merged(tmp_path, run(result("a", SPEED)), run(result("b", SPEED), created=LATER))
    data = json.loads((tmp_path / "merged.json").read_text(encoding="utf-8"))
    data["results"][1]["extra"] = {}
    (tmp_path / "merged.json").write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(RecordError, match=r"merged\.json: .*test_throughput\[b-short\] has no llmbench_source of 1, 2"):
        read_run(tmp_path / "merged.json")
