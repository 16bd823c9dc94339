"""What the simulations of verdicts share: the saved record's noise, and how their results are written."""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path
from typing import Any, Final

from pytest_llmbench.parity import ParityResult
from pytest_llmbench.parity_record import read_parity_record

RECORD: Final = Path(__file__).resolve().parents[2] / "matrix" / "records" / "parity_m4_pro.json"
SECTIONS: Final = {"decode": "tok_s", "ttft": "prefill_tok_s", "load": "first_token_s"}
"""Of the record, with the metric that stands for each."""

LEAST_SAMPLES: Final = 3


def residuals(result: ParityResult) -> list[float]:
    """Of both sides' samples, each around its own side's mean; none where a side has too few."""
    found = []
    for side in (result.candidate, result.baseline):
        if side is None or len(side.samples) < LEAST_SAMPLES:
            return []
        logs = [math.log(sample) for sample in side.samples]
        centre, widened = statistics.fmean(logs), math.sqrt(len(logs) / (len(logs) - 1))
        found += [(value - centre) * widened for value in logs]
    return found


def record_residuals(path: Path) -> dict[str, list[list[float]]]:
    """Section → the residuals of each of its results."""
    results = read_parity_record(path).results
    found = {
        section: [residuals(r) for r in results if (r.section, r.metric) == (section, metric)]
        for section, metric in SECTIONS.items()
    }
    return {section: kept for section, rows in found.items() if (kept := [row for row in rows if row])}


def dumps(data: dict[str, Any]) -> str:
    """JSON with a line for each row of the rates."""
    head = json.dumps({**data, "rates": []}, indent=1)
    rows = ",\n  ".join(map(json.dumps, data["rates"]))
    return head.replace('"rates": []', f'"rates": [\n  {rows}\n ]') + "\n"


def arguments(description: str | None, trials: int, *, of: str) -> argparse.Namespace:
    """`trials`, `seed` and `out`, from the command line. `of`: what there are so many trials for."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=trials, help=f"of {of} (default {trials})")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write the rates there, as JSON")
    given = parser.parse_args()
    if given.trials < 1:
        parser.error("--trials has to be at least 1")
    return given


def save(data: dict[str, Any], out: Path | None) -> None:
    """Write the rates where somebody wants them."""
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(dumps(data), encoding="utf-8")


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"
