"""`llmbench_engine` in pytest's own process: measured as a server is, but nothing is started (docs/engine.md)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pytest_llmbench import models
from pytest_llmbench.backends.base import OF_A_PROCESS, Backend, Report, refuse_fields
from pytest_llmbench.backends.engine_target import EngineTarget, explained
from pytest_llmbench.errors import ServerStartError, Unavailable
from pytest_llmbench.matrix import MatrixEntry, RunSettings
from pytest_llmbench.memory import MemorySampler

if TYPE_CHECKING:
    from llmbench_engine import Engine

MAX_BATCH = 8
"""The engine's own default."""

PACKAGES = ("mlx", "tokenizers", "jinja2")


class EngineBackend(Backend):
    """The engine of this package; needs the extra `mlx`."""

    name: ClassVar[str] = "engine"

    def check(self, entry: MatrixEntry) -> None:
        refuse_fields(entry, (*OF_A_PROCESS, "server_url"), who="the engine")
        check_packages()
        find_checkpoint(entry)

    @contextmanager
    def open(
        self, entry: MatrixEntry, settings: RunSettings, *, log_dir: Path, report: Report
    ) -> Iterator[EngineTarget]:
        self.check(entry)
        folder = find_checkpoint(entry)
        # A process pays for imports once, whatever it loads: they are no part of the load.
        import llmbench_engine.engine  # noqa: F401

        most = max((MAX_BATCH, *settings.concurrency))
        report(f"loading {folder.name}")
        with closing(EngineSlot()) as slot, MemorySampler(lambda: (os.getpid(),)) as sampler:
            begun_ns = time.monotonic_ns()
            with closing(EngineTarget(self.name, folder, slot.load(folder, most), sampler)) as target:
                target.answer_first(begun_ns)
                yield target


class EngineSlot:
    """Room for one loaded engine."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._engine: Engine | None = None

    def load(self, path: str | Path, max_batch: int = MAX_BATCH) -> Engine:
        """The engine of the checkpoint folder `path`: the one that is here, or a new one in the place of another.

        `max_batch`: how many sequences a new one decodes at once.

        Unavailable where a package is missing; ServerStartError, with the engine's words, where it can't be loaded.
        """
        folder = Path(path).resolve()
        if self._engine is not None and self._folder == folder and not self._engine.closed:
            return self._engine
        self.close()
        check_packages()
        from llmbench_engine import Engine

        with explained(ServerStartError, "the engine can't load this checkpoint"):
            self._engine = Engine.load(folder, max_batch=max_batch)
        self._folder = folder
        return self._engine

    def close(self) -> None:
        """Free the engine, if there is one."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()


def check_packages() -> None:
    """Unavailable where something that the engine imports isn't installed. Imports nothing."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise Unavailable(f"the engine needs {', '.join(missing)}", fix="pip install 'pytest-llmbench[mlx]'")


def find_checkpoint(entry: MatrixEntry) -> Path:
    """The entry's checkpoint folder. Unavailable where it isn't here, or of a kind that the engine doesn't know.

    Of the engine, only what works without MLX is imported for that.
    """
    from llmbench_engine.config import read_config
    from llmbench_engine.errors import CheckpointError
    from llmbench_engine.models import module_for

    folder = models.find_folder(entry.model_id, beside=entry.path, reader="the engine")
    try:
        module_for(read_config(folder), folder)
    except CheckpointError as error:
        raise Unavailable(str(error), fix="name another checkpoint, or use backend mlx-lm") from error
    return folder
