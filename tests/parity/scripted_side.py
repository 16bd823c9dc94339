"""A side without an engine, for tests: `scripted_side.py JSON`. Its times are what the script says, not what it takes.

Every stamp is a time that was fixed beforehand and waited for, so that the ratio of two sides is known exactly;
with `real_clock` it is the clock's, after a sleep until that time.
"""

import json
import os
import resource
import signal
import sys
import time
from pathlib import Path

MS = 10**6
VOCABULARY = 1000
DEFAULTS = {
    "version": "1.0",
    "capabilities": ["batch", "margins"],
    "token_ms": [1.0],  # one after the other, a request each
    "prompt_ms": 5.0,
    "load_ms": 5.0,
    "real_clock": False,
    "differs_at": {},  # op: index of a token that is another one
    "margin": 1.0,
    "peak_bytes": 1000,
    "facts": {},
    "fault": "",
    "faulty_op": "generate",
    "from_prompt_tokens": 0,
    "log": "",
}
script = DEFAULTS | json.loads(sys.argv[1])
requests = 0


def log(**event):
    if script["log"]:
        with Path(script["log"]).open("a") as file:
            file.write(json.dumps({"pid": os.getpid(), **event}) + "\n")


def is_there(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def started():
    """Log which sides of this log are still there."""
    path = Path(script["log"])
    earlier = {json.loads(line)["pid"] for line in path.read_text().splitlines()} if path.is_file() else set()
    log(op="start", version=script["version"], alive=[pid for pid in earlier if is_there(pid)])


def sleep_until(ns):
    """Wait for a time; what its stamp is."""
    while (now := time.monotonic_ns()) < ns:
        time.sleep((ns - now) / 1e9)
    return now if script["real_clock"] else ns


def best(text):
    return (31 * text[-1] + 7 * len(text)) % VOCABULARY


def by_rule(prompt, n, op):
    text, differs_at = list(prompt), script["differs_at"].get(op)
    for i in range(n):
        text.append((best(text) + (i == differs_at)) % VOCABULARY)
    return text[len(prompt) :]


def hello(request):
    facts = {"library": "2.1", "fast": True} | script["facts"]
    capabilities = script["capabilities"]
    return {
        "protocol": 1,
        "name": "scripted",
        "version": script["version"],
        "facts": facts,
        "capabilities": capabilities,
    }


def load(request):
    start = time.monotonic_ns()
    ready = sleep_until(start + int(script["load_ms"] * MS))
    if request["first_prompt"] is None:
        return {"started_ns": start, "ready_ns": ready, "first_token_ns": None}
    first = sleep_until(ready + int(script["prompt_ms"] * MS))
    return {"started_ns": start, "ready_ns": ready, "first_token_ns": first}


def stamps(n):
    start = time.monotonic_ns()
    first = start + int(script["prompt_ms"] * MS)
    step = int(script["token_ms"][requests % len(script["token_ms"])] * MS)
    return start, [sleep_until(first + i * step) for i in range(n)]


def generate(request):
    start, at = stamps(request["max_tokens"])
    return {
        "started_ns": start,
        "token_ns": at,
        "tokens": by_rule(request["prompt"], request["max_tokens"], "generate"),
    }


def batch(request):
    start, at = stamps(request["max_tokens"])
    rows = [by_rule(prompt, request["max_tokens"], "batch") for prompt in request["prompts"]]
    return {"started_ns": start, "token_ns": [at] * len(rows), "tokens": rows}


def margins(request):
    token = best(request["prompt"])
    return {"top": [[token, 10.0], [(token + 1) % VOCABULARY, 10.0 - script["margin"]]]}


def memory(request):
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {"peak_bytes": script["peak_bytes"], "active_bytes": 7, "os_peak_rss_bytes": rss}


OPS = {"hello": hello, "load": load, "generate": generate, "batch": batch, "margins": margins, "memory": memory}
OPS |= {"reset": lambda request: {}}


def is_faulty(request):
    prompts = request.get("prompts") or [request.get("prompt") or ()]
    return request["op"] == script["faulty_op"] and len(prompts[0]) >= script["from_prompt_tokens"]


def misbehave():
    if script["fault"] == "exit":
        sys.exit(3)
    elif script["fault"] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif script["fault"] == "hang":
        time.sleep(600)
    elif script["fault"] == "garbage":
        return "Loading: 100%"
    return json.dumps({"error": {"kind": "memory", "message": "17 GiB wanted"}})


def answer(request):
    if script["fault"] and is_faulty(request):
        return misbehave()
    return json.dumps({"ok": OPS[request["op"]](request)})


started()
for line in sys.stdin:
    request = json.loads(line)
    if request["op"] in ("generate", "batch"):
        requests += 1
    log(op=request["op"], prompt=len(request.get("prompt") or ()))
    sys.stdout.write(answer(request) + "\n")
    sys.stdout.flush()
