"""A repository to run ci/parity_gate in, and a pytest for it that leaves what the test says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECORD_FILE = ROOT / "matrix" / "records" / "parity_m4_pro.json"
QWEN, QWEN_MOE = "mlx-community/Qwen3-0.6B-4bit", "mlx-community/Qwen3-30B-A3B-4bit"
HYBRID, HYBRID_MOE = "mlx-community/Qwen3.5-9B-4bit", "mlx-community/Qwen3.6-35B-A3B-4bit"
GEMMA, GPT_OSS = "mlx-community/gemma-4-e4b-it-4bit", "mlx-community/gpt-oss-20b-MXFP4-Q8"
PLAN = f"""
parity: {{candidate: engine, baseline: mlx-lm}}
models:
  - {{id: {QWEN}, kind: dense, shape: qwen3-0.6b}}
  - {{id: {QWEN_MOE}, kind: moe, shape: qwen3-30b-a3b}}
  - {{id: {HYBRID}, kind: hybrid, shape: qwen3.5-9b}}
  - {{id: {HYBRID_MOE}, kind: hybrid-moe, shape: qwen3.6-35b-a3b}}
  - {{id: {GPT_OSS}, kind: moe, shape: gpt-oss-20b}}
  - {{id: {GEMMA}, kind: dense, shape: gemma-4-e4b}}
"""
ALL = (QWEN, QWEN_MOE, HYBRID, HYBRID_MOE, GPT_OSS, GEMMA)
# `python -m pytest` finds it before the real one. It notes its arguments, and leaves and returns what it was told.
SCRIPTED_PYTEST = """
import json, pathlib, runpy, shutil, sys
here = pathlib.Path(__file__).parent
script = json.loads((here / "script.json").read_text())
out = pathlib.Path(sys.argv[sys.argv.index("--llmbench-out") + 1])
out.mkdir(parents=True, exist_ok=True)
(here / "called.json").write_text(json.dumps(sys.argv[1:]))
print("::set-env name=PATH::/evil", flush=True)
for path in script["leave"]:
    shutil.copy(path, out)
exec(script["then"])
sys.exit(script["status"])
"""


def clean_environment(**more: str) -> dict[str, str]:
    """The environment without what CI or a user says to the plugin, to pytest, to git or to GitHub's programs."""
    ours = ("GITHUB_", "LLMBENCH_", "PYTEST_ADDOPTS", "GIT_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    paths = [str(ROOT), str(ROOT / "engine")]
    return {**kept, "PYTHONPATH": os.pathsep.join(paths), "GIT_CONFIG_GLOBAL": os.devnull, **more}


class Repository:
    """The repository at `path`: `main` has one commit, HEAD is the branch `change` at the same place."""

    def __init__(self, path: Path) -> None:
        self.path = path
        shutil.copytree(ROOT / "ci" / "gate", path / "ci" / "gate", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "ci" / "parity_gate", path / "ci")
        models = "engine/llmbench_engine/models"
        shutil.copytree(ROOT / models, path / models, ignore=shutil.ignore_patterns("__pycache__"))
        (path / "matrix").mkdir()
        (path / "matrix" / "parity.yaml").write_text(PLAN)
        self.git("init", "--quiet", "--initial-branch=main")
        self.commit()
        self.git("switch", "--quiet", "--create", "change")

    def git(self, *arguments: str) -> None:
        """Run git here."""
        who = ("-c", "user.name=Test", "-c", "user.email=test@example.org")
        subprocess.run(["git", *who, *arguments], cwd=self.path, env=clean_environment(), check=True)

    def commit(self) -> None:
        """Commit everything as it lies there."""
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message=Change")

    def change(self, *files: str) -> None:
        """Commit a new line in each of the files."""
        for name in files:
            path = self.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a") as file:
                file.write("# changed\n")
        self.commit()

    def script(self, *leave: Path, status: int = 0, then: str = "") -> None:
        """Let pytest leave copies of the files `leave`, run `then` and end with `status`."""
        (self.path / "pytest.py").write_text(SCRIPTED_PYTEST)
        script = {"leave": [str(path) for path in leave], "status": status, "then": then}
        (self.path / "script.json").write_text(json.dumps(script))

    def command(self, *arguments: str) -> list[str]:
        """The gate's command line."""
        return [sys.executable, str(self.path / "ci" / "parity_gate"), *arguments]

    def gate(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run the gate to its end."""
        return subprocess.run(
            self.command(*arguments),
            cwd=self.path,
            env=clean_environment(**environment),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    @property
    def called(self) -> list[str]:
        """The arguments that pytest was run with."""
        arguments: list[str] = json.loads((self.path / "called.json").read_text())
        return arguments

    @property
    def was_called(self) -> bool:
        """Whether pytest was run."""
        return (self.path / "called.json").exists()

    @property
    def out(self) -> Path:
        """Where artefacts go by default."""
        return self.path / "artifacts" / "parity"


def replay(folder: Path, record: Path, *arguments: str) -> None:
    """Judge `record` with the plugin, leaving junit's file and the record in `folder`."""
    command = [sys.executable, "-m", "pytest", str(record), "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(
        [*command, f"--junitxml={folder / 'junit.xml'}"],
        cwd=ROOT,
        env=clean_environment(),
        capture_output=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout.decode() + done.stderr.decode()
    shutil.copy(record, folder / "parity.json")
