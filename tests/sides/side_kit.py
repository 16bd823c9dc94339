"""Sides for the tests: the example, ones that misbehave, and real ones."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pytest_llmbench.sides.spec import SideSpec, builtin_sides

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
EXAMPLE = ROOT / "examples" / "side.py"
REAL = ("engine", "mlx-lm")


def rule_side(**changes: Any) -> SideSpec:
    """examples/side.py."""
    given: dict[str, Any] = {"name": "rule", "command": (sys.executable, "-I", str(EXAMPLE))}
    return SideSpec(**given | changes)


def broken_side(fault: str, **changes: Any) -> SideSpec:
    """The example with one fault of broken_side.py."""
    command = (sys.executable, "-I", str(HERE / "broken_side.py"), str(EXAMPLE), fault)
    return rule_side(**{"name": "broken", "command": command} | changes)


def program_side(program: str, **changes: Any) -> SideSpec:
    """A Python program that may import this package."""
    env = builtin_sides()["engine"].env
    return rule_side(**{"name": "program", "command": (sys.executable, "-P", "-c", program), "env": env} | changes)


def real_side(name: str, **env: str) -> SideSpec:
    spec = builtin_sides()[name]
    return SideSpec(name=spec.name, command=spec.command, env={**spec.env, **env}, version=spec.version)


def by_rule(prompt: list[int], n: int) -> list[int]:
    """What the example says after `prompt`."""
    text = list(prompt)
    for _ in range(n):
        text.append((31 * text[-1] + 7 * len(text)) % 1000)
    return text[len(prompt) :]
