"""Values of options that another module knows; it is imported when the option is used."""

from __future__ import annotations

from pytest_llmbench.errors import UsageError


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
