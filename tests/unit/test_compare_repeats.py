"""`ci/compare_repeats`: false alarms among runs whose truth is known, and that the page has what was counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from record_kit import ROOT, result, run, save
from script_kit import loaded_script, run_script

SCRIPT = ROOT / "ci" / "compare_repeats"
PAGE = ROOT / "docs" / "compare.md"
COUNTED = sorted((ROOT / "docs" / "results").glob("compare_repeats_*.json"))


def test_each_run_counts_once_and_only_what_is_beyond_the_limit(tmp_path: Path) -> None:
    runs = [[100.0, 100.5, 101.0], [98.0, 98.5, 99.0], [100.0, 100.5, 101.0], [60.0, 60.5, 61.0]]
    for number, speeds in enumerate(runs):
        save(tmp_path / "runs" / str(number) / "run.json", run(result("a", {"decode_tok_s": speeds})))
    out = tmp_path / "counted.json"
    done = run_script(SCRIPT, tmp_path / "runs", "--out", out)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("1 of 2 comparisons failed\n")
    found = {row["metric"]: row for row in json.loads(out.read_text())["rates"]}["decode_tok_s"]
    assert (found["compared"], found["worse"], found["sure_worse"], found["samples"]) == (2, 1, 1, 3)


def test_a_folder_without_a_pair_is_wrong_use(tmp_path: Path) -> None:
    save(tmp_path / "1" / "run.json", run(result("a", {"decode_tok_s": [1.0]})))
    done = run_script(SCRIPT, tmp_path)
    assert done.returncode == 2
    assert "1 runs in it; give a folder with two runs or more" in done.stderr


@pytest.mark.parametrize("path", COUNTED, ids=lambda path: path.stem)
def test_the_page_has_what_was_counted(tmp_path: Path, path: Path) -> None:
    script = loaded_script(SCRIPT, tmp_path)
    data = json.loads(path.read_text(encoding="utf-8"))
    assert f"<!-- {path.stem} -->\n{script.table(data)}<!-- end -->" in PAGE.read_text(encoding="utf-8")
    assert all(0 <= row["sure_worse"] <= row["worse"] <= row["compared"] for row in data["rates"])


def test_both_counts_are_kept() -> None:
    assert [path.stem for path in COUNTED] == ["compare_repeats_10", "compare_repeats_3"]
