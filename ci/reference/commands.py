"""The page of the command `llmbench`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from pytest_llmbench import markdown
from pytest_llmbench.cli import build_parser
from reference.text import prose, table

HEAD = """# The command llmbench

Also `python -m pytest_llmbench`. Exit status: 0 fine, 1 a regression or a fault was found, 2 wrong use.
"""


def page() -> str:
    return "\n".join((HEAD, *_sections(build_parser(), "")))


def _sections(parser: argparse.ArgumentParser, about: str) -> Iterator[str]:
    """A section for each command that can be run, in the order in which they are listed."""
    inner = [action for action in _actions(parser) if isinstance(action, argparse._SubParsersAction)]
    for action in inner:
        helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
        for name, command in action.choices.items():
            yield from _sections(command, helps.get(name, ""))
    if not inner:
        yield _section(parser, about)


def _section(parser: argparse.ArgumentParser, about: str) -> str:
    rows = [(_words(action), "yes" if _needed(action) else "no", _meaning(action)) for action in _actions(parser)]
    text = f"## {parser.prog}\n\n{about[:1].upper()}{_plain(about[1:])}.\n"
    return f"{text}\n{table(('argument', 'needed', 'meaning'), rows)}" if rows else text


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in parser._actions if not isinstance(action, argparse._HelpAction)]


def _needed(action: argparse.Action) -> bool:
    return action.required if action.option_strings else action.nargs not in ("?", "*")


def _words(action: argparse.Action) -> str:
    metavar = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    shown = f"{metavar} …" if action.nargs in ("+", "*") else metavar
    if action.choices:
        shown = "|".join(map(str, action.choices))
    words = [*action.option_strings[-1:], *([] if action.nargs == 0 else [shown])]
    return markdown.code(" ".join(words))


def _meaning(action: argparse.Action) -> str:
    return prose(_plain(action.help or ""))


def _plain(text: str) -> str:
    """argparse formats a help with %."""
    return text.replace("%%", "%")
