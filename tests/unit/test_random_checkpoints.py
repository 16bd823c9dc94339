"""Shapes of the record's models, the files that hold them, and the command that makes them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from pytest_llmbench.checkpoints.random import (
    QUANTS,
    SHAPES,
    TensorSpec,
    allocator_bytes,
    load_shape,
    shape_of,
    stored_bytes,
    stored_tensors,
    tensors,
    vocabulary_of_size,
    write_checkpoint,
)
from pytest_llmbench.checkpoints.random.layout import Law
from pytest_llmbench.checkpoints.random.quantization import Quant
from pytest_llmbench.checkpoints.random.shards import index, plan
from pytest_llmbench.checkpoints.random.vocabulary import SMALLEST
from pytest_llmbench.checkpoints.tokenizer import CHAT_TOKENS, make_vocabulary, tokenizer_json
from pytest_llmbench.cli import FAULT, OK, WRONG_USE, main
from pytest_llmbench.errors import Unavailable, UsageError

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "matrix" / "records" / "parity_m4_pro.json"

needs_mlx = pytest.mark.skipif(find_spec("mlx") is None, reason="pip install 'pytest-llmbench[mlx]'")

# Bytes and arrays of the published checkpoints' text models.
PUBLISHED = {
    "qwen3-0.6b": (335_372_288, 704),
    "llama-3.2-3b": (1_807_423_488, 648),
    "llama-3.1-8b": (4_517_404_672, 743),
    "qwen3-8b": (4_607_731_712, 907),
    "qwen3.5-9b": (5_038_041_600, 927),
    "qwen3.8-27b": (15_132_802_048, 1847),
    "qwen3-30b-a3b": (17_174_622_208, 1351),
    "qwen3.6-35b-a3b": (19_508_787_456, 1757),
    "gpt-oss-20b": (12_076_119_168, 775),
    "gpt-oss-20b-8bit": (22_228_464_768, 847),
    "gemma-4-e4b": (4_198_750_292, 1355),
    "gemma-4-26b-a4b": (14_200_055_868, 1339),
}
LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": 300,
}


def loaded_bytes_of_record() -> dict[str, int]:
    models = json.loads(RECORD.read_text())["models"]
    return {model["id"]: int(model["memory"]["load"]["peak_bytes"]["mlx_lm"]["median"]) for model in models}


def run_python(code: str, *arguments: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", SHAPES)
def test_the_allocator_of_the_recorded_machine_had_exactly_these_bytes(name: str) -> None:
    shape = load_shape(name)
    assert allocator_bytes(shape) == loaded_bytes_of_record()[str(shape.model_id)]


def test_the_shapes_are_the_records_models() -> None:
    assert {load_shape(name).model_id for name in SHAPES} == set(loaded_bytes_of_record())
    assert allocator_bytes(load_shape("qwen3-0.6b")) == 335_380_488


@pytest.mark.parametrize(("name", "expected"), PUBLISHED.items(), ids=PUBLISHED)
def test_arrays_add_up_to_the_published_checkpoint(name: str, expected: tuple[int, int]) -> None:
    shape = load_shape(name)
    assert (stored_bytes(shape), len(list(stored_tensors(shape)))) == expected


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("quant", QUANTS)
def test_every_shape_can_be_had_in_every_quantization(name: str, quant: str) -> None:
    shape = load_shape(name).with_quantization(quant)
    arrays = list(stored_tensors(shape))
    assert len({array.name for array in arrays}) == len(arrays)
    assert all(size > 0 for array in arrays for size in array.shape)


def test_more_bits_take_more_bytes() -> None:
    shape = load_shape("qwen3-30b-a3b")
    sizes = [stored_bytes(shape.with_quantization(f"{bits}bit")) for bits in (2, 3, 4, 5, 6, 8)]
    assert sizes == sorted(set(sizes))
    assert stored_bytes(shape.with_quantization("bf16")) == 2 * sum(spec.size for spec in tensors(shape))


@pytest.mark.parametrize(
    ("name", "router"),
    [
        ("qwen3.6-35b-a3b", "mlp.gate"),
        ("qwen3.6-35b-a3b", "shared_expert_gate"),
        ("gpt-oss-20b", "mlp.router"),
        ("gemma-4-26b-a4b", "router.proj"),
    ],
)
@pytest.mark.parametrize("quant", ["4bit", "mxfp8", "nvfp4"])
def test_routers_keep_eight_bits_whatever_the_rest_gets(name: str, router: str, quant: str) -> None:
    shape = load_shape(name).with_quantization(quant)
    routers = [spec for spec in tensors(shape) if spec.name.endswith(f"{router}.weight")]
    assert {spec.quant for spec in routers} == {Quant(bits=8, group_size=64)}
    assert shape.quantization is not None
    assert all(shape.quantization[spec.name.removesuffix(".weight")]["bits"] == 8 for spec in routers)


def test_mxfp4_experts_stand_beside_eight_bit_attention_as_published() -> None:
    quants = {spec.name: spec.quant for spec in tensors(load_shape("gpt-oss-20b"))}
    assert quants["model.layers.3.mlp.experts.up_proj.weight"] == Quant(bits=4, group_size=32, mode="mxfp4")
    assert quants["model.layers.3.self_attn.o_proj.weight"] == Quant(bits=8, group_size=64)
    assert quants["model.layers.3.self_attn.sinks"] is None


def test_decay_stays_in_float32_only_where_the_published_checkpoint_has_it_so() -> None:
    for name, dtype in (("qwen3.5-9b", "float32"), ("qwen3.8-27b", "bfloat16")):
        decays = [spec for spec in tensors(load_shape(name)) if spec.name.endswith("A_log")]
        assert decays
        assert {spec.dtype for spec in decays} == {dtype}


@pytest.mark.parametrize("name", SHAPES)
def test_fewer_layers_leave_the_first_ones_as_they_are(name: str) -> None:
    whole = {array.name: array.shape for array in stored_tensors(load_shape(name))}
    cut = load_shape(name).with_layers(12)
    arrays = {array.name: array.shape for array in stored_tensors(cut)}
    assert cut.layers == 12
    layer = [name.partition("layers.")[2].partition(".")[0] for name in arrays]
    assert {int(number) for number in layer if number} == set(range(12))
    # Per-layer embeddings are as wide as there are layers, and which layers share keys is counted from the end.
    exceptions = {n for n in arrays if "per_layer" in n or (name == "gemma-4-e4b" and ("k_" in n or "v_" in n))}
    assert {n: arrays[n] for n in arrays.keys() - exceptions} == {n: whole[n] for n in arrays.keys() - exceptions}


def test_shared_keys_always_have_a_layer_of_their_kind_to_come_from() -> None:
    shape = load_shape("gemma-4-e4b")
    for count in range(1, shape.layers + 1):
        text = shape.with_layers(count).text_config
        kinds, shared = text["layer_types"], text["num_kv_shared_layers"]
        assert set(kinds[count - shared :]) <= set(kinds[: count - shared])


@pytest.mark.parametrize(("name", "least"), [("qwen3.5-9b", 4), ("gpt-oss-20b", 2), ("qwen3-8b", 1)])
def test_too_few_layers_are_refused_with_the_range(name: str, least: int) -> None:
    shape = load_shape(name)
    with pytest.raises(UsageError, match=f"{name} can have {least} to {shape.layers} layers, not {least - 1}"):
        shape.with_layers(least - 1)
    with pytest.raises(UsageError, match=f"not {shape.layers + 1}"):
        shape.with_layers(shape.layers + 1)


def test_a_misspelled_name_gets_a_suggestion() -> None:
    with pytest.raises(UsageError, match=r"unknown shape 'qwen3-06b': did you mean 'qwen3-0.6b'\? known: "):
        load_shape("qwen3-06b")
    with pytest.raises(UsageError, match=r"unknown quantization 'mxpf4': did you mean 'mxfp4'\?"):
        load_shape("qwen3-0.6b").with_quantization("mxpf4")
    with pytest.raises(UsageError, match=r"unknown model_type 'lama': did you mean 'llama'\?"):
        shape_of({"model_type": "lama"})
    with pytest.raises(UsageError, match=r"unknown torch_dtype 'float61': did you mean 'float16'\?"):
        shape_of({**LLAMA, "torch_dtype": "float61"})


def test_a_configuration_without_a_needed_key_is_refused_by_the_keys_name() -> None:
    config = {key: value for key, value in LLAMA.items() if key != "intermediate_size"}
    with pytest.raises(UsageError, match="the configuration of llama lacks 'intermediate_size'"):
        list(tensors(shape_of(config)))


def test_rows_that_groups_do_not_divide_stay_unquantized_unless_the_entry_insists() -> None:
    top = {"group_size": 64, "bits": 4}
    down = "model.layers.0.mlp.down_proj"
    quants = {spec.name: spec.quant for spec in tensors(shape_of(LLAMA, top))}
    assert quants[f"{down}.weight"] is None
    assert quants["model.layers.0.mlp.up_proj.weight"] == Quant(bits=4, group_size=64)
    with pytest.raises(UsageError, match=f"{down} has rows of 96"):
        list(tensors(shape_of(LLAMA, {**top, down: top})))


def test_a_false_entry_leaves_a_layer_unquantized() -> None:
    quantization = {"group_size": 32, "bits": 4, "model.embed_tokens": False}
    specs = list(tensors(shape_of(LLAMA, quantization)))
    assert [spec.name for spec in specs if len(spec.shape) > 1 and spec.quant is None] == ["model.embed_tokens.weight"]


SPECS = st.builds(
    TensorSpec,
    name=st.uuids().map(lambda unique: f"{unique}.weight"),
    shape=st.tuples(st.integers(1, 5), st.sampled_from([64, 128, 192])),
    dtype=st.sampled_from(["bfloat16", "float16", "float32"]),
    law=st.just(Law()),
    quant=st.sampled_from([None, Quant(bits=4, group_size=64), Quant(bits=8, group_size=32, mode="mxfp8")]),
)


@given(st.lists(SPECS, min_size=1, max_size=20, unique_by=lambda spec: spec.name), st.integers(1, 4000))
def test_arrays_fill_each_file_without_gaps_and_aligned(specs: list[TensorSpec], shard_bytes: int) -> None:
    shards = plan(specs, shard_bytes=shard_bytes)
    assert [spec for shard in shards for spec in shard.specs] == specs
    for shard in shards:
        stored = {array.name: array for spec in shard.specs for array in spec.stored()}
        end = len(shard.header)
        assert end % 8 == 0
        for name, start in sorted(shard.starts.items(), key=lambda item: item[1]):
            assert start == end
            assert start % {"float32": 4, "uint32": 4, "bfloat16": 2, "float16": 2, "uint8": 1}[stored[name].dtype] == 0
            end += stored[name].nbytes
        assert end == shard.nbytes
        assert len(shard.specs) == 1 or end - len(shard.header) <= shard_bytes
    weight_map = index(shards)["weight_map"]
    assert set(weight_map) == {array.name for spec in specs for array in spec.stored()}
    assert set(weight_map.values()) == {shard.file for shard in shards}


@pytest.mark.parametrize("size", [SMALLEST, 1000, 2048, 5000, 262_144])
def test_each_id_of_any_vocabulary_size_is_a_token(size: int) -> None:
    vocabulary = vocabulary_of_size(size)
    tokenizer = Tokenizer.from_str(tokenizer_json(vocabulary))
    assert tokenizer.get_vocab_size() == size
    text = "Grüße, 世界! def f(x): return x  # 42\n<|im_start|>user"
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert tokenizer.decode([size - 1]) != ""


def test_filler_leaves_the_encoding_of_text_as_it_was() -> None:
    text = "What is the capital of France? t03000 t2500"
    tiny = Tokenizer.from_str(tokenizer_json(make_vocabulary()))
    large = Tokenizer.from_str(tokenizer_json(vocabulary_of_size(5000)))
    assert large.encode(text).ids == tiny.encode(text).ids
    assert large.decode([3000]) == " t03000"


def test_a_vocabulary_smaller_than_the_bytes_is_refused() -> None:
    with pytest.raises(UsageError, match=f"a tokenizer has {SMALLEST} tokens at least, not {SMALLEST - 1}"):
        vocabulary_of_size(SMALLEST - 1)


def test_the_list_shows_every_shape_with_its_size(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoint", "random", "--list"]) == OK
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(SHAPES)
    assert "320 MiB" in lines[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shape", "lama-3.2-3b", "OUT"], "did you mean 'llama-3.2-3b'?"),
        (["--shape", "qwen3-0.6b", "--quant", "4bits", "OUT"], "did you mean '4bit'?"),
        (["--shape", "qwen3-0.6b"], "--list shows the shapes"),
        (["OUT"], "--list shows the shapes"),
    ],
)
def test_wrong_use_is_said_before_anything_is_made(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    argv = [str(out) if argument == "OUT" else argument for argument in arguments]
    assert main(["checkpoint", "random", *argv]) == WRONG_USE
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@needs_mlx
def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="is there already"):
        write_checkpoint(shape_of(LLAMA), tmp_path, report=lambda _line: None)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@needs_mlx
def test_a_model_that_no_disk_holds_is_refused_before_a_byte_of_it_is_written(tmp_path: Path) -> None:
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    wide = shape_of({**LLAMA, "hidden_size": 1024, "intermediate_size": free // 1024})
    with pytest.raises(Unavailable, match=r"the checkpoint needs .* has .* free"):
        write_checkpoint(wide, tmp_path / "out", report=lambda _line: None)
    assert not list(tmp_path.iterdir())


WRITE_WITH_A_SMALL_FILE_LIMIT = """
import resource, sys
from pytest_llmbench.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 20, 4 << 20))
sys.exit(main(["checkpoint", "random", "--shape", "qwen3-0.6b", "--layers", "1", sys.argv[1]]))
"""


@needs_mlx
def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    done = run_python(WRITE_WITH_A_SMALL_FILE_LIMIT, tmp_path / "out")
    assert done.returncode == WRONG_USE, done.stderr
    assert "can't write the checkpoint to" in done.stderr
    assert not list(tmp_path.iterdir())


WITHOUT_MLX = """
import sys
from pathlib import Path
from pytest_llmbench.cli import main
sys.path[:] = [folder for folder in sys.path if not Path(folder, "mlx").is_dir()]
sys.exit(main(["checkpoint", "random", "--shape", "qwen3-0.6b", sys.argv[1]]))
"""


def test_without_mlx_the_command_says_how_to_get_it(tmp_path: Path) -> None:
    done = run_python(WITHOUT_MLX, tmp_path / "out")
    assert done.returncode == FAULT, done.stderr
    assert "fix: pip install 'pytest-llmbench[mlx]'" in done.stderr
    assert not list(tmp_path.iterdir())


def test_the_package_imports_no_array_library() -> None:
    code = "import sys, pytest_llmbench.cli; sys.exit(bool({'numpy', 'mlx', 'tokenizers'} & set(sys.modules)))"
    assert run_python(code).returncode == 0


ARGUMENTS = ["checkpoint", "random", "--shape", "qwen3-0.6b", "--quant", "mxfp8", "--layers", "1"]


@needs_mlx
def test_the_command_writes_a_whole_checkpoint_and_tells_how_far_it_is(tmp_path: Path) -> None:
    out = tmp_path / "new" / "qwen"
    code = f"import sys; from pytest_llmbench.cli import main; sys.exit(main({ARGUMENTS!r} + sys.argv[1:]))"
    done = run_python(code, out)
    assert done.returncode == OK, done.stderr
    assert sorted(path.name for path in out.iterdir()) == [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert [path.name for path in out.parent.iterdir()] == ["qwen"]
    config = json.loads((out / "config.json").read_text())
    assert config["num_hidden_layers"] == 1
    assert config["quantization"] == config["quantization_config"] == {"group_size": 32, "bits": 8, "mode": "mxfp8"}
    assert json.loads((out / "generation_config.json").read_text())["eos_token_id"] == config["eos_token_id"]
    assert Tokenizer.from_file(str(out / "tokenizer.json")).get_vocab_size() == config["vocab_size"]
    lines = done.stdout.splitlines()
    assert "100%" in lines[-2]
    assert "tensor 21 of 21, 0 ms left" in lines[-2]
    assert lines[-1] == f"made {out}"


def test_the_rows_of_the_chats_tokens_are_quiet_in_embedding_and_head() -> None:
    quiet = {spec.name: spec.law.quiet_rows for spec in tensors(load_shape("qwen3-8b")) if spec.law.quiet_rows}
    assert quiet == {"model.embed_tokens.weight": len(CHAT_TOKENS), "lm_head.weight": len(CHAT_TOKENS)}
