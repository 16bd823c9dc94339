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
import yaml

from doc_pages import COMMANDS, PAGES, ROOT, blocks, commands
from pytest_llmbench import matrix, parity_plan, parity_plan_file, sample
from pytest_llmbench.backends import builtin_backends
from pytest_llmbench.matrix_file import load
from pytest_llmbench.options import OPTIONS

RUN_BY_CI = {
    "ci/demo",
    "ci/test",
    "pytest matrix/parity_smoke.yaml",
    "pip install '.[mlx,llama]'",
    "pip install '.[mlx,checkpoint]'",
}
SCRIPTS = {
    "ci/bench_engine": "tests/ci/test_bench_scripts.py",
    "ci/check_servers": "tests/servers/test_check_servers.py",
    "ci/compare_rates": "tests/unit/test_compare_rates.py",
    "ci/compare_repeats": "tests/unit/test_compare_repeats.py",
    "ci/docs": "tests/ci/test_docs_site.py",
    "ci/exactness": "tests/ci/test_bench_scripts.py",
    "ci/graph_cost": "tests/engine/test_graph_cost.py",
    "ci/load_profile": "tests/ci/test_bench_scripts.py",
    "ci/parity_gate": "tests/ci/gate_kit.py",
    "ci/verdict_rates": "tests/unit/test_verdict_rates.py",
}
"""Which test runs a script."""
ENDS_WITH = {"pytest matrix/records": 1, "pytest matrix/records -k section:concurrency": 1}
RUN_BY_A_MACS_OWNER = ("sudo pmset ", "./config.sh ", "./svc.sh ")
SHELLS = ("", "sh", "bash", "shell", "zsh", "text")
A_COMMAND = re.compile(r"^(\$ |pytest |llmbench |python3? |pip3? |uv |ci/|\./|sudo )")


@pytest.mark.parametrize("command", [c for c in commands("pytest") if c not in RUN_BY_CI])
def test_each_command_on_a_page_runs(command: str, tmp_path: Path) -> None:
    where = ROOT
    if "bench.yaml" in command:
        where = tmp_path
        (tmp_path / "bench.yaml").write_text(blocks("README.md", "yaml")[0], encoding="utf-8")
    if " saved " in command:
        assert run_pytest("bench.yaml", "--llmbench-out=saved", where=where).returncode == 0
    words = shlex.split(command.replace("=artifacts", f"={shlex.quote(str(tmp_path))}/artifacts"))  # ci/demo's stay
    done = run_pytest(*words[1:], where=where)
    assert done.returncode == ENDS_WITH.get(command, 0), done.stdout + done.stderr


def run_pytest(*words: str, where: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", *words, "-p", "no:cacheprovider"],
        cwd=where,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_each_other_command_is_run_by_another_test_or_by_ci() -> None:
    others = [c for c in COMMANDS if c not in RUN_BY_CI and c.split()[0] not in ("pytest", "llmbench")]
    for script in {command.split()[0] for command in others}:
        assert os.access(ROOT / script, os.X_OK)
        test = SCRIPTS[script]  # a script that is new on a page: say here which test runs it
        assert Path(script).name in (ROOT / test).read_text(encoding="utf-8"), f"{test} doesn't run {script}"


@pytest.mark.parametrize("page", PAGES)
def test_no_command_stands_where_no_test_looks(page: str) -> None:
    lines = [line for shell in SHELLS for block in blocks(page, shell) for line in block.splitlines()]
    hidden = [line for line in lines if A_COMMAND.match(line) and not line.startswith(RUN_BY_A_MACS_OWNER)]
    assert not hidden, "write commands into ```console blocks, each behind `$ `"


def test_readme_lists_every_option() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    heads = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `--llmbench-")]
    on_page = [flag for head in heads for flag in re.findall(r"`(.*?)`", head)]
    assert sorted(f"{flag} ".partition(" ")[0] for flag in on_page) == sorted(option.flag for option in OPTIONS)
    assert {flag.partition(" ")[0] for flag in on_page if " " in flag} == {o.flag for o in OPTIONS if o.metavar}


def test_matrix_page_names_each_key_that_a_file_may_have() -> None:
    page = (ROOT / "docs/matrix.md").read_text(encoding="utf-8")
    keys = {f.name for kind in (matrix.MatrixEntry, matrix.Settings) for f in fields(kind)} - {"path", "line"}
    assert {key for key in keys if f"`{key}`" not in page} == set()


def test_matrix_page_example_is_a_matrix(tmp_path: Path) -> None:
    path = tmp_path / "example.yaml"
    path.write_text(blocks("docs/matrix.md", "yaml")[0], encoding="utf-8")
    entries = load(path, backends=builtin_backends()).entries
    assert [e.reason for e in entries] == ["", "crashes with this macOS, see the issue"]


def test_matrix_page_example_of_gates_is_one(tmp_path: Path) -> None:
    path = tmp_path / "example.yaml"
    (gates,) = (block for block in blocks("docs/matrix.md", "yaml") if block.startswith("gates:"))
    entry = {"id": "a", "backend": "mlx-lm", "model_id": "m", **yaml.safe_load(gates)}
    path.write_text(yaml.safe_dump({"tests": [entry]}, sort_keys=False), encoding="utf-8")
    found = load(path, backends=builtin_backends()).entries[0].gates
    assert [(gate.metric, gate.level) for gate in found] == [
        *(("decode_tok_s", None), ("aggregate_tok_s", 8), ("ttft_s", 8))
    ]


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
    assert {
        name
        for name in (*sample.SAMPLE_METRICS, *matrix.METRICS, *matrix.CONCURRENCY_METRICS)
        if f"`{name}`" not in page
    } == set()
