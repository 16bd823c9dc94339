"""Read a checkpoint's weights while its tokenizer is parsed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import mlx.core as mx

from llmbench_engine.config import read_config
from llmbench_engine.loader import assemble, text_weights
from llmbench_engine.tokenizer import Tokenizer
from llmbench_engine.transformer import Model
from llmbench_engine.weights import read_arrays


def load_beside(folder: Path) -> tuple[Model, Tokenizer]:
    """Model, its weights in memory, and tokenizer. CheckpointError where a file is missing or doesn't fit."""
    values = read_config(folder)
    begun = Event()
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(_read, values, folder, begun)
        # The parser holds the interpreter's lock; the reader only needs it until it has begun.
        begun.wait()
        tokenizer = Tokenizer.load(folder)
        arrays = reading.result()
    del reading
    model = assemble(values, arrays, folder)
    mx.clear_cache()
    return model, tokenizer


def _read(values: dict[str, Any], folder: Path, begun: Event) -> dict[str, mx.array]:
    """The text model's tensors, computed: what one thread leaves undone, another can't compute."""
    try:
        arrays = text_weights(values, read_arrays(folder), folder)
    finally:
        begun.set()
    mx.eval(list(arrays.values()))
    return arrays
