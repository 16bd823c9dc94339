"""Each command `llmbench` of a page runs as it stands there."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from record_kit import CSV_FOLDER, ROOT, require_report_extra, result, run, save

from doc_pages import commands

COMMANDS = commands("llmbench")
FIGURES = {"decode_tok_s": [50.0, 50.5, 51.0]}


def test_the_pages_show_every_command_for_records() -> None:
    assert {command.split()[1] for command in COMMANDS} >= {"compare", "history", "merge", "import", "report"}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_runs(command: str, tmp_path: Path) -> None:
    if "history" in command:
        require_report_extra()
    for folder in ("old", "new", "records", "artifacts"):
        save(tmp_path / folder / "run.json", run(result("a", FIGURES)))
    shutil.copytree(CSV_FOLDER, tmp_path / "results")
    shutil.copytree(ROOT / "matrix", tmp_path / "matrix")
    words = [
        str(path)
        for word in shlex.split(command)[1:]
        for path in (sorted(tmp_path.glob(word)) if "*" in word else [word])
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest_llmbench", *words],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_a_command_tells_its_faults_by_its_exit_status_and_survives_a_closed_pipe(tmp_path: Path) -> None:
    save(tmp_path / "old.json", run(result("a", FIGURES)))
    save(tmp_path / "new.json", run(result("a", {"decode_tok_s": [10.0, 10.5, 11.0]})))
    words = [sys.executable, "-m", "pytest_llmbench", "compare", "old.json", "new.json"]
    done = subprocess.run(
        words, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("1 regression, ")
    with subprocess.Popen(
        words, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        assert child.stderr.read() == ""
        assert child.wait(60) == 1
