"""What must not reach a log, a record, junit or a report, and how it is taken out of text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from urllib.parse import quote

HIDDEN = "***"
_SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "AUTHORIZATION", "CREDENTIAL")
_SECRET_FLAG = re.compile(
    r"--?(?:[A-Za-z0-9]+[-_])*(?:api[-_]?key|apikey|key|token|secret|password|passwd|authorization)", re.IGNORECASE
)
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.+)", re.DOTALL)
_HEADER = re.compile(
    r"""(authorization["']?\s*[:=]\s*["']?(?:(?:bearer|basic|token)\s+)?|\bbearer\s+)([^\s'",;]+)""", re.IGNORECASE
)
# A server may print a key that it made itself (Unsloth Studio does), so that nobody could have told us of it.
_MADE_KEY = re.compile(r"\bsk-[A-Za-z0-9_-]{12,}")
_PLAIN = re.compile(r"true|false|yes|no|on|off|none|null|auto|[0-9.]+", re.IGNORECASE)
_SHORTEST_ARGUMENT = 4


def is_secret_name(name: str) -> bool:
    """Whether a variable or header of this name holds a secret: *KEY*, *TOKEN*, *SECRET*, …, in any case."""
    upper = name.upper()
    return any(word in upper for word in _SECRET_WORDS)


def hide_secrets(text: str, secrets: Collection[str] = ()) -> str:
    """`text` with `***` for `secrets` (also URL-quoted), Authorization values and keys of the form `sk-…`."""
    for secret in sorted(_spellings(secrets), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return _MADE_KEY.sub(HIDDEN, _HEADER.sub(lambda match: match.group(1) + HIDDEN, text))


def hide_command(argv: Sequence[str], secrets: Collection[str] = ()) -> str:
    """`argv` as a shell would take it, less its secrets.

    Hidden are `secrets`, what follows a flag such as `--api-key` or `--token`, and the value of `NAME=value` where
    the name is a secret's.
    """
    values = {*secrets, *argument_secrets(argv)}
    return shlex.join(_hide_argument(before, argument, values) for before, argument in _pairs(argv))


def argument_secrets(argv: Sequence[str]) -> frozenset[str]:
    """The secrets that `argv` itself shows: values of secret flags and of secret assignments, headers.

    Numbers, switches and values under 4 characters aren't secrets: `MAX_TOKENS=512` is no reason to blot out every
    512 of a log.
    """
    values = (value for before, argument in _pairs(argv) for value in _shown(before, argument))
    return frozenset(value for value in values if _worth_hiding(value, _SHORTEST_ARGUMENT))


def environment_secrets(env: Mapping[str, str], *, shortest: int = 1) -> frozenset[str]:
    """Values of at least `shortest` characters of the variables with a secret's name, less numbers and switches."""
    return frozenset(value for name, value in env.items() if is_secret_name(name) and _worth_hiding(value, shortest))


def _worth_hiding(value: str, shortest: int) -> bool:
    return len(value) >= shortest and not _PLAIN.fullmatch(value)


def _spellings(secrets: Collection[str]) -> set[str]:
    return {spelling for secret in secrets if secret for spelling in (secret, quote(secret, safe=""))}


def _pairs(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    return zip(("", *argv), argv, strict=False)


def _shown(before: str, argument: str) -> Iterator[str]:
    if _SECRET_FLAG.fullmatch(before) and not argument.startswith("--"):
        yield argument
        return
    flag, equals, value = argument.partition("=")
    if equals and _SECRET_FLAG.fullmatch(flag):
        yield value
    elif (match := _ASSIGNMENT.fullmatch(argument)) and is_secret_name(match.group(1)):
        yield match.group(2)
    for match in _HEADER.finditer(argument):
        yield match.group(2)


def _hide_argument(before: str, argument: str, secrets: Collection[str]) -> str:
    shown = list(_shown(before, argument))
    for value in shown:
        argument = argument.replace(value, HIDDEN) if value else argument
    return hide_secrets(argument, secrets)
