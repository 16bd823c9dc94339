"""mlx-lm as a side, through what it gives its users: `python -m pytest_llmbench.sides.mlx_lm`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from pytest_llmbench.sides.messages import Fact
from pytest_llmbench.sides.mlx_served import MlxServed, best_of, nothing_loaded, package_version
from pytest_llmbench.sides.serve import serve

# `stream_generate` reads prompts in such chunks.
CHUNK = 2048


class MlxLmSide(MlxServed):
    """`load`, `stream_generate`, for several prompts the `BatchGenerator` that `batch_generate` uses; all defaults."""

    name: ClassVar[str] = "mlx_lm"

    def __init__(self) -> None:
        self._model: Any = None
        self._tokenizer: Any = None

    @property
    def version(self) -> str:
        return package_version("mlx-lm") or ""

    def facts(self) -> Mapping[str, Fact]:
        return {**super().facts(), **_batch_defaults()}

    def setup(self) -> None:
        import mlx_lm  # noqa: F401

        super().setup()

    def prepare(self, path: Path) -> None:
        from mlx_lm.utils import MODEL_REMAPPING

        if self._model is not None:
            self._model = self._tokenizer = None
            self.reset()
        kind = json.loads((path / "config.json").read_text(encoding="utf-8")).get("model_type")
        # Modules that it would import while it loads. What is wrong with a kind it says better itself, there.
        own = f"mlx_lm.models.{MODEL_REMAPPING.get(kind, kind)}"
        for module in (own, f"transformers.models.{kind}.configuration_{kind}"):
            with contextlib.suppress(ImportError):
                import_module(module)

    def load(self, path: Path) -> None:
        from mlx_lm import load

        self._model, self._tokenizer, *_ = load(str(path))
        # What `stream_generate` stops at. A BatchGenerator has no such tokens but those that it is given.
        self._tokenizer.eos_token_ids = set()

    def generate(self, prompt: Sequence[int], n: int) -> Iterator[int]:
        import mlx.core as mx
        from mlx_lm import stream_generate
        from mlx_lm.generate import generation_stream

        for response in stream_generate(self._loaded(), self._tokenizer, list(prompt), max_tokens=n):
            yield int(response.token)
        # It has begun one token more than it gives; the next request mustn't wait for that.
        mx.synchronize(generation_stream)

    def batch(self, prompts: Sequence[Sequence[int]], n: int) -> Iterator[tuple[int, int]]:
        from mlx_lm.generate import BatchGenerator

        if len(prompts) == 1:
            # One prompt is no batch: its users stream it, which is up to twice as fast.
            yield from ((0, token) for token in self.generate(prompts[0], n))
            return
        generator = BatchGenerator(self._loaded())
        with contextlib.closing(generator):
            uids = generator.insert([list(prompt) for prompt in prompts], [n] * len(prompts))
            rows = {uid: row for row, uid in enumerate(uids)}
            while responses := generator.next_generated():  # type: ignore[no-untyped-call]
                for response in responses:
                    yield rows[response.uid], int(response.token)

    def margins(self, prompt: Sequence[int]) -> tuple[tuple[int, float], ...]:
        import mlx.core as mx
        from mlx_lm.models.cache import make_prompt_cache

        model = self._loaded()
        cache = make_prompt_cache(model)
        tokens = mx.array([list(prompt)])
        # As `stream_generate` does it: all but the last token in chunks, so that rounding is the same, too.
        for start in range(0, len(prompt) - 1, CHUNK):
            model(tokens[:, start : min(start + CHUNK, len(prompt) - 1)], cache=cache)
            mx.eval([part.state for part in cache])
        return best_of(model(tokens[:, -1:], cache=cache)[0, -1])

    def _loaded(self) -> Any:
        if self._model is None:
            raise nothing_loaded()
        return self._model


def _batch_defaults() -> dict[str, Fact]:
    """How many prompts and streams its batches take at once."""
    from inspect import signature

    from mlx_lm.generate import BatchGenerator

    parameters = signature(BatchGenerator).parameters
    names = ("completion_batch_size", "prefill_batch_size", "prefill_step_size")
    return {name: parameters[name].default for name in names if name in parameters}


if __name__ == "__main__":
    serve(MlxLmSide())
