"""Real dataclasses of a small run, for the tests of records, journals and the schema."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pytest_llmbench.backends.base import TargetInfo
from pytest_llmbench.environment import collect_environment
from pytest_llmbench.matrix import Matrix, MatrixEntry, Overrides, RunSettings, resolve
from pytest_llmbench.measure import Measurement
from pytest_llmbench.memory import MemoryPeak
from pytest_llmbench.record import Result, Run, entry_json, measurement_json, verdict_json
from pytest_llmbench.sample import Delta, Sample, ServerTimings
from pytest_llmbench.verdict import Outcome, Verdict

SECRET = "sk-very-secret-value"


def entry(**changes: Any) -> MatrixEntry:
    given: dict[str, Any] = {"id": "e", "backend": "mlx-lm", "model_id": "org/m", "path": Path("m.yaml"), "line": 3}
    return MatrixEntry(**given | changes)


def settings(**changes: Any) -> RunSettings:
    matrix = Matrix(path=Path("m.yaml"), entries=())
    resolved = resolve(matrix, entry(), Overrides(prompts=("short",)))
    return RunSettings(**{name: getattr(resolved, name) for name in RunSettings.__slots__} | changes)


def sample(**changes: Any) -> Sample:
    given: dict[str, Any] = {
        "prompt": "short",
        "deltas": (
            Delta(at_ns=200_000_000, kind="reasoning", text="hm"),
            Delta(at_ns=300_000_000, kind="content", text="Paris\u2028 \ud83d"),
            Delta(at_ns=500_000_000, kind="content", text="."),
        ),
        "end_ns": 600_000_000,
        "requested_tokens": 8,
        "finish_reason": "stop",
        "prompt_tokens": 64,
        "cached_tokens": 4,
        "completion_tokens": 7,
        "token_source": "usage",
    }
    return Sample(**given | changes)


def measurement() -> Measurement:
    info = TargetInfo(
        backend="mlx-lm",
        version="0.1",
        model="org/m",
        load_s=1.5,
        command="serve --api-key ***",
        log_path=Path("/x/e.log"),
    )
    return Measurement(
        entry_id="e",
        prompt="short",
        target=info,
        settings=settings(),
        started_at=datetime.now(UTC),
        prompt_exact=True,
        warmups=(sample(),),
        samples=(sample(timings=ServerTimings(prompt_s=0.1, peak_memory_bytes=5)), sample(invalid="no text came")),
        cached=sample(cached_tokens=60),
        memory=MemoryPeak(peak_bytes=1024, source="pss", samples=3, swap_delta_bytes=-4096, mlx_peak_bytes=512),
        conditions={"before": {}, "after": {"thermal_state": None}},
    )


def verdicts() -> list[Verdict]:
    ratio = Verdict(
        outcome=Outcome.INCONCLUSIVE,
        metric="decode_tok_s",
        value=40.0,
        reference=39.0,
        ratio=40 / 39,
        interval=(0.9, 1.1),
        gate=0.98,
        n=3,
        reason="",
    )
    bound = Verdict(
        outcome=Outcome.FAILED,
        metric="ttft_s",
        value=2.0,
        reference=None,
        ratio=None,
        interval=None,
        gate=1.0,
        n=3,
        reason="",
        rule="at_most",
    )
    return [ratio, bound]


def run() -> Run:
    hidden = entry(api_key=SECRET, env=(("HF_TOKEN", SECRET),), extra_args=("--api-key", SECRET))
    measured = Result(
        nodeid="m.yaml::test_throughput[e-short]",
        outcome="passed",
        duration_s=1.25,
        finished_at="2026-01-31T12:00:00.000+00:00",
        entry=entry_json(hidden),
        prompt="short",
        measurement=measurement_json(measurement()),
        verdicts=[verdict_json(v) for v in verdicts()],
        extra={"note": "x"},
    )
    skipped = Result(
        nodeid="m.yaml::test_throughput[f-short]",
        outcome="skipped",
        duration_s=0,
        finished_at="2026-01-31T12:00:01.000+00:00",
        reason="not here",
        verdicts=[],
    )
    found = collect_environment(root=Path(__file__).parent, power={"power_source": None})
    return Run(
        created="2026-01-31T12:00:00.000+00:00",
        environment=found.to_json() | {"fingerprint": found.fingerprint},
        options={"runs": None},
        results=(measured, skipped),
    )
