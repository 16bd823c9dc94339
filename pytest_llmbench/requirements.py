"""An entry's `requires`: conditions of the machine, checked without starting anything."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from pytest_llmbench.errors import Unavailable

GB = 1e9


def check(requires: Iterable[str], *, beside: Path) -> None:
    """Unavailable, with the fix, for the first of `kind:value` that doesn't hold here."""
    for requirement in requires:
        kind, _, value = requirement.partition(":")
        _CHECKS[kind](value, beside)


def _platform(value: str, _: Path) -> None:
    here = f"{sys.platform}-{os.uname().machine}"
    if here != value and sys.platform != value:
        raise Unavailable(f"needs {value}, this is {here}")


def _memory(value: str, _: Path) -> None:
    import psutil

    total = psutil.virtual_memory().total
    # Machines are sold in binary gigabytes: 48 GB of memory are 51.5e9 bytes.
    if total < float(value) * GB:
        raise Unavailable(f"needs {value} GB of memory, this machine has {total / GB:.0f} GB")


def _binary(value: str, _: Path) -> None:
    if shutil.which(value) is None:
        raise Unavailable(f"{value} is not on PATH", fix=f"install {value}")


def _package(value: str, _: Path) -> None:
    if not _installed(value):
        raise Unavailable(f"the Python package {value} is not installed", fix=f"pip install {value}")


def _installed(name: str) -> bool:
    """Whether `name` is an installed distribution (`mlx-lm`) or a module (`mlx_lm`)."""
    try:
        metadata.version(name)
    except (metadata.PackageNotFoundError, ValueError):
        return name.isidentifier() and importlib.util.find_spec(name) is not None
    return True


def _env(value: str, _: Path) -> None:
    if not os.environ.get(value):
        raise Unavailable(f"{value} is not set", fix=f"export {value}=…")


def _file(value: str, beside: Path) -> None:
    if not (beside.parent / os.path.expanduser(value)).exists():  # noqa: PTH111
        raise Unavailable(f"no file {value}", fix=f"put {value} there")


_CHECKS = {
    "platform": _platform,
    "memory_gb": _memory,
    "binary": _binary,
    "package": _package,
    "env": _env,
    "file": _file,
}
