"""Which models of the plan a change touches: by the files that differ from the branch it goes to."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gate.plan import PlanModel
from llmbench_engine.models import MODULES
from pytest_llmbench.errors import UsageError

MODELS_FOLDER = "engine/llmbench_engine/models/"
MODELS_PACKAGE = "llmbench_engine.models"
TELLING = ("ci/venv", "matrix/parity.yaml")
"""What decides on the figures, although its folder doesn't."""
HARMLESS_FOLDERS = (".ci/", ".github/", "ci/", "docs/", "examples/", "matrix/", "tests/")
HARMLESS_FILES = (".gitignore", "LICENSE", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "conftest.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Ids of the models to measure (`every`: they are all there are), and why these."""

    models: tuple[str, ...]
    every: bool
    reason: str


def changed_files(root: Path, base: str) -> tuple[str, ...]:
    """Files that differ between HEAD and where it left `base`; a moved one under both names. UsageError for git's."""
    command = ("git", "-C", str(root), "diff", "--name-only", "--no-renames", "-z", "--end-of-options")
    try:
        done = subprocess.run([*command, f"{base}...HEAD"], capture_output=True, check=False)
    except OSError as error:
        raise UsageError(f"git can't be run: {error}; install it, or use --all or --models") from error
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip()
        raise UsageError(
            f"git can't compare {base!r} with HEAD: {said}; check out with fetch-depth: 0, or use --all or --models"
        )
    names = done.stdout.decode("utf-8", "backslashreplace").split("\0")
    # Names go into logs that GitHub reads line by line. One that isn't plain is found nowhere, so it touches all.
    return tuple("".join(c if c.isprintable() else "?" for c in name) for name in names if name)


def choose(files: Sequence[str], models: Sequence[PlanModel], root: Path) -> Choice:
    """The models that `files` touch. A file that isn't known to be harmless touches all."""
    telling = [file for file in files if not _harmless(file)]
    modules = [_module(file, root) for file in telling]
    for file, module in zip(telling, modules, strict=True):
        if module is None:
            return Choice(models=tuple(model.id for model in models), every=True, reason=f"{file} concerns every model")
    if not telling:
        return Choice(models=(), every=False, reason=f"none of the {len(files)} changed files can change a figure")
    changed = {module for module in modules if module is not None}
    found = tuple(model.id for model in models if _concerns(changed, model, root))
    reason = f"changed: {', '.join(telling)}" + ("" if found else ", which no model of the plan is made with")
    return Choice(models=found, every=len(found) == len(models), reason=reason)


def _harmless(file: str) -> bool:
    return file not in TELLING and (file in HARMLESS_FILES or file.startswith(HARMLESS_FOLDERS))


def _module(file: str, root: Path) -> str | None:
    """The module of engine/llmbench_engine/models that the file is; None for any other, or one that is gone."""
    name = file.removeprefix(MODELS_FOLDER).removesuffix(".py")
    is_module = f"{MODELS_FOLDER}{name}.py" == file and name.isidentifier() and name != "__init__"
    return name if is_module and (root / file).is_file() else None


def _concerns(changed: set[str], model: PlanModel, root: Path) -> bool:
    start = MODULES.get(model.model_type or "")
    return start is None or not changed.isdisjoint(modules_behind(start, root / MODELS_FOLDER))


def modules_behind(start: str, folder: Path) -> frozenset[str]:
    """`start` and every module of `folder` that it imports, at whatever remove."""
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        name = waiting.pop()
        path = folder / f"{name}.py"
        if name not in seen and path.is_file():
            seen.add(name)
            waiting.extend(_imports(path))
    return frozenset(seen)


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            dotted = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            home = ".".join(part for part in (MODELS_PACKAGE if node.level == 1 else "", node.module) if part)
            dotted = [home, *(f"{home}.{alias.name}" for alias in node.names)]
        else:
            continue
        yield from (name.split(".")[2] for name in dotted if name.startswith(f"{MODELS_PACKAGE}."))
