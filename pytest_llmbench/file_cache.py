"""Take a checkpoint's files out of the system's file cache, so that loading it reads the disk; and check it."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from pytest_llmbench.errors import Unavailable

PURGE = ("sudo", "-n", "purge")
PURGE_TIMEOUT_S = 120
MOST_LEFT = 0.01
"""Share of the files' pages that may still be cached: a reader may touch a header meanwhile."""


def drop(folder: Path) -> None:
    """Drop the files of `folder` (macOS: all files) from the cache. Unavailable, with the reason, where that fails."""
    if sys.platform == "darwin":
        _purge()
        return
    try:
        files = [path for path in sorted(folder.iterdir()) if path.is_file()]
        for path in files:
            _drop_file(path)
        left = cached_share(files)
    except OSError as error:
        raise Unavailable(f"can't take {folder} out of the file cache: {error}") from error
    if left > MOST_LEFT:
        raise Unavailable(f"the file cache keeps {left:.0%} of {folder} (its file system may live in memory)")


def _purge() -> None:
    try:
        subprocess.run(PURGE, check=True, capture_output=True, timeout=PURGE_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise Unavailable("purge unavailable (needs passwordless sudo)", fix="allow it in /etc/sudoers") from error


def _drop_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        # Pages that haven't been written yet can't be dropped.
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def cached_share(files: list[Path]) -> float:
    """Share of the files' pages that are in memory, by mincore(2). Linux."""
    resident = total = 0
    for path in files:
        for flags in _residency(path):
            resident += sum(flag & 1 for flag in flags)
            total += len(flags)
    return resident / total if total else 0.0


def _residency(path: Path) -> Iterator[bytes]:
    """A flag for each page of the file."""
    size = path.stat().st_size
    if not size:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as view:
        flags = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
        first = ctypes.c_char.from_buffer(view)
        try:
            failed = libc.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(size), flags)
        finally:
            del first
        if failed:
            error = ctypes.get_errno()
            raise Unavailable(f"can't tell whether {path} is cached: {os.strerror(error)}")
        yield bytes(flags)
