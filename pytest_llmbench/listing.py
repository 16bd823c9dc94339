"""`--llmbench-list`: say what could run, instead of running it."""

from __future__ import annotations

import pytest

from pytest_llmbench import collect
from pytest_llmbench.session import Bench


def take_over(bench: Bench) -> None:
    """List instead of running, in this process: xdist's controller collects nothing that could be listed."""
    bench.config.pluginmanager.register(ListInstead(bench), "llmbench-list")
    if hasattr(bench.config.option, "dist"):
        bench.config.option.dist = "no"


class ListInstead:
    """Registered only with `--llmbench-list`; takes the place of pytest's test loop."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        from pytest_llmbench.terminal import readiness

        if session.testsfailed:
            raise session.Interrupted(f"{session.testsfailed} error(s) during collection")
        entries = dict.fromkeys(e for item in session.items if (e := collect.entry_of(item)) is not None)
        models = dict.fromkeys(
            (s.plan, s.model) for item in session.items if (s := collect.section_of(item)) is not None
        )
        reporter = self._bench.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.section("llmbench: readiness")
            for line in readiness(self._bench, entries, models):
                reporter.write_line(line)
        return True
