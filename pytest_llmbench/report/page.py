"""Puts the page together: assets of this package, and the results as JSON in a script element.

What the results say is never markup: the JSON is escaped for its place, and the scripts write text nodes only. The
page's own policy forbids every request and every script but the two that are in it.
"""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from typing import Any, Final

from pytest_llmbench import __version__
from pytest_llmbench.figures import Loaded
from pytest_llmbench.record import dumps
from pytest_llmbench.report.rows import page_data
from pytest_llmbench.report.trends import trends

VENDOR: Final = ("vendor/d3.min.js", "vendor/plot.umd.min.js")
SCRIPTS: Final = (
    "dom.js", "data.js", "state.js", "tip.js", "summary.js", "leaders.js",
    "plot_parts.js", "plots.js", "over_time.js", "table.js", "main.js",
)  # fmt: skip
_ESCAPES: Final = str.maketrans(
    {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
)


def html(loaded: Loaded, *, title: str = "LLM benchmarks") -> str:
    """The whole page as text."""
    scripts = ("\n".join(map(_asset, VENDOR)), _own_script())
    data = {"title": title, "release": __version__, **page_data(loaded), "trends": trends(loaded.subjects)}
    parts = {
        "POLICY": _policy(scripts),
        "STYLE": _asset("page.css"),
        "DATA": embedded(data),
        "VENDOR": scripts[0],
        "SCRIPT": scripts[1],
    }
    pieces = _asset("page.html").split("%%")
    return "".join(parts[piece] if index % 2 else piece for index, piece in enumerate(pieces))


def embedded(data: Any) -> str:
    """JSON that may stand in a script element: no sequence in it can end the element or open another."""
    return dumps(data).translate(_ESCAPES)


def _own_script() -> str:
    body = "\n".join(map(_asset, SCRIPTS))
    return f'(() => {{\n"use strict";\n{body}\n}})();\n'


def _policy(scripts: tuple[str, ...]) -> str:
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src {hashes}; base-uri 'none'; form-action 'none'"


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _asset(name: str) -> str:
    return files("pytest_llmbench.report").joinpath("assets", *name.split("/")).read_text(encoding="utf-8")
