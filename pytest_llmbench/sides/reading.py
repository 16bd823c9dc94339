"""Strict reading of a JSON line's values: each function gives the value, or raises `Malformed` with what is wrong."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, NoReturn, TypeVar

MOST_SHOWN = 120
_LARGEST_WHOLE = 2**63 - 1
_LARGEST_ID = 2**31 - 1

T = TypeVar("T")


class Malformed(ValueError):
    """A line isn't what the protocol says."""


def load(line: bytes) -> object:
    """The line's JSON value. No NaN, no infinity, no key twice, nothing but UTF-8."""
    try:
        return json.loads(
            line.decode("utf-8"), parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_unique
        )
    except Malformed:
        raise
    except (ValueError, RecursionError) as error:
        raise Malformed("not a line of JSON") from error


def shown(line: bytes) -> str:
    """The line's first characters, for a message."""
    return repr(one_line(line[: 4 * MOST_SHOWN].decode("utf-8", "replace"), MOST_SHOWN))


def one_line(text: str, most: int = 300) -> str:
    """`text` without line breaks, control characters and half surrogates, cut to `most` characters."""
    clean = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * most]).split())
    return clean if len(clean) <= most else clean[: most - 1] + "…"


def mapping(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        _wrong(where, "an object")
    return value


def members(value: object, where: str, required: Collection[str], optional: Collection[str] = ()) -> Mapping[str, Any]:
    """An object with all `required` keys, and no others but `optional`."""
    found = mapping(value, where)
    if missing := [name for name in required if name not in found]:
        raise Malformed(f"{where} lacks {', '.join(missing)}")
    if unknown := [name for name in found if name not in required and name not in optional]:
        raise Malformed(f"{where} has unknown keys: {one_line(', '.join(unknown), MOST_SHOWN)}")
    return found


def array(value: object, where: str) -> list[Any]:
    if not isinstance(value, list):
        _wrong(where, "an array")
    return value


def text(value: object, where: str) -> str:
    """A string that can be written as UTF-8."""
    if not isinstance(value, str) or not _encodable(value):
        _wrong(where, "text")
    return value


def label(value: object, where: str) -> str:
    """One line of MOST_SHOWN printable characters at most, not blank: it stands in records, tables and messages."""
    found = text(value, where)
    if not found.strip() or not found.isprintable() or len(found) > MOST_SHOWN:
        _wrong(where, f"one line of 1 to {MOST_SHOWN} printable characters")
    return found


def whole(value: object, where: str) -> int:
    """0 … 2⁶³ − 1."""
    if type(value) is not int or not 0 <= value <= _LARGEST_WHOLE:
        _wrong(where, "a whole number from 0 to 2^63 - 1")
    return value


def count(value: object, where: str) -> int:
    """A whole number, 1 or more."""
    return whole(value, where) or _wrong(where, "1 or more")


def wholes(value: object, where: str) -> tuple[int, ...]:
    return tuple(whole(one, where) for one in array(value, where))


def ids(value: object, where: str) -> tuple[int, ...]:
    """Token ids: 0 … 2³¹ − 1."""
    found = array(value, where)
    if not all(type(one) is int and 0 <= one <= _LARGEST_ID for one in found):
        _wrong(where, "token ids")
    return tuple(found)


def prompt(value: object, where: str) -> tuple[int, ...]:
    """Token ids, at least one."""
    return ids(value, where) or _wrong(where, "token ids, at least one")


def logit(value: object, where: str) -> tuple[int, float]:
    """A token id and a finite number."""
    pair = array(value, where)
    if len(pair) != 2 or type(pair[1]) not in (int, float):
        _wrong(where, "pairs of a token id and a number")
    try:
        return ids(pair[:1], where)[0], float(pair[1])
    except OverflowError as error:
        raise Malformed(f"{where} holds a number beyond a double's range") from error


def facts(value: object, where: str) -> dict[str, str | int | float | bool | None]:
    """An object of texts, numbers, true, false and null."""
    found = mapping(value, where)
    for name, fact in found.items():
        text(name, f"a name in {where}")
        if isinstance(fact, str):
            text(fact, where)
        elif fact is not None and not isinstance(fact, (bool, int, float)):
            _wrong(f"{where}: {one_line(name, MOST_SHOWN)}", "text, a number, true, false or null")
    return dict(found)


def optional(read: Callable[[object, str], T], value: object, where: str) -> T | None:
    """None for null, else what `read` makes of it."""
    return None if value is None else read(value, where)


def _wrong(where: str, wanted: str) -> NoReturn:
    raise Malformed(f"{where} isn't {wanted}")


def _encodable(value: str) -> bool:
    return not any("\ud800" <= c <= "\udfff" for c in value)


def _refuse_constant(name: str) -> NoReturn:
    raise Malformed(f"{name} isn't a JSON number")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise Malformed("a number beyond a double's range")
    return value


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Malformed("a key stands twice in one object")
    return found
