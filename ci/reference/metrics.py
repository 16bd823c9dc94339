"""The page of the metrics: names, units, which way is better, what a gate can be put on."""

from __future__ import annotations

from pytest_llmbench import markdown, matrix, parity, sample, units, verdict
from pytest_llmbench.errors import UsageError
from reference.text import explained, meanings, table

HEAD = """# Names of metrics

The unit is in the name. How each figure is made: [metrics.md](../metrics.md).

## Of a matrix entry

`gate`: whether the key `gates` of an entry takes it; as `NAME@4`, where four requests run at once.
"""
PARITY = """## Of a parity run

A ratio of these is turned so that more than 1 is better for the candidate. `judged`: whether it makes a test that can
fail without a word in the plan ([parity.md](../parity.md)).
"""


def page() -> str:
    names = tuple(dict.fromkeys((*matrix.METRICS, *sample.SAMPLE_METRICS, *matrix.CONCURRENCY_METRICS)))
    said = explained(names, meanings("metrics.md"), "metrics.md")
    rows = [(*_facts(name), "yes" if name in matrix.GATED_METRICS else "no", said[name]) for name in names]
    own = table(("metric", "unit", "better", "gate", "definition"), rows)
    return f"{HEAD}\n{own}\n{PARITY}\n{table(('section', 'metric', 'unit', 'better', 'judged'), _parity_rows())}"


def _parity_rows() -> list[tuple[str, ...]]:
    return [
        (section, *_facts(name), "yes" if name in parity.GATED[section] else "no")
        for section, names in parity.METRICS.items()
        for name in (*names, *parity.UNJUDGED.get(section, ()))
    ]


def _facts(name: str) -> tuple[str, str, str]:
    return markdown.code(name), units.unit_of(name), _better(name)


def _better(name: str) -> str:
    try:
        return verdict.direction(name)
    except UsageError:  # a count: neither
        return ""
