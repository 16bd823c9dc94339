"""Checked access to parsed JSON: whatever is wrong is a `RecordError` with the file and the JSON path."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from pytest_llmbench.errors import RecordError

_HINT: Final = "restore the original file, or make the record again"
_PLAIN_KEY: Final = re.compile(r"[A-Za-z0-9_]+")
_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonNode:
    """A value, the file it came from and its JSON path (`models[3].decode[0].tok_s`; "" is the root)."""

    value: object
    file: Path
    path: str = ""

    def error(self, what: str, *, hint: str = _HINT) -> RecordError:
        """The error to raise: file, JSON path, `what`, and what to do."""
        where = f"{self.file}: {self.path}" if self.path else str(self.file)
        return RecordError(f"{where}: {what}; {hint}")

    def fail(self, what: str, *, hint: str = _HINT) -> NoReturn:
        """Raise `error`."""
        raise self.error(what, hint=hint)

    def __getitem__(self, key: str) -> JsonNode:
        """The member `key`; fails where it is missing or this is no object."""
        members = self.mapping()
        if key not in members:
            self.fail(f"missing key {key!r}")
        return self._child(key, members[key])

    def get(self, key: str) -> JsonNode | None:
        """The member `key`, or None where it is missing."""
        members = self.mapping()
        return self._child(key, members[key]) if key in members else None

    def items(self) -> Iterator[tuple[str, JsonNode]]:
        """Members of an object, in the file's order."""
        for key, value in self.mapping().items():
            yield key, self._child(key, value)

    def elements(self) -> list[JsonNode]:
        """Elements of an array that has at least one."""
        return self.array() or self.fail("is an empty array")

    def array(self) -> list[JsonNode]:
        """Elements of an array."""
        if not isinstance(self.value, list):
            self.wrong_type("an array")
        return [
            JsonNode(value=value, file=self.file, path=f"{self.path}[{index}]")
            for index, value in enumerate(self.value)
        ]

    def mapping(self) -> Mapping[str, object]:
        """An object as it is."""
        if not isinstance(self.value, dict):
            self.wrong_type("an object")
        return self.value

    def text(self) -> str:
        """A string with something in it."""
        if not isinstance(self.value, str):
            self.wrong_type("a string")
        if _SURROGATE.search(self.value):
            self.fail("holds half a surrogate pair, which isn't text")
        return self.value if self.value.strip() else self.fail("is an empty string")

    def flag(self) -> bool:
        """true or false."""
        if not isinstance(self.value, bool):
            self.wrong_type("true or false")
        return self.value

    def finite(self) -> float:
        """A number of either sign; whole numbers stay `int`."""
        if isinstance(self.value, bool) or not isinstance(self.value, (int, float)):
            self.wrong_type("a number")
        return self.value

    def number(self) -> float:
        """A number that is zero or more; whole numbers stay `int`."""
        value = self.finite()
        return value if value >= 0 else self.fail(f"is negative ({value!r})")

    def whole(self) -> int:
        """A whole number, 1 or more."""
        if isinstance(self.value, bool) or not isinstance(self.value, int):
            self.wrong_type("a whole number")
        return self.value if self.value >= 1 else self.fail(f"is {self.value}, must be 1 or more")

    @property
    def is_null(self) -> bool:
        """null stands here."""
        return self.value is None

    def _child(self, key: str, value: object) -> JsonNode:
        step = f".{key}" if _PLAIN_KEY.fullmatch(key) else f"[{json.dumps(key)}]"
        return JsonNode(value=value, file=self.file, path=(self.path + step).removeprefix("."))

    def wrong_type(self, expected: str) -> NoReturn:
        """Fail, because this isn't `expected`."""
        self.fail(f"expected {expected}, found {self._shown()}")

    def _shown(self) -> str:
        if isinstance(self.value, (dict, list)):
            return "an object" if isinstance(self.value, dict) else "an array"
        text = json.dumps(self.value)
        return text if len(text) <= 40 else f"{text[:40]}…"


def read_json(path: Path) -> JsonNode:
    """Parse a UTF-8 JSON file strictly: no NaN or Infinity, no number beyond a double, no key twice.

    Raises `RecordError` with the path.
    """
    try:
        text = path.read_text(encoding="utf-8")
        value = json.loads(
            text,
            parse_constant=_refuse_constant,
            parse_float=_finite_float,
            parse_int=_bounded_int,
            object_pairs_hook=_unique_keys,
        )
    except OSError as error:
        raise RecordError(f"{path}: can't be read ({error.strerror}); check the path") from error
    except RecursionError as error:
        raise RecordError(f"{path}: invalid JSON: nested too deeply; {_HINT}") from error
    except ValueError as error:
        raise RecordError(f"{path}: invalid JSON: {error}; {_HINT}") from error
    return JsonNode(value=value, file=path)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} isn't a JSON number")


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is beyond a double's range")
    return value


def _bounded_int(text: str) -> int:
    # The text is measured first: int() refuses very long ones with a message about interpreter settings.
    if len(text) > 300:
        raise ValueError(f"a whole number of {len(text)} digits is beyond a double's range")
    return int(text)


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(key for key in keys if keys.count(key) > 1)!r} stands twice in one object")
    return members
