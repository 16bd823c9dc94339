"""Reading a checkpoint by threads of the engine's own, as on CUDA: here they read on the CPU."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from engine_kit import KINDS, ids, write_model
from hypothesis import given
from hypothesis import strategies as st

from llmbench_engine import CheckpointError, Engine, loader
from llmbench_engine.config import read_config
from llmbench_engine.kv_cache import KeyValues
from llmbench_engine.loader import begin_model, load_model
from llmbench_engine.reading import Part, Readers, spread
from llmbench_engine.shards import read_arrays
from llmbench_engine.transformer import Model, Transformer

PROMPT = tuple(range(40, 60))


@pytest.fixture
def as_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "on_cuda", lambda: True)


def reading_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("llmbench-reader")]


def answer(folder: Path) -> list[int]:
    with Engine.load(folder) as engine:
        return ids(list(engine.generate(PROMPT, max_tokens=8, ignore_eos=True)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_read_by_threads_gives_the_same_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    folder = write_model(kind, tmp_path / kind)
    wanted = answer(folder)
    rehearsed: list[Model] = []
    rehearse = Engine.rehearse
    monkeypatch.setattr(loader, "on_cuda", lambda: True)
    monkeypatch.setattr(Engine, "rehearse", lambda excerpt: (rehearsed.append(excerpt), rehearse(excerpt)))
    assert answer(folder) == wanted
    assert len(rehearsed) == 1
    assert reading_threads() == []


@pytest.mark.parametrize("kind", KINDS)
def test_an_excerpt_has_each_kind_of_layer_twice_and_needs_no_others(tmp_path: Path, kind: str) -> None:
    model = load_model(write_model(kind, tmp_path / kind))
    excerpt, layers = model.excerpt()
    kinds, all_kinds = ([type(c) for c in m.make_cache(1, 1).layers] for m in (excerpt, model))
    if isinstance(model, Transformer):
        kinds, all_kinds = ([type(layer.feed_forward) for layer in m._layers] for m in (excerpt, model))
    assert kinds == list(dict.fromkeys(all_kinds)) * 2
    assert layers == 1 + max(all_kinds.index(one) for one in kinds)
    assert len(set(all_kinds[: layers - 1])) < len(set(all_kinds)) or layers == 1


@pytest.mark.usefixtures("as_on_cuda")
def test_a_model_is_rehearsed_before_its_embeddings_are_read(tmp_path: Path) -> None:
    folder = write_model("qwen3_5", tmp_path / "checkpoint")
    total = sum(array.nbytes for array in read_arrays(folder).values())
    active: list[int] = []
    before = mx.get_active_memory()
    with begin_model(read_config(folder), folder, lambda _: active.append(mx.get_active_memory() - before)) as model:
        pass
    assert isinstance(model.make_cache(1, 1).layers[-1], KeyValues)
    table = 512 * 128 * 4
    assert active[0] <= total - 2 * table
    assert mx.get_active_memory() - before == total


@pytest.mark.usefixtures("as_on_cuda")
@pytest.mark.parametrize("change", [{"rms_norm_eps": -1.0}, {"hidden_size": 256}, {"num_hidden_layers": 3}])
def test_a_checkpoint_that_does_not_fit_leaves_no_thread(tmp_path: Path, change: dict[str, Any]) -> None:
    folder = write_model("qwen3", tmp_path / "checkpoint")
    with pytest.raises(CheckpointError), begin_model(read_config(folder) | change, folder):
        pass
    assert reading_threads() == []


@pytest.mark.usefixtures("as_on_cuda")
def test_a_rehearsal_that_fails_leaves_no_thread(tmp_path: Path) -> None:
    folder = write_model("qwen3", tmp_path / "checkpoint")

    def fails(_excerpt: Model) -> None:
        raise MemoryError("no room")

    with pytest.raises(MemoryError, match="no room"), begin_model(read_config(folder), folder, fails):
        pass
    assert reading_threads() == []


def test_all_tensors_are_read_by_threads(tmp_path: Path) -> None:
    folder = write_model("llama", tmp_path / "checkpoint")
    wanted, readers = read_arrays(folder), Readers(3)
    found = readers.tensors(lambda stream: read_arrays(folder, stream))
    readers.begin(Part(dict(found)), 0)
    readers.wait()
    readers.close()
    assert found.keys() == wanted.keys()
    assert all(mx.array_equal(found[name], array) for name, array in wanted.items())


@pytest.mark.parametrize("interrupted", [False, True])
def test_closing_leaves_unread_what_is_not_being_read(monkeypatch: pytest.MonkeyPatch, interrupted: bool) -> None:
    """Also when Ctrl-C comes while it waits."""
    readers, begun, may_end = Readers(3), threading.Semaphore(0), threading.Event()
    done: list[int] = []

    def read(number: int) -> None:
        begun.release()
        may_end.wait()
        done.append(number)

    for number in range(30):
        readers._threads[number % 3].submit(read, number)
    for _ in range(3):
        begun.acquire()
    if interrupted:
        waiting = iter([KeyboardInterrupt])
        monkeypatch.setattr(threading.Thread, "join", lambda _self, _timeout=None: raise_(next(waiting)))
        with pytest.raises(KeyboardInterrupt):
            readers.close()
        monkeypatch.undo()
        may_end.set()
    else:
        threading.Timer(0.1, may_end.set).start()
    readers.close()
    assert sorted(done) == [0, 1, 2]
    assert reading_threads() == []


def raise_(error: type[BaseException]) -> None:
    raise error


def test_what_cant_be_read_is_told_of(tmp_path: Path) -> None:
    folder = write_model("llama", tmp_path / "checkpoint")
    readers = Readers()
    found = readers.tensors(lambda stream: read_arrays(folder, stream))
    os.truncate(folder / "model.safetensors", 5000)
    readers.begin(Part(dict(found)), 0)
    with pytest.raises(RuntimeError, match="read"):
        readers.wait()
    readers.close()
    assert reading_threads() == []


@given(st.lists(st.integers(1, 1000), min_size=1), st.integers(1, 8))
def test_readers_have_equal_shares_but_for_one_tensor(sizes: list[int], count: int) -> None:
    named = {f"{i:03}": size for i, size in enumerate(sizes)}
    owners = spread(named, count)
    loads = [sum(named[name] for name in named if owners[name] == reader) for reader in range(count)]
    assert owners.keys() == named.keys()
    assert sum(loads) == sum(sizes)
    assert max(loads) - min(loads) <= max(sizes)
