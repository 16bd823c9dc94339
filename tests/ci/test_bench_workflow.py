""".github/workflows/bench.yml: its steps run here, and what keeps the runner safe stays in it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from gate_kit import QWEN, RECORD_FILE, ROOT, Repository, clean_environment

WORKFLOW = ROOT / ".github" / "workflows" / "bench.yml"
GPT_OSS_FILE = "engine/llmbench_engine/models/gpt_oss.py"


@pytest.fixture(scope="module")
def workflow() -> dict[Any, Any]:
    loaded: dict[Any, Any] = yaml.safe_load(WORKFLOW.read_text())
    return loaded


def step(workflow: dict[Any, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(s for s in workflow["jobs"]["parity"]["steps"] if s["name"] == name)
    return found


@pytest.fixture
def measure(workflow: dict[Any, Any], repository: Repository, tmp_path: Path) -> Repository:
    """A repository with the step "Measure" as a script, `.venv/bin/python` and a green run."""
    python = repository.path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    (repository.path / "step.sh").write_text(step(workflow, "Measure")["run"])
    junit, record = tmp_path / "junit.xml", tmp_path / "parity.json"
    junit.write_text('<testsuites><testsuite><testcase name="a"/></testsuite></testsuites>')
    record.write_bytes(RECORD_FILE.read_bytes())
    repository.script(junit, record)
    repository.commit()
    repository.git("update-ref", "refs/remotes/origin/main", "HEAD")
    repository.change(GPT_OSS_FILE)
    return repository


@pytest.mark.parametrize(
    ("variables", "selected"),
    [
        (("pull_request", "", "main"), 'llmbench(model_id="mlx-community/gpt-oss-20b-MXFP4-Q8")'),
        (("workflow_dispatch", "Qwen3-0.6B-4bit", ""), f'llmbench(model_id="{QWEN}")'),
        (("workflow_dispatch", "", ""), None),
        (("schedule", "", ""), None),
    ],
)
def test_the_step_measures_what_its_event_asks_for(
    measure: Repository, variables: tuple[str, str, str], selected: str | None
) -> None:
    names = ("GITHUB_EVENT_NAME", "MODELS", "GITHUB_BASE_REF")
    done = run_step(measure, TIER="full", **dict(zip(names, variables, strict=True)))
    assert done.returncode == 0, done.stdout + done.stderr
    assert measure.called[:3] == ["matrix/parity.yaml", "--llmbench-tier", "full"]
    assert (measure.called[-1] if "-m" in measure.called else None) == selected


def test_what_somebody_types_into_the_form_is_data(measure: Repository) -> None:
    done = run_step(
        measure, TIER="quick", MODELS='$(touch evil)"; touch evil; "', GITHUB_EVENT_NAME="workflow_dispatch"
    )
    assert done.returncode == 2
    assert not (measure.path / "evil").exists()


def run_step(repository: Repository, **variables: str) -> subprocess.CompletedProcess[str]:
    """As GitHub runs a step with `shell: bash`."""
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "step.sh"],
        cwd=repository.path,
        env=clean_environment(**variables),
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_pull_request_of_a_fork_is_left_out(workflow: dict[Any, Any]) -> None:
    condition = " ".join(workflow["jobs"]["parity"]["if"].split())
    assert condition == (
        "github.event_name != 'pull_request' || github.event.pull_request.head.repo.full_name == github.repository"
    )
    events = set(workflow[True])  # YAML's `on` is true
    assert events == {"pull_request", "workflow_call", "workflow_dispatch", "schedule"}


def test_runs_wait_for_each_other_and_keep_what_they_wrote(workflow: dict[Any, Any]) -> None:
    assert workflow["concurrency"]["cancel-in-progress"] is False
    assert step(workflow, "Keep junit's file, the record and the logs")["if"] == "always()"
