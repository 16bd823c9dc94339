"""What the engine's tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from oracle import Oracle


@pytest.fixture(scope="session")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Oracle]:
    """mlx-lm in a child process."""
    found = Oracle(tmp_path_factory.mktemp("oracle"))
    yield found
    found.close()
