"""The Markdown pages, read by a Markdown parser: whatever others wrote is text, and no table loses its columns."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from record_kit import measured, result, run

from pytest_llmbench import compare_text
from pytest_llmbench.compare import compare, parse_limits
from pytest_llmbench.figures import Loaded, run_source, run_subjects
from pytest_llmbench.record import Result
from pytest_llmbench.summary_page import page

SPEED = {"decode_tok_s": [40.0, 41.0, 42.0]}
SLOW = {"decode_tok_s": [20.0, 21.0, 22.0]}
OURS = {"sub", "code"}
"""The tags that our own pages have."""

HOSTILE = (
    "</script><script>x</script>",
    "<img src=x>",
    "a | b",
    "`x`",
    "# head\n\n- item",
    "[a](http://x)",
    "&lt;",
    "**b**",
    "@me",
)
TEXTS = st.text(max_size=40) | st.lists(st.sampled_from(HOSTILE) | st.text(max_size=5), max_size=4).map("".join)
reader = MarkdownIt("commonmark", {"html": True}).enable("table")


def loaded(*results: Result) -> Loaded:
    found = run(*results)
    source = run_source(Path("run.json"), found)
    return Loaded(runs=((source, found),), subjects=tuple(run_subjects(found, source)))


def spoken(text: str, metrics: dict[str, list[float]]) -> Loaded:
    """A run in which everything that a YAML file, a server or a model can say is this text."""
    facts = dict.fromkeys(("model_id", "model", "backend", "fmt", "quant", "kv_cache"), text)
    entry = {**(result("a", metrics).entry or {}), "id": text or "a", **facts}
    odd = measured(metrics, suspicions=[text])
    return loaded(
        result("a", metrics, entry=entry, measurement=odd, prompt=text or "short"),
        result("b", None, reason=text, nodeid=f"m.yaml::test_tools[{text}]"),
    )


def structure(text: str) -> list[tuple[str, int]]:
    """What a reader sees besides words: blocks with their depth, links, pictures, emphasis; tags that aren't ours."""
    tokens = reader.parse(text)
    parts = [*tokens, *itertools.chain.from_iterable(token.children or () for token in tokens)]
    words = ("text", "softbreak", "inline", "code_inline", "text_special")
    seen = [part for part in parts if part.type not in words and part.content.strip("</>") not in OURS]
    return [(part.content if part.type.startswith("html") else part.type, part.level) for part in seen]


@given(TEXTS)
@hypothesis_settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_pages_structure_is_the_same_whatever_its_texts_say(text: str) -> None:
    assert structure(page(spoken(text, SPEED))) == structure(page(spoken("word", SPEED)))


@given(TEXTS)
@hypothesis_settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_so_is_a_comparisons(text: str) -> None:
    def compared(word: str) -> str:
        found = compare(spoken(word, SPEED), spoken(word, SLOW), parse_limits("decode_tok_s:5%"))
        return "\n".join(compare_text.page(found))

    assert structure(compared(text)) == structure(compared("word"))


@pytest.mark.parametrize("text", ["<b>", "![x](y)", "[x](y)", "**x**", "x\n\n# y", "x |\n| y"])
def test_a_text_that_was_not_escaped_would_be_seen(text: str) -> None:
    def cell(word: str) -> str:
        return f"| a |\n| --- |\n| {word} |\n"

    assert structure(cell(text)) != structure(cell("word"))
