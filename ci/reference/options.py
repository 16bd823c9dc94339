"""The page of the plugin's options."""

from __future__ import annotations

from typing import Any

from pytest_llmbench import markdown
from pytest_llmbench.options import OPTIONS, Option
from reference.text import prose, table

HEAD = """# Options

Each option of pytest's command line has an ini value and an environment variable. The command line beats the
environment, which beats the ini file; all three beat a matrix file's `settings`, and those the default.
"""
TYPES = {"flag": "true or false", "list": "list, one a line", "int": "whole number", "float": "number"}


def page() -> str:
    rows = [_row(option) for option in OPTIONS]
    return f"{HEAD}\n{table(('option', 'ini value', 'variable', 'type', 'default', 'meaning'), rows)}"


def _row(option: Option) -> tuple[str, ...]:
    flag = option.flag if option.kind == "flag" else f"{option.flag} {option.metavar}"
    return (
        markdown.code(flag),
        markdown.code(option.ini),
        markdown.code(option.variable),
        TYPES.get(option.kind, "text"),
        _default(option.default),
        prose(option.help + ("; repeatable" if option.repeatable else "")),
    )


def _default(value: Any) -> str:
    return "" if value is None or value is False else markdown.code(str(value))
