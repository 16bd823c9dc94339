"""The page of the environment variables that are no option's: found by reading the sources."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from pytest_llmbench import markdown
from reference.text import ROOT, codes, table

HEAD = """# Environment variables

Those of the [options](options.md) are `LLMBENCH_` and the option's name. Beside them, these are read, each by the
files that are named. In values of a matrix file's `env`, variables of a server's own are set, which aren't listed here.
"""
SOURCES = ("pytest_llmbench/**/*.py", "engine/**/*.py", "ci/**/*", "tests/**/conftest.py", "tests/**/*_kit.py")
READS = {"get", "getenv", "setdefault", "pop"}
SHELL = re.compile(r"\$\{([A-Z][A-Z0-9_]*):-")


def page() -> str:
    rows = [(markdown.code(name), codes(sorted(files))) for name, files in sorted(_variables().items())]
    return f"{HEAD}\n{table(('variable', 'read in'), rows)}"


def _variables() -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted(path for source in SOURCES for path in ROOT.glob(source)):
        for name in _read_by(path) if path.is_file() and path.suffix in ("", ".py") else ():
            found[name].add(path.relative_to(ROOT).as_posix())
    return found


def _read_by(path: Path) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py" or text.startswith("#!/usr/bin/env python3"):
        yield from variables(ast.parse(text))
    elif text.startswith("#!"):
        yield from SHELL.findall(text)


def variables(tree: ast.Module) -> Iterator[str]:
    """The names that a file looks up in the environment, as texts or as constants of that file."""
    constants = dict(_constants(tree))
    for node in ast.walk(tree):
        key = _key(node)
        name = constants.get(key.id) if isinstance(key, ast.Name) else getattr(key, "value", None)
        if isinstance(name, str):
            yield name


def _constants(tree: ast.Module) -> Iterator[tuple[str, object]]:
    """The names at a file's top that stand for a text, with it; those that it imports from this package too."""
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                pairs = [*zip(names, values, strict=False)]
            case ast.Assign(targets=names, value=value):
                pairs = [(name, value) for name in names]
            case ast.AnnAssign(target=name, value=ast.expr() as value):
                pairs = [(name, value)]
            case ast.ImportFrom(module=str(module), names=aliases) if module.startswith("pytest_llmbench."):
                yield from ((alias.name, getattr(import_module(module), alias.name, None)) for alias in aliases)
                continue
            case _:
                continue
        yield from ((ast.unparse(name), value.value) for name, value in pairs if isinstance(value, ast.Constant))


def _key(node: ast.AST) -> ast.expr | None:
    """What is looked up, if `node` is `environ[key]`, `environ.get(key)`, `os.getenv(key)` or `key in environ`."""
    match node:
        case ast.Subscript(value=of, slice=key) if _environment(of):
            return key
        case ast.Call(func=ast.Attribute(value=of, attr=name), args=[key, *_]) if name in READS:
            return key if _environment(of) or name == "getenv" else None
        case ast.Compare(left=key, ops=[ast.In() | ast.NotIn()], comparators=[of]) if _environment(of):
            return key
    return None


def _environment(node: ast.expr) -> bool:
    return ast.unparse(node) in ("os.environ", "environ")
