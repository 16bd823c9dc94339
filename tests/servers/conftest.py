"""Fixtures of the tests that run real servers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from running_kit import Running
from server_kit import SOURCES, Fake, Flavour, drafted, entry, flavours, open_target, pinned

from pytest_llmbench.backends.base import Target


@pytest.fixture(scope="session", params=flavours(), ids=lambda flavour: flavour.name)
def flavour(
    request: pytest.FixtureRequest, tiny_checkpoints: Path, tmp_path_factory: pytest.TempPathFactory
) -> Flavour:
    """Each real server that can run here."""
    found: Flavour = request.param
    if found.missing:
        pytest.skip(found.missing)
    folder = tmp_path_factory.mktemp("flavour")
    return drafted(pinned(found, folder), folder, tiny_checkpoints)


@pytest.fixture(scope="session")
def scripted(flavour: Flavour, tiny_checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """tiny-scripted on the flavour's server."""
    wanted = entry(flavour, tiny_checkpoints / "tiny-scripted")
    log_dir = tmp_path_factory.mktemp("scripted")
    with open_target(wanted, log_dir, prompts=("short", "long", "code", "context-4k")) as target:
        yield target


@pytest.fixture
def fake(tmp_path: Path, tiny_checkpoints: Path) -> Callable[..., Fake]:
    """Makes a fake server: `fake(backend="mlx-lm", loading_s=1)`."""

    def make(**plan: Any) -> Fake:
        return Fake(tmp_path / "fake", tiny_checkpoints / "tiny-scripted", **plan)

    return make


@pytest.fixture
def bench(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A pytester whose subprocesses find this checkout from their own folder and know nothing of this run's options."""
    for name in list(os.environ):
        if name.startswith("LLMBENCH_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SOURCES), str(SOURCES / "engine")]))
    pytester.makefile(".toml", pytest='[pytest]\nfilterwarnings = ["error"]\n')
    return pytester


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Makes a running server: `running("ollama", load_s=1)`."""
    made: list[Running] = []

    def make(dialect: str, **plan: Any) -> Running:
        made.append(Running(tmp_path, dialect, **plan))
        return made[-1]

    yield make
    for server in made:
        server.stop()
