"""Scripts of `ci/` in tests: run as they are, and as modules whose parts can be tested."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest


def run_script(script: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """The script with these arguments; its output is kept."""
    command = [sys.executable, str(script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, encoding="utf-8", timeout=240, check=False)


def loaded_script(script: Path, folder: Path) -> ModuleType:
    """The script as a module; `folder` takes its bytecode, which isn't to lie in ci/."""
    copy = folder / f"{script.name}.py"
    copy.write_text(script.read_text(encoding="utf-8").replace("Path(__file__)", f"Path({str(script)!r})"))
    spec = importlib.util.spec_from_loader(script.name, importlib.machinery.SourceFileLoader(script.name, str(copy)))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, script.name, module)
        patch.setattr(sys, "path", list(sys.path))
        spec.loader.exec_module(module)
    return module
