"""The pages of the keys of matrix files and of parity plans."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, asdict, fields, is_dataclass
from functools import partial
from typing import Any

import yaml

from pytest_llmbench import markdown, matrix, matrix_fields, parity_plan, parity_plan_file
from pytest_llmbench.backends import builtin_backends
from pytest_llmbench.yaml_nodes import NodeReader, Read
from reference.text import codes, explained, meanings, table
from reference.words import described

Readers = Callable[[NodeReader], Mapping[str, Read]]

MATRIX_HEAD = """# Keys of a matrix file

What each key takes, and what holds where it is left out. The guide is [matrix.md](../matrix.md).
"""
PARITY_HEAD = """# Keys of a parity plan

What each key takes, and what holds where it is left out. The guide is [parity.md](../parity.md).
"""
REQUIREMENTS = """
`requires` knows these kinds: {kinds}. `gates` knows these metrics: {metrics}.
"""


def matrix_page() -> str:
    entry = partial(_entry_readers, names=tuple(builtin_backends()))
    return "\n".join(
        (
            MATRIX_HEAD,
            _keys("hardware", matrix.Hardware, matrix_fields.hardware_readers),
            _keys("settings", matrix.Settings, matrix_fields.setting_readers, meanings("matrix.md", "settings")),
            _keys("custom_prompts", matrix.CustomPrompt, matrix_fields.prompt_readers),
            _keys("tests, defaults", matrix.MatrixEntry, entry, meanings("matrix.md", "settings", "entries")),
            REQUIREMENTS.format(kinds=codes(matrix.REQUIREMENTS), metrics=codes(matrix.GATED_METRICS)),
        )
    )


def parity_page() -> str:
    settings = partial(parity_plan_file.setting_readers, base=parity_plan.ParitySettings())
    return "\n".join(
        (
            PARITY_HEAD,
            _keys("parity", parity_plan.ParityPlan, parity_plan_file.head_readers),
            _keys("sides", parity_plan.PlanSide, parity_plan_file.side_readers, _of_plan("sides")),
            _keys("settings", parity_plan.ParitySettings, settings, _of_plan("settings")),
            f"`tiers` holds {codes(parity_plan.TIERS)}, each with any of these keys.\n",
            _keys("models", parity_plan.ParityPlanModel, parity_plan_file.model_readers, _of_plan("models")),
        )
    )


def _of_plan(section: str) -> dict[str, str]:
    return meanings("parity.md", section)


def _entry_readers(nodes: NodeReader, names: tuple[str, ...]) -> Mapping[str, Read]:
    return matrix_fields.entry_readers(nodes, names, matrix.BUILTIN_PROMPTS)


def _keys(title: str, kind: type, readers: Readers, guide: Mapping[str, str] | None = None) -> str:
    """A table of the keys under `title`; `kind` has their defaults, `guide` their meaning."""
    found = described(readers)
    known = {field.name: field for field in fields(kind)}
    said = {} if guide is None else explained(found, guide, "matrix.md or docs/parity.md")
    head = ("key", "value", "default", "meaning")[: 4 if said else 3]
    rows = [
        (markdown.code(name), value, _default(known.get(name)), said.get(name, ""))[: len(head)]
        for name, value in found.items()
    ]
    return f"## {title}\n\n{table(head, rows)}"


def _default(field: Field[Any] | None) -> str:
    """As it would be written in YAML; nothing where a key left out is no value."""
    if field is None or field.default in (None, ""):
        return ""
    if field.default is MISSING and field.default_factory is MISSING:
        return "needed"
    default: Any = field.default
    value = asdict(default) if is_dataclass(default) and not isinstance(default, type) else default
    return markdown.code(_flow(value)) if value not in ((), {}) else ""


def _flow(value: Any) -> str:
    plain = {k: list(v) if isinstance(v, tuple) else v for k, v in value.items()} if isinstance(value, dict) else value
    listed = list(plain) if isinstance(plain, tuple) else plain
    text: str = yaml.safe_dump(listed, default_flow_style=True, sort_keys=False, width=10_000)
    return text.removesuffix("\n").removesuffix("\n...")
