"""`llmbench checkpoint random`: real models' shapes with random weights."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from pytest_llmbench import units
from pytest_llmbench.checkpoints import random
from pytest_llmbench.errors import UsageError


def add_random(kinds: argparse._SubParsersAction[argparse.ArgumentParser], *, say: Callable[[str], None]) -> None:
    """Adds the command to `llmbench checkpoint`; `say` prints a line."""
    parser = kinds.add_parser(
        "random", help="a real model's shape with random weights, a tokenizer and a chat template (needs MLX)"
    )
    parser.add_argument("directory", type=Path, nargs="?", metavar="OUT", help="new folder for the checkpoint")
    parser.add_argument("--shape", metavar="NAME", help=f"which model: {', '.join(random.SHAPES)}")
    parser.add_argument("--quant", metavar="Q", help=f"{', '.join(random.QUANTS)} (default: as it is published)")
    parser.add_argument("--layers", type=int, metavar="N", help="only the first N layers (default: all)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="another seed, other weights (default: 0)")
    parser.add_argument("--list", action="store_true", help="list the shapes with their sizes and make nothing")
    parser.set_defaults(run=lambda arguments: _run(arguments, say))


def _run(arguments: argparse.Namespace, say: Callable[[str], None]) -> int:
    if arguments.list:
        for name in random.SHAPES:
            say(_line(random.load_shape(name)))
        return 0
    if arguments.shape is None or arguments.directory is None:
        raise UsageError("say --shape NAME and the folder OUT; --list shows the shapes")
    shape = random.load_shape(arguments.shape).with_quantization(arguments.quant)
    if arguments.layers is not None:
        shape = shape.with_layers(arguments.layers)
    say(_line(shape))
    random.write_checkpoint(shape, arguments.directory, seed=arguments.seed, report=say)
    return 0


def _line(shape: random.Shape) -> str:
    quantization = shape.quantization or {"mode": shape.dtype, "bits": 16}
    return (
        f"{shape.name:<17} {shape.config['model_type']:<12} {shape.layers:>3} layers  "
        f"{quantization.get('mode', 'affine')} {quantization['bits']} bits  "
        f"{units.memory(random.stored_bytes(shape)):>9}  {shape.model_id}"
    )
