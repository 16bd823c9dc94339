"""A set of files that is there as a whole or not at all.

The marker file is written last and removed first. It holds the SHA-256 of every file of the set.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

MARKER = "llmbench-checkpoints.json"

_LOCK = ".llmbench-lock"
_STAGING_PREFIX = ".llmbench-making-"


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Makes `directory` and holds its lock, so that one process at a time makes the set. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / _LOCK).open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def is_complete(directory: Path, *, maker: str, marker: str = MARKER) -> bool:
    """Whether the file `marker` is `maker`'s and each file still has the digest that it states."""
    try:
        found = json.loads((directory / marker).read_text(encoding="utf-8"))
        stated = dict(found["sha256"])
        return found["maker"] == maker and all(sha256(directory / name) == digest for name, digest in stated.items())
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return False


@contextmanager
def staging(directory: Path) -> Iterator[Path]:
    """An empty folder on `directory`'s file system, removed at the end. Call it under the lock."""
    for left_over in directory.glob(_STAGING_PREFIX + "*"):
        shutil.rmtree(left_over)
    with tempfile.TemporaryDirectory(prefix=_STAGING_PREFIX, dir=directory) as folder:
        yield Path(folder)


def publish(folder: Path, directory: Path, names: Sequence[str], *, maker: str, marker: str = MARKER) -> None:
    """Moves `names` from `folder` to `directory` in place of older ones, then writes the file `marker`."""
    digests = {path.relative_to(folder).as_posix(): sha256(path) for path in _files(folder)}
    (directory / marker).unlink(missing_ok=True)
    for name in names:
        _remove(directory / name)
        (folder / name).rename(directory / name)
    text = json.dumps({"maker": maker, "sha256": digests}, indent=1) + "\n"
    draft = folder / marker
    draft.write_text(text, encoding="utf-8")
    draft.rename(directory / marker)


def sha256(path: Path) -> str:
    """Hex digest of one file."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _files(folder: Path) -> Iterator[Path]:
    for root, _, names in sorted(os.walk(folder)):
        yield from (Path(root, name) for name in sorted(names))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
