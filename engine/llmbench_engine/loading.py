"""A checkpoint's model and its tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import mlx.core as mx

from llmbench_engine.config import read_config
from llmbench_engine.loader import begin_model
from llmbench_engine.tokenizer import Tokenizer, vocabulary_file
from llmbench_engine.transformer import Model


def load_beside(folder: Path, rehearse: Callable[[Model], None]) -> tuple[Model, Tokenizer]:
    """Model, its weights in memory, and tokenizer. CheckpointError where a file is missing or doesn't fit.

    While the tokenizer is parsed, other threads read the last tensors. The parser holds the interpreter's lock all the
    time: a thread that needs it could do nothing meanwhile. `rehearse`: see `begin_model`.
    """
    values = read_config(folder)
    # What is missing is told of before gigabytes are read.
    vocabulary_file(folder)
    with begin_model(values, folder, rehearse) as model:
        tokenizer = Tokenizer.load(folder)
    mx.clear_cache()
    return model, tokenizer
