"""What mlx-lm makes of random checkpoints; a process of its own, because mlx-lm's imports have side effects.

`python random_child.py FOLDER` writes one line of JSON.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
from random_configs import CASES, CONFIGS, DEEP, VOCAB

from pytest_llmbench.checkpoints.random import (
    SHAPES,
    load_shape,
    random_checkpoint,
    random_weights,
    shape_of,
    stored_tensors,
    vocabulary_of_size,
    write_checkpoint,
)

PROMPT = range(20, 84)


def answers(folder: Path) -> dict[str, Any]:
    """Everything that the tests ask."""
    vocabulary = vocabulary_of_size(VOCAB)
    loads = {
        f"{name}-{quant}": logits_of(
            random_checkpoint(CONFIGS[name], quant, folder / f"{name}-{quant}", vocabulary=vocabulary)
        )
        for name, quants in CASES.items()
        for quant in quants
    }
    config = deep(CONFIGS["qwen3_moe"])
    loads[f"{DEEP}-layers"] = logits_of(random_checkpoint(config, "4bit", folder / "deep", vocabulary=vocabulary))
    return {
        "loads": loads,
        "full_shapes": {name: differences_to_mlx_lm(name) for name in SHAPES},
        "rounding": rounding(folder),
        "same": sameness(folder),
    }


def deep(config: Mapping[str, Any]) -> dict[str, Any]:
    return {**config, "num_hidden_layers": DEEP}


def logits_of(path: Path) -> dict[str, Any]:
    """One pass over the prompt through the model as mlx-lm loads it, strictly."""
    from mlx_lm.utils import load_model

    model, _ = load_model(path, strict=True)
    logits = model(mx.array(list(PROMPT))[None])[0].astype(mx.float32)
    own = logits[mx.arange(len(PROMPT)), mx.array(list(PROMPT))]
    return {
        "finite": bool(mx.isfinite(logits).all().item()),
        "std": number(mx.std(logits, axis=-1).min()),
        "own": number(own.mean()),
        "best": [int(token) for token in logits.argmax(-1).tolist()],
    }


def differences_to_mlx_lm(name: str) -> list[str]:
    """Arrays of the full shape that mlx-lm's module has otherwise. Nothing is evaluated, so it takes no memory."""
    import mlx.nn
    from mlx.utils import tree_flatten
    from mlx_lm.utils import _get_classes

    shape = load_shape(name)
    config = copy.deepcopy(dict(shape.config))
    model_class, args_class = _get_classes(config)
    model = model_class(args_class.from_dict(config))
    table = shape.quantization or {}
    nn: Any = mlx.nn
    nn.quantize(
        model,
        table["group_size"],
        table["bits"],
        mode=table["mode"],
        class_predicate=lambda path, module: table.get(path, hasattr(module, "to_quantized")),
    )
    wanted = {
        (path, tuple(value.shape)) for path, value in dict[str, mx.array](tree_flatten(model.parameters())).items()
    }
    return sorted(map(str, wanted ^ {(array.name, array.shape) for array in stored_tensors(shape)}))


def rounding(folder: Path) -> float:
    """By how much a deep model's logits differ between bfloat16 and float32 arithmetic on the same weights."""
    from mlx_lm.utils import load_model

    config = deep(CONFIGS["qwen3"]) | {"torch_dtype": "bfloat16"}
    model, _ = load_model(random_checkpoint(config, "4bit", folder / "rounding"))
    prompt = mx.array(list(PROMPT))[None]
    coarse = model(prompt).astype(mx.float32)
    model.set_dtype(mx.float32)
    return number(mx.sqrt(mx.square(coarse - model(prompt)).mean()))


def number(value: mx.array) -> float:
    item: Any = value.item()
    return float(item)


def quiet(_line: str) -> None:
    """Nobody reads the progress."""


def sameness(folder: Path) -> dict[str, bool]:
    """The same seed in memory, in one file and in many; another seed."""
    shape = shape_of(CONFIGS["qwen3_5_moe"], "4bit")
    write_checkpoint(shape, folder / "one", seed=7, report=quiet)
    write_checkpoint(shape, folder / "many", seed=7, report=quiet, shard_bytes=100_000)
    memory, other = random_weights(shape, seed=7), random_weights(shape, seed=8)
    one, many = read(folder / "one"), read(folder / "many")
    index = json.loads((folder / "many" / "model.safetensors.index.json").read_text())["weight_map"]
    return {
        "one file": equal(one, memory),
        "many files": equal(many, memory) and len(set(index.values())) > 2,
        "index": all(name in load(folder / "many" / file) for name, file in index.items()),
        "other seed": all(not equal({name: one[name]}, {name: other[name]}) for name in one),
    }


def read(folder: Path) -> dict[str, mx.array]:
    return {name: value for file in sorted(folder.glob("model*.safetensors")) for name, value in load(file).items()}


def load(file: Path) -> dict[str, mx.array]:
    arrays = mx.load(str(file))
    assert isinstance(arrays, dict)
    return arrays


def equal(one: Mapping[str, mx.array], other: Mapping[str, mx.array]) -> bool:
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and bool(mx.array_equal(one[name], other[name]).item()) for name in one
    )


if __name__ == "__main__":
    sys.stdout.write(json.dumps(answers(Path(sys.argv[1]))) + "\n")
