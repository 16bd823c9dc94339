"""The models of a parity plan, as far as choosing among them needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_llmbench import parity_plan_file
from pytest_llmbench.checkpoints.random import load_shape
from pytest_llmbench.errors import UsageError
from pytest_llmbench.yaml_nodes import suggestion


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanModel:
    """A model of the plan; `model_type` is None where the plan names no shape to tell it by."""

    id: str
    model_type: str | None


def read_models(path: Path) -> tuple[PlanModel, ...]:
    """The plan's models, in its order. Raises UsageError for a file that isn't a plan."""
    models = parity_plan_file.load(path).models
    return tuple(PlanModel(id=model.id, model_type=_model_type(model.shape)) for model in models)


def _model_type(shape: str | None) -> str | None:
    return None if shape is None else str(load_shape(shape).config["model_type"])


def named(models: Sequence[PlanModel], names: Sequence[str]) -> tuple[str, ...]:
    """Ids of the models called `names`, with their owner or without. Raises UsageError for one that isn't there."""
    ids = [model.id for model in models]
    return tuple(dict.fromkeys(model for name in names for model in _matches(ids, name)))


def _matches(ids: Sequence[str], name: str) -> list[str]:
    found = [model for model in ids if name.casefold() in (model.casefold(), model.casefold().rpartition("/")[2])]
    if not found:
        raise UsageError(f"--models: the plan has no model {name!r}: {suggestion(name, ids)}")
    return found
