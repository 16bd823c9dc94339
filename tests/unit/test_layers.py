"""A file imports only from lower layers, or from its own without a cycle (design: L0 to L5)."""

from __future__ import annotations

import ast
import graphlib
import inspect
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

import pytest_llmbench
from pytest_llmbench.backends import builtin_backends

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "pytest_llmbench"
ENGINE = ROOT / "engine" / "llmbench_engine"

LAYERS = (
    """__init__ errors units""",
    """matrix matrix_fields matrix_file yaml_nodes yaml_source json_node prompts sample counting stats two_samples
    concurrency columns
    markdown sse tokenizer
    models whole_files requirements secrets environment environment_macos suspect progress checkpoints/*""",
    """process supervise supervisor ports file_cache memory memory_macos power accelerator chat chat_reply chat_tools
    sandbox sandbox_child backends/* sides/*""",
    """measure verdict parity parity_points parity_record parity_summary
    parity_plan parity_plan_file parity_planned parity_checkpoint parity_prompts parity_same parity_pair parity_readings
    parity_rounds parity_tokens parity_live quality tools""",
    """record run_shape journal parity_json parity_writer figures compare compare_text merge history predecessor
    predecessor_odd export summary_page report_files report report/*""",
    """__main__ cli cli_* options option_values comparing hookspec collect suite suite_parity fixtures distribute
    session session_plans plugin recorder resume suite_live collect_parity fixtures_parity fixtures_answers
    fixtures_concurrency listing
    terminal terminal_summary""",
)
HEAVY = {"mlx", "mlx_lm", "numpy", "httpx", "transformers"}
MOST_LINES = 300
MOST_LINES_OF_A_SERVER = 120
FILES = sorted(PACKAGE.rglob("*.py"))


def short(path: Path) -> str:
    """`backends/server` for …/pytest_llmbench/backends/server.py, `backends/__init__` for its package."""
    return path.relative_to(PACKAGE).with_suffix("").as_posix()


def layer(name: str) -> int:
    found = [n for n, names in enumerate(LAYERS) if any(fnmatchcase(name, pattern) for pattern in names.split())]
    assert len(found) == 1, (
        f"pytest_llmbench/{name}.py stands in {len(found)} layers; put it into one line of LAYERS in test_layers.py: "
        "the lowest that is above everything it imports"
    )
    return found[0]


def runtime_nodes(tree: ast.AST, *, inside_functions: bool) -> Iterator[ast.AST]:
    """Nodes that really run: not those under `if TYPE_CHECKING:`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            continue
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) and not inside_functions:
            continue
        yield node
        yield from runtime_nodes(node, inside_functions=inside_functions)


def imports(path: Path, *, inside_functions: bool = True) -> set[str]:
    """Dotted names of what a file imports while it runs, `from a import b` as `a.b`."""
    found: set[str] = set()
    for node in runtime_nodes(ast.parse(path.read_text(encoding="utf-8")), inside_functions=inside_functions):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write the whole name instead of a relative import"
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def own_imports(path: Path, *, inside_functions: bool = True) -> set[str]:
    """The package's own files that `path` imports."""
    dotted = imports(path, inside_functions=inside_functions)
    return {name for d in dotted if (name := own_file(d)) is not None} - {short(path)}


def own_file(dotted: str) -> str | None:
    """The file that holds `pytest_llmbench.x.y`: module y of package x, or x, where y is a name."""
    head, *parts = dotted.split(".")
    while head == "pytest_llmbench" and parts:
        target = PACKAGE.joinpath(*parts)
        for file in (target.with_suffix(".py"), target / "__init__.py"):
            if file.is_file():
                return short(file)
        parts.pop()
    return None


@pytest.mark.parametrize("path", FILES, ids=short)
def test_a_file_imports_nothing_from_a_higher_layer(path: Path) -> None:
    own = layer(short(path))
    above = sorted(name for name in own_imports(path) if layer(name) > own)
    assert not above, f"{short(path)} is in layer {own} and imports from above: {above}"


def test_imports_at_import_time_have_no_cycle() -> None:
    graph = {short(path): own_imports(path, inside_functions=False) for path in FILES}
    assert len(list(graphlib.TopologicalSorter(graph).static_order())) == len(FILES)


@pytest.mark.parametrize("path", FILES, ids=short)
def test_only_the_top_layer_imports_pytest(path: Path) -> None:
    if layer(short(path)) < len(LAYERS) - 1:
        assert not {name for name in imports(path) if name.split(".")[0] in ("pytest", "_pytest", "xdist")}


@pytest.mark.parametrize("path", FILES, ids=short)
def test_nothing_heavy_is_imported_with_a_module(path: Path) -> None:
    assert not {name.split(".")[0] for name in imports(path, inside_functions=False)} & HEAVY


def test_the_engine_stands_alone() -> None:
    for path in ENGINE.rglob("*.py"):
        assert not {name for name in imports(path) if name.split(".")[0] == "pytest_llmbench"}, path


@pytest.mark.parametrize("path", [*FILES, *sorted(ENGINE.rglob("*.py"))], ids=lambda p: p.relative_to(ROOT).as_posix())
def test_a_file_stays_short(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= MOST_LINES, f"{path.name} has {lines} lines; split it (at most {MOST_LINES})"


def test_a_server_is_a_screen_or_two() -> None:
    """What servers have in common isn't in a server's file."""
    files = {type(backend).__module__ for backend in builtin_backends().values()}
    lines = {name: len(inspect.getsource(sys.modules[name]).splitlines()) for name in files}
    assert {name: count for name, count in lines.items() if count > MOST_LINES_OF_A_SERVER} == {}


def test_versions_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = next(line.split()[1] for line in changelog.splitlines() if line.startswith("## "))
    assert project["version"] == pytest_llmbench.__version__ == newest


def test_the_reader_of_imports_sees_what_runs_and_only_that(tmp_path: Path) -> None:
    source = tmp_path / "x.py"
    source.write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import httpx\n"
        "try:\n    import numpy.linalg\nexcept ImportError:\n    pass\n"
        "def f():\n    from pytest_llmbench import chat\n"
    )
    assert imports(source) == {"typing.TYPE_CHECKING", "numpy.linalg", "pytest_llmbench.chat"}
    assert imports(source, inside_functions=False) == {"typing.TYPE_CHECKING", "numpy.linalg"}
