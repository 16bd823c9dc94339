"""A comparison in words: lines for a terminal, a page of Markdown for a pull request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from pytest_llmbench import markdown, units
from pytest_llmbench.compare import Change, Comparison
from pytest_llmbench.markdown import quoted
from pytest_llmbench.verdict import Outcome, interval_text, ratio_text

MOST_NAMED: Final = 10
HEAD: Final = ("entry", "metric", "before", "now", "change", "ratio", "90 % interval", "limit", "n", "verdict")


def headline(found: Comparison) -> str:
    """The verdict in one line."""
    parts = [
        f"{len(found.regressions)} regression{'' if len(found.regressions) == 1 else 's'}",
        *([f"{len(found.lost)} that can't be measured any more"] if found.lost else []),
        f"{len(found.improvements)} improved",
        *([f"{found.inconclusive} inconclusive"] if found.inconclusive else []),
        f"{len(found.changes)} figures of {found.compared} entries compared",
    ]
    return ", ".join(parts)


def lines(found: Comparison, *, every: bool = False) -> list[str]:
    """The verdict, then what differs; with `every` each compared figure."""
    rows = [cells(change) for change in shown(found, every=every)]
    return [
        headline(found),
        *(["", *_columns([HEAD, *rows])] if rows else []),
        *(f"lost: {s.name}: {_first_line(s.reason) or s.outcome}" for s in found.lost),
        *warnings(found),
    ]


def warnings(found: Comparison) -> list[str]:
    """What is missing on a side, and what makes the two incomparable."""
    return [
        *(f"not the same machine: {line}" for line in found.environment),
        *_named("only in the old run", found.gone),
        *_named("only in the new run", found.added),
        *_named("mind", found.notes),
    ]


def shown(found: Comparison, *, every: bool) -> Sequence[Change]:
    """Regressions, then improvements; or everything in the record's order."""
    return found.changes if every else [*found.regressions, *found.improvements]


def page(found: Comparison, *, title: str = "Comparison", room: int = markdown.MOST_BYTES) -> list[str]:
    """The same as Markdown lines, in fewer than `room` bytes; what doesn't fit is counted."""
    state = "failed" if found.faulty else "passed"
    head = [f"## {title}: {state}", "", f"{markdown.escape(headline(found))}.", ""]
    lost = [f"- lost: {markdown.code(s.name)}: {quoted(_first_line(s.reason) or s.outcome)}" for s in found.lost]
    notes = [f"- {quoted(line)}" for line in warnings(found)]
    kept = _fit([*lost, *notes], room // 3)
    rows = [_escaped_cells(cells(change)) for change in shown(found, every=False)]
    used = markdown.size([*head, *kept]) + 100
    table = markdown.table(HEAD, rows, room=room - used) if rows else []
    return [*head, *table, *kept, *([""] if kept else [])]


def cells(change: Change) -> tuple[str, ...]:
    """One row of the table."""
    v = change.verdict
    assert v.ratio is not None
    return (
        change.new.name,
        v.metric,
        units.metric(v.metric, v.reference),
        units.metric(v.metric, v.value),
        f"{change.share:+.1%}",
        ratio_text(v.ratio, v.gate),
        interval_text(v.interval, v.gate),
        f"{change.limit.share * 100:g}%",
        str(v.n),
        _word(change),
    )


def _word(change: Change) -> str:
    word = "worse" if change.regressed else "better" if change.improved else "same"
    odd = ", suspect" if change.new.suspicions or change.old.suspicions else ""
    return word + (", inconclusive" if change.verdict.outcome is Outcome.INCONCLUSIVE else "") + odd


def _named(what: str, names: Sequence[str]) -> list[str]:
    more = [f"{what}: … and {len(names) - MOST_NAMED} more"] if len(names) > MOST_NAMED else []
    return [*(f"{what}: {name}" for name in names[:MOST_NAMED]), *more]


def _fit(items: Iterable[str], room: int) -> list[str]:
    kept: list[str] = []
    for item in items:
        if markdown.size([*kept, item]) > room:
            return [*kept, "- …"]
        kept.append(item)
    return kept


def _escaped_cells(row: Sequence[str]) -> list[str]:
    return [markdown.code(row[0]), *map(quoted, row[1:])]


def _first_line(text: str) -> str:
    return markdown.one_line(text.strip().partition("\n")[0], markdown.MOST_CHARACTERS)


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
