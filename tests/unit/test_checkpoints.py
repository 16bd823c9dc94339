"""The set of tiny checkpoints: the same bytes each time, whole or not at all."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_llmbench.checkpoints import NAMES, make_tiny, publish
from pytest_llmbench.errors import UsageError

ROOT = Path(__file__).parents[2]

MAKE = """
import sys
from pathlib import Path
from pytest_llmbench.checkpoints import make_tiny
make_tiny(Path(sys.argv[1]), report=lambda line: sys.stdout.write(line + "\\n"))
"""


def run_python(code: str, *args: object, flags: tuple[str, ...] = (), **env: str) -> list[str]:
    """Standard output's lines of `code` in a child interpreter."""
    done = subprocess.run(
        [sys.executable, *flags, "-c", code, *map(str, args)],
        env=os.environ | {"PYTHONPATH": str(ROOT)} | env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def digests(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): publish.sha256(path) for path in files}


def unused(_line: str) -> None:
    """A report that nobody reads."""


def test_two_processes_with_other_hash_seeds_make_the_same_bytes(tmp_path: Path) -> None:
    run_python(MAKE, tmp_path / "a", PYTHONHASHSEED="1")
    run_python(MAKE, tmp_path / "b", PYTHONHASHSEED="2")
    first = digests(tmp_path / "a")
    assert first == digests(tmp_path / "b")
    assert {name.split("/")[0] for name in first} > set(NAMES)


def test_two_processes_at_once_make_the_set_once(tmp_path: Path) -> None:
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", MAKE, str(tmp_path)]
    pair = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    lines = sorted(child.communicate(timeout=120)[0].splitlines()[0] for child in pair)
    assert [child.returncode for child in pair] == [0, 0]
    assert lines == [f"already there: {tmp_path}", f"made {tmp_path / NAMES[0]}"]


def test_a_complete_set_is_left_as_it_is(tmp_path: Path) -> None:
    paths = make_tiny(tmp_path, report=unused)
    before = [path.stat().st_mtime_ns for path in paths]
    lines: list[str] = []
    assert make_tiny(tmp_path, report=lines.append) == paths
    assert lines == [f"already there: {tmp_path}"]
    assert [path.stat().st_mtime_ns for path in paths] == before
    assert [path.name for path in paths] == list(NAMES)


def test_a_damaged_set_is_made_again_and_other_files_are_kept(tmp_path: Path) -> None:
    make_tiny(tmp_path, report=unused)
    want = digests(tmp_path)
    (tmp_path / "mine.txt").write_text("keep")
    (tmp_path / "tiny-random.gguf").write_bytes(b"cut")
    (tmp_path / "tiny-scripted" / "left-over").touch()
    (tmp_path / ".llmbench-making-x").mkdir()
    make_tiny(tmp_path, report=unused)
    assert digests(tmp_path) == want | {"mine.txt": hashlib.sha256(b"keep").hexdigest()}
    assert not (tmp_path / ".llmbench-making-x").exists()


@pytest.mark.parametrize("marker", ["", "[]", "{}", '{"maker": "older", "sha256": {}}'])
def test_a_marker_of_another_maker_is_no_complete_set(tmp_path: Path, marker: str) -> None:
    (tmp_path / publish.MARKER).write_text(marker)
    assert not publish.is_complete(tmp_path, maker="this")


def test_a_file_in_place_of_the_folder_is_wrong_use(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(UsageError, match=str(path)):
        make_tiny(path, report=unused)


def test_a_full_disk_is_wrong_use_and_leaves_nothing_half_made(tmp_path: Path) -> None:
    code = """
import resource, sys
from pathlib import Path
from pytest_llmbench.checkpoints import make_tiny
from pytest_llmbench.errors import UsageError
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
try:
    make_tiny(Path(sys.argv[1]), report=print)
except UsageError as error:
    print(error)
"""
    lines = run_python(code, tmp_path, PYTHONDONTWRITEBYTECODE="1")
    assert len(lines) == 1
    assert lines[0].startswith(f"can't write the tiny checkpoints to {tmp_path}: ")
    assert [path.name for path in tmp_path.iterdir()] == [".llmbench-lock"]


def test_missing_packages_are_named_with_the_fix(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from pytest_llmbench.checkpoints import make_tiny
from pytest_llmbench.errors import Unavailable
try:
    make_tiny(Path(sys.argv[1]), report=print)
except Unavailable as error:
    print(error)
"""
    # -S: the standard library and this package only
    assert run_python(code, tmp_path, flags=("-S",)) == [
        "tiny checkpoints need numpy, safetensors, gguf, not installed here; "
        "fix: pip install 'pytest-llmbench[checkpoint]'"
    ]


def test_importing_the_maker_imports_no_array_library() -> None:
    code = "import sys, pytest_llmbench.checkpoints; print({'numpy', 'gguf', 'mlx'} & set(sys.modules))"
    assert run_python(code) == ["set()"]
