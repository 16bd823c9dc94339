"""Keys and values of attention layers: all of them, or the last `window` of them.

Buffers are made for the prompt, which will come, and some way on; not for the end that `max_tokens` allows, which most
sequences don't reach.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

import mlx.core as mx

STEP = 256
"""Room is made in multiples of this many tokens where a buffer turns out to be too short."""


AHEAD = 2048
"""Tokens that a buffer has room for beyond what it must hold; a longer one for as many again."""


def round_up(tokens: int, step: int = STEP) -> int:
    return -(-tokens // step) * step


class LayerCache(Protocol):
    """One layer's part. `cuttable`: what it was after fewer tokens can still be had."""

    cuttable: ClassVar[bool]

    def select(self, rows: mx.array, longest: int) -> None:
        """Keep these rows, in this order; the longest of them has seen `longest` tokens."""

    def join(self, other: LayerCache) -> None:
        """Append the rows of another cache of the same layer; either may be longer."""

    def prefix(self, row: int, seen: int, tokens: int) -> LayerCache:
        """A copy of one row, which has seen `seen` tokens, as it was after `tokens` (all of them if not cuttable)."""

    @property
    def arrays(self) -> list[mx.array]: ...


class KeyValues:
    """Keys and values of full attention, [batch, heads, room, width], the first `length` columns filled."""

    __slots__ = ("keys", "known", "length", "room", "values")
    cuttable: ClassVar[bool] = True

    def __init__(self, room: int) -> None:
        self.keys: mx.array | None = None
        self.values: mx.array | None = None
        self.length = 0
        self.room, self.known = room, 0

    def update(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append S columns; returns all columns so far."""
        start, stop = self.length, self.length + keys.shape[2]
        if self.keys is None or self.values is None or stop > self.keys.shape[2]:
            self._grow(keys, values, stop)
        assert self.keys is not None
        assert self.values is not None
        self.keys[:, :, start:stop] = keys
        self.values[:, :, start:stop] = values
        self.length = stop
        return self.keys[:, :, :stop], self.values[:, :, :stop]

    def _grow(self, keys: mx.array, values: mx.array, needed: int) -> None:
        room = self._near(needed) if self.room >= needed else needed if self.keys is None else round_up(needed)
        self.keys = _with_room(self.keys, keys, self.length, room)
        self.values = _with_room(self.values, values, self.length, room)

    def _near(self, needed: int) -> int:
        """As much of the room as is made now. With doubling, a buffer is copied few times, however long it becomes."""
        return min(self.room, max(needed + max(needed, AHEAD), self.known + AHEAD))

    def select(self, rows: mx.array, longest: int) -> None:
        if self.keys is not None and self.values is not None:
            padding = self.length - longest
            stop = min(self.keys.shape[2], padding + max(self.room, longest))
            self.keys, self.values = self.keys[rows, :, padding:stop], self.values[rows, :, padding:stop]
            self.length = longest

    def join(self, other: LayerCache) -> None:
        assert isinstance(other, KeyValues)
        if self.keys is None or self.values is None or other.keys is None or other.values is None:
            raise ValueError("only caches that hold something can be joined")
        length = max(self.length, other.length)
        # The longest row sets the columns until it leaves, so that no more are needed than it will have.
        self.room = max(self.room, other.room)
        room = max(length, self._near(length))
        self.keys = _joined(self.keys, self.length, other.keys, other.length, length, room)
        self.values = _joined(self.values, self.length, other.values, other.length, length, room)
        self.length = length

    def prefix(self, row: int, seen: int, tokens: int) -> KeyValues:
        copy = KeyValues(0)
        if self.keys is not None and self.values is not None:
            start = self.length - seen
            copy.keys, copy.values = (a[row : row + 1, :, start : start + tokens] for a in (self.keys, self.values))
            copy.length = tokens
        return copy

    @property
    def arrays(self) -> list[mx.array]:
        return [a for a in (self.keys, self.values) if a is not None]


class WindowKeyValues:
    """Keys and values of sliding-window attention: the last `window - 1` columns, and those being written.

    Columns stay in order: the buffer has room beyond the window, and when it is full, what the window still needs
    moves to its front.
    """

    __slots__ = ("end", "keys", "length", "slack", "start", "values", "window")
    cuttable: ClassVar[bool] = False

    def __init__(self, window: int, slack: int = STEP) -> None:
        self.window = window
        self.slack = slack
        self.keys: mx.array | None = None
        self.values: mx.array | None = None
        self.start = 0
        self.end = 0
        self.length = 0

    def update(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append S columns; returns the S new ones and up to `window - 1` before them."""
        new = keys.shape[2]
        kept = min(self.end - self.start, self.window - 1)
        if self.keys is None or self.values is None or self.end + new > self.keys.shape[2]:
            if new > self.slack:
                return self._update_whole(keys, values, kept)
            self._compact(keys, values, kept)
        assert self.keys is not None
        assert self.values is not None
        self.keys[:, :, self.end : self.end + new] = keys
        self.values[:, :, self.end : self.end + new] = values
        first, self.end = self.end - kept, self.end + new
        self.start = max(self.start, self.end - self.window)
        self.length += new
        return self.keys[:, :, first : self.end], self.values[:, :, first : self.end]

    def _update_whole(self, keys: mx.array, values: mx.array, kept: int) -> tuple[mx.array, mx.array]:
        """A long chunk: attention sees it with what came before; kept is only the end."""
        if kept:
            assert self.keys is not None
            assert self.values is not None
            keys = mx.concatenate([self.keys[:, :, self.end - kept : self.end], keys], axis=2)
            values = mx.concatenate([self.values[:, :, self.end - kept : self.end], values], axis=2)
        self.length += keys.shape[2] - kept
        width = min(keys.shape[2], self.window)
        self._store(keys[:, :, -width:], values[:, :, -width:])
        return keys, values

    def _compact(self, keys: mx.array, values: mx.array, kept: int) -> None:
        if self.keys is None or self.values is None:
            self._store(keys[:, :, :0], values[:, :, :0])
        else:
            self._store(self.keys[:, :, self.end - kept : self.end], self.values[:, :, self.end - kept : self.end])

    def _store(self, keys: mx.array, values: mx.array) -> None:
        room = self.window + self.slack
        self.start, self.end = 0, keys.shape[2]
        self.keys, self.values = (_padded(a, 0, room - a.shape[2]) for a in (keys, values))

    def select(self, rows: mx.array, longest: int) -> None:
        if self.keys is not None and self.values is not None:
            self.keys, self.values = self.keys[rows], self.values[rows]
            self.start = max(self.start, self.end - longest)
            self.length = longest

    def join(self, other: LayerCache) -> None:
        assert isinstance(other, WindowKeyValues)
        if self.keys is None or self.values is None or other.keys is None or other.values is None:
            raise ValueError("only caches that hold something can be joined")
        mine, theirs = self.end - self.start, other.end - other.start
        width = max(mine, theirs)
        pairs = ((self.keys, other.keys), (self.values, other.values))
        keys, values = (
            _stacked(a[:, :, self.start : self.end], b[:, :, other.start : other.end], width) for a, b in pairs
        )
        self.length = max(self.length, other.length)
        self._store(keys, values)

    def prefix(self, row: int, seen: int, tokens: int) -> WindowKeyValues:
        copy = WindowKeyValues(self.window, self.slack)
        if self.keys is not None and self.values is not None:
            start = max(self.start, self.end - seen)
            copy.keys, copy.values = (a[row : row + 1, :, start : self.end] for a in (self.keys, self.values))
            copy.start, copy.end, copy.length = 0, self.end - start, seen
        return copy

    @property
    def arrays(self) -> list[mx.array]:
        return [a for a in (self.keys, self.values) if a is not None]


def _with_room(old: mx.array | None, like: mx.array, length: int, room: int) -> mx.array:
    batch, heads, _, width = like.shape
    new = mx.zeros((batch, heads, room, width), like.dtype)
    if old is not None and length:
        new[:, :, :length] = old[:, :, :length]
    return new


def _padded(a: mx.array, before: int, after: int) -> mx.array:
    return a if before == after == 0 else mx.pad(a, [(0, 0), (0, 0), (before, after), (0, 0)])


def _stacked(a: mx.array, b: mx.array, width: int) -> mx.array:
    return mx.concatenate([_padded(x, width - x.shape[2], 0) for x in (a, b)])


def _joined(a: mx.array, a_length: int, b: mx.array, b_length: int, length: int, room: int) -> mx.array:
    return _padded(_stacked(a[:, :, :a_length], b[:, :, :b_length], length), 0, room - length)
