"""`ci/compare_rates`: what it says surely, and that the published figures are those of today's rule."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from record_kit import ROOT
from script_kit import loaded_script, run_script

SCRIPT = ROOT / "ci" / "compare_rates"
PUBLISHED = ROOT / "docs" / "results" / "compare_rates.json"
PAGE = ROOT / "docs" / "compare.md"


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return loaded_script(SCRIPT, tmp_path_factory.mktemp("script"))


@pytest.fixture(scope="module")
def published() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    return data


@pytest.mark.parametrize(
    ("noise", "share", "runs"), [("5 %", 0.05, 3), ("2 %, each run too", 0.03, 10), ("record ttft", 0.03, 1)]
)
def test_the_published_rates_are_those_of_the_rule(
    script: ModuleType, published: dict[str, Any], noise: str, share: float, runs: int
) -> None:
    settings = {"trials": published["trials"], "seed": published["seed"]}
    found = script.cell(noise, script.noises()[noise], share, runs, **settings)
    wanted = (noise, share, runs)
    assert found == [row for row in published["rates"] if (row["noise"], row["limit"], row["runs"]) == wanted], (
        f"the rule has changed: run {published['command']}, and put its table into docs/compare.md"
    )


def test_every_cell_is_published(script: ModuleType, published: dict[str, Any]) -> None:
    cells = [(row["noise"], row["limit"], row["runs"], row["slower_by_limits"]) for row in published["rates"]]
    assert len(set(cells)) == len(cells) == len(script.noises()) * len(script.LIMITS) * len(script.RUNS) * 3
    assert published["trials"] == script.TRIALS


def test_a_slower_run_is_called_worse_more_often(published: dict[str, Any]) -> None:
    for same, at_limit, beyond in zip(*(iter(published["rates"]),) * 3, strict=True):
        assert same["worse"] <= at_limit["worse"] <= beyond["worse"]
        if not at_limit["noise"].startswith("record"):  # whose residuals aren't symmetric
            assert 0.4 < at_limit["worse"] < 0.6  # at the limit itself nobody can tell


def test_the_page_has_the_published_table(script: ModuleType, published: dict[str, Any]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert f"<!-- rates -->\n{script.table(published)}<!-- end -->" in page
    assert f"$ {published['command']}\n" in page


def test_the_command_writes_the_whole_form(tmp_path: Path, published: dict[str, Any]) -> None:
    done = run_script(SCRIPT, "--trials", "5", "--out", tmp_path / "made" / "rates.json")
    assert done.returncode == 0, done.stderr
    data = json.loads((tmp_path / "made" / "rates.json").read_text(encoding="utf-8"))
    assert [row.keys() for row in data["rates"]] == [row.keys() for row in published["rates"]]
    assert done.stdout.count("\n| record ") == 3


def test_wrong_use_ends_with_two() -> None:
    assert run_script(SCRIPT, "--trials", "0").returncode == 2
