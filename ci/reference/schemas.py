"""A page for each JSON Schema of the package."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pytest_llmbench import markdown
from reference.text import ROOT, prose, table

FOLDER = ROOT / "pytest_llmbench" / "schema"
HEAD = """# {title}

{description}

The schema itself: [{name}](../../pytest_llmbench/schema/{name}). A key that is marked with `?` may be left out; `[]`
stands for each item of a list, `*` for each key of an object whose keys are names.
"""
BOUNDS = {"minimum": "≥ {}", "exclusiveMinimum": "> {}", "pattern": "like `{}`"}


def pages() -> dict[str, str]:
    """By file name: `schema-run.md`, …"""
    return {
        f"schema-{path.name.removesuffix('.schema.json')}.md": _page(path) for path in sorted(FOLDER.glob("*.json"))
    }


def _page(path: Path) -> str:
    schema = json.loads(path.read_text(encoding="utf-8"))
    defs: Mapping[str, Any] = schema["$defs"]
    parts = [
        HEAD.format(title=schema["title"], description=prose(schema["description"]), name=path.name),
        _table(schema, defs),
        *(_section(name, node, defs) for name, node in defs.items() if _has_section(node)),
    ]
    return "\n".join(parts)


def _section(name: str, node: Mapping[str, Any], defs: Mapping[str, Any]) -> str:
    about = f"{prose(node['description'])}\n\n" if "description" in node else ""
    return f"## {name}\n\n{about}{_table(node, defs)}"


def _has_section(node: Mapping[str, Any]) -> bool:
    return "properties" in node


def _table(node: Mapping[str, Any], defs: Mapping[str, Any]) -> str:
    return table(("key", "type", "meaning"), _rows(node, "", defs))


def _rows(node: Mapping[str, Any], prefix: str, defs: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """The keys of an object, and those of the objects inside it, under their paths."""
    for name, child in node.get("properties", {}).items():
        mark = "" if name in node.get("required", ()) else "?"
        yield from _key(f"{prefix}{name}", mark, child, defs)
    rest = [*node.get("patternProperties", {}).values(), node.get("additionalProperties")]
    for child in rest:
        if isinstance(child, dict):
            yield from _key(f"{prefix}*", "", child, defs)


def _key(path: str, mark: str, node: Mapping[str, Any], defs: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    yield markdown.code(path + mark), _type(node, defs), prose(node.get("description", ""))
    inner, suffix = node, ""
    while "items" in inner:
        inner, suffix = inner["items"], f"{suffix}[]"
    yield from _rows(inner, f"{path}{suffix}.", defs)


def _type(node: Mapping[str, Any], defs: Mapping[str, Any]) -> str:
    if "$ref" in node:
        name = node["$ref"].rpartition("/")[2]
        return f"[{name}](#{name})" if _has_section(defs[name]) else _type(defs[name], defs)
    for word, several in ((" or ", node.get("oneOf") or node.get("anyOf")), (" and ", node.get("allOf"))):
        if several:
            return word.join(_type(one, defs) for one in several)
    if "const" in node or "enum" in node:
        values = node["enum"] if "enum" in node else [node["const"]]
        return ", ".join(markdown.code(json.dumps(value)) for value in values)
    return _named(node, defs)


def _named(node: Mapping[str, Any], defs: Mapping[str, Any]) -> str:
    kinds = node.get("type", "anything")
    names = [kinds] if isinstance(kinds, str) else kinds
    items = f" of {_type(node['items'], defs)}" if "items" in node else ""
    bounds = [text.format(node[key]) for key, text in BOUNDS.items() if key in node]
    return ", ".join([" or ".join(n + (items if n == "array" else "") for n in names), *bounds]).replace("|", "\\|")
