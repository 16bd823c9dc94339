"""What one pytest process knows about its parity plans: what they come to, where the weights are, what is measured."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_llmbench.errors import Unavailable, UsageError
from pytest_llmbench.yaml_nodes import suggestion

if TYPE_CHECKING:
    from pytest_llmbench.parity_checkpoint import Checkpoint
    from pytest_llmbench.parity_live import MeasuredSection
    from pytest_llmbench.parity_pair import Who
    from pytest_llmbench.parity_plan import ParityPlan, ParityPlanModel, ParitySettings
    from pytest_llmbench.parity_planned import PlannedPoint, PlannedSection
    from pytest_llmbench.parity_same import SameSides
    from pytest_llmbench.session import Bench
    from pytest_llmbench.sides.spec import SideSpec


class Plans:
    """Made by `Bench.plans`."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._plans: dict[Path, tuple[PlannedSection, ...]] = {}
        self._checkpoints: dict[tuple[Path, str], Unavailable | Checkpoint] = {}
        self._same: dict[str, SameSides] = {}
        self.reported: set[PlannedSection] = set()

    @cached_property
    def sides(self) -> dict[str, SideSpec]:
        """Built-in sides of a parity run and those that the hook adds, by name."""
        from pytest_llmbench.sides.spec import builtin_sides

        sides = builtin_sides()
        self._bench.config.hook.pytest_llmbench_register_sides(sides=sides, config=self._bench.config)
        return sides

    def planned(self, path: Path) -> tuple[PlannedSection, ...]:
        """What the parity plan at `path` comes to with the options in force; read once.

        MatrixError with the line, UsageError for a side that nobody knows.
        """
        from pytest_llmbench import parity_plan_file
        from pytest_llmbench.parity_planned import planned_sections

        real = path.resolve()
        if real not in self._plans:
            plan = parity_plan_file.load(path)
            self._require_sides(plan)
            self._plans[real] = planned_sections(plan, self._settings(plan))
        return self._plans[real]

    def _settings(self, plan: ParityPlan) -> ParitySettings:
        """The tier's, with what was said on the command line, in the environment or the ini file in their place."""
        options = self._bench.options
        said = {name: getattr(options, name) for name in ("gate", "goal", "verdict") if name in options.said}
        settings = plan.settings.for_tier(options.tier)
        return settings.overridden(**said, runs=options.runs, max_tokens=options.max_tokens)

    def configured(self) -> tuple[PlannedSection, ...]:
        """Of every plan that is named, as a file: what tests outside plans run over. UsageError where none is."""
        named = {*self._bench.named_paths, *self._bench.matrix_roots}
        files = sorted(path for path in named if self._bench.is_plan_file(path))
        if not files:
            raise UsageError("no parity plan to run over: name a file with --llmbench-matrix or llmbench_matrix")
        return tuple(section for path in files for section in self.planned(path))

    def checkpoint(self, plan: ParityPlan, model: ParityPlanModel) -> Checkpoint:
        """The folder of a plan's model; Unavailable where it can't run on this machine. Looked up once."""
        from pytest_llmbench import parity_checkpoint

        key = (plan.path.resolve(), model.id)
        if key not in self._checkpoints:
            try:
                self._checkpoints[key] = parity_checkpoint.check(plan, model)
            except Unavailable as error:
                self._checkpoints[key] = error
        found = self._checkpoints[key]
        if isinstance(found, Unavailable):
            raise found
        return found

    def measure(
        self, planned: PlannedSection, checkpoint: Checkpoint, points: Sequence[PlannedPoint]
    ) -> MeasuredSection:
        """Those points of a parity plan's section, alone on this host's accelerator."""
        from pytest_llmbench.parity_live import SectionRun

        specs = self._specs(planned.plan)
        same, say = self.same_sides(str(planned.plan.path)), self._bench.progress.say
        run = SectionRun(planned, checkpoint, specs, same=same, log_dir=self._bench.log_dir, say=say)
        self._bench.progress.say(f"{planned.id}: waiting for the accelerator")
        with self._bench.accelerator.hold(self._bench.progress.announce):
            return run.measure(points)

    def same_sides(self, plan: str) -> SameSides:
        """What the sides of that plan's record have said of themselves."""
        from pytest_llmbench.parity_same import SameSides

        return self._same.setdefault(plan, SameSides())

    def missing_programs(self, plan: ParityPlan) -> list[str]:
        """Programs of the plan's sides that can't be run: measured, they would be errors."""
        programs = (self._spec(plan, name).command[0] for name in dict.fromkeys((plan.candidate, plan.baseline)))
        return [program for program in programs if shutil.which(program) is None]

    def _require_sides(self, plan: ParityPlan) -> None:
        names = [*(side.name for side in plan.sides), *self.sides]
        unknown = [name for name in (plan.candidate, plan.baseline) if name not in names]
        if unknown:
            raise UsageError(
                f"{plan.path}: no side is called {unknown[0]!r}; {suggestion(unknown[0], names)} "
                "(the plan's `sides` or the hook pytest_llmbench_register_sides add more: docs/sides.md)"
            )

    def _specs(self, plan: ParityPlan) -> dict[Who, SideSpec]:
        specs: dict[Who, SideSpec] = {"candidate": self._spec(plan, plan.candidate)}
        specs["baseline"] = self._spec(plan, plan.baseline)
        if plan.baseline_version is not None:
            specs["baseline"] = replace(specs["baseline"], version=plan.baseline_version)
        return specs

    def _spec(self, plan: ParityPlan, name: str) -> SideSpec:
        """The plan's own side of that name, else the registered one."""
        from pytest_llmbench.sides.spec import SideSpec

        own = plan.own_side(name)
        if own is None:
            return self.sides[name]
        return SideSpec(name=own.name, command=own.command, env=dict(own.env), version=own.version)
