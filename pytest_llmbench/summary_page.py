"""Runs and parity records as a page of Markdown for a pull request: the verdict first, under 60 kB."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pytest_llmbench import columns, markdown, units
from pytest_llmbench.compare import Comparison
from pytest_llmbench.compare_text import page as comparison_page
from pytest_llmbench.figures import Loaded, Source, Subject
from pytest_llmbench.markdown import quoted
from pytest_llmbench.parity_summary import summary_lines
from pytest_llmbench.verdict import Outcome, interval_text, ratio_text

STATES: Final = ("failed", "error", "passed", "skipped", "xfailed", "xpassed")
BAD: Final = ("failed", "error", "xpassed")
TITLE: Final = "LLM benchmarks"
LEAST_ROOM: Final = 400
MOST_SOURCES: Final = 20
RESULT_HEAD: Final = (
    "entry", "backend", "quant", "kv", "TTFT", "TTFT cached", "decode tok/s", "prefill tok/s", "tokens in/out",
    "memory",
)  # fmt: skip
AT_ONCE_HEAD: Final = ("entry", "backend", *columns.CONCURRENCY_HEAD)
VERDICT_HEAD: Final = ("test", "metric", "ratio", "90 % interval", "gate", "n", "verdict")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A table under a title, which may be cut short; cells are escaped already."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def page(loaded: Loaded, comparison: Comparison | None = None, *, room: int = markdown.MOST_BYTES) -> str:
    """The whole page; what doesn't fit into `room` bytes is counted instead of shown."""
    lines = _head(loaded)
    if comparison is not None:
        lines += comparison_page(comparison, title="Compared with the saved run", room=room // 3)
    sources = [f"<sub>{quoted(_where(source))}</sub>  " for source in loaded.sources[:MOST_SOURCES]]
    for part in _parts(loaded):
        left = room - markdown.size([*lines, *sources]) - LEAST_ROOM
        if part.rows and left > LEAST_ROOM:
            title = [f"### {part.title}", ""]
            lines += [*title, *markdown.table(part.head, part.rows, room=left - markdown.size(title))]
    return "\n".join([*lines, *sources]).rstrip() + "\n"


def outcomes(loaded: Loaded) -> Counter[str]:
    """How many tests of the runs, and points of the parity records, ended how."""
    found: Counter[str] = Counter()
    for _, run in loaded.runs:
        found.update(str(result.outcome) for result in run.results)
    found.update(subject.outcome for subject in _parity_points(loaded))
    return found


def state(loaded: Loaded) -> str:
    """`failed` or `error` where anything was, else `passed`; `nothing measured` where nothing was."""
    found = outcomes(loaded)
    if found["failed"] or found["xpassed"]:
        return "failed"
    if found["error"]:
        return "error"
    return "passed" if found["passed"] else "nothing measured"


def _parity_points(loaded: Loaded) -> list[Subject]:
    """Points of records that no run beside them tells of: those of a live run are its tests."""
    tested = {source.path.parent for source, _ in loaded.runs}
    records = {id(source) for source, _ in loaded.parities if source.path.parent not in tested}
    return [subject for subject in loaded.subjects if id(subject.source) in records]


def _head(loaded: Loaded) -> list[str]:
    counts = outcomes(loaded)
    said = ", ".join(f"{counts[name]} {name}" for name in STATES if counts[name])
    stopped = [
        f"- {quoted(str(source.path))} was stopped before its end" for source, run in loaded.runs if not run.complete
    ]
    return [f"## {TITLE}: {state(loaded)}", "", f"{said or 'no test'}.", "", *stopped, *([""] if stopped else [])]


def _parts(loaded: Loaded) -> Iterator[Part]:
    yield Part(title="Failed", head=("test", "outcome", "what it says"), rows=list(_bad(loaded)))
    yield Part(title="Inconclusive: decided by the ratio", head=VERDICT_HEAD, rows=list(_open(loaded.subjects)))
    for source, record in loaded.parities:
        sides = (f"{side.name} {side.version}" for side in (record.candidate, record.baseline))
        rows = [(quoted(line),) for line in summary_lines(record.summary())]
        title = f"Parity: {quoted(' against '.join(sides))}"
        yield Part(title=title, head=(f"{quoted(source.path.name)}, ratios of medians",), rows=rows)
    for prompt in dict.fromkeys(s.prompt for s in loaded.subjects if s.metrics and s.prompt):
        measured = [s for s in loaded.subjects if s.prompt == prompt and s.metrics]
        alone = [_row(s) for s in measured if "wall_s" not in s.metrics]
        yield Part(title=f"Prompt {quoted(prompt)}", head=RESULT_HEAD, rows=alone)
        together = [_concurrency_row(s) for s in measured if "wall_s" in s.metrics]
        yield Part(title=f"Several requests at once: {quoted(prompt)}", head=AT_ONCE_HEAD, rows=together)
    odd = [(markdown.code(s.name), quoted(odd)) for s in loaded.subjects for odd in s.suspicions]
    yield Part(title="⚠ Suspect figures", head=("entry", "why"), rows=odd)


def _bad(loaded: Loaded) -> Iterator[Sequence[str]]:
    results = [result for _, run in loaded.runs for result in run.results]
    for outcome in BAD:
        for result in results:
            if result.outcome == outcome:
                yield markdown.code(_short(result.nodeid)), outcome, quoted(_telling_line(result.reason or ""))
        for subject in _parity_points(loaded):
            if subject.outcome == outcome:
                yield markdown.code(subject.name), outcome, quoted(subject.reason.replace("\n", "; "))


def _open(subjects: Iterable[Subject]) -> Iterator[Sequence[str]]:
    for subject in subjects:
        for found in subject.verdicts:
            if found["outcome"] == Outcome.INCONCLUSIVE:
                yield markdown.code(subject.name), *map(quoted, _verdict_cells(found))


def _verdict_cells(found: Mapping[str, Any]) -> tuple[str, ...]:
    ratio, gate = found["ratio"], found["gate"]
    bounds = interval_text(found["interval"], gate)
    word = "passed" if ratio >= gate else "failed"
    return (found["metric"], ratio_text(ratio, gate), bounds, f"{gate:.4g}", str(found["n"]), word)


def _row(subject: Subject) -> tuple[str, ...]:
    value, facts = _values(subject), subject.facts
    return (
        *_who(subject),
        quoted(facts["quant"] or units.MISSING),
        quoted(facts["kv_cache"]),
        units.seconds(value("ttft_s")),
        units.seconds(value("ttft_cached_s")),
        units.rate(value("decode_tok_s")),
        units.rate(value("prefill_tok_s")),
        columns.tokens(value),
        columns.memory(value),
    )


def _concurrency_row(subject: Subject) -> tuple[str, ...]:
    return (*_who(subject), *columns.concurrency_cells(_values(subject)))


def _who(subject: Subject) -> tuple[str, str]:
    return markdown.code(subject.id) + (" ⚠" if subject.suspicions else ""), quoted(subject.facts["backend"])


def _values(subject: Subject) -> columns.Value:
    return lambda name: None if (found := subject.metrics.get(name)) is None else found.value


def _where(source: Source) -> str:
    facts = (source.path.name, source.created, source.chip, source.fingerprint, source.commit[:12])
    return ", ".join(fact for fact in facts if fact)


def _short(nodeid: str) -> str:
    return nodeid.partition("::")[2] or nodeid


def _telling_line(text: str) -> str:
    """Of a traceback pytest's own line that says what happened, else the first."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = [line[1:].strip() for line in lines if line.startswith("E ")]
    return (said or lines or [""])[0]
