"""`-k` and `-m` choose exactly the entries that they name, out of the 289 and out of a saved record."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from lab import ROOT

from pytest_llmbench.collect import entry_of
from pytest_llmbench.matrix import slug

Select = Callable[..., list[pytest.Item]]
APPLE = str(ROOT / "matrix" / "apple_silicon")
RECORDS = str(ROOT / "matrix" / "records")


@pytest.fixture(scope="module")
def tests() -> list[dict[str, Any]]:
    """The 289 entries as the predecessor had them."""
    text = (ROOT / "tests" / "data" / "apple_silicon_matrix.json").read_text(encoding="utf-8")
    found: list[dict[str, Any]] = json.loads(text)["tests"]
    return found


def ids(items: list[pytest.Item]) -> set[str]:
    return {entry.id for item in items if (entry := entry_of(item)) is not None}


def keywords(test: dict[str, Any]) -> list[str]:
    pairs = [
        f"backend:{test['backend']}",
        f"quant:{test.get('quant', '')}",
        f"kv:{test.get('kv_cache', 'default')}",
        f"group:{slug(test.get('group', ''))}",
    ]
    return [test["id"], test["model_id"], *pairs]


def named(tests: list[dict[str, Any]], text: str) -> set[str]:
    """Ids of the entries with a keyword that holds `text`, upper or lower case, as `-k` matches."""
    return {test["id"] for test in tests if any(text.lower() in word.lower() for word in keywords(test))}


def test_all_289_entries_are_collected_with_each_of_their_prompts(
    selected: Select, tests: list[dict[str, Any]]
) -> None:
    items = selected(APPLE)
    assert ids(items) == {test["id"] for test in tests}
    default = ["short", "long", "code"]
    expected = {f"{test['id']}-{prompt}" for test in tests for prompt in test.get("prompts") or default}
    assert {item.name.partition("[")[2].removesuffix("]") for item in items} == expected
    assert len(items) == len(expected)


@pytest.mark.parametrize(
    "text",
    [
        "mlx-community/Qwen3.6-27B-4bit",
        "backend:ollama",
        "quant:4bit",
        "kv:kv4",
        "group:A-Qwen3-5-35B-A3B-MoE",
        "A_Q4_1",
    ],
)
def test_k_selects_every_entry_with_that_keyword_and_no_other(
    selected: Select, tests: list[dict[str, Any]], text: str
) -> None:
    found = ids(selected(APPLE, "-k", text))
    assert found == named(tests, text)
    assert 0 < len(found) < 289


def test_k_combines_keywords(selected: Select, tests: list[dict[str, Any]]) -> None:
    found = ids(selected(APPLE, "-k", "backend:ollama and not quant:4bit"))
    assert found == named(tests, "backend:ollama") - named(tests, "quant:4bit")


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("id", "id", "A_Q4_1"),
        ("backend", "backend", "ollama"),
        ("model_id", "model_id", "mlx-community/Qwen3.6-27B-4bit"),
        ("quant", "quant", "4bit"),
        ("kv", "kv_cache", "kv4"),
        ("group", "group", "A — Qwen3.5-35B-A3B (MoE)"),
    ],
)
def test_m_selects_by_the_exact_value(
    selected: Select, tests: list[dict[str, Any]], name: str, field: str, value: str
) -> None:
    found = ids(selected(APPLE, "-m", f'llmbench({name}="{value}")'))
    assert found == {test["id"] for test in tests if test.get(field) == value}
    assert found


def test_m_selects_a_prompt(selected: Select) -> None:
    items = selected(APPLE, "-m", 'llmbench(prompt="context-32k")')
    assert items
    assert all(item.name.endswith("-context-32k]") for item in items)


def test_a_section_of_a_record_is_selected_by_k_and_by_m(selected: Select) -> None:
    by_keyword = [item.nodeid for item in selected(RECORDS, "-k", "section:decode")]
    by_marker = [item.nodeid for item in selected(RECORDS, "-m", 'llmbench(section="decode")')]
    assert by_keyword == by_marker
    assert len(by_keyword) == 36
    assert all("-decode-r" in nodeid for nodeid in by_keyword)


def test_a_model_of_a_record_is_selected_by_its_full_id(selected: Select) -> None:
    items = selected(RECORDS, "-k", "mlx-community/Qwen3-0.6B-4bit")
    assert items
    assert all("test_parity[Qwen3-0.6B-4bit-" in item.nodeid for item in items)
