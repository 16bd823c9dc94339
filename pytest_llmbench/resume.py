"""`--llmbench-resume`: what an earlier part of the run has done already, and what of it still holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_llmbench import collect
from pytest_llmbench.errors import Unavailable, UsageError
from pytest_llmbench.session import Bench

if TYPE_CHECKING:
    from pytest_llmbench.parity_checkpoint import FileFacts
    from pytest_llmbench.parity_planned import PlannedSection
    from pytest_llmbench.record import Result

RESUMED = "already done in the resumed run: "
MEASURED_WITH = (
    "runs", "warmup", "max_tokens", "prompts", "concurrency", "think", "gate", "tier", "verdict", "compare",
    "compare_fail",
)  # fmt: skip
"""Options that two parts of one run have to share."""


class ResumedFailure(pytest.fail.Exception):  # type: ignore[name-defined,misc]
    """A test that failed in an earlier part of a resumed run fails again, without being measured again."""

    __module__ = "builtins"  # as pytest's own: summaries show the bare name


def read_resumed(bench: Bench) -> None:
    """Fill `bench.resumed` and `bench.resumed_sections` from the folder's journal."""
    folder = bench.options.resume
    if folder is None:
        return
    from pytest_llmbench import journal

    found = journal.read(folder / journal.NAME)
    _require_sections(found.run.results, folder / journal.NAME)
    _require_same_options(found.run.options, bench, folder)
    bench.resumed = {r.nodeid: r for r in found.run.results if _is_done(r)}
    by_time = sorted(found.run.results, key=lambda r: r.finished_at)
    bench.resumed_sections = {_section_key(r.parity): r.parity for r in by_time if r.parity is not None}
    bench.options = replace(bench.options, out=bench.options.out or folder)
    # No Python warning: where those are errors, a run that crashed couldn't be continued.
    bench.warnings += [found.warning] if found.warning else []


def resume(bench: Bench, items: list[pytest.Item]) -> None:
    """Skip what the journal holds as done; let fail again, unmeasured, what it holds as failed.

    UsageError where the journal holds none of the tests: then the run was started from another place.
    """
    known = {nodeid.partition("::")[0] for nodeid in bench.resumed}
    if known and items and not any(item.nodeid.partition("::")[0] in known for item in items):
        raise UsageError(
            f"--llmbench-resume {bench.options.resume}: none of these tests is in its journal, which knows "
            f"{next(iter(bench.resumed))}; start pytest from the same folder, and write --llmbench-resume=DIR"
        )
    again = _sections_to_measure(bench, items)
    _expect_sides(bench, again)
    for item in items:
        earlier = bench.resumed.get(item.nodeid)
        if earlier is None:
            continue
        if collect.section_of(item) in again or _entry_changed(bench, item, earlier):
            del bench.resumed[item.nodeid]
        elif earlier.outcome != "failed":
            reason = earlier.outcome if earlier.outcome == "passed" else earlier.reason
            item.add_marker(pytest.mark.skip(reason=f"{RESUMED}{reason}"))


def fail_again(bench: Bench, item: pytest.Item) -> None:
    """End a test that failed in the resumed run before its server is started."""
    earlier = bench.resumed.get(item.nodeid)
    if earlier is not None and earlier.outcome == "failed":
        raise ResumedFailure(f"{RESUMED}{earlier.reason}", pytrace=False)


def is_replay(reason: str | None) -> bool:
    """Whether a test's reason says that its outcome is only the resumed journal's, said again."""
    return RESUMED in (reason or "")


def options_json(bench: Bench) -> dict[str, Any]:
    """The options in force, as the head of journal and record has them."""
    return {
        name: [str(v) for v in value] if name in ("matrix", "records") else value
        for name, value in asdict(bench.options).items()
        if name != "said"
    }


def _is_done(result: Result) -> bool:
    """Passed, failed, or skipped for what a parity plan's section found: a point that couldn't be measured."""
    return result.outcome in ("passed", "failed") or (result.outcome == "skipped" and "section" in result.extra)


def _require_sections(results: Iterable[Result], path: Path) -> None:
    """RecordError where a section of a parity plan isn't what a run writes."""
    for result in results:
        if result.parity is not None:
            from pytest_llmbench.json_node import JsonNode
            from pytest_llmbench.parity_writer import require_facts

            require_facts(JsonNode(value=result.parity, file=path, path=f"parity of {result.nodeid}"))


def _section_key(facts: Mapping[str, Any]) -> tuple[str, str, str]:
    return facts["plan"], facts["model"]["id"], facts["section"]


def _sections_to_measure(bench: Bench, items: list[pytest.Item]) -> set[PlannedSection]:
    """Sections of parity plans of which a test is still to be done, or that are planned otherwise now.

    A section is measured as a whole, so all of its tests are done again.
    """
    again: set[PlannedSection] = set()
    if bench.options.resume is None:
        return again
    from pytest_llmbench.parity_writer import is_measured

    for item in items:
        section = collect.section_of(item)
        if section is None or section in again:
            continue
        facts = bench.resumed_sections.get((str(section.plan.path), section.model.id, section.section))
        now = _files_now(bench, section)
        if item.nodeid not in bench.resumed or facts is None or not is_measured(facts, section, now):
            again.add(section)
    return again


def _files_now(bench: Bench, section: PlannedSection) -> FileFacts | None:
    """None where the checkpoint isn't here any more: then nothing could be measured again."""
    try:
        return bench.plans.checkpoint(section.plan, section.model).files
    except Unavailable:
        return None


def _expect_sides(bench: Bench, again: set[PlannedSection]) -> None:
    """What is measured now must be the sides whose readings stay in the record."""
    replaced = {(str(section.plan.path), section.model.id, section.section) for section in again}
    for key, facts in bench.resumed_sections.items():
        if key not in replaced:
            bench.plans.same_sides(key[0]).expect(facts["sides"])


def _entry_changed(bench: Bench, item: pytest.Item, earlier: Result) -> bool:
    """Whether the matrix now says something else of the entry, or of how to measure it, than when it was measured."""
    from pytest_llmbench.record import entry_json, settings_json

    entry = collect.entry_of(item)
    if entry is None:
        return False
    then = (earlier.measurement or {}).get("settings")
    return entry_json(entry) != earlier.entry or (then is not None and then != settings_json(bench.settings(entry)))


def _require_same_options(earlier: Mapping[str, Any], bench: Bench, folder: Path) -> None:
    """UsageError where the journal was written with other options: its figures aren't what would be measured now."""
    import json

    now = json.loads(json.dumps(options_json(bench), default=str))
    other = [name for name in MEASURED_WITH if earlier.get(name) != now.get(name)]
    if other:
        was = ", ".join(f"{name} {'not given' if earlier.get(name) is None else earlier[name]}" for name in other)
        raise UsageError(f"--llmbench-resume {folder}: that run was made with {was}; give the same, or start anew")
