#!/usr/bin/env python3
"""A side for a parity run, of the standard library alone: its "model" is a rule (docs/sides.md)."""

import json
import resource
import sys
import time
from pathlib import Path

VOCABULARY = 1000


def logits(text):
    """The two best tokens after `text` with their logits; whatever runs beside it, they are the same."""
    best = (31 * text[-1] + 7 * len(text)) % VOCABULARY
    return [[best, 2.0], [(best + 1) % VOCABULARY, 1.5]]


def tokens(prompt, n):
    text = list(prompt)
    for _ in range(n):
        time.sleep(0.001)  # a real engine computes here, and waits for the result
        text.append(logits(text)[0][0])
        yield text[-1]


def hello(request):
    facts = {"python": sys.version.split()[0]}
    return {"protocol": 1, "name": "rule", "version": "1.0", "facts": facts, "capabilities": ["batch", "margins"]}


def load(request):
    started = time.monotonic_ns()
    if not Path(request["path"]).is_dir():
        raise FileNotFoundError(f"no such folder: {request['path']}")
    ready = time.monotonic_ns()
    first = request["first_prompt"] and generate({"prompt": request["first_prompt"], "max_tokens": 1})["token_ns"][0]
    return {"started_ns": started, "ready_ns": ready, "first_token_ns": first}


def generate(request):
    started = time.monotonic_ns()
    found = [(token, time.monotonic_ns()) for token in tokens(request["prompt"], request["max_tokens"])]
    return {"started_ns": started, "token_ns": [at for _, at in found], "tokens": [token for token, _ in found]}


def batch(request):
    rows = [generate({**request, "prompt": prompt}) for prompt in request["prompts"]]  # a real one interleaves them
    return {"started_ns": rows[0]["started_ns"], **{key: [r[key] for r in rows] for key in ("token_ns", "tokens")}}


def memory(request):
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {"peak_bytes": None, "active_bytes": None, "os_peak_rss_bytes": rss}


OPS = {"hello": hello, "load": load, "generate": generate, "batch": batch, "memory": memory}
OPS |= {"margins": lambda request: {"top": logits(request["prompt"])}, "reset": lambda request: {}}


def answer(request):
    if request["op"] not in OPS:
        return {"error": {"kind": "unsupported", "message": f"unknown op {request['op']}"}}
    try:
        return {"ok": OPS[request["op"]](request)}
    except FileNotFoundError as error:
        return {"error": {"kind": "checkpoint", "message": str(error)}}


if __name__ == "__main__":
    for line in sys.stdin:
        sys.stdout.write(json.dumps(answer(json.loads(line))) + "\n")
        sys.stdout.flush()
