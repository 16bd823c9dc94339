"""How a side's process is started."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

_BUILTIN = {"engine": "pytest_llmbench.sides.engine", "mlx-lm": "pytest_llmbench.sides.mlx_lm"}
_PACKAGES = ("pytest_llmbench", "llmbench_engine")


@dataclass(frozen=True, slots=True, kw_only=True)
class SideSpec:
    """A side by the name that parity files give it.

    `command`: a program that speaks the protocol of docs/sides.md on stdin and stdout. `env` is added to our own
    environment. `version`: the one that it must say it has; None for any.
    """

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    version: str | None = None


def builtin_sides() -> dict[str, SideSpec]:
    """The sides that come with this package: `engine` (llmbench_engine) and `mlx-lm`, under this very Python."""
    env = _source_path()
    # -P: a file called mlx_lm.py in the current folder is no engine.
    return {
        name: SideSpec(name=name, command=(sys.executable, "-P", "-m", module), env=env)
        for name, module in _BUILTIN.items()
    }


def _source_path() -> dict[str, str]:
    """PYTHONPATH with the folders of our packages where they aren't installed: a child doesn't inherit `sys.path`."""
    installed = {Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")}
    found = [spec.origin for name in _PACKAGES if (spec := find_spec(name)) is not None]
    sources = [Path(origin).resolve().parents[1] for origin in found if origin is not None]
    added = [str(path) for path in sources if path not in installed]
    if not added:
        return {}
    return {"PYTHONPATH": os.pathsep.join([*added, *filter(None, [os.environ.get("PYTHONPATH")])])}
