"""The record's twelve models: each key of their configurations and each tensor has its place, by name and shape."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import mlx.core as mx
import pytest

from llmbench_engine.config import Config, QuantizationTable
from llmbench_engine.loader import text_weights
from llmbench_engine.models import MODULES
from llmbench_engine.reading import Part
from llmbench_engine.weights import Weights
from pytest_llmbench.checkpoints.random import SHAPES, load_shape, stored_tensors


class Unread(Weights):
    """Weights that stay unread: the largest models would need 20 GB."""

    def materialize(self) -> None:
        self._part = Part()


@pytest.mark.parametrize("name", SHAPES)
def test_model_of_the_record_fits(name: str) -> None:
    shape = load_shape(name)
    values = {**shape.config, "quantization": shape.quantization}
    arrays = {t.name: mx.zeros(t.shape, getattr(mx, t.dtype)) for t in stored_tensors(shape)}
    module = import_module(f"llmbench_engine.models.{MODULES[shape.config['model_type']]}")
    weights = Unread(text_weights(values, arrays, Path(name)), QuantizationTable(values, Path(name)), Path(name))
    before = mx.get_active_memory()
    module.build(Config(values, Path(name)), weights)
    weights.finish()
    assert mx.get_active_memory() - before < 1 << 28
