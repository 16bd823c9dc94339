"""A parity plan: YAML that says which engine is measured against which one, how, and with what models; read strictly.

    parity: {candidate: …, baseline: …, baseline_version: …}   marks the file as a plan
    sides: {NAME: {command: …, env: …, version: …}, …}          the plan's own, for `candidate` and `baseline`
    settings: {…, tiers: {quick: {…}, full: {…}}}               a tier's own settings replace those above, key by key
    models: [{id: …, kind: …}, …]

A key of a model with nothing behind it counts as left out, but for `id`, `kind` and `enabled`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from yaml.nodes import Node

from pytest_llmbench.checkpoints.random import SHAPES
from pytest_llmbench.errors import MatrixError
from pytest_llmbench.matrix import MOST_STREAMS
from pytest_llmbench.matrix_fields import (
    A_DAY_S,
    LONGEST_NAME,
    MOST_RUNS,
    arguments,
    environment,
    identifier,
    requirement,
)
from pytest_llmbench.parity import METRICS, RULES, SECTIONS, model_names
from pytest_llmbench.parity_plan import (
    KINDS,
    TIERS,
    ParityPlan,
    ParityPlanModel,
    ParitySettings,
    PlanSide,
)
from pytest_llmbench.parity_points import MODEL_ID
from pytest_llmbench.yaml_nodes import NodeReader, Read, short
from pytest_llmbench.yaml_source import Source, parse

MOST_TOKENS: Final = 10_000_000

_TOP: Final = ("parity", "sides", "settings", "models")
_NEEDED: Final = ("id", "kind")
_SNAPSHOT: Final = re.compile(r"[0-9a-f]{7,64}")
_VERSION: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+!_-]*")
T = TypeVar("T", bound=Any)


def load(path: Path) -> ParityPlan:
    """Read a plan. `MatrixError`, with path and line, for anything that isn't a complete and valid one."""
    source = parse(path)
    if source.root is None:
        raise MatrixError("the file is empty; a parity plan needs `parity` and a list of `models`", path=path, line=1)
    nodes = NodeReader(source)
    top = nodes.record(source.root, _TOP, "a parity plan")
    missing = [name for name in ("parity", "models") if name not in top or nodes.is_null(top[name])]
    if missing:
        source.fail(source.root, f"the file has no {' and no '.join(f'`{name}`' for name in missing)}")
    given = nodes.without_nulls(top)
    return ParityPlan(
        path=path,
        **_head(nodes, top["parity"]),
        sides=_own_sides(nodes, top["sides"]) if "sides" in given else (),
        settings=_settings(nodes, top["settings"]) if "settings" in given else ParitySettings(),
        models=_models(nodes, top["models"]),
    )


def _head(nodes: NodeReader, node: Node) -> dict[str, Any]:
    readers = head_readers(nodes)
    return nodes.values(nodes.without_nulls(nodes.record(node, readers, "parity")), readers)


def head_readers(nodes: NodeReader) -> dict[str, Read]:
    """The keys of `parity`, each with what reads its value; names as in `ParityPlan`."""
    name = partial(identifier, nodes)
    return {"candidate": name, "baseline": name, "baseline_version": _version(nodes)}


def _own_sides(nodes: NodeReader, node: Node) -> tuple[PlanSide, ...]:
    named = nodes.mapping(node).values()
    return tuple(nodes.each(named, lambda item: _own_side(nodes, identifier(nodes, item.key), item.value)))


def _own_side(nodes: NodeReader, name: str, node: Node) -> PlanSide:
    readers = side_readers(nodes)
    own = nodes.without_nulls(nodes.record(node, readers, f"the side {name}"), keep=("command",))
    if "command" not in own:
        nodes.source.fail(node, f"the side {name} has no `command`")
    return PlanSide(name=name, **nodes.values(own, readers))


def side_readers(nodes: NodeReader) -> dict[str, Read]:
    """The keys of one of `sides`, each with what reads its value; names as in `PlanSide`."""
    return {"command": partial(_command, nodes), "env": partial(environment, nodes), "version": _version(nodes)}


def _version(nodes: NodeReader) -> Read:
    return partial(_matching, nodes, pattern=_VERSION, what='a version such as "0.32.2"')


def _command(nodes: NodeReader, node: Node) -> tuple[str, ...]:
    """A program and its arguments; a program with a slash in its name lies beside the plan, or at an absolute path."""
    words = arguments(nodes, node)
    if not words or not words[0].strip():
        nodes.source.fail(node, "expected a program and its arguments, found nothing")
    if "/" not in words[0]:
        return words
    # Unlike Path.expanduser this leaves a user's name that isn't known as it is.
    program = os.path.expanduser(words[0])  # noqa: PTH111
    return (str(nodes.source.path.absolute().parent / program), *words[1:])


def _settings(nodes: NodeReader, node: Node) -> ParitySettings:
    own = nodes.record(node, (*setting_readers(nodes, ParitySettings()), "tiers"), "settings")
    tiers = nodes.record(own.pop("tiers"), TIERS, "tiers") if "tiers" in own else {}
    base = _changed(nodes, ParitySettings(), own)
    found = tuple(_tier(nodes, base, name, tiers[name]) for name in TIERS if name in tiers)
    settings = replace(base, tiers=found)
    for name in TIERS:
        _require_rounds(nodes, tiers.get(name, node), settings.for_tier(name))
    return settings


def _tier(nodes: NodeReader, base: ParitySettings, name: str, node: Node) -> ParitySettings:
    own = nodes.record(node, setting_readers(nodes, base), f"the tier {name}")
    return replace(_changed(nodes, base, own), tier=name)


def _changed(nodes: NodeReader, base: ParitySettings, own: Mapping[str, Node]) -> ParitySettings:
    values = nodes.values(own, setting_readers(nodes, base))
    return replace(base, **values.pop("gates", {}), **values)


def _require_rounds(nodes: NodeReader, node: Node, settings: ParitySettings) -> None:
    if settings.max_rounds < settings.rounds:
        nodes.source.fail(
            node,
            f"max_rounds {settings.max_rounds} in tier {settings.tier} is less than passes {settings.passes} x "
            f"runs_per_pass {settings.runs_per_pass} = {settings.rounds}; raise it, or lower those",
        )


def setting_readers(nodes: NodeReader, base: ParitySettings) -> dict[str, Read]:
    """What reads each setting; a mapping's missing keys are those of `base`."""
    count, runs = partial(nodes.integer, low=1, high=MOST_TOKENS), partial(nodes.integer, low=1, high=MOST_RUNS)
    return {
        "gates": partial(_limits, nodes),
        "verdict": partial(nodes.choice, names=RULES, what="verdict"),
        **dict.fromkeys(("passes", "runs_per_pass", "max_rounds"), runs),
        "max_tokens": count,
        "legacy_repeats": lambda node: nodes.unique(node, count, filled=True),
        "prompt_tokens": lambda node: nodes.unique(node, count),
        "extra_prompts": nodes.boolean,
        "timeout_s": partial(nodes.number, positive=True, high=A_DAY_S),
        "concurrency": lambda node: _part(nodes, node, base.concurrency, _concurrency_readers(nodes), "concurrency"),
        "load": lambda node: _part(nodes, node, base.load, _load_readers(nodes), "load"),
        "memory": lambda node: _part(nodes, node, base.memory, _memory_readers(nodes), "memory"),
    }


def _part(nodes: NodeReader, node: Node, base: T, readers: Mapping[str, Read], what: str) -> T:
    return replace(base, **nodes.values(nodes.record(node, readers, what), readers))


def _limits(nodes: NodeReader, node: Node) -> dict[str, float]:
    """`gate` and `goal`, ratios above 0."""
    readers: dict[str, Read] = dict.fromkeys(("gate", "goal"), partial(nodes.number, positive=True))
    return nodes.values(nodes.record(node, readers, "gates"), readers)


def _concurrency_readers(nodes: NodeReader) -> dict[str, Read]:
    count, streams = partial(nodes.integer, low=1, high=MOST_TOKENS), partial(nodes.integer, low=1, high=MOST_STREAMS)
    return {
        "levels": lambda node: nodes.unique(node, streams, filled=True),
        "prompt_tokens": count,
        "max_tokens": count,
    }


def _load_readers(nodes: NodeReader) -> dict[str, Read]:
    return {
        "samples": partial(nodes.integer, low=1, high=MOST_RUNS),
        "first_token_prompt_tokens": partial(nodes.integer, low=1, high=MOST_TOKENS),
        "cold": nodes.boolean,
    }


def _memory_readers(nodes: NodeReader) -> dict[str, Read]:
    count = partial(nodes.integer, low=1, high=MOST_TOKENS)
    metric = partial(nodes.choice, names=METRICS["memory"], what="memory metric")
    return {
        "prompt_tokens": lambda node: nodes.unique(node, count),
        "gated": lambda node: nodes.unique(node, metric),
    }


def _models(nodes: NodeReader, node: Node) -> tuple[ParityPlanModel, ...]:
    items = nodes.items(node)
    if not items:
        nodes.source.fail(node, "the list of models is empty")
    readers = model_readers(nodes)
    found: dict[str, ParityPlanModel] = {}

    def read(item: Node) -> None:
        own = nodes.record(item, readers, "a model")
        model = _model(nodes, item, own, readers)
        if model.id in found:
            nodes.source.fail(own["id"], f"model {short(model.id)} is already in line {found[model.id].line}")
        found[model.id] = model

    nodes.each(items, read)
    names = model_names(list(found))
    return tuple(replace(model, name=names[model.id]) for model in found.values())


def model_readers(nodes: NodeReader) -> dict[str, Read]:
    """The keys of one of `models`, each with what reads its value; names as in `ParityPlanModel`."""
    count = partial(nodes.integer, low=1, high=MOST_TOKENS)
    section = partial(nodes.choice, names=SECTIONS, what="section")
    return {
        "id": partial(_model_id, nodes),
        "kind": partial(nodes.choice, names=KINDS, what="kind"),
        "snapshot": partial(_matching, nodes, pattern=_SNAPSHOT, what="a commit: 7 to 64 of 0-9 and a-f"),
        "shape": partial(nodes.choice, names=SHAPES, what="shape"),
        "path": nodes.filled,
        **dict.fromkeys(("quant", "reason", "known_issue"), nodes.string),
        **dict.fromkeys(("synthetic", "enabled"), nodes.boolean),
        **dict.fromkeys(("extra_prompt_tokens", "extra_memory_prompt_tokens"), lambda node: nodes.unique(node, count)),
        "sections": lambda node: nodes.unique(node, section, filled=True),
        "requires": lambda node: nodes.unique(node, partial(requirement, nodes)),
    }


def _model(nodes: NodeReader, node: Node, own: Mapping[str, Node], readers: Mapping[str, Read]) -> ParityPlanModel:
    source = nodes.source
    missing = [name for name in _NEEDED if name not in own]
    if missing:
        source.fail(node, f"this model has no {', '.join(f'`{name}`' for name in missing)}")
    values = nodes.values(nodes.without_nulls(own, keep=(*_NEEDED, "enabled")), readers)
    model = ParityPlanModel(name="", line=source.line(node), **values)
    if model.synthetic and model.path is None and model.shape is None:
        source.fail(own["synthetic"], "random weights need a `path`, or the `shape` that they are made with")
    if model.enabled or model.reason:
        return model
    return replace(model, reason=_reason(source, own["enabled"]))


def _model_id(nodes: NodeReader, node: Node) -> str:
    """A name as on Hugging Face: `owner/name`."""
    name = nodes.string(node)
    if len(name) > LONGEST_NAME or not MODEL_ID.fullmatch(name):
        nodes.source.fail(node, f"{short(name)} is no model id such as mlx-community/Qwen3-0.6B-4bit")
    return name


def _matching(nodes: NodeReader, node: Node, *, pattern: re.Pattern[str], what: str) -> str:
    text = nodes.string(node)
    if not pattern.fullmatch(text):
        nodes.source.fail(node, f"{short(text)} isn't {what}")
    return text


def _reason(source: Source, enabled: Node) -> str:
    return source.comment(enabled) or f"disabled in {source.path.name}:{source.line(enabled)}"
