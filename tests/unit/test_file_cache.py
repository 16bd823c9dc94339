"""A file that is dropped from the system's cache is gone from it, or the reason is told."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_llmbench import file_cache
from pytest_llmbench.errors import Unavailable

ROOT = Path(__file__).resolve().parents[2]
SHARED_MEMORY = Path("/dev/shm")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the cold cache is `purge`, as root")
SIZE = 4 * 2**20


@pytest.fixture
def folder() -> Iterator[Path]:
    """On this repository's disk, which has to be one: pytest's temporary folder may live in memory."""
    kinds = subprocess.run(["stat", "-f", "-c", "%T", str(ROOT)], capture_output=True, text=True, check=True).stdout
    if kinds.strip() in ("tmpfs", "ramfs"):
        pytest.skip(f"this repository lies in memory ({kinds.strip()})")
    (ROOT / "checkpoints").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "checkpoints", prefix=".test-") as found:
        yield Path(found)


def written(folder: Path, name: str, size: int = SIZE) -> Path:
    path = folder / name
    path.write_bytes(os.urandom(size))
    return path


def test_files_that_were_just_written_are_cached_and_dropped_they_are_not(folder: Path) -> None:
    files = [written(folder, "a.safetensors"), written(folder, "b.json", 5000)]
    assert file_cache.cached_share(files) == 1
    file_cache.drop(folder)
    assert file_cache.cached_share(files) == 0
    content = files[0].read_bytes()
    assert len(content) == SIZE
    assert file_cache.cached_share(files[:1]) == 1


def test_half_a_file_that_is_read_is_half_cached(folder: Path) -> None:
    path = written(folder, "a")
    file_cache.drop(folder)
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        file.read(SIZE // 2)
    assert 0.4 < file_cache.cached_share([path]) < 0.6


def test_empty_files_and_folders_within_don_t_matter(folder: Path) -> None:
    written(folder, "empty", 0)
    (folder / "within").mkdir()
    file_cache.drop(folder)
    assert file_cache.cached_share([folder / "empty"]) == 0
    assert file_cache.cached_share([]) == 0


def test_weights_behind_links_are_dropped_too(folder: Path) -> None:
    # So does Hugging Face lay out its cache.
    (folder / "blobs").mkdir()
    (folder / "snapshot").mkdir()
    blob = written(folder / "blobs", "0123")
    (folder / "snapshot" / "model.safetensors").symlink_to("../blobs/0123")
    file_cache.drop(folder / "snapshot")
    assert file_cache.cached_share([blob]) == 0


def test_files_that_live_in_memory_can_t_be_dropped() -> None:
    if not SHARED_MEMORY.is_dir():
        pytest.skip(f"no {SHARED_MEMORY}")
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as name:
        written(Path(name), "a")
        with pytest.raises(Unavailable, match=f"the file cache keeps 100% of {name}"):
            file_cache.drop(Path(name))


def test_a_checkpoint_that_is_gone_is_told(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"can't take .*gone out of the file cache: .*No such file"):
        file_cache.drop(tmp_path / "gone")
