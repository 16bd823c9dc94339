from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.errors import RecordError
from pytest_llmbench.json_node import JsonNode, read_json

FILE = Path("record.json")


def node(value: Any) -> JsonNode:
    return JsonNode(value=value, file=FILE)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "invalid JSON"),
        ("{", "invalid JSON"),
        ('{"a": NaN}', "NaN isn't a JSON number"),
        ('{"a": -Infinity}', "-Infinity isn't a JSON number"),
        ('{"a": 1e999}', "1e999 is beyond a double's range"),
        ('{"a": 1' + "0" * 400 + "}", "a whole number of 401 digits"),
        ('{"a": 1, "a": 2}', "key 'a' stands twice"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_text_that_is_no_strict_json_is_refused_with_its_file(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(RecordError) as caught:
        read_json(file)
    assert str(caught.value).startswith(str(file))
    assert said in str(caught.value)


def test_bytes_that_are_no_utf8_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    file.write_bytes(b'{"schema": "\xff"}')
    with pytest.raises(RecordError, match="invalid JSON"):
        read_json(file)


def test_a_file_that_is_not_there_is_refused_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"none\.json: can't be read"):
        read_json(tmp_path / "none.json")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(10**200), 10**200) | st.floats(allow_nan=False, allow_infinity=False),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
        max_leaves=20,
    )
)
def test_strict_json_reads_as_the_standard_library_reads_it(
    tmp_path_factory: pytest.TempPathFactory, value: Any
) -> None:
    file = tmp_path_factory.getbasetemp() / "any.json"
    file.write_text(json.dumps(value), encoding="utf-8")
    assert read_json(file).value == value


def test_a_path_names_keys_and_indices_down_to_the_fault() -> None:
    root = node({"models": [{"a b": {"x": "no number"}}]})
    with pytest.raises(RecordError) as caught:
        root["models"].array()[0]["a b"]["x"].number()
    assert str(caught.value).startswith('record.json: models[0]["a b"].x: expected a number, found "no number"; ')


@pytest.mark.parametrize("bad", [None, "1", [], {}, True, -1, -0.5])
def test_a_number_is_zero_or_more_and_no_boolean(bad: Any) -> None:
    with pytest.raises(RecordError):
        node(bad).number()


@pytest.mark.parametrize("bad", [None, "1", 1.0, True, 0, -1])
def test_a_whole_number_is_an_integer_from_one(bad: Any) -> None:
    with pytest.raises(RecordError):
        node(bad).whole()


@pytest.mark.parametrize("bad", [None, 1, "", "  ", "\ud800"])
def test_text_is_a_string_with_something_in_it(bad: Any) -> None:
    with pytest.raises(RecordError):
        node(bad).text()


@pytest.mark.parametrize("bad", [None, 0, 1, "true"])
def test_a_flag_is_true_or_false(bad: Any) -> None:
    with pytest.raises(RecordError):
        node(bad).flag()


def test_what_is_right_comes_back_unchanged() -> None:
    root = node({"n": 0, "w": 2**53 + 1, "t": " a ", "f": False, "z": None})
    assert (root["n"].number(), root["w"].whole(), root["t"].text(), root["f"].flag()) == (
        0,
        2**53 + 1,
        " a ",
        False,
    )
    assert root["z"].is_null
    assert root.get("missing") is None


def test_long_values_are_cut_in_messages() -> None:
    with pytest.raises(RecordError) as caught:
        node("x" * 1000).number()
    assert len(str(caught.value)) < 160
