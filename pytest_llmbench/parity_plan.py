"""What a parity plan says, as types: models, and settings by tier.

Reading the YAML is `parity_plan_file`, what comes of a plan is `parity_planned`; nothing here touches a file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pytest_llmbench.errors import UsageError
from pytest_llmbench.parity import DEFAULT_GATE, DEFAULT_GOAL, SECTIONS
from pytest_llmbench.yaml_nodes import suggestion

KINDS: Final = ("dense", "moe", "hybrid", "hybrid-moe")
TIERS: Final = ("quick", "full")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcurrencySettings:
    """Streams at once (`levels`), each with a prompt of `prompt_tokens` and `max_tokens` new ones."""

    levels: tuple[int, ...] = (1, 4, 8)
    prompt_tokens: int = 512
    max_tokens: int = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """`samples` fresh processes a side; `cold`: also with the checkpoint dropped from the file cache."""

    samples: int = 3
    first_token_prompt_tokens: int = 16
    cold: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySettings:
    """Prompt lengths whose prefill is measured, and the metrics that are judged: the others are only reported."""

    prompt_tokens: tuple[int, ...] = (2048, 32768)
    gated: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ParitySettings:
    """How the models of a plan are measured and judged.

    Rounds are pairs of a candidate's and a baseline's sample: `passes` times `runs_per_pass` at first, then one by
    one up to `max_rounds` while the verdict `interval` is open. `extra_prompts`: models' own extra lengths are
    measured. `timeout_s` is for one request to a side. `tiers` has the settings of each tier that the file names.
    """

    tier: str = ""
    gate: float = DEFAULT_GATE
    goal: float = DEFAULT_GOAL
    verdict: str = "interval"
    passes: int = 2
    runs_per_pass: int = 4
    max_rounds: int = 16
    max_tokens: int = 128
    legacy_repeats: tuple[int, ...] = (1, 40, 160)
    prompt_tokens: tuple[int, ...] = (2048, 32768)
    extra_prompts: bool = True
    concurrency: ConcurrencySettings = ConcurrencySettings()
    load: LoadSettings = LoadSettings()
    memory: MemorySettings = MemorySettings()
    timeout_s: float = 3600.0
    tiers: tuple[ParitySettings, ...] = ()

    @property
    def rounds(self) -> int:
        """Rounds before the first verdict."""
        return self.passes * self.runs_per_pass

    def for_tier(self, name: str) -> ParitySettings:
        """The settings of a tier of `TIERS`: those that hold for all where the file says nothing of it."""
        if name not in TIERS:
            raise UsageError(f"unknown tier {name!r}; {suggestion(name, TIERS)}")
        return next((tier for tier in self.tiers if tier.tier == name), replace(self, tier=name, tiers=()))

    def overridden(
        self,
        *,
        gate: float | None = None,
        goal: float | None = None,
        verdict: str | None = None,
        runs: int | None = None,
        max_tokens: int | None = None,
    ) -> ParitySettings:
        """With what the options say in place of the file's values; None: nothing said.

        `runs` is that of a pass, `max_rounds` grows with it where it must; `max_tokens` holds for each stream too.
        """
        changed = replace(
            self,
            gate=self.gate if gate is None else gate,
            goal=self.goal if goal is None else goal,
            verdict=self.verdict if verdict is None else verdict,
            runs_per_pass=self.runs_per_pass if runs is None else runs,
        )
        changed = replace(changed, max_rounds=max(changed.max_rounds, changed.rounds))
        if max_tokens is None:
            return changed
        streams = replace(self.concurrency, max_tokens=max_tokens)
        return replace(changed, max_tokens=max_tokens, concurrency=streams)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityPlanModel:
    """One model of a plan; `line` is where it stands, `name` its part in test ids.

    `path` names a checkpoint folder in place of the Hugging Face cache; `shape` a random checkpoint that can stand in
    for the weights. `synthetic` True: the weights are random ones; False: nothing may stand in; None: what is here.
    The extra lengths come on top of the settings'.
    """

    id: str
    name: str
    kind: str
    line: int
    snapshot: str | None = None
    shape: str | None = None
    path: str | None = None
    quant: str = ""
    sections: tuple[str, ...] = SECTIONS
    extra_prompt_tokens: tuple[int, ...] = ()
    extra_memory_prompt_tokens: tuple[int, ...] = ()
    synthetic: bool | None = None
    enabled: bool = True
    reason: str = ""
    known_issue: str = ""
    requires: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSide:
    """A side that the plan itself says how to start: as `SideSpec`, but with `env` as pairs."""

    name: str
    command: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityPlan:
    """A whole plan file: which engine is measured against which one, how, and with what models.

    `baseline_version` None: whatever is installed. `sides` are the plan's own, looked up before all others.
    """

    path: Path
    models: tuple[ParityPlanModel, ...]
    candidate: str = "engine"
    baseline: str = "mlx-lm"
    baseline_version: str | None = None
    settings: ParitySettings = ParitySettings()
    sides: tuple[PlanSide, ...] = ()

    def own_side(self, name: str) -> PlanSide | None:
        """The plan's own side of that name."""
        return next((side for side in self.sides if side.name == name), None)
