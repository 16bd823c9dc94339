"""The tiny checkpoints in mlx-lm and in llama.cpp, each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from pytest_llmbench.checkpoints import script

needs_mlx = pytest.mark.skipif(find_spec("mlx_lm") is None, reason="pip install 'pytest-llmbench[mlx]'")
needs_llama = pytest.mark.skipif(find_spec("xllamacpp") is None, reason="pip install 'pytest-llmbench[llama]'")

PROMPTS = (
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nparis is 12 million ünïcödé\n\n<|im_end|>\n<|im_start|>assistant\n",
    "of the" * 100,
)
NO_THINK_PROMPT = PROMPTS[0] + "<think>\n\n</think>\n\n"
NEW_TOKENS = 64

MLX_GREEDY = """
import json, sys
from mlx_lm import load, stream_generate
folder, prompts, new_tokens = json.load(sys.stdin)
model, tokenizer = load(folder)
answers = [list(stream_generate(model, tokenizer, ids, max_tokens=new_tokens)) for ids in prompts]
json.dump({
    "tokens": [[part.token for part in answer] for answer in answers],
    "texts": [[part.text for part in answer] for answer in answers],
    "finish": [answer[-1].finish_reason for answer in answers],
    "thinks": tokenizer.has_thinking, "calls_tools": tokenizer.has_tool_calling,
}, sys.stdout)
"""

MLX_QUANTIZE = """
import json, sys
import mlx.core as mx
whole, quantized = (mx.load(path) for path in json.load(sys.stdin))
other = []
for name, value in whole.items():
    stem = name.removesuffix("weight")
    names = (name, stem + "scales", stem + "biases")
    wanted = mx.quantize(value, group_size=64, bits=4) if value.ndim == 2 else (value,)
    other += [key for key, want in zip(names, wanted) if not mx.array_equal(quantized[key], want)]
json.dump({"other": other, "matrices": sum(value.ndim == 2 for value in whole.values())}, sys.stdout)
"""

LLAMA_REQUESTS = """
import json, sys
import httpx, xllamacpp
model, requests = json.load(sys.stdin)
params = xllamacpp.CommonParams()
params.model.path = model
params.hostnames, params.port = ["127.0.0.1"], 0
params.n_ctx, params.n_parallel, params.cpuparams.n_threads = 1024, 1, 1
params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
server = xllamacpp.Server(params)
with httpx.Client(base_url=server.listening_address, trust_env=False, timeout=60) as client:
    answers = [client.post(path, json=body).json() for path, body in requests]
json.dump(answers, sys.stdout)
"""


def run_python(code: str, payload: object) -> Any:
    """JSON that `code` prints when it gets `payload` on standard input."""
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(payload), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="session")
def tokenizer(tiny_checkpoints: Path) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(tiny_checkpoints / "tiny-scripted" / "tokenizer.json"))


def encode(tokenizer: tokenizers.Tokenizer, *prompts: str) -> list[list[int]]:
    return [tokenizer.encode(prompt).ids for prompt in prompts]


def mlx_greedy(folder: Path, prompts: list[list[int]]) -> dict[str, Any]:
    answer: dict[str, Any] = run_python(MLX_GREEDY, [str(folder), prompts, NEW_TOKENS])
    return answer


def llama_greedy(model: Path, prompts: list[list[int]]) -> list[list[int]]:
    """Greedy tokens by llama.cpp's own endpoint, the end token among them."""
    common = {"n_predict": NEW_TOKENS, "temperature": 0, "return_tokens": True, "cache_prompt": False}
    requests = [("/completion", {"prompt": ids, **common}) for ids in prompts]
    return [answer["tokens"] for answer in run_python(LLAMA_REQUESTS, [str(model), requests])]


# --- mlx-lm ---


@needs_mlx
@pytest.mark.parametrize("name", ["tiny-scripted", "tiny-scripted-fp16", "tiny-scripted-4bit"])
def test_mlx_lm_gives_the_scripted_answer(tiny_checkpoints: Path, tokenizer: tokenizers.Tokenizer, name: str) -> None:
    prompts = encode(tokenizer, PROMPTS[0], PROMPTS[1], NO_THINK_PROMPT)
    got = mlx_greedy(tiny_checkpoints / name, prompts)
    full, short = encode(tokenizer, "".join(script.WITH_THINKING), "".join(script.WITHOUT_THINKING))
    assert got["tokens"] == [full, full, short]
    assert got["finish"] == ["stop"] * 3
    assert (got["thinks"], got["calls_tools"]) == (True, True)


@needs_mlx
@pytest.mark.parametrize("name", ["tiny-random", "tiny-random-fp16", "tiny-random-4bit"])
def test_mlx_lm_babbles_in_broken_characters_without_end(
    tiny_checkpoints: Path, tokenizer: tokenizers.Tokenizer, name: str
) -> None:
    got = mlx_greedy(tiny_checkpoints / name, encode(tokenizer, *PROMPTS))
    assert got["finish"] == ["length"] * len(PROMPTS)
    for tokens, texts in zip(got["tokens"], got["texts"], strict=True):
        assert len(tokens) == NEW_TOKENS
        assert len(set(tokens)) > NEW_TOKENS / 4
        assert "\ufffd" in "".join(texts)
        assert sum(map(bool, texts)) < NEW_TOKENS


@needs_mlx
@pytest.mark.parametrize("name", ["tiny-scripted", "tiny-random"])
def test_the_4_bit_copy_is_what_mlx_quantizes(tiny_checkpoints: Path, name: str) -> None:
    paths = [str(tiny_checkpoints / folder / "model.safetensors") for folder in (name, f"{name}-4bit")]
    assert run_python(MLX_QUANTIZE, paths) == {"other": [], "matrices": 16}


# --- llama.cpp ---


@needs_llama
@pytest.mark.parametrize("name", ["tiny-scripted.gguf", "tiny-scripted-q8_0.gguf"])
def test_llama_cpp_gives_the_scripted_answer(
    tiny_checkpoints: Path, tokenizer: tokenizers.Tokenizer, name: str
) -> None:
    got = llama_greedy(tiny_checkpoints / name, encode(tokenizer, *PROMPTS[:2], NO_THINK_PROMPT))
    full, short = encode(tokenizer, "".join(script.WITH_THINKING), "".join(script.WITHOUT_THINKING))
    assert got == [full, full, short]


@needs_llama
@pytest.mark.parametrize("name", ["tiny-random.gguf", "tiny-random-q4_0.gguf"])
def test_llama_cpp_babbles_without_end(tiny_checkpoints: Path, tokenizer: tokenizers.Tokenizer, name: str) -> None:
    got = llama_greedy(tiny_checkpoints / name, encode(tokenizer, *PROMPTS))
    assert [len(tokens) for tokens in got] == [NEW_TOKENS] * len(PROMPTS)
    assert not {number for tokens in got for number in tokens} & {0, 2}


@needs_mlx
@needs_llama
def test_the_random_gguf_is_the_same_model_as_the_folder(
    tiny_checkpoints: Path, tokenizer: tokenizers.Tokenizer
) -> None:
    prompts = encode(tokenizer, *PROMPTS)
    llama = llama_greedy(tiny_checkpoints / "tiny-random.gguf", prompts)
    assert llama == mlx_greedy(tiny_checkpoints / "tiny-random", prompts)["tokens"]


@needs_llama
def test_llama_cpp_splits_reasoning_from_the_answer(tiny_checkpoints: Path) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0}
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    requests = [("/v1/chat/completions", body), ("/v1/chat/completions", body | off)]
    thinking, plain = run_python(LLAMA_REQUESTS, [str(tiny_checkpoints / "tiny-scripted.gguf"), requests])
    message = thinking["choices"][0]["message"]
    assert message["reasoning_content"] == "".join(script.REASONING)
    assert message["content"] == plain["choices"][0]["message"]["content"] == "".join(script.ANSWER)
    assert [answer["usage"]["completion_tokens"] for answer in (thinking, plain)] == [21, 13]


@needs_llama
def test_llama_cpp_splits_text_as_the_tokenizer_does(tiny_checkpoints: Path, tokenizer: tokenizers.Tokenizer) -> None:
    text = "<|im_start|>user\n\n\nIt's naïve…  x\t\n 12 中文🙂</think>\n\n_a_ (b)<tool_call>"
    requests = [("/tokenize", {"content": text})]
    (answer,) = run_python(LLAMA_REQUESTS, [str(tiny_checkpoints / "tiny-scripted.gguf"), requests])
    assert [answer["tokens"]] == encode(tokenizer, text)


@needs_llama
def test_llama_cpp_renders_tools_and_calls_in_the_template(tiny_checkpoints: Path) -> None:
    parameters = {"type": "object", "properties": {"a": {"type": "integer"}}}
    tool = {"type": "function", "function": {"name": "add", "description": "Adds", "parameters": parameters}}
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "Add"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "3"},
    ]
    requests = [("/apply-template", {"messages": messages, "tools": [tool]})]
    (answer,) = run_python(LLAMA_REQUESTS, [str(tiny_checkpoints / "tiny-scripted.gguf"), requests])
    assert json.loads(answer["prompt"].split("<tools>\n")[1].split("\n</tools>")[0]) == tool
    assert answer["prompt"].endswith(
        '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
