"""Find the program that a server's command starts with."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from pytest_llmbench.errors import Unavailable


def find_program(name: str, given: str | None, *, fix: str) -> str:
    """`given` if it is a program, else `name` beside this Python or on PATH; Unavailable with `fix`."""
    if given is not None:
        path = shutil.which(str(Path(given).expanduser()))
        if path is None:
            raise Unavailable(
                f"server_binary {given} is no program", fix=f"build it, or correct server_binary {given!r}"
            )
        return path
    beside = Path(sys.executable).parent / name
    path = str(beside) if beside.is_file() else shutil.which(name)
    if path is None:
        raise Unavailable(f"{name} is not installed", fix=fix)
    return path
