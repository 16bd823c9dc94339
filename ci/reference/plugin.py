"""The page of fixtures, hooks and the marker."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator

from pytest_llmbench import collect, hookspec, markdown
from reference.text import ROOT, prose, table

HEAD = """# Fixtures, hooks, marker

All names begin with `llmbench_`, `pytest_llmbench_` or `llmbench`: nothing of yours is shadowed.

## Fixtures
"""
HOOKS = """## Hooks

Implement them in a `conftest.py` or in a plugin of your own. An implementation takes the arguments that it needs.
"""


def page() -> str:
    fixtures = table(("fixture", "scope", "gives", "what it is"), sorted(_fixtures()))
    hooks = table(("hook", "arguments", "what it is for"), sorted(_hooks()))
    return f"{HEAD}\n{fixtures}\n{HOOKS}\n{hooks}\n## Marker\n\n{_marker()}"


def _fixtures() -> Iterator[tuple[str, ...]]:
    for path in sorted((ROOT / "pytest_llmbench").glob("fixtures*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            scope = _scope(node)
            if isinstance(node, ast.FunctionDef) and scope is not None:
                given = "" if node.returns is None else markdown.code(_given(node.returns))
                yield markdown.code(node.name), scope, given, prose(ast.get_docstring(node) or "")


def _scope(node: ast.stmt) -> str | None:
    """The scope of a function that is a fixture; None for anything else."""
    for decorator in getattr(node, "decorator_list", ()):
        call = decorator.func if isinstance(decorator, ast.Call) else decorator
        if ast.unparse(call) == "pytest.fixture":
            given = {k.arg: ast.literal_eval(k.value) for k in getattr(decorator, "keywords", ()) if k.arg == "scope"}
            return str(given.get("scope", "function"))
    return None


def _given(returns: ast.expr) -> str:
    """What a test gets: what a generator yields, else what the function returns."""
    if isinstance(returns, ast.Subscript) and ast.unparse(returns.value) == "Iterator":
        return ast.unparse(returns.slice)
    return ast.unparse(returns)


def _hooks() -> Iterator[tuple[str, ...]]:
    for name, hook in inspect.getmembers(hookspec, inspect.isfunction):
        if name.startswith("pytest_llmbench_"):
            arguments = ", ".join(f"{p.name}: {p.annotation}" for p in inspect.signature(hook).parameters.values())
            yield markdown.code(name), markdown.code(arguments), prose(hook.__doc__ or "")


def _marker() -> str:
    signature, _, meaning = collect.MARKER_HELP.partition(": ")
    return f"{markdown.code(signature)}: {prose(meaning)}.\n"
