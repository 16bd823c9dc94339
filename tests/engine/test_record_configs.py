"""The record's twelve models: each key of their configurations and each tensor has its place, by name and shape."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import mlx.core as mx
import pytest
from engine_kit import arrays_of

from llmbench_engine.config import Config, QuantizationTable
from llmbench_engine.loader import text_weights
from llmbench_engine.models import MODULES
from llmbench_engine.reading import Part
from llmbench_engine.transformer import Model
from llmbench_engine.weights import Weights
from pytest_llmbench.checkpoints.random import SHAPES, Shape, allocator_bytes, in_pages, load_shape, stored_tensors


class Unread(Weights):
    """Weights that stay unread: the largest models would need 20 GB."""

    def materialize(self) -> None:
        self._part = Part()


def built(shape: Shape) -> Model:
    """The model of a shape, of which nothing is read or computed."""
    path, values = Path(shape.name), {**shape.config, "quantization": shape.quantization}
    arrays = {t.name: mx.zeros(t.shape, getattr(mx, t.dtype)) for t in stored_tensors(shape)}
    weights = Unread(text_weights(values, arrays, path), QuantizationTable(values, path), path)
    module = import_module(f"llmbench_engine.models.{MODULES[shape.config['model_type']]}")
    model: Model = module.build(Config(values, path), weights)
    weights.finish()
    return model


@pytest.mark.parametrize("name", SHAPES)
def test_model_of_the_record_fits(name: str) -> None:
    before = mx.get_active_memory()
    _model = built(load_shape(name))
    assert mx.get_active_memory() - before < 1 << 28


@pytest.mark.parametrize("name", SHAPES)
def test_a_model_takes_hardly_more_pages_than_the_tensors_of_its_checkpoint(name: str) -> None:
    """Those of layers that are fused end within a page where the tensors themselves don't."""
    shape = load_shape(name)
    assert sum(in_pages(array.nbytes) for array in arrays_of(built(shape))) <= 1.00015 * allocator_bytes(shape)
