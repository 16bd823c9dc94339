"""`llmbench_engine` as a side: `python -m pytest_llmbench.sides.engine`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pytest_llmbench import __version__
from pytest_llmbench.sides.messages import Fact
from pytest_llmbench.sides.mlx_served import MlxServed, bad_checkpoint, best_of, nothing_loaded
from pytest_llmbench.sides.serve import serve

if TYPE_CHECKING:
    from llmbench_engine import Engine

# As many as mlx-lm decodes together.
MAX_BATCH = 32


class EngineSide(MlxServed):
    """The engine at its defaults, but for room for larger batches."""

    name: ClassVar[str] = "llmbench_engine"

    def __init__(self) -> None:
        self._engine: Engine | None = None

    @property
    def version(self) -> str:
        return __version__

    def facts(self) -> Mapping[str, Fact]:
        from llmbench_engine.generate import CHUNK

        return {**super().facts(), "max_batch": MAX_BATCH, "chunk": CHUNK}

    def setup(self) -> None:
        import llmbench_engine.engine  # noqa: F401

        super().setup()

    def prepare(self, path: Path) -> None:
        from llmbench_engine.config import read_config
        from llmbench_engine.errors import CheckpointError
        from llmbench_engine.models import module_for

        if self._engine is not None:
            self._engine.close()
            self._engine = None
        try:
            module = module_for(read_config(path), path)
        except CheckpointError as error:
            raise bad_checkpoint(error) from error
        import_module(f"llmbench_engine.models.{module}")

    def load(self, path: Path) -> None:
        from llmbench_engine import Engine
        from llmbench_engine.errors import CheckpointError

        try:
            self._engine = Engine.load(path, max_batch=MAX_BATCH)
        except CheckpointError as error:
            raise bad_checkpoint(error) from error

    def generate(self, prompt: Sequence[int], n: int) -> Iterator[int]:
        for token in self._loaded().generate(prompt, max_tokens=n, ignore_eos=True):
            yield token.id

    def batch(self, prompts: Sequence[Sequence[int]], n: int) -> Iterator[tuple[int, int]]:
        from llmbench_engine import Request

        engine = self._loaded()
        rows: dict[int, int] = {}
        try:
            for row, prompt in enumerate(prompts):
                rows[engine.submit(Request(prompt=tuple(prompt), max_tokens=n, ignore_eos=True))] = row
            while engine.pending:
                for number, token in engine.step():
                    yield rows[number], token.id
        finally:
            for number in rows:
                engine.cancel(number)

    def margins(self, prompt: Sequence[int]) -> tuple[tuple[int, float], ...]:
        import mlx.core as mx

        from llmbench_engine.generate import prefill

        model = self._loaded().model
        logits = prefill(model, mx.array([list(prompt)]), model.make_cache(1, len(prompt)))
        return best_of(logits[0])

    def _loaded(self) -> Engine:
        if self._engine is None:
            raise nothing_loaded()
        return self._engine


if __name__ == "__main__":
    serve(EngineSide())
