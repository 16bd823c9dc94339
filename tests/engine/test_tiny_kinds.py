"""The tiny checkpoints of each kind give the same greedy tokens in the engine and in mlx-lm."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CHILD = """
import json, sys
from pathlib import Path
from mlx_lm import load, stream_generate
from llmbench_engine import Engine

folder, prompt, tokens = Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
model, tokenizer = load(str(folder))
tokenizer._eos_token_ids = set()
theirs = [answer.token for answer in stream_generate(model, tokenizer, prompt, max_tokens=tokens)]
engine = Engine.load(folder)
ours = [token.id for token in engine.generate(prompt, max_tokens=tokens, ignore_eos=True)]
print(json.dumps([ours, theirs]))
"""
TOKENS = 32


@pytest.mark.parametrize("name", ["tiny-dense", "tiny-moe", "tiny-hybrid", "tiny-hybrid-moe"])
def test_both_engines_say_the_same(tiny_kinds: Path, name: str) -> None:
    prompt = [40 + index * 37 % 1900 for index in range(100)]
    command = [sys.executable, "-c", CHILD, str(tiny_kinds / name), json.dumps(prompt), str(TOKENS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    ours, theirs = json.loads(done.stdout.splitlines()[-1])
    assert len(theirs) == TOKENS
    assert ours == theirs
    assert len(set(ours)) > TOKENS // 2  # no loop, in which errors would hide
