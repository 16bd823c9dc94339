"""Servers that run anyway: names, addresses, and what is read out of answers, without any server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from process_helpers import REPOSITORY
from run_examples import entry

from pytest_llmbench.backends import builtin_backends, docker_model_runner, ollama_dialect, reach
from pytest_llmbench.backends.running import why_cut
from pytest_llmbench.errors import Unavailable
from pytest_llmbench.ports import is_loopback
from pytest_llmbench.prompts import Message, Prompt


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("glm-4.7-flash", "glm-4.7-flash:latest"),
        ("qwen3.5:27b", "qwen3.5:27b"),
        ("hf.co/a/b", "hf.co/a/b:latest"),
        ("hf.co/a/b:Q4_K_M", "hf.co/a/b:Q4_K_M"),
        ("localhost:5000/a/b", "localhost:5000/a/b:latest"),
    ],
)
def test_ollama_lists_a_model_with_its_tag(name: str, whole: str) -> None:
    assert ollama_dialect.whole_name(name) == whole


@pytest.mark.parametrize(
    ("value", "url"),
    [
        ("", "http://127.0.0.1:11434"),
        ("0.0.0.0", "http://127.0.0.1:11434"),
        ("localhost:8000", "http://127.0.0.1:8000"),
        (":8000", "http://127.0.0.1:8000"),
        ("[::]:8000", "http://127.0.0.1:8000"),
        ("[fe80::1]:8000", "http://[fe80::1]:8000"),
        ("box", "http://box:11434"),
        ("https://box:443/", "https://box:443"),
        ("https://box", "https://box:443"),
        ("http://box/", "http://box:80"),
        ("::1", "http://[::1]:11434"),
    ],
)
def test_ollama_host_is_an_address(value: str, url: str) -> None:
    assert ollama_dialect.host_url(value) == url


@pytest.mark.parametrize("value", ["box:port", "box:99999", "http://[::1", "ftp://box"])
def test_ollama_host_that_is_no_address_is_said(value: str) -> None:
    with pytest.raises(Unavailable, match=r"OLLAMA_HOST is '.*', no address; fix: export OLLAMA_HOST=HOST:PORT"):
        ollama_dialect.host_url(value)


@pytest.mark.parametrize("value", ["127.0.0.1:12434", "http://localhost:port", "http://", "http://[::1"])
def test_model_runner_host_that_is_no_url_is_said(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_RUNNER_HOST", value)
    docker = builtin_backends()["docker-model-runner"]
    with pytest.raises(Unavailable, match=r"MODEL_RUNNER_HOST is '.*', no URL; fix: export MODEL_RUNNER_HOST=http://"):
        docker.check(entry(backend="docker-model-runner"))


def test_nobody_is_at_a_host_whose_name_cant_be_one() -> None:
    assert (reach.get("http://a..b", "/"), reach.listens("http://a..b")) == (None, False)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("docker.io/ai/qwen3.5:35B-A3B-Q4_K_M", "ai/qwen3.5:35B-A3B-Q4_K_M"),
        ("index.docker.io/ai/smollm2", "smollm2:latest"),
        ("ai/smollm2:360M-Q4_K_M", "ai/smollm2:360m-q4_k_m"),
    ],
)
def test_docker_names_that_mean_the_same(one: str, other: str) -> None:
    assert docker_model_runner.whole_name(one) == docker_model_runner.whole_name(other)


def test_docker_names_that_mean_something_else() -> None:
    names = ["ai/a:1", "ai/a:2", "ai/b:1", "hf.co/ai/a:1", "other/a:1"]
    assert len({docker_model_runner.whole_name(name) for name in names}) == len(names)


@pytest.mark.parametrize(("characters", "seen", "cut"), [(1200, 100, False), (1300, 100, True), (5, None, False)])
def test_a_prompt_of_far_too_few_tokens_was_cut(characters: int, seen: int | None, cut: bool) -> None:
    messages = (Message(role="system", content="a" * 5), Message(role="user", content="b" * (characters - 5)))
    prompt = Prompt(name="p", messages=messages, tokens=None, exact=False, shared_tokens=0)
    assert (why_cut(prompt, seen) is not None) == cut


@pytest.mark.parametrize(
    ("url", "here"),
    [
        ("http://127.0.0.1:1", True),
        ("http://127.8.0.1", True),
        ("http://localhost:1/v1", True),
        ("http://[::1]:1", True),
        ("http://10.0.0.1", False),
        ("https://localhost.example", False),
        ("http://[fe80::1]", False),
    ],
)
def test_loopback_is_told_from_the_network(url: str, here: bool) -> None:
    assert is_loopback(url) == here


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["data", "x"]), inner, max_size=2),
    max_leaves=8,
)


@given(json_values, st.sampled_from([None, "data"]))
def test_rows_are_objects_whatever_a_server_says(data: Any, key: str | None) -> None:
    assert all(isinstance(row, dict) for row in reach.rows(data, key))


@pytest.mark.parametrize("backend", ["mlx-lm", "llama-server"])
def test_a_server_that_we_start_is_at_no_address_of_the_entrys(backend: str) -> None:
    with pytest.raises(Unavailable, match="started here, not used at a server_url; fix: use backend openai"):
        builtin_backends()[backend].check(entry(backend=backend, server_url="http://127.0.0.1:1"))


def test_checking_imports_nothing_heavy() -> None:
    script = """
import json, sys
from pathlib import Path
from pytest_llmbench.backends import builtin_backends
from pytest_llmbench.errors import Unavailable
from pytest_llmbench.matrix import MatrixEntry
for name in ("ollama", "lm-studio", "docker-model-runner", "openai"):
    entry = MatrixEntry(id="a", backend=name, model_id="m", path=Path("m.yaml"), line=1, server_url="http://127.0.0.1:1")
    try:
        builtin_backends()[name].check(entry)
    except Unavailable:
        pass
print(json.dumps(sorted({"httpx", "mlx", "numpy", "transformers", "psutil"} & set(sys.modules))))
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "engine")])}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env, check=True)
    assert json.loads(done.stdout) == []
