"""Find the program that a server's command starts with."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from pytest_llmbench.errors import Unavailable

ANSWER_S = 10.0


def find_program(name: str, given: str | None, *, fix: str) -> str:
    """`given` if it is a program, else `name` beside this Python or on PATH; Unavailable with `fix`."""
    if given is not None:
        # A Path would lose the "./" without which PATH is searched, where another program of that name may be.
        path = shutil.which(os.path.expanduser(given))  # noqa: PTH111
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


def program_output(*command: str) -> str:
    """What a short command prints, on either stream; "" where it can't be run or takes too long."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ANSWER_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr


def version_beside(program: str, package: str) -> str | None:
    """The version of `package`, if `program` is the one that it installed beside this Python."""
    if Path(program).parent != Path(sys.executable).parent:
        return None
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def installed_version(program: str, package: str) -> str | None:
    """The version of `package` in the environment whose `bin` folder holds `program`; None where it isn't there."""
    environment = Path(program).resolve().parent.parent
    places = [str(folder) for folder in environment.glob("lib/python*/site-packages")]
    found = next(iter(metadata.distributions(name=package, path=places)), None) if places else None
    return None if found is None else found.version
