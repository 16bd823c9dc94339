"""What rows and beginnings of caches hold, against plain lists of columns."""

from __future__ import annotations

import gc
from typing import cast

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmbench_engine.cache import Cache, RecurrentState
from llmbench_engine.kv_cache import AHEAD, KeyValues, LayerCache, WindowKeyValues
from llmbench_engine.prefix import Prefixes
from llmbench_engine.sequence import Request, Sequence, start

WINDOW = 4
ROOM = 24
Rows = list[list[int]]


def columns(rows: Rows) -> mx.array:
    """Values [rows, 1, columns, 1]."""
    return mx.array(rows, dtype=mx.float32)[:, None, :, None]


def feed(layer: LayerCache, rows: Rows) -> list[list[float]]:
    """Append columns; what attention then sees of each row."""
    assert isinstance(layer, KeyValues | WindowKeyValues)
    keys, values = layer.update(columns(rows), -columns(rows))
    assert mx.array_equal(keys, -values)
    return cast("list[list[float]]", keys[:, 0, :, 0].tolist())


def layers() -> list[LayerCache]:
    return [KeyValues(ROOM), WindowKeyValues(WINDOW, slack=3)]


def fed(prompts: Rows) -> Cache:
    """A cache that has seen prompts of one length."""
    cache = Cache(layers(), len(prompts))
    for layer in cache.layers:
        feed(layer, prompts)
    cache.advance(len(prompts[0]))
    return cache


def check(cache: Cache, rows: Rows) -> None:
    """Feed one more column: full attention sees all of each row behind its padding, a window its end."""
    assert cache.lengths == [len(row) for row in rows]
    new = [[100 + i] for i in range(len(rows))]
    full, window = (feed(layer, new) for layer in cache.layers)
    for i, row in enumerate(rows):
        row.extend(new[i])
        assert full[i][-len(row) :] == row
        assert window[i][-min(len(row), WINDOW) :] == row[-WINDOW:]
    cache.advance(1)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_rows_survive_joins_selections_and_steps_in_any_order(data: st.DataObject) -> None:
    rows: Rows = [[1, 2, 3]]
    cache = fed(rows)
    for _ in range(data.draw(st.integers(1, 8))):
        match data.draw(st.sampled_from(["join", "select", "step", "copy"])):
            case "join" if len(rows) < 6:
                length = data.draw(st.integers(1, 9))
                new = [[10 * len(rows) + j for j in range(length)] for _ in range(data.draw(st.integers(1, 2)))]
                cache.join(fed(new))
                rows += new
            case "select":
                kept = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, unique=True))
                cache.select(kept)
                rows = [rows[i] for i in kept]
            case "copy":
                row = data.draw(st.integers(0, len(rows) - 1))
                copy = cache.prefix(row, len(rows[row]))
                check(copy, [list(rows[row])])
        check(cache, rows)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 9), st.integers(1, 9), st.data())
def test_a_beginning_of_a_row_is_what_the_row_was_then(first: int, second: int, data: st.DataObject) -> None:
    cache = Cache([KeyValues(ROOM)])
    feed(cache.layers[0], [list(range(first))])
    cache.advance(first)
    other = Cache([KeyValues(ROOM)])
    feed(other.layers[0], [list(range(50, 50 + second))])
    other.advance(second)
    cache.join(other)
    tokens = data.draw(st.integers(1, second))
    copy = cache.prefix(1, tokens)
    assert copy.lengths == [tokens]
    assert feed(copy.layers[0], [[7]]) == [[*range(50, 50 + tokens), 7]]
    assert feed(cache.layers[0], [[8], [9]])[1][-second - 1 :] == [*range(50, 50 + second), 9]


def test_windows_and_recurrent_states_give_no_earlier_state() -> None:
    cache = fed([[1, 2, 3]])
    assert not cache.cuttable
    assert not Cache([RecurrentState()]).cuttable
    with pytest.raises(ValueError, match="seen 3 tokens can't give the state after 2"):
        cache.prefix(0, 2)


def test_recurrent_states_are_copied_by_row() -> None:
    layer = RecurrentState()
    layer.inputs, layer.memory = [mx.array([[1.0], [2.0]])], mx.array([[3.0], [4.0]])
    copy = layer.prefix(1, 5, 5)
    assert [a.tolist() for a in copy.arrays] == [[[2.0]], [[4.0]]]


def test_a_row_that_leaves_takes_its_padding_along() -> None:
    cache = Cache([KeyValues(30)])
    feed(cache.layers[0], [[0] * 20])
    cache.advance(20)
    short = Cache([KeyValues(12)])
    feed(short.layers[0], [[1, 2]])
    short.advance(2)
    cache.join(short)
    assert cache.arrays[0].shape[2] == 30
    cache.expect(12)
    cache.select([1])
    assert cache.arrays[0].shape[2] <= 12
    for i in range(10):
        assert feed(cache.layers[0], [[3]]) == [[1, 2, *[3] * (i + 1)]]
    assert cache.arrays[0].shape[2] == 12


def sequence(*prompt: int) -> Sequence:
    return start(0, Request(prompt=prompt), frozenset())


def kept(*ids: int) -> Cache:
    cache = Cache([KeyValues(ROOM)])
    feed(cache.layers[0], [list(ids)])
    cache.advance(len(ids))
    return cache


def test_the_longest_common_beginning_is_taken_and_never_the_whole_prompt() -> None:
    prefixes = Prefixes(shortest=1)
    for ids in ([1, 2, 3, 9], [1, 2, 3, 4, 5], [7, 8]):
        prefixes.put(ids, kept(*ids), 0)
    assert prefixes.common(sequence(1, 2, 3, 4, 6)) == 4
    assert prefixes.common(sequence(1, 2, 3, 4)) == 3
    assert prefixes.common(sequence(7, 8, 9)) == 2
    assert prefixes.common(sequence(5, 6)) == 0
    assert prefixes.take(sequence(5, 6), ROOM) is None
    found = prefixes.take(sequence(1, 2, 3, 4, 6), ROOM)
    assert found is not None
    assert feed(found.layers[0], [[6]]) == [[1, 2, 3, 4, 6]]
    assert prefixes.common(sequence(1, 2, 3, 4, 5, 6)) == 5


def test_windows_serve_only_prompts_that_begin_with_all_of_them() -> None:
    prefixes = Prefixes(shortest=1)
    prefixes.put([1, 2, 3], fed([[1, 2, 3]]), 0)
    assert prefixes.common(sequence(1, 2, 3, 4)) == 3
    assert prefixes.common(sequence(1, 2, 4, 5)) == prefixes.common(sequence(1, 2, 3)) == 0


def test_what_a_longer_entry_covers_is_not_kept_twice() -> None:
    prefixes = Prefixes(shortest=1)
    prefixes.put([1, 2], kept(1, 2), 0)
    prefixes.put([1, 2, 3], kept(1, 2, 3), 0)
    prefixes.put([1], kept(1), 0)
    assert len(prefixes) == 1
    prefixes.put([4, 5], fed([[4, 5]]), 0)
    prefixes.put([4, 5, 6], fed([[4, 5, 6]]), 0)
    assert len(prefixes) == 3


def test_short_beginnings_are_not_worth_it() -> None:
    prefixes = Prefixes(shortest=3)
    prefixes.put([1, 2, 3, 4], kept(1, 2, 3, 4), 0)
    assert prefixes.common(sequence(1, 2, 9)) == 0
    assert prefixes.common(sequence(1, 2, 3, 9)) == 3


def test_the_longest_unused_goes_first_when_there_is_no_room() -> None:
    entry = 2 * 4 * 3
    prefixes = Prefixes(shortest=1, capacity=2 * entry)
    prefixes.put([1, 1, 1], kept(1, 1, 1), 0)
    prefixes.put([2, 2, 2], kept(2, 2, 2), 0)
    assert prefixes.take(sequence(1, 1, 1, 1), ROOM) is not None
    prefixes.put([3, 3, 3], kept(3, 3, 3), 0)
    assert prefixes.nbytes == 2 * entry
    assert [prefixes.common(sequence(i, i, i, i)) for i in (1, 2, 3)] == [3, 0, 3]


def test_a_kept_row_does_not_hold_the_buffers_of_its_batch() -> None:
    gc.collect()
    before = mx.get_active_memory()
    cache = Cache([KeyValues(1 << 16) for _ in range(16)], 4)
    for layer in cache.layers:
        feed(layer, [[1, 2, 3]] * 4)
    cache.advance(3)
    mx.eval(cache.arrays)
    assert mx.get_active_memory() > before + 1_000_000
    prefixes = Prefixes(shortest=1)
    prefixes.put([1, 2, 3], cache, 2)
    del cache, layer
    gc.collect()
    assert len(prefixes) == 1
    assert mx.get_active_memory() < before + 10_000


def test_a_distant_end_takes_no_memory_before_it_comes_near() -> None:
    layer = KeyValues(1 << 30)
    feed(layer, [[1, 2, 3]])
    assert layer.keys is not None
    assert layer.keys.shape[2] == 3 + AHEAD
    layer.select(mx.array([0]), 3)
    other = KeyValues(1 << 30)
    feed(other, [[4, 5]])
    layer.join(other)
    assert layer.keys.shape[2] == 3 + AHEAD


def test_rows_of_a_distant_end_can_be_selected_behind_padding() -> None:
    """A slice's end is a 32-bit integer to MLX."""
    layer = KeyValues(2**31 - 1)
    feed(layer, [[1, 2, 3], [4, 5, 6]])
    layer.select(mx.array([1]), 2)
    assert layer.keys is not None
    assert layer.keys[0, 0, :2, 0].tolist() == [5, 6]


def test_a_buffer_has_room_for_all_of_a_prompt_at_once() -> None:
    """In chunks a long one would be copied again and again."""
    cache = Cache([KeyValues(1 << 20)])
    cache.expect(1 << 20, known=3 * AHEAD)
    (layer,) = cache.layers
    assert isinstance(layer, KeyValues)
    feed(layer, [[1, 2, 3]])
    assert layer.keys is not None
    assert layer.keys.shape[2] == 4 * AHEAD


@given(room=st.integers(1, 400), pieces=st.lists(st.integers(1, 60), min_size=1, max_size=12))
def test_a_buffer_that_grows_keeps_what_it_holds(room: int, pieces: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("llmbench_engine.kv_cache.AHEAD", 4)
        layer, count = KeyValues(room), 0
        for piece in pieces:
            feed(layer, [list(range(count, count + piece))])
            count += piece
    assert layer.keys is not None
    assert layer.keys[0, 0, :count, 0].tolist() == list(range(count))
    assert layer.keys.shape[2] <= max(room, count + 256, 2 * count + 4)
