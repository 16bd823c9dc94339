"""The example side with one fault: `broken_side.py EXAMPLE FAULT`. Faults show in `generate`, or from the start."""

import json
import os
import runpy
import signal
import subprocess
import sys
import time

example = runpy.run_path(sys.argv[1])
fault = sys.argv[2]
S = 10**9


def say(data):
    sys.stdout.write(json.dumps(data) + "\n")
    sys.stdout.flush()


def write(text):
    os.write(1, text.encode())


def misbehave(request):
    """Do what the fault says; what it returns is the answer."""
    ok = example["answer"](request)["ok"]
    stamps, tokens = ok["token_ns"], ok["tokens"]
    if fault == "exit":
        sys.exit(3)
    elif fault == "exit-in-peace":
        sys.exit(0)
    elif fault == "kill-itself":
        sys.stderr.write("the last words\n")
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif fault == "sleep":
        time.sleep(600)
    elif fault == "ignore-term":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
    elif fault == "sleep-with-child":
        child = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"])
        sys.stderr.write(f"child {child.pid}\n")
        sys.stderr.flush()
        time.sleep(600)
    elif fault == "drip":
        while True:
            write(".")
            time.sleep(0.05)
    elif fault == "flood":
        while True:
            write("." * 2**20)
    elif fault == "garbage":
        write("Loading model: 100%|" + "#" * 200 + "\x1b[31m\n")
    elif fault == "answers-twice":
        sys.stdout.write(json.dumps({"ok": ok}) + "\n")  # and once more, in one piece with the answer
    elif fault == "half-a-line":
        write('{"ok":{"started_ns":')
        sys.exit(3)
    elif fault == "child-keeps-the-pipe":
        # Out of the group, where nobody ends it: by itself, then.
        program = "import time; time.sleep(15)"
        subprocess.Popen([sys.executable, "-I", "-S", "-c", program], start_new_session=True)
        sys.exit(3)
    elif fault == "close-stdout":
        os.close(1)
        time.sleep(600)
    elif fault == "out-of-memory":
        return {"error": {"kind": "memory", "message": "17 GiB wanted,\n16 GiB there"}}
    elif fault == "out-of-memory-once":
        globals()["fault"] = "none"
        return {"error": {"kind": "memory", "message": "17 GiB wanted"}}
    elif fault == "token-too-few":
        return {"ok": {**ok, "tokens": tokens[1:], "token_ns": stamps[1:]}}
    elif fault == "token-too-many":
        return {"ok": {**ok, "tokens": [*tokens, 1], "token_ns": [*stamps, stamps[-1]]}}
    elif fault == "stamp-too-few":
        return {"ok": {**ok, "token_ns": stamps[1:]}}
    elif fault == "stamps-of-the-future":
        return {"ok": {**ok, "token_ns": [at + 60 * S for at in stamps]}}
    elif fault == "stamps-of-the-past":
        return {"ok": {**ok, "started_ns": ok["started_ns"] - 60 * S}}
    elif fault == "stamps-fall":
        return {"ok": {**ok, "token_ns": stamps[::-1]}}
    elif fault == "stamps-all-the-same":
        return {"ok": {**ok, "token_ns": [stamps[-1]] * len(stamps)}}
    elif fault == "wall-clock":
        shift = time.time_ns() - time.monotonic_ns()
        return {"ok": {**ok, "started_ns": ok["started_ns"] + shift, "token_ns": [at + shift for at in stamps]}}
    elif fault == "much-on-stderr":
        sys.stderr.write("x" * 2**20)
        sys.stderr.flush()
    return {"ok": ok}


def answer(request):
    op = request["op"]
    if op == "hello" and fault == "protocol-2":
        return {"ok": {"protocol": 2, "who": "somebody of the future"}}
    if op == "hello" and fault == "no-version":
        return {"ok": example["answer"](request)["ok"] | {"version": ""}}
    if op == "hello" and fault == "no-engine":
        return {"error": {"kind": "unsupported", "message": "libengine.so isn't here"}}
    if op == "hello" and fault == "no-batch":
        ok = example["answer"](request)["ok"]
        return {"ok": {**ok, "capabilities": []}}
    if op == "load" and fault == "no-first-token":
        ok = example["answer"](request)["ok"]
        return {"ok": {**ok, "first_token_ns": None}}
    if op == "batch" and fault == "row-too-few":
        ok = example["answer"](request)["ok"]
        return {"ok": {**ok, "tokens": ok["tokens"][1:], "token_ns": ok["token_ns"][1:]}}
    if op == "batch" and fault == "short-row":
        ok = example["answer"](request)["ok"]
        return {"ok": {**ok, "tokens": [*ok["tokens"][:-1], ok["tokens"][-1][1:]]}}
    return misbehave(request) if op == "generate" else example["answer"](request)


if fault == "exit-at-start":
    sys.exit(3)
while line := sys.stdin.readline():
    say(answer(json.loads(line)))
    if fault == "reads-no-more":
        time.sleep(600)
if fault == "outlives-its-stdin":
    time.sleep(600)
