"""Numbers as people read them."""

from __future__ import annotations

import pytest

from pytest_llmbench import units


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0 ms"),
        (0.0123, "12.3 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.00 s"),
        (1, "1.00 s"),
        (3.2, "3.20 s"),
        (75, "75.0 s"),
    ],
)
def test_seconds(value: float | None, text: str) -> None:
    assert units.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "–"), (0, "0.00"), (5.678, "5.68"), (56.78, "56.8"), (1234.5, "1,234")]
)
def test_rates(value: float | None, text: str) -> None:
    assert units.rate(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "–"), (0, "0 B"), (1024, "1 KiB"), (335380488, "320 MiB"), (3 * 2**30, "3.00 GiB")]
)
def test_bytes(value: float | None, text: str) -> None:
    assert units.memory(value) == text


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("ttft_s", 0.5, "500 ms"),
        ("decode_tok_s", 0.5, "0.50 tok/s"),
        ("peak_memory_bytes", 2048, "2 KiB"),
        ("speed_ratio", 0.97958, "0.9796"),
        ("prompt_tokens", 4096, "4,096"),
        ("n", 3, "3"),
        ("ttft_s", None, "–"),
    ],
)
def test_a_metrics_name_says_its_unit(name: str, value: float | None, text: str) -> None:
    assert units.metric(name, value) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[1;31mred\x1b[0m \x1b[2K", "red "),
        ("a\tb\nmödel 模型", "a\tb\nmödel 模型"),
        ("bell\x07 back\x08 \x1b]0;title \x9b", r"bell\x07 back\x08 \x1b]0;title \x9b"),
        ("\u202eleft \ud800", r"\u202eleft \ud800"),
    ],
)
def test_a_programs_text_does_nothing_to_a_terminal(text: str, shown: str) -> None:
    assert units.plain(text) == shown
