"""Measures one section of one model of a parity plan, both sides in processes of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_llmbench.errors import SideError
from pytest_llmbench.parity import ParityPoint, ParityResult
from pytest_llmbench.parity_checkpoint import Checkpoint
from pytest_llmbench.parity_pair import BOTH, Pair, Who
from pytest_llmbench.parity_planned import PlannedPoint, PlannedSection
from pytest_llmbench.parity_prompts import ParityPrompts
from pytest_llmbench.parity_readings import Ids, prompts_of, sampler
from pytest_llmbench.parity_rounds import PointRounds, Say
from pytest_llmbench.parity_same import SameSides
from pytest_llmbench.parity_tokens import TokenCheck, compare
from pytest_llmbench.sides.messages import MARGINS, Hello, Margins
from pytest_llmbench.sides.process import SideProcess
from pytest_llmbench.sides.spec import SideSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPoint:
    """A point's results, and what its tokens showed; `check` None where there are none, or no second output."""

    point: ParityPoint
    check: TokenCheck | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSection:
    """A section's points by name, and what each side said of itself (None: it never answered)."""

    planned: PlannedSection
    checkpoint: Checkpoint
    points: Mapping[str, MeasuredPoint]
    hellos: Mapping[Who, Hello | None]

    def result(self, point: str, metric: str) -> ParityResult:
        """One metric at a measured point."""
        return next(r for r in self.points[point].point.results if r.metric == metric)


class SectionRun:
    """The measuring of a section: `measure` gives its points."""

    def __init__(
        self,
        planned: PlannedSection,
        checkpoint: Checkpoint,
        specs: Mapping[Who, SideSpec],
        *,
        same: SameSides,
        log_dir: Path,
        say: Say,
    ) -> None:
        """`same`: of the record that the section goes into."""
        self._planned, self._checkpoint, self._specs, self._say = planned, checkpoint, specs, say
        self._same, self._log_dir = same, log_dir / planned.id
        self._hellos: dict[Who, Hello] = {}

    def measure(self, points: Sequence[PlannedPoint]) -> MeasuredSection:
        """Measure these points of the section. MeasurementError where no prompt can be made, or a side is another."""
        maker = ParityPrompts(self._checkpoint.path)
        prompts = {point: prompts_of(self._planned, point, maker) for point in points}
        rounds = {point: self._rounds(point, prompts[point]) for point in points}
        checks: dict[str, TokenCheck | None] = {}
        passes = self._planned.settings.passes
        for number in range(passes):
            with self._pair() as pair:
                for point, run in rounds.items():
                    run.run_pass(pair, last=number == passes - 1)
                    if number == passes - 1:
                        checks[point.point] = self._check(pair, point, run, prompts[point])
        measured = {p.point: self._measured(p, run, checks[p.point], prompts[p]) for p, run in rounds.items()}
        return MeasuredSection(
            planned=self._planned,
            checkpoint=self._checkpoint,
            points=measured,
            hellos={who: self._hellos.get(who) for who in BOTH},
        )

    def _rounds(self, point: PlannedPoint, prompts: tuple[Ids, ...]) -> PointRounds:
        results = [r for r in self._planned.results if r.at == point]
        return PointRounds(self._planned, results, sampler(self._planned, point, prompts), self._say)

    @contextmanager
    def _pair(self) -> Iterator[Pair]:
        pair = Pair(
            self._specs,
            self._checkpoint.path,
            log_dir=self._log_dir,
            timeout_s=self._planned.settings.timeout_s,
            same=self._same,
        )
        try:
            with pair:
                yield pair
        finally:
            self._hellos |= pair.hellos

    def _check(self, pair: Pair, point: PlannedPoint, run: PointRounds, prompts: tuple[Ids, ...]) -> TokenCheck | None:
        """What the tokens of the first round show: decode's against the baseline's, a batch's against solo ones."""
        mine, theirs = (next(iter(run.found.readings[who]), None) for who in BOTH)
        if mine is None or "candidate" in run.found.reasons:
            return None
        if point.section == "decode" and theirs is not None:
            return self._compare(pair, prompts[0], mine.tokens[0], theirs.tokens[0], BOTH, ("candidate", "baseline"))
        if point.section == "concurrency":
            return self._against_solo(pair, prompts, mine.tokens)
        return None

    def _against_solo(self, pair: Pair, prompts: Sequence[Ids], rows: Sequence[Ids]) -> TokenCheck | None:
        excused: TokenCheck | None = None
        for number, (prompt, row) in enumerate(zip(prompts, rows, strict=True)):
            self._say(f"{self._planned.id}: stream {number + 1} by itself")
            try:
                solo = pair.ask("candidate", _generating(prompt, len(row)))
            except SideError as error:
                return TokenCheck(equal=None, note=f"candidate: stream {number} by itself: {error.reason}")
            found = self._compare(pair, prompt, row, solo, ("candidate",), ("batched", "solo"))
            if not found.equal:
                found = replace(found, note=f"stream {number}: {found.note}")
            if not found.passed:
                return found
            excused = excused or (None if found.equal else found)
        return excused or TokenCheck(equal=True)

    def _compare(
        self, pair: Pair, prompt: Ids, found: Ids, wanted: Ids, asked: Sequence[Who], names: tuple[str, str]
    ) -> TokenCheck:
        def ask(who: Who) -> Callable[[int], Margins | None]:
            return lambda at: _margins(pair, who, (*prompt, *wanted[:at]))

        return compare(found, wanted, names=names, margins=[(who, ask(who)) for who in asked])

    def _measured(
        self, at: PlannedPoint, run: PointRounds, check: TokenCheck | None, prompts: tuple[Ids, ...]
    ) -> MeasuredPoint:
        results = run.results()
        point = ParityPoint(
            section=at.section,
            name=at.point,
            results=results,
            prompt_tokens=_prompt_tokens(at, run, prompts),
            total_tokens=None if at.streams is None else at.streams * self._planned.settings.concurrency.max_tokens,
            matches_solo=check.equal if check is not None and at.section == "concurrency" else None,
            same_tokens=check.equal if check is not None and at.section == "decode" else None,
            note="" if check is None else check.note,
            raw_memory=_raw(run) if at.section == "memory" else None,
        )
        return MeasuredPoint(point=point, check=check)


def _prompt_tokens(
    at: PlannedPoint, run: PointRounds, prompts: tuple[Ids, ...]
) -> tuple[int | None, int | None] | None:
    if at.section not in ("decode", "ttft"):
        return None
    one, other = (None if who in run.found.reasons else len(prompts[0]) for who in BOTH)
    return one, other


def _generating(prompt: Ids, tokens: int) -> Callable[[SideProcess], Ids]:
    return lambda side: side.generate(prompt, tokens).tokens


def _margins(pair: Pair, who: Who, prompt: Ids) -> Margins | None:
    """None where the side can't tell."""
    try:
        if MARGINS not in pair.loaded(who).hello.capabilities:
            return None
        return pair.ask(who, lambda side: side.margins(prompt))
    except SideError:
        return None


def _raw(run: PointRounds) -> dict[str, float] | None:
    readings = run.found.readings["candidate"]
    return dict(readings[-1].raw) if readings and "candidate" not in run.found.reasons else None
