"""The plugin of docs/add-a-server.md, installed as the page says, measures a model on a server of its own name."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from server_kit import LAUNCHER, SOURCES

from pytest_llmbench.backends.server import ServerBackend

MOST_LINES = 30
PAGE = (SOURCES / "docs/add-a-server.md").read_text(encoding="utf-8")

# A real server, with the flags that the page gives to it: `chatd serve MODEL --listen HOST:PORT`.
CHATD = f"""#!/bin/sh
if [ "$1" = --version ]; then echo "chatd 1.2"; exit; fi
[ "$1" = serve ] && [ "$3" = --listen ] || {{ echo "usage: chatd serve MODEL --listen HOST:PORT" >&2; exit 2; }}
exec {shlex.join(LAUNCHER)} -m "$2" --alias "${{2##*/}}" --host "${{4%:*}}" --port "${{4#*:}}" -c 1024 -t 1
"""


def block(language: str) -> str:
    found = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(found) == 1, f"{len(found)} blocks of {language} on the page"
    return str(found[0])


@pytest.fixture
def plugin(bench: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """The page's plugin as pip would install it, beside an empty folder for programs that comes first on PATH."""
    site, bin_folder = bench.mkdir("site"), bench.mkdir("bin")
    project: dict[str, Any] = tomllib.loads(block("toml"))["project"]
    (site / "pytest_chatd.py").write_text(block("python"), encoding="utf-8")
    metadata = site / f"pytest_chatd-{project['version']}.dist-info"
    metadata.mkdir()
    head = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (metadata / "METADATA").write_text(head, encoding="utf-8")
    lines = [f"{name} = {module}\n" for name, module in project["entry-points"]["pytest11"].items()]
    (metadata / "entry_points.txt").write_text("".join(["[pytest11]\n", *lines]), encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([os.environ["PYTHONPATH"], str(site)]))
    monkeypatch.setenv("PATH", os.pathsep.join([str(bin_folder), os.environ["PATH"]]))
    (bench.path / "bench.yaml").write_text(block("yaml"), encoding="utf-8")
    return bench


@pytest.fixture
def model(plugin: pytest.Pytester, tiny_checkpoints: Path) -> Path:
    """The model that the page's matrix names."""
    path = plugin.path / yaml.safe_load(block("yaml"))["tests"][0]["model_id"]
    shutil.copy(tiny_checkpoints / "tiny-scripted.gguf", path)
    return path


def install_chatd(plugin: pytest.Pytester) -> None:
    program = plugin.path / "bin" / "chatd"
    program.write_text(CHATD, encoding="utf-8")
    program.chmod(0o755)


def test_a_server_takes_thirty_lines() -> None:
    assert len(block("python").splitlines()) <= MOST_LINES


def test_the_page_tells_of_everything_that_a_server_may_say() -> None:
    classes = [kind for kind in ServerBackend.__mro__ if kind.__module__.startswith("pytest_llmbench.")]
    names = {name for kind in classes for name in vars(kind) if not name.startswith("_")}
    assert {name for name in names if f"`{name}`" not in PAGE} == {"launch"}  # makes the command of what they say


@pytest.mark.skipif(find_spec("xllamacpp") is None, reason="pip install 'pytest-llmbench[llama]'")
def test_the_plugin_of_the_page_measures_a_real_model(plugin: pytest.Pytester, model: Path) -> None:
    install_chatd(plugin)
    plugin.runpytest_subprocess("bench.yaml", "--llmbench-out=out", "-p", "no:cacheprovider").assert_outcomes(passed=1)
    (result,) = json.loads((plugin.path / "out" / "run.json").read_text(encoding="utf-8"))["results"]
    measured = result["measurement"]
    assert (measured["target"]["backend"], measured["target"]["version"]) == ("chatd", "chatd 1.2")
    assert measured["target"]["model"] == model.name
    # The model itself ends after 21 tokens; a cache answers a repeated prompt only where that is asked for.
    samples = measured["samples"]
    assert [s["completion_tokens"] for s in samples] == [40, 40]
    assert [s["invalid"] for s in samples] == [None, None]
    assert all(s["timings"]["decode_tok_s"] > 0 for s in samples)
    assert measured["cached"]["cached_tokens"] > 0


def test_without_the_program_the_list_says_how_to_get_it(plugin: pytest.Pytester, model: Path) -> None:
    done = plugin.runpytest_subprocess("bench.yaml", "--llmbench-list", "-p", "no:cacheprovider")
    done.stdout.fnmatch_lines(["mine *chatd *no *chatd is not installed; fix: pip install chatd"])
