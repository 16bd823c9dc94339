"""mlx-lm as the oracle: random checkpoints of its own models, and what it says of them, from a child process.

The child keeps its imports (which have side effects) out of the tests' process and stays for many questions. One line
of JSON each way; arrays come back in .npz files.
"""

from __future__ import annotations

import json
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What mlx-lm does greedily: `logits` [steps, vocabulary] (the first after the prompt) and its choices."""

    logits: np.ndarray
    tokens: list[int]

    @property
    def margins(self) -> np.ndarray:
        """By how much the best logit of each step exceeds the second best."""
        best = np.sort(self.logits, axis=-1)
        return best[:, -1] - best[:, -2]

    def tolerance(self, relative: float) -> float:
        """An absolute tolerance, relative to the largest logit of all steps."""
        return relative * float(np.abs(self.logits).max())


class Oracle:
    """The child process."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._calls = folder, 0
        self._child = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def make(
        self,
        config: Mapping[str, Any],
        *,
        quantization: Mapping[str, Any] | None = None,
        exceptions: Mapping[str, Any] | None = None,
        dtype: str = "float32",
        seed: int = 0,
    ) -> Path:
        """A folder with a random checkpoint of `config`. Logits are peaked: their standard deviation is 5.

        `exceptions`: quantization (or False) of all layers whose path ends so.
        """
        out = self._folder / f"checkpoint-{self._calls}"
        out.mkdir()
        self._ask(
            {
                "do": "make", "config": dict(config), "quantization": quantization, "exceptions": exceptions or {},
                "dtype": dtype, "seed": seed, "out": str(out),
            }
        )  # fmt: skip
        return out

    def run(self, checkpoint: Path, prompts: Sequence[Sequence[int]], steps: Sequence[int]) -> list[Reference]:
        """Greedy continuations, each prompt alone and by its own number of steps, read in chunks of 2048."""
        out = self._folder / f"answer-{self._calls}.npz"
        question = {"prompts": list(map(list, prompts)), "steps": list(steps), "out": str(out)}
        self._ask({"do": "run", "checkpoint": str(checkpoint), **question})
        with np.load(out) as answer:
            return [
                Reference(logits=answer[f"logits{i}"], tokens=answer[f"tokens{i}"].tolist())
                for i in range(len(prompts))
            ]

    def _ask(self, question: Json) -> Json:
        self._calls += 1
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(json.dumps(question) + "\n")
        self._child.stdin.flush()
        line = self._child.stdout.readline()
        if not line:
            raise RuntimeError(f"the oracle ended with {self._child.wait()} at {question['do']}; see its stderr")
        answer: Json = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"the oracle couldn't {question['do']}:\n{answer['error']}")
        return answer

    def close(self) -> None:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.close()
        self._child.stdout.close()
        self._child.wait()


def assert_follows(tokens: Sequence[int], reference: Reference, tolerance: float) -> int:
    """Tokens equal the reference's as long as its margin exceeds the tolerance; returns how many did.

    Where the margin is smaller, either choice is right, and after a different one nothing can be compared.
    """
    for step, (got, wanted, margin) in enumerate(zip(tokens, reference.tokens, reference.margins, strict=True)):
        if got != wanted:
            assert margin <= tolerance, f"step {step}: {got} instead of {wanted}, margin {margin} > {tolerance}"
            return step
    return len(tokens)


def _make(question: Json) -> None:
    import mlx.core as mx
    import mlx.nn as nn
    from mlx.utils import tree_flatten
    from mlx_lm.utils import _get_classes

    config = question["config"]
    model_class, args_class = _get_classes(config)
    model = model_class(args_class.from_dict(json.loads(json.dumps(config))))
    mx.random.seed(question["seed"])
    model.load_weights(list(_random(dict(tree_flatten(model.parameters()))).items()))
    _peak(model)
    dtype = getattr(mx, question["dtype"])
    model.apply(lambda a: a.astype(dtype) if mx.issubdtype(a.dtype, mx.floating) else a)
    if (quantization := question["quantization"]) is not None:
        table: Json = dict(quantization)

        def how(path: str, module: nn.Module) -> bool | Json:
            if not hasattr(module, "to_quantized"):
                return False
            for ending, own in question["exceptions"].items():
                if path.endswith(ending):
                    table[path] = own
                    return own  # type: ignore[no-any-return]
            return True

        nn.quantize(model, **quantization, class_predicate=how)
        config["quantization"] = table
    out = Path(question["out"])
    (out / "config.json").write_text(json.dumps(config))
    mx.save_safetensors(str(out / "model.safetensors"), dict(tree_flatten(model.parameters())))


def _random(parameters: Mapping[str, Any]) -> Json:
    """Random values. A tied embedding is small, else each token's likeliest successor would be itself."""
    tied = not any("lm_head" in name for name in parameters)
    return {name: _random_array(name, a.shape, 0.03 if tied else 0.3) for name, a in parameters.items()}


def _random_array(name: str, shape: tuple[int, ...], of_embedding: float) -> Any:
    import mlx.core as mx

    noise = mx.random.normal(shape)
    last = name.rpartition(".")[2]
    if last == "A_log":
        return mx.log(mx.random.uniform(0.5, 8.0, shape))
    if last in ("layer_scalar", "scale", "per_expert_scale") or ("norm" in name and last == "weight"):
        return 1 + 0.25 * noise
    if last in ("bias", "sinks", "dt_bias"):
        return noise
    if name.endswith("embed_tokens.weight"):
        return of_embedding * noise
    return noise * (1.5 / shape[-1] ** 0.5)


def _peak(model: Any, spread: float = 5.0) -> None:
    """Scale the last norm so that logits have this standard deviation."""
    import mlx.core as mx
    from mlx.utils import tree_flatten

    named = {name: a for name, a in tree_flatten(model.parameters()) if name.endswith("model.norm.weight")}
    ((name, weight),) = named.items()
    vocabulary = _vocabulary(model.parameters())
    ids = mx.random.randint(0, vocabulary, (1, 48))
    for _ in range(3):
        weight = weight * (spread / mx.std(model(ids)).item())
        model.load_weights([(name, weight)], strict=False)


def _vocabulary(parameters: Any) -> int:
    from mlx.utils import tree_flatten

    return next(int(a.shape[0]) for name, a in tree_flatten(parameters) if name.endswith("embed_tokens.weight"))


def _run(question: Json) -> None:
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache
    from mlx_lm.utils import load_model

    model, _ = load_model(Path(question["checkpoint"]))
    answer = {}
    for i, (prompt, steps) in enumerate(zip(question["prompts"], question["steps"], strict=True)):
        cache = make_prompt_cache(model)
        ids, logits, tokens = mx.array([prompt]), [], []
        for start in range(0, len(prompt), 2048):
            last = model(ids[:, start : start + 2048], cache=cache)[:, -1]
        for step in range(steps):
            token = mx.argmax(last - mx.logsumexp(last, axis=-1, keepdims=True), axis=-1)
            logits.append(np.array(last[0].astype(mx.float32)))
            tokens.append(token.item())
            if step + 1 < steps:
                last = model(token[:, None], cache=cache)[:, -1]
        answer |= {f"logits{i}": np.stack(logits), f"tokens{i}": np.array(tokens)}
    np.savez(question["out"], **answer)


def main() -> None:
    does: dict[str, Callable[[Json], None]] = {"make": _make, "run": _run}
    for line in sys.stdin:
        question = json.loads(line)
        answer = {}
        try:
            does[question["do"]](question)
        except Exception:  # noqa: BLE001  # the asker gets it, whatever it is
            answer["error"] = traceback.format_exc()
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
