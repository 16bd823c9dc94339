"""Where the weights of a parity plan's model are on this machine; what else it lacks. Starts and imports nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Final

from pytest_llmbench import models, requirements
from pytest_llmbench.errors import Unavailable
from pytest_llmbench.parity_plan import ParityPlan, ParityPlanModel

STAND_INS: Final = "checkpoints"
"""Folder of random checkpoints, each by its shape's name; found as any relative path of a plan is."""

PACKAGES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"engine": ("mlx", "tokenizers", "jinja2"), "mlx-lm": ("mlx", "mlx_lm")}
)
"""What the built-in sides import."""

_READER: Final = "a parity run"


FileFacts = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A whole checkpoint folder, with its `file_facts`; `snapshot` None: not one of the Hugging Face cache."""

    path: Path
    synthetic: bool
    snapshot: str | None = None
    files: FileFacts = ()


def check(plan: ParityPlan, model: ParityPlanModel) -> Checkpoint:
    """The model's checkpoint, on a machine that has all that the plan asks for. Unavailable, with the fix, for less."""
    requirements.check(model.requires, beside=plan.path)
    for side in (plan.candidate, plan.baseline):
        needed = PACKAGES.get(side, ()) if plan.own_side(side) is None else ()
        missing = [name for name in needed if find_spec(name) is None]
        if missing:
            raise Unavailable(f"{side} needs {', '.join(missing)}", fix="pip install 'pytest-llmbench[mlx]'")
    found = find(model, beside=plan.path)
    return replace(found, files=file_facts(found.path))


def file_facts(folder: Path) -> FileFacts:
    """Name, bytes and time of change (ns) of the configuration and the weights: others are another checkpoint."""
    files = sorted(path for path in folder.iterdir() if path.name == "config.json" or path.suffix == ".safetensors")
    return tuple((path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files if path.is_file())


def find(model: ParityPlanModel, *, beside: Path) -> Checkpoint:
    """The folder of `path`; else real weights from the Hugging Face cache, the plan's snapshot before any other one;
    else, unless `synthetic` is False, the random checkpoint of the model's shape. Unavailable where none is here.
    """
    if model.path is not None:
        folder = models.find_folder(model.path, beside=beside, reader=_READER)
        return Checkpoint(path=folder, synthetic=bool(model.synthetic))
    if model.synthetic:
        return _stand_in(model, beside)
    try:
        return _real(model, beside)
    except Unavailable as error:
        if model.synthetic is False or model.shape is None:
            raise
        absent = error
    try:
        return _stand_in(model, beside)
    except Unavailable as error:
        fix = f"{absent.fix}  (or, with random weights: {error.fix})"
        raise Unavailable(f"{absent.reason}, and {error.reason}", fix=fix) from error


def _real(model: ParityPlanModel, beside: Path) -> Checkpoint:
    folder = models.find_snapshot(model.id, model.snapshot)
    try:
        folder = folder or models.find_folder(model.id, beside=beside, reader=_READER)
    except Unavailable as error:
        if model.snapshot is None:
            raise
        raise Unavailable(error.reason, fix=f"hf download {model.id} --revision {model.snapshot}") from error
    in_cache = folder.parent.name == "snapshots"
    return Checkpoint(path=folder, synthetic=False, snapshot=folder.name if in_cache else None)


def _stand_in(model: ParityPlanModel, beside: Path) -> Checkpoint:
    place = f"{STAND_INS}/{model.shape}"
    try:
        return Checkpoint(path=models.find_folder(place, beside=beside, reader=_READER), synthetic=True)
    except Unavailable as error:
        fix = f"llmbench checkpoint random --shape {model.shape} {place}"
        raise Unavailable(error.reason, fix=fix) from error
