"""What is said of a run: a page of Markdown, annotations and outputs for GitHub, or the page alone in a terminal."""

from __future__ import annotations

import html
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gate.results import Case, Outcome, Run
from pytest_llmbench.markdown import MOST_BYTES, MOST_CHARACTERS, escape, one_line, size, table

MOST_RECORD_BYTES = 20_000
MOST_HEADLINE = 2_000
MOST_ANNOTATIONS = 10
"""GitHub shows no more of a step's errors."""
TITLE = "Parity gate"
TABLE_HEAD = ("test", "outcome", "ratio", "90 % interval", "gate", "what it says")
Quote = Callable[[str, int], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What CI is told. `errors` are the annotations, `notes` lines below the headline."""

    outcome: Outcome
    headline: str
    notes: tuple[str, ...] = ()
    run: Run | None = None
    errors: tuple[str, ...] = ()
    junit: Path | None = None
    record: Path | None = None


def page(verdict: Verdict, quote: Quote = escape) -> str:
    """The page, the verdict first; fewer than `MOST_BYTES` bytes of UTF-8. `quote` makes text fit to stand in it."""
    head = [f"## {TITLE}: {verdict.outcome}", "", quote(verdict.headline, MOST_HEADLINE), ""]
    head += [*(f"- {quote(note, MOST_CHARACTERS)}" for note in verdict.notes), *([""] if verdict.notes else [])]
    run = verdict.run
    record = _record(run.record, quote is escape) if run is not None and run.record else []
    used = size([*head, *record])
    bad = _table(run.bad, quote, MOST_BYTES - used - 200) if run is not None and run.bad else []
    return "\n".join([*head, *bad, *record]).rstrip() + "\n"


def _table(cases: Iterable[Case], quote: Quote, room: int) -> list[str]:
    rows = [[quote(cell, MOST_CHARACTERS) for cell in _cells(case)] for case in cases]
    return table(TABLE_HEAD, rows, room=room, where=": they are in junit's file")


def _cells(case: Case) -> tuple[str, ...]:
    outcome = f"{case.state}, inconclusive" if case.inconclusive else case.state
    return (case.name, outcome, case.ratio or "—", case.interval or "—", case.gate or "—", case.message)


def _record(lines: Iterable[str], as_html: bool) -> list[str]:
    """The record's summary, as it was printed; without its end where it is too long."""
    kept: list[str] = []
    for line in lines:
        text = one_line(line, MOST_CHARACTERS)
        kept.append(html.escape(text, quote=False) if as_html else text)
        if size(kept) > MOST_RECORD_BYTES:
            kept[-1] = "…"
            break
    body = "\n".join(kept)
    return ["From the record (ratios of medians):", "", f"<pre>{body}</pre>" if as_html else body]


def annotation(kind: str, message: str) -> str:
    """A workflow command (`error`, `warning`, `notice`) that shows `message` whatever is in it."""
    for character, code in (("%", "%25"), ("\r", "%0D"), ("\n", "%0A")):
        message = message.replace(character, code)
    return f"::{kind} title={TITLE}::{message}"


def publish(verdict: Verdict, environ: Mapping[str, str]) -> None:
    """Put the verdict where GitHub looks for it; without such a place the page goes to the terminal."""
    append_to(environ.get("GITHUB_STEP_SUMMARY"), page(verdict))
    append_to(environ.get("GITHUB_OUTPUT"), _outputs(verdict))
    on_github = environ.get("GITHUB_ACTIONS") == "true"
    headline = one_line(f"{TITLE}: {verdict.outcome}: {verdict.headline}")
    text = f"{headline}\n" if environ.get("GITHUB_STEP_SUMMARY") else page(verdict, one_line)
    sys.stdout.write("".join(f"{line}\n" for line in (_annotations(verdict) if on_github else ())) + text)
    sys.stdout.flush()


def _annotations(verdict: Verdict) -> list[str]:
    if verdict.outcome == "skipped":
        return [annotation("notice", verdict.headline)]
    return [annotation("error", error) for error in verdict.errors[:MOST_ANNOTATIONS]]


def _outputs(verdict: Verdict) -> str:
    paths = {"junit": verdict.junit, "record": verdict.record}
    values = {"outcome": verdict.outcome, **{name: str(path) if path else "" for name, path in paths.items()}}
    return "".join(f"{name}={value}\n" for name, value in values.items())


def append_to(path: str | None, text: str) -> None:
    """Add to one of the files that GitHub names; nothing without a name. Where that fails the verdict stays."""
    if not path:
        return
    try:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        sys.stderr.write(f"{path}: can't be written ({error.strerror})\n")
