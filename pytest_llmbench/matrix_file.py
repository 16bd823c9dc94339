"""A matrix file: YAML in the shape that the predecessor used, plus ours, read strictly.

    hardware: {…}          the machine that it was written for; information only
    settings: {…}          what holds for each entry that says nothing else
    prompts: [short, …]    names, for entries that name none
    custom_prompts: {…}    name: text, or name: {text, system, max_tokens}
    defaults: {…}          entry fields put under each entry; an entry's own field replaces the default whole
    tests: [{…}, …]        the entries

A key with nothing behind it counts as left out, and in an entry takes a default away. The keys that can't be empty
are those that an entry needs (`id`, `backend`, `model_id`), `enabled`, and the settings other than `bench_port`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from yaml.nodes import Node

from pytest_llmbench import matrix_fields as fields
from pytest_llmbench.errors import MatrixError
from pytest_llmbench.matrix import BUILTIN_PROMPTS, Matrix, MatrixEntry
from pytest_llmbench.yaml_nodes import NodeReader, Read, short
from pytest_llmbench.yaml_source import Source, parse

_TOP = ("hardware", "settings", "prompts", "custom_prompts", "defaults", "tests")
_NEEDED = ("id", "backend", "model_id")


def load(path: Path, *, backends: Collection[str]) -> Matrix:
    """Read a matrix file; `backends` are the names that an entry may use.

    `MatrixError`, with path and line, for anything that isn't a complete and valid matrix.
    """
    source = parse(path)
    if source.root is None:
        raise MatrixError("the file is empty; a matrix needs a list of `tests`", path=path, line=1)
    nodes = NodeReader(source)
    top = nodes.without_nulls(nodes.record(source.root, _TOP, "a matrix file"))
    if "tests" not in top:
        source.fail(source.root, "the file has no `tests`; a matrix needs a list of them")
    custom = fields.custom_prompts(nodes, top["custom_prompts"]) if "custom_prompts" in top else ()
    names = (*BUILTIN_PROMPTS, *(prompt.name for prompt in custom))
    return Matrix(
        path=path,
        entries=_entries(nodes, top, fields.entry_readers(nodes, backends, names)),
        custom_prompts=custom,
        **_head(nodes, top, names),
    )


def _head(nodes: NodeReader, top: Mapping[str, Node], prompts: Collection[str]) -> dict[str, Any]:
    readers: dict[str, Read] = {
        "hardware": partial(fields.hardware, nodes),
        "settings": partial(fields.settings, nodes),
        "prompts": partial(fields.prompt_names, nodes, names=prompts),
    }
    return nodes.values({name: node for name, node in top.items() if name in readers}, readers)


def _entries(nodes: NodeReader, top: Mapping[str, Node], readers: Mapping[str, Read]) -> tuple[MatrixEntry, ...]:
    defaults = _defaults(nodes, top, readers)
    tests = nodes.items(top["tests"])
    if not tests:
        nodes.source.fail(top["tests"], "the list of tests is empty")
    found: dict[str, MatrixEntry] = {}

    def read(node: Node) -> None:
        own = nodes.record(node, readers, "a test")
        entry = _entry(nodes, node, {**defaults, **own}, readers)
        if entry.id in found:
            where = own["id"] if nodes.source.line(own["id"]) >= entry.line else node  # the id may be merged in
            nodes.source.fail(where, f"id {short(entry.id)} is already used in line {found[entry.id].line}")
        found[entry.id] = entry

    nodes.each(tests, read)
    return tuple(found.values())


def _defaults(nodes: NodeReader, top: Mapping[str, Node], readers: Mapping[str, Read]) -> dict[str, Node]:
    if "defaults" not in top:
        return {}
    known = [name for name in readers if name != "id"]
    defaults = nodes.record(top["defaults"], known, "defaults")
    nodes.values(_written(nodes, defaults), readers)
    return defaults


def _entry(nodes: NodeReader, node: Node, values: Mapping[str, Node], readers: Mapping[str, Read]) -> MatrixEntry:
    source = nodes.source
    missing = [name for name in _NEEDED if name not in values]
    if missing:
        source.fail(node, f"this test has no {', '.join(f'`{name}`' for name in missing)}")
    entry = MatrixEntry(path=source.path, line=source.line(node), **nodes.values(_written(nodes, values), readers))
    if entry.enabled or entry.reason:
        return entry
    return replace(entry, reason=_reason(source, values["enabled"]))


def _written(nodes: NodeReader, values: Mapping[str, Node]) -> dict[str, Node]:
    return nodes.without_nulls(values, keep=(*_NEEDED, "enabled"))


def _reason(source: Source, enabled: Node) -> str:
    return source.comment(enabled) or f"disabled in {source.path.name}:{source.line(enabled)}"
