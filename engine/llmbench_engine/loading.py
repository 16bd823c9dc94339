"""A checkpoint's model and its tokenizer."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx

from llmbench_engine.config import read_config
from llmbench_engine.loader import begin_model
from llmbench_engine.tokenizer import Tokenizer, vocabulary_file
from llmbench_engine.transformer import Model


def load_beside(folder: Path) -> tuple[Model, Tokenizer]:
    """Model, its weights in memory, and tokenizer. CheckpointError where a file is missing or doesn't fit.

    While the tokenizer is parsed, MLX's own threads read the last tensors (on CUDA it has none, and has read them
    before). A thread of ours could do nothing meanwhile: the parser holds the interpreter's lock all the time.
    """
    values = read_config(folder)
    # What is missing is told of before gigabytes are read.
    vocabulary_file(folder)
    model, reading = begin_model(values, folder)
    try:
        tokenizer = Tokenizer.load(folder)
    finally:
        mx.eval(reading)
    mx.clear_cache()
    return model, tokenizer
