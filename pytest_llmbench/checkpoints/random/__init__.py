"""Checkpoints of real models' shapes with random weights: for benchmarks, and for tests of the engine."""

from __future__ import annotations

from pytest_llmbench.checkpoints.random.make import random_checkpoint, write_checkpoint
from pytest_llmbench.checkpoints.random.quantization import QUANTS, Quant
from pytest_llmbench.checkpoints.random.shapes import MODEL_TYPES, SHAPES, Shape, load_shape, shape_of
from pytest_llmbench.checkpoints.random.tensors import (
    StoredTensor,
    TensorSpec,
    allocator_bytes,
    in_pages,
    stored_bytes,
    stored_tensors,
    tensors,
)
from pytest_llmbench.checkpoints.random.values import random_weights
from pytest_llmbench.checkpoints.random.vocabulary import vocabulary_of_size

__all__ = [
    "MODEL_TYPES",
    "QUANTS",
    "SHAPES",
    "Quant",
    "Shape",
    "StoredTensor",
    "TensorSpec",
    "allocator_bytes",
    "in_pages",
    "load_shape",
    "random_checkpoint",
    "random_weights",
    "shape_of",
    "stored_bytes",
    "stored_tensors",
    "tensors",
    "vocabulary_of_size",
    "write_checkpoint",
]
