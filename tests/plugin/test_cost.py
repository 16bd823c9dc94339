"""With no benchmark collected, the plugin imports nothing heavy, writes nothing and starts nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from lab import FEW_PLUGINS

HEAVY = {"mlx", "mlx_lm", "numpy", "httpx", "transformers", "yaml", "psutil", "tokenizers", "jinja2"}
WATCH = """
import json
import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
EVENTS = []


def watch(event, arguments):
    if event in ("subprocess.Popen", "os.fork", "os.posix_spawn", "os.system", "socket.connect"):
        EVENTS.append([event, str(arguments[:1])])
    elif event == "open":
        path, mode, flags = arguments
        if isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and path != os.devnull:
            EVENTS.append([event, str(path)])
    elif event in ("os.mkdir", "os.rename"):
        EVENTS.append([event, str(arguments[0])])


sys.addaudithook(watch)


def pytest_unconfigure(config):
    events = list(EVENTS)
    (HERE / "seen.json").write_text(json.dumps({"modules": sorted(sys.modules), "events": events}))
"""


@pytest.fixture
def watched(pytester: pytest.Pytester, no_outer_settings: None) -> Path:
    """A folder that notes each import, each file opened for writing, and each process."""
    pytester.makeconftest(WATCH)
    (pytester.path / "pytest.ini").write_text("[pytest]\nllmbench_matrix = matrix\n")
    (pytester.path / "test_plain.py").write_text("def test_it(): pass\n")
    (pytester.path / "compose.yaml").write_text("services: {}\n")
    (pytester.path / "package.json").write_text("{}\n")
    return pytester.path


def seen(pytester: pytest.Pytester, *args: str) -> dict[str, Any]:
    pytester.runpytest_subprocess(*FEW_PLUGINS, "-p", "no:xdist", *args)
    found: dict[str, Any] = json.loads((pytester.path / "seen.json").read_text())
    return found


@pytest.mark.parametrize("args", [(), (".",), ("--collect-only",), ("-k", "nothing"), ("--llmbench-out=out",)])
def test_a_session_without_a_benchmark_pays_nothing(
    pytester: pytest.Pytester, watched: Path, args: tuple[str, ...]
) -> None:
    without = seen(pytester, "-p", "no:pytest_llmbench.plugin", "-c", os.devnull, "--rootdir=.", *without_ours(args))
    with_us = seen(pytester, *args)
    ours = [name for name in with_us["modules"] if name.startswith("pytest_llmbench")]
    assert "pytest_llmbench.plugin" in ours
    assert {name.partition(".")[0] for name in with_us["modules"]} & HEAVY == set()
    assert not {"pytest_llmbench.record", "pytest_llmbench.measure", "pytest_llmbench.backends"} & set(ours)
    assert not (watched / "out").exists()
    assert [what for what, _ in with_us["events"] if what.startswith(("subprocess", "os.fork", "os.posix"))] == []
    assert _written(with_us) == _written(without)


def without_ours(args: tuple[str, ...]) -> list[str]:
    """The arguments that pytest knows without the plugin."""
    return [arg for arg in args if not arg.startswith("--llmbench")]


def _written(found: dict[str, Any]) -> set[str]:
    """Files opened for writing, and folders made, pytest's own temporary ones and byte code left out."""
    paths = {path for what, path in found["events"] if what in ("open", "os.mkdir", "os.rename")}
    return {path for path in paths if "__pycache__" not in path and not path.isdigit()}


def test_collecting_a_matrix_imports_no_library_that_measures(pytester: pytest.Pytester, watched: Path) -> None:
    (watched / "matrix").mkdir()
    (watched / "matrix" / "m.yaml").write_text("tests: [{id: a, backend: mlx-lm, model_id: m}]\n")
    found = seen(pytester, "matrix", "--collect-only")
    assert {name.partition(".")[0] for name in found["modules"]} & HEAVY <= {"yaml"}
    assert [what for what, _ in found["events"] if what.startswith(("subprocess", "os.fork", "os.posix"))] == []
