"""README, CONTRIBUTING and docs say what the code does: every command and every example in them is run here."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from pytest_llmbench import matrix, parity_plan, parity_plan_file, sample
from pytest_llmbench.backends import builtin_backends
from pytest_llmbench.matrix_file import load
from pytest_llmbench.options import OPTIONS

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "docs/add-a-server.md",
    "docs/matrix.md",
    "docs/metrics.md",
    "docs/ci.md",
    "docs/verdicts.md",
    "docs/parity.md",
)
RUN_BY_CI = {"ci/demo", "ci/test", "pytest matrix/parity_smoke.yaml", "pip install 'pytest-llmbench[mlx,llama]'"}
ENDS_WITH = {"pytest matrix/records": 1, "pytest matrix/records -k section:concurrency": 1, "ci/test -k layers": None}


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


COMMANDS = [
    line.removeprefix("$ ")
    for page in PAGES
    for block in blocks(page, "console")
    for line in block.splitlines()
    if line.startswith("$ ")
]


@pytest.mark.parametrize("command", [c for c in COMMANDS if c not in RUN_BY_CI and not c.startswith("ci/")])
def test_each_command_on_a_page_runs(command: str, tmp_path: Path) -> None:
    where = ROOT
    if "bench.yaml" in command:
        where = tmp_path
        (tmp_path / "bench.yaml").write_text(blocks("README.md", "yaml")[0], encoding="utf-8")
    assert command.startswith("pytest ")
    words = [*shlex.split(command)[1:], "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words], cwd=where, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == ENDS_WITH.get(command, 0), done.stdout + done.stderr


def test_scripts_on_the_pages_exist_and_can_be_executed() -> None:
    for command in COMMANDS:
        if command.startswith("ci/"):
            assert os.access(ROOT / command.split()[0], os.X_OK)


def test_readme_lists_the_options_that_work_and_no_others() -> None:
    on_page = set(re.findall(r"--llmbench-[a-z-]+", (ROOT / "README.md").read_text(encoding="utf-8")))
    assert on_page == {option.flag for option in OPTIONS if not option.later}


def test_matrix_page_names_each_key_that_a_file_may_have() -> None:
    page = (ROOT / "docs/matrix.md").read_text(encoding="utf-8")
    keys = {f.name for kind in (matrix.MatrixEntry, matrix.Settings) for f in fields(kind)} - {"path", "line"}
    assert {key for key in keys if f"`{key}`" not in page} == set()


def test_matrix_page_example_is_a_matrix(tmp_path: Path) -> None:
    path = tmp_path / "example.yaml"
    path.write_text(blocks("docs/matrix.md", "yaml")[0], encoding="utf-8")
    entries = load(path, backends=builtin_backends()).entries
    assert [e.reason for e in entries] == ["", "crashes with this macOS, see the issue"]


def test_parity_page_names_each_key_that_a_plan_may_have() -> None:
    page = (ROOT / "docs/parity.md").read_text(encoding="utf-8")
    kinds = (parity_plan.ParityPlanModel, parity_plan.ParitySettings, parity_plan.PlanSide)
    keys = {f.name for kind in kinds for f in fields(kind)} - {"name", "line", "tier", "gate", "goal"} | {"gates"}
    assert {key for key in keys if f"`{key}`" not in page} == set()


@pytest.mark.parametrize("page", ["docs/parity.md", "docs/sides.md"])
def test_examples_of_plans_are_plans(page: str, tmp_path: Path) -> None:
    path = tmp_path / "example.yaml"
    for text in blocks(page, "yaml"):
        path.write_text(text, encoding="utf-8")
        plan = parity_plan_file.load(path)
        own = plan.own_side(plan.candidate)
        assert own is None or own.command[0] == str(tmp_path / "target/release/side")
        assert (own is None) == (plan.candidate == "engine")


def test_metrics_page_defines_every_metric() -> None:
    page = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    assert {name for name in (*sample.SAMPLE_METRICS, *matrix.METRICS) if f"`{name}`" not in page} == set()
