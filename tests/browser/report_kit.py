"""Records that have everything a report must show, hostile strings included, and the page opened in a browser."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, Playwright

from pytest_llmbench.figures import load
from pytest_llmbench.report import html

ROOT = Path(__file__).resolve().parents[2]
HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"


def launch(playwright: Playwright) -> Browser:
    """The system's Chromium (`LLMBENCH_CHROMIUM` or `chromium` on PATH), else Playwright's own."""
    program = os.environ.get("LLMBENCH_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    # A container's root has no namespace for the sandbox; the page is our own and has no network.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    return playwright.chromium.launch(executable_path=program, args=arguments)


class Opened:
    """A page with what it asked for and what it wrote on the console."""

    def __init__(self, page: Page, path: Path) -> None:
        self.page, self.url = page, path.as_uri()
        self.requests: list[str] = []
        self.complaints: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url.partition("#")[0]))
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.goto(self.url)

    def go(self, fragment: str) -> None:
        """As if the reader had changed the address; returns when the page shows it."""
        script = """fragment => new Promise((done) => {
            addEventListener('hashchange', () => setTimeout(done), { once: true });
            location.hash = fragment;
        })"""
        self.page.evaluate(script, fragment)

    def column(self, name: str) -> list[str]:
        """The texts of one column of the table."""
        script = """name => {
            const heads = [...document.querySelectorAll('#table th')].map((th) => th.dataset.sort);
            const rows = [...document.querySelectorAll('#table tr.row')];
            return rows.map((tr) => tr.children[heads.indexOf(name)].innerText);
        }"""
        found: list[str] = self.page.evaluate(script, name)
        return [text.split("\n")[0] for text in found]


def sample(decode: float, ttft: float) -> dict[str, Any]:
    return {"invalid": None, "metrics": {"decode_tok_s": decode, "ttft_s": ttft}}


def result(entry: str, backend: str, prompt: str = "short", **more: Any) -> dict[str, Any]:
    facts = {"model_id": f"org/{more.pop('model', 'small')}", "model": None, "name": None, "group": None, "fmt": "MLX"}
    return {
        "nodeid": f"m.yaml::test_throughput[{entry}-{prompt}]",
        "outcome": "passed",
        "duration_s": 1.0,
        "finished_at": "2026-01-02T00:00:00.000+00:00",
        "reason": None,
        "entry": {"id": entry, "backend": backend, "quant": "4bit", "kv_cache": "default", **facts},
        "prompt": prompt,
        "measurement": None,
        "verdicts": [],
        "extra": {},
        "parity": None,
        **more,
    }


def measurement(decode: float, *, context: int = 64, odd: tuple[str, ...] = (), **power: Any) -> dict[str, Any]:
    samples = [sample(decode * factor, 0.1) for factor in (0.97, 1.0, 1.02)]
    state = {"power_source": "ac", "low_power_mode": False, "thermal_state": "nominal"} | power
    return {
        "target": {"version": "1.2"},
        "metrics": {
            "decode_tok_s": decode, "ttft_s": 0.1, "ttft_cached_s": 0.02, "prompt_tokens": context,
            "peak_memory_bytes": 2 * 2**30, "load_s": None,
        },
        "samples": samples,
        "conditions": {"before": state, "after": state},
        "suspicions": list(odd),
    }  # fmt: skip


def run(results: list[dict[str, Any]], created: str, chip: str = "Chip A") -> dict[str, Any]:
    return {
        "schema": "llmbench-run",
        "schema_version": 1,
        "created": created,
        "complete": True,
        "environment": {"chip": chip, "fingerprint": chip, "git_commit": "abc123", "memory_bytes": 2**34},
        "options": {},
        "results": results,
    }


def gate(ratio: float) -> dict[str, Any]:
    return {
        "outcome": "failed", "metric": "decode_tok_s", "value": ratio * 100, "reference": 100.0, "ratio": ratio,
        "interval": [ratio - 0.01, ratio + 0.01], "gate": 0.98, "n": 5, "reason": "", "rule": "ratio",
    }  # fmt: skip


def everything() -> list[dict[str, Any]]:
    """A result of each kind. Decode speeds are such that text order and number order differ."""
    return [
        result("quick", "alpha", measurement=measurement(1200.0)),
        result("middle", "beta", measurement=measurement(90.0)),
        result("slow", "alpha", measurement=measurement(9.0), outcome="failed", verdicts=[gate(0.9)], reason="worse"),
        result("long-alpha", "alpha", "context-32k", measurement=measurement(40.0, context=32768)),
        result("long-beta", "beta", "context-32k", measurement=measurement(50.0, context=32768)),
        result("odd", "beta", "context-32k", measurement=measurement(9999.0, context=32768, odd=("too fast",))),
        result("hot", "beta", measurement=measurement(80.0, thermal_state="heavy")),
        result("absent", "beta", outcome="skipped", reason="not installed: pip install beta"),
        result("broken", "beta", outcome="error", reason=HOSTILE),
        result("hostile", HOSTILE, measurement=measurement(70.0, odd=(HOSTILE,)), model=HOSTILE),
    ]


def crowded_page(folder: Path, entries: int) -> Path:
    """One model with more entries than a plot draws."""
    found = [result(f"e{n}", "alpha", measurement=measurement(50.0 + n)) for n in range(entries)]
    return _page(folder / "crowded.html", run(found, "2026-01-01T00:00:00.000+00:00"))


def undecided_page(folder: Path, *, slow: float, quick: float) -> Path:
    """Two entries of a model; the quicker one's gate is undecided."""
    undecided = gate(quick / 100) | {"outcome": "inconclusive"}
    found = [
        result("slow", "alpha", measurement=measurement(slow)),
        result("quick", "beta", measurement=measurement(quick), verdicts=[undecided]),
    ]
    return _page(folder / "undecided.html", run(found, "2026-01-01T00:00:00.000+00:00"))


def together_page(folder: Path) -> Path:
    """An entry by itself, and with four requests at once, of which each was quicker than any by itself."""
    four = measurement(90.0)
    four["metrics"] |= {"aggregate_tok_s": 300.0, "wall_s": 1.0}
    four |= {"level": 4, "samples": four["samples"][:1] * 4, "rounds": [{"valid": True, "metrics": {}}]}
    found = [
        result("mine", "alpha", measurement=measurement(50.0)),
        result("mine", "alpha", "concurrency-4", measurement=four),
    ]
    return _page(folder / "together.html", run(found, "2026-01-01T00:00:00.000+00:00"))


def parity_page(folder: Path, *days: str) -> Path:
    """The M4 Pro's record as if it had been made on each of these days."""
    record = json.loads((ROOT / "matrix" / "records" / "parity_m4_pro.json").read_text(encoding="utf-8"))
    return _page(folder / "parity.html", *(record | {"created": f"{day}T12:00:00Z"} for day in days))


def _page(page: Path, *records: dict[str, Any]) -> Path:
    files = [page.with_name(f"{page.stem}{number}.json") for number, _ in enumerate(records)]
    for file, record in zip(files, records, strict=True):
        file.write_text(json.dumps(record), encoding="utf-8")
    page.write_text(html(load(files)), encoding="utf-8")
    return page


def hostile_page(folder: Path) -> Path:
    """A run and a parity record in which every text that somebody else wrote is hostile."""
    results = everything()
    for number, found in enumerate(results):
        found["reason"] = HOSTILE
        found["entry"] |= dict.fromkeys(found["entry"], HOSTILE) | {"id": f"{HOSTILE}{number}"}
        found["verdicts"] = [gate(0.9) | {"reason": HOSTILE}]
        if (measured := found["measurement"]) is not None:
            states = dict.fromkeys(("power_source", "thermal_state"), HOSTILE)
            measured |= {"suspicions": [HOSTILE], "target": {"version": HOSTILE}}
            measured["conditions"] = {when: measured["conditions"][when] | states for when in ("before", "after")}
    hostile = run(results, "2026-01-02T00:00:00.000+00:00", chip=HOSTILE)
    hostile["environment"] |= {"git_commit": HOSTILE, "os": HOSTILE, "os_version": HOSTILE}
    record = json.loads((ROOT / "matrix" / "records" / "parity_m4_pro.json").read_text(encoding="utf-8"))
    record["environment"] |= {"chip": HOSTILE, "machine": HOSTILE}
    return _page(folder / "hostile.html", hostile, record)


def history_page(folder: Path, speeds: list[float]) -> Path:
    """A record a day of one entry, with these decode speeds."""
    days = enumerate(speeds, 1)
    return _page(
        folder / "history.html",
        *(
            run([result("quick", "alpha", measurement=measurement(speed))], f"2026-01-{day:02}T00:00:00.000+00:00")
            for day, speed in days
        ),
    )


def make_page(folder: Path) -> Path:
    """Two runs of one machine, and the M4 Pro's parity record."""
    old = [result("quick", "alpha", measurement=measurement(1000.0))]
    for name, results, day in (("old", old, "01"), ("new", everything(), "02")):
        text = json.dumps(run(results, f"2026-01-{day}T00:00:00.000+00:00"))
        (folder / f"{name}.json").write_text(text, encoding="utf-8")
    record = ROOT / "matrix" / "records" / "parity_m4_pro.json"
    page = folder / "report.html"
    page.write_text(html(load([folder / "old.json", folder / "new.json", record])), encoding="utf-8")
    return page
