"""What `--llmbench-list` says of the 289 entries on a bare Linux machine: what each lacks, and how to get it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from pytest_llmbench.backends import builtin_backends
from pytest_llmbench.matrix import MatrixEntry
from pytest_llmbench.matrix_file import load

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "matrix" / "apple_silicon"
NOBODY = "http://127.0.0.1:1"
# The program that each backend needs, and what installs it.
INSTALLS = {
    "mlx-lm": ("mlx_lm.server", "pip install 'pytest-llmbench[mlx]'"),
    "llama-server": ("llama-server", "brew install llama.cpp, or pip install 'pytest-llmbench[llama]'"),
    "mlx-vlm": ("mlx_vlm.server", "pip install mlx-vlm (on Linux: 'mlx[cpu]' mlx-vlm)"),
    "vllm-mlx": ("vllm-mlx", "pip install vllm-mlx (on Linux: 'mlx[cpu]' vllm-mlx)"),
    "omlx": ("oMLX is for macOS, and omlx", "pip install 'mlx[cpu]' flyto-mlx"),
    "mlx-lm-turboquant": ("turboquant-serve", "pip install turboquant-mlx-full"),
    "dflash": ("dflash", "pip install dflash-mlx==0.1.8 mlx-lm==0.31.3"),
    "unsloth-studio": ("unsloth", "curl -fsSL https://unsloth.ai/install.sh | sh, then start it once for its key"),
    "litert-lm": ("litert-lm", "pip install litert-lm"),
    "diffusion-cli": ("llama-diffusion-cli", "cmake --build build --target llama-diffusion-cli"),
    "ollama": ("ollama", "install Ollama"),
    "docker-model-runner": ("Docker", "install Docker, then docker model install-runner"),
    "lm-studio": ("LM Studio", "on a Mac with Apple silicon: install LM Studio, then lms server start"),
}
# Installed beside this Python in some environments; `matrix/apple_silicon` then lacks the model alone.
MAY_BE_HERE = {"mlx-lm", "llama-server"}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what it says on Linux")


@pytest.fixture(scope="module")
def entries() -> list[MatrixEntry]:
    known = builtin_backends()
    return [entry for path in sorted(FOLDER.glob("*.yaml")) for entry in load(path, backends=known).entries]


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """State and reason by id, with no program on PATH, no model, and nobody at any server's usual address."""
    home = str(tmp_path_factory.mktemp("home"))
    environment = {"PATH": home, "HOME": home, "OLLAMA_HOST": NOBODY, "MODEL_RUNNER_HOST": NOBODY}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", str(FOLDER), "--llmbench-list", "-p", "no:cacheprovider"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    rows = (re.split(r"\s{2,}", line) for line in done.stdout.splitlines())
    return {row[0]: (row[5], row[6]) for row in rows if len(row) == 7 and row[0] != "id"}


def fetches(entry: MatrixEntry) -> str:
    """The command that gets the entry's model, by its backend and the form of its name."""
    name = entry.model_id.removeprefix("hf:")
    if entry.backend == "ollama":
        return f"ollama pull {name}"
    if entry.backend == "lm-studio":
        return f"lms get {name} --mlx"
    if entry.backend == "docker-model-runner":
        return f"docker model pull {name}"
    if entry.backend == "litert-lm":
        return f"litert-lm import --from-huggingface-repo OWNER/NAME FILE.litertlm {name.partition(',')[0]}"
    if entry.backend == "omlx" and "/" not in name:
        return f"hf download mlx-community/{name}"
    if name.startswith("~/.cache/huggingface/"):
        _, repo, _, commit, file = name.removeprefix("~/.cache/huggingface").rsplit("/", 4)
        return f"hf download {repo.removeprefix('models--').replace('--', '/')} {file} --revision {commit}"
    if name.startswith("~"):
        folder, _, file = name.rpartition("/")
        return f"hf download OWNER/NAME {file} --local-dir {folder}, or correct model_id"
    repo, _, variant = name.partition(":")
    include = variant if variant.endswith(".gguf") else f"*{variant}*.gguf"
    return f"hf download {repo} --include '{include}'" if variant else f"hf download {repo}"


def installs(entry: MatrixEntry, why: str) -> bool:
    """Whether `why` tells how to get the entry's program."""
    program, command = INSTALLS[entry.backend]
    if entry.server_binary:
        return f"{entry.server_binary} is no program" in why and f"correct server_binary '{entry.server_binary}'" in why
    if entry.backend in MAY_BE_HERE and f"{program} is not installed" not in why:
        return True
    return program in why.partition("; fix: ")[0] and command in why.partition("; fix: ")[2]


def test_each_entry_is_listed_once_and_none_can_run(
    entries: list[MatrixEntry], listed: dict[str, tuple[str, str]]
) -> None:
    assert set(listed) == {entry.id for entry in entries}
    assert Counter(state for state, _ in listed.values()) == {"off": 42, "no": 247}
    assert {entry.backend for entry in entries} == set(INSTALLS)


def test_what_the_file_turns_off_says_why_and_where(
    entries: list[MatrixEntry], listed: dict[str, tuple[str, str]]
) -> None:
    off = [entry for entry in entries if not entry.enabled]
    assert {entry.id: listed[entry.id] for entry in off} == {
        e.id: ("off", f"disabled: {e.reason}; to try it: enabled: true in {e.path.name}:{e.line}") for e in off
    }


@pytest.mark.parametrize("backend", sorted(INSTALLS))
def test_each_other_entry_names_the_program_and_the_model_that_are_missing_and_the_commands_that_get_them(
    entries: list[MatrixEntry], listed: dict[str, tuple[str, str]], backend: str
) -> None:
    wrong = {}
    for entry in (e for e in entries if e.enabled and e.backend == backend):
        _, why = listed[entry.id]
        if "3.5" in entry.extra_args and backend == "mlx-lm-turboquant":
            is_right = why.startswith("no TurboQuant server of mlx-lm takes 3.5 bits; fix: for half bits: ")
        else:
            is_right = installs(entry, why) and fetches(entry) in why.rpartition("; fix: ")[2]
        wrong |= {} if is_right else {entry.id: why}
    assert wrong == {}


def test_a_draft_is_fetched_as_its_model_is(entries: list[MatrixEntry], listed: dict[str, tuple[str, str]]) -> None:
    drafted = [entry for entry in entries if entry.enabled and "--draft-model" in entry.extra_args]
    names = {entry.id: entry.extra_args[entry.extra_args.index("--draft-model") + 1] for entry in drafted}
    assert names
    assert [i for i, name in names.items() if not listed[i][1].endswith(f", then hf download {name}")] == []
