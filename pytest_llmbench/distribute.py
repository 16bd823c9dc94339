"""With xdist: one worker gets all benchmarks, the others the rest; the host has only one accelerator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

SCOPE = "llmbench"
SUITE_SUFFIXES = (".yaml", ".yml", ".json")


def scope_of(nodeid: str) -> str:
    """The group that a test is sent out with: all of a benchmark file's in one, any other test on its own.

    Node ids are all that xdist's controller knows. A user's own benchmark in a .py file isn't seen here; the
    accelerator's lock keeps it from measuring beside another one.
    """
    return SCOPE if nodeid.partition("::")[0].endswith(SUITE_SUFFIXES) else nodeid


def make_scheduler(config: pytest.Config, log: Any) -> Any:
    """xdist's load-scope scheduling with our scopes."""
    from xdist.scheduler import LoadScopeScheduling

    class BenchmarkScheduling(LoadScopeScheduling):  # type: ignore[misc]
        """One worker keeps one server's tests."""

        def _split_scope(self, nodeid: str) -> str:
            return scope_of(nodeid)

    return BenchmarkScheduling(config, log)
