"""`llmbench checkpoint tiny DIR`: the set of tiny checkpoints, for MLX and for llama.cpp."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_llmbench.checkpoints import model, publish
from pytest_llmbench.checkpoints.folder import write_folder
from pytest_llmbench.checkpoints.gguf_file import write_gguf
from pytest_llmbench.checkpoints.quantize import quantization_config, quantize_weights
from pytest_llmbench.checkpoints.tokenizer import Vocabulary, make_vocabulary
from pytest_llmbench.errors import Unavailable, UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

SCRIPTED = ("tiny-scripted", "tiny-scripted-fp16", "tiny-scripted-4bit")
RANDOM = ("tiny-random", "tiny-random-fp16", "tiny-random-4bit")
GGUF: Mapping[str, str] = {
    "tiny-scripted.gguf": "f32",
    "tiny-scripted-q8_0.gguf": "q8_0",
    "tiny-random.gguf": "f32",
    "tiny-random-q4_0.gguf": "q4_0",
}
NAMES = (*SCRIPTED, *RANDOM, *GGUF)

_NEEDED = ("numpy", "safetensors", "gguf")
_FIX = "pip install 'pytest-llmbench[checkpoint]'"
_SCRIPTED_SEED = 1
_RANDOM_SEED = 2


def make_tiny(directory: Path, *, report: Callable[[str], None]) -> tuple[Path, ...]:
    """Makes the folders and files of `NAMES` in `directory`, or leaves a complete set as it is.

    Nothing else in `directory` is touched; of two processes that call it at once, one waits. `report` gets a
    line for each file made. Raises UsageError when `directory` can't be written and Unavailable when a
    package is missing.
    """
    maker = _recipe_digest()
    try:
        if publish.is_complete(directory, maker=maker):
            report(f"already there: {directory}")
        else:
            _make_under_lock(directory, maker=maker, report=report)
    except OSError as error:
        raise UsageError(
            f"can't write the tiny checkpoints to {directory}: {error}; "
            "name a folder that you may write to, with 40 MB of space"
        ) from error
    return tuple(directory / name for name in NAMES)


def _make_under_lock(directory: Path, *, maker: str, report: Callable[[str], None]) -> None:
    with publish.locked(directory):
        # Another process may have made it while this one waited.
        if publish.is_complete(directory, maker=maker):
            report(f"already there: {directory}")
        else:
            _make(directory, maker=maker, report=report)


def _make(directory: Path, *, maker: str, report: Callable[[str], None]) -> None:
    _check_packages()
    vocabulary = make_vocabulary()
    shape = model.Shape()
    with publish.staging(directory) as folder:
        for family, names, weights in (
            ("tiny-scripted", SCRIPTED, model.scripted_weights(shape, vocabulary, seed=_SCRIPTED_SEED)),
            ("tiny-random", RANDOM, model.random_weights(shape, vocabulary, seed=_RANDOM_SEED)),
        ):
            config = model.config(shape, vocabulary, dtype="float32")
            _write_folders(folder, names, config, weights, vocabulary)
            for name in (name for name in GGUF if name.startswith(family)):
                write_gguf(folder / name, config, weights, vocabulary, quant=GGUF[name])
        publish.publish(folder, directory, NAMES, maker=maker)
    for name in NAMES:
        report(f"made {directory / name}")


def _write_folders(
    folder: Path,
    names: tuple[str, str, str],
    config: dict[str, Any],
    weights: model.Weights,
    vocabulary: Vocabulary,
) -> None:
    """The float32, float16 and 4-bit copies.

    The 4-bit one has float32 scales: MLX's CPU kernel decodes it 20 times as fast as with float16 ones.
    """
    half: dict[str, NDArray[Any]] = {name: value.astype("float16") for name, value in weights.items()}
    whole: dict[str, NDArray[Any]] = dict(weights)
    write_folder(folder / names[0], config, whole, vocabulary)
    write_folder(folder / names[1], config | {"torch_dtype": "float16"}, half, vocabulary)
    write_folder(folder / names[2], config | quantization_config(), quantize_weights(whole), vocabulary)


def _check_packages() -> None:
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise Unavailable(f"tiny checkpoints need {', '.join(missing)}, not installed here", fix=_FIX)


def _recipe_digest() -> str:
    """SHA-256 of this package's sources and data: a set made by other ones is made again."""
    package = resources.files("pytest_llmbench.checkpoints")
    files = [*package.iterdir(), *(package / "data").iterdir()]
    digest = hashlib.sha256()
    for file in sorted(files, key=lambda file: file.name):
        if file.name.endswith((".py", ".txt", ".jinja")):
            digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()
