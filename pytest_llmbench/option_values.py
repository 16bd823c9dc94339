"""Values of options that another module knows; it is imported when the option is used."""

from __future__ import annotations

from pytest_llmbench.errors import UsageError
from pytest_llmbench.matrix import MOST_STREAMS


def levels(text: str) -> tuple[int, ...]:
    """`1,4,8` as numbers of requests at once, each of them once. ValueError says what is wrong."""
    found = tuple(dict.fromkeys(int(part) for part in text.split(",") if part.strip()))
    if not found:
        raise ValueError("is empty; give numbers separated by commas")
    for level in found:
        if not 1 <= level <= MOST_STREAMS:
            raise ValueError(f"must be at least 1 and at most {MOST_STREAMS}, not {level}")
    return found


def limits(text: str) -> tuple[str, ...]:
    """`decode_tok_s:5%,ttft_s:10%` as its parts. ValueError says what is wrong."""
    from pytest_llmbench.compare import parse_limits

    try:
        return tuple(f"{limit.metric}:{limit.share * 100:.10g}%" for limit in parse_limits(text))
    except UsageError as error:
        raise ValueError(str(error)) from error


def report_kinds(text: str) -> tuple[str, ...]:
    """`md,csv` as its parts. ValueError for a report that nobody knows."""
    from pytest_llmbench.report_files import require_kind

    names = dict.fromkeys(part.strip() for part in text.split(",") if part.strip())
    try:
        return tuple(require_kind(name) for name in names)
    except UsageError as error:
        raise ValueError(str(error)) from error
