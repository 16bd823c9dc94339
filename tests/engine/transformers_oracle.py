"""transformers in a process of its own, asked one question a line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHILD = """
import json, sys
from functools import cache
from transformers import AutoTokenizer

load = cache(AutoTokenizer.from_pretrained)
for line in sys.stdin:
    folder, method, args, kwargs = json.loads(line)
    found = getattr(load(folder), method)
    print(json.dumps(found(*args, **kwargs) if callable(found) else found), flush=True)
"""


class Oracle:
    """Asks `AutoTokenizer.from_pretrained(folder)`."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self._child = child

    def ask(self, folder: Path, method: str, *args: Any, **kwargs: Any) -> Any:
        """What the method gives, or the attribute's value."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(json.dumps([str(folder), method, args, kwargs]) + "\n")
        self._child.stdin.flush()
        answer = self._child.stdout.readline()
        assert answer, f"transformers failed at {method} of {folder}; its log has the reason"
        return json.loads(answer)


@contextmanager
def running(log: Path) -> Iterator[Oracle]:
    """The process, until the end of the block."""
    env = os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONUTF8": "1"}
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-c", CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            encoding="utf-8",
            env=env,
        ) as child,
    ):
        yield Oracle(child)
