"""Which models the gate measures for a change, and the command that it runs for them."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from gate_kit import ALL, GEMMA, GPT_OSS, HYBRID, HYBRID_MOE, QWEN, QWEN_MOE, ROOT, Repository
from gate_kit import clean_environment as environment

from gate.changes import modules_behind

MODELS = "engine/llmbench_engine/models"


def command_of(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stdout + done.stderr
    return shlex.split(done.stdout.splitlines()[-1])


def chosen(done: subprocess.CompletedProcess[str]) -> tuple[str, ...]:
    """The models that the printed command measures."""
    command = command_of(done)
    return tuple(re.findall(r'llmbench\(model_id="([^"]+)"\)', command[-1])) if "-m" in command[3:] else ALL


@pytest.mark.parametrize(
    ("file", "models"),
    [
        (f"{MODELS}/gpt_oss.py", (GPT_OSS,)),
        (f"{MODELS}/gemma4_layers.py", (GEMMA,)),
        (f"{MODELS}/hybrid.py", (HYBRID, HYBRID_MOE)),
        (f"{MODELS}/qwen3_moe.py", (QWEN_MOE, HYBRID_MOE)),
        (f"{MODELS}/dense.py", ALL),
        (f"{MODELS}/__init__.py", ALL),
        ("engine/llmbench_engine/layers.py", ALL),
        ("pytest_llmbench/sides/serve.py", ALL),
        ("pytest_llmbench/parity_live.py", ALL),
        ("matrix/parity.yaml", ALL),
        ("pyproject.toml", ALL),
        ("ci/venv", ALL),
        ("a-new-folder/file", ALL),
        ("engine/llmbench_engine/odd\nname.py", ALL),
    ],
)
def test_a_changed_file_chooses_the_models_that_run_it(
    repository: Repository, file: str, models: tuple[str, ...]
) -> None:
    repository.change(file)
    done = repository.gate("--base", "main", "--dry-run")
    assert chosen(done) == models
    assert len(done.stdout.splitlines()) == 2


def test_several_files_choose_the_models_of_each(repository: Repository) -> None:
    repository.change(f"{MODELS}/gpt_oss.py", f"{MODELS}/gemma4.py", "docs/engine.md", "tests/engine/test_gemma4.py")
    assert chosen(repository.gate("--base", "main", "--dry-run")) == (GPT_OSS, GEMMA)


@pytest.mark.parametrize(
    "file",
    ["docs/engine.md", "tests/unit/test_x.py", "README.md", "matrix/smoke.yaml", "ci/demo", f"{MODELS}/llama.py"],
)
def test_a_change_that_no_model_runs_is_skipped_and_says_so(repository: Repository, file: str) -> None:
    repository.change(file)
    done = repository.gate("--base", "main")
    assert done.returncode == 0
    assert done.stdout.startswith("## Parity gate: skipped\n\nNothing to measure: ")


@pytest.mark.parametrize("how", [("rm", "--quiet"), ("mv", "engine/llmbench_engine/models/gpt_oss2.py")])
def test_a_model_file_that_is_gone_concerns_every_model(repository: Repository, how: tuple[str, str]) -> None:
    file = f"{MODELS}/gpt_oss.py"
    repository.git(*(("rm", "--quiet", file) if how[0] == "rm" else ("mv", file, how[1])))
    repository.commit()
    assert chosen(repository.gate("--base", "main", "--dry-run")) == ALL


def test_a_model_without_a_shape_is_measured_for_any_model_file(repository: Repository) -> None:
    with (repository.path / "matrix/parity.yaml").open("a") as plan:
        plan.write("  - {id: me/mine, kind: dense, path: ../mine}\n")
    repository.commit()
    repository.git("branch", "--force", "main")
    repository.change(f"{MODELS}/qwen2.py")
    assert chosen(repository.gate("--base", "main", "--dry-run")) == ("me/mine",)


def test_what_others_did_on_the_base_meanwhile_is_no_change(repository: Repository) -> None:
    repository.change("docs/engine.md")
    repository.git("switch", "--quiet", "main")
    repository.change("engine/llmbench_engine/layers.py")
    repository.git("switch", "--quiet", "change")
    assert "Nothing to measure" in repository.gate("--base", "main").stdout


def test_in_a_pull_requests_job_the_base_is_known(repository: Repository) -> None:
    repository.git("update-ref", "refs/remotes/origin/main", "main")
    repository.change(f"{MODELS}/gpt_oss.py")
    assert chosen(repository.gate("--dry-run", GITHUB_BASE_REF="main")) == (GPT_OSS,)
    assert chosen(repository.gate("--dry-run", "--models=", GITHUB_BASE_REF="main")) == (GPT_OSS,)


def test_all_and_named_models_need_no_git(repository: Repository) -> None:
    assert chosen(repository.gate("--all", "--dry-run")) == ALL
    assert chosen(repository.gate("--models", f"gemma-4-e4b-it-4bit, {QWEN.lower()}", "--dry-run")) == (GEMMA, QWEN)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "which models? give --base REF, --all or --models A,B"),
        (("--base", "nowhere"), "git can't compare 'nowhere' with HEAD"),
        (("--base", "--output=x"), "expected one argument"),
        (("--base=--output=x",), "git can't compare '--output=x' with HEAD"),
        (("--models", "Qwen3-0.6B-4bt"), f"did you mean {QWEN!r}?"),
        (("--all", "--models", "x"), "not allowed with"),
        (("--all", "--plan", "ci/parity_gate"), "parity_gate:2: isn't valid YAML"),
        (("--all", "--plan", "nowhere.yaml"), "nowhere.yaml:1: can't be read"),
        (("--all", "--plan", "smoke.yaml"), "smoke.yaml:1: unknown key 'tests' in a parity plan"),
        (("--all", "--tier", "slow"), "invalid choice: 'slow'"),
    ],
)
def test_wrong_use_is_told_from_a_bad_figure(repository: Repository, arguments: tuple[str, ...], message: str) -> None:
    (repository.path / "smoke.yaml").write_text("tests: []\n")
    done = repository.gate(*arguments)
    assert done.returncode == 2
    assert message in done.stdout + done.stderr
    assert not (repository.path / "x").exists()


def test_the_command_asks_for_everything_that_ci_keeps(repository: Repository) -> None:
    command = command_of(repository.gate("--all", "--tier", "full", "--out", "kept", "--dry-run"))
    assert command[1:] == [
        *("-m", "pytest", "matrix/parity.yaml", "--llmbench-tier", "full", "--llmbench-require"),
        *("--llmbench-out", "kept", "--junitxml", "kept/junit.xml"),
    ]


def test_the_command_picks_tests_of_just_these_models_and_all_of_theirs(repository: Repository) -> None:
    command = command_of(repository.gate("--models", f"{QWEN},{GEMMA}", "--dry-run"))
    done = subprocess.run(
        [*command, "--collect-only", "-q", "-p", "no:cacheprovider"],
        cwd=repository.path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    for name in ("test_parity", "test_same_tokens"):
        models = set(re.findall(rf"{name}\[(.*?-4bit)", done.stdout))
        assert models == {"Qwen3-0.6B-4bit", "gemma-4-e4b-it-4bit"}


def test_a_module_is_behind_another_at_any_remove() -> None:
    folder = ROOT / MODELS
    assert modules_behind("gpt_oss", folder) == {"gpt_oss", "dense"}
    assert modules_behind("qwen3_5_moe", folder) >= {"qwen3_5", "hybrid", "dense", "qwen3_moe", "qwen3"}


@pytest.mark.parametrize(
    "line",
    [
        "from llmbench_engine.models import b",
        "from llmbench_engine.models.b import f",
        "from .b import f",
        "from . import b",
        "import llmbench_engine.models.b as other",
        "def f():\n    from . import b",
    ],
)
def test_each_way_to_import_a_module_is_seen(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.py").write_text(f"{line}\n")
    (tmp_path / "b.py").write_text("from llmbench_engine.models.a import g\n")
    assert modules_behind("a", tmp_path) == {"a", "b"}
