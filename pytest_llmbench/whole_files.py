"""Whether a file of weights is as long as its own header says: a download that was cut is found before a server is."""

from __future__ import annotations

import math
import mmap
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_DATA_END = re.compile(rb'"data_offsets"\s*:\s*\[\s*\d+\s*,\s*(\d+)\s*\]')
_LONGEST_HEADER = 100_000_000  # as the format's own library has it

GGUF_MAGIC: Final = b"GGUF"
_GGUF_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
# gguf.h: bytes of the values of each type.
_VALUE_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
# ggml-common.h: of each common type of tensor a block's elements and bytes. Of a tensor of others a byte is counted.
_BLOCKS = {
    0: (1, 4),
    1: (1, 2),
    30: (1, 2),
    2: (32, 18),
    3: (32, 20),
    6: (32, 22),
    7: (32, 24),
    8: (32, 34),
    20: (32, 18),
    10: (256, 84),
    11: (256, 110),
    12: (256, 144),
    13: (256, 176),
    14: (256, 210),
    23: (256, 136),
    39: (32, 17),
}


def is_cut(path: Path) -> bool:
    """Whether the file is shorter than its header says; False where it has no header that we know."""
    with path.open("rb") as file:
        if path.suffix == ".safetensors":
            length = int.from_bytes(file.read(8), "little")
            header = file.read(min(length, _LONGEST_HEADER))
            if length > _LONGEST_HEADER or not header.startswith(b"{"):
                return False
            end = max((int(found) for found in _DATA_END.findall(header)), default=0)
            return path.stat().st_size < 8 + length + end
        if file.read(len(GGUF_MAGIC)) != GGUF_MAGIC:
            return False
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _gguf_is_cut(data)


def _gguf_is_cut(data: mmap.mmap) -> bool:
    try:
        end = _Gguf(data=data).end()
    except (struct.error, IndexError):
        return True
    except (KeyError, RecursionError):  # a type of value that isn't in our table, or no file that anything wrote
        return False
    return len(data) < end


@dataclass(slots=True)
class _Gguf:
    """Reads a GGUF file's head (docs/gguf.md of ggml). struct.error or IndexError where the file ends before it."""

    data: mmap.mmap
    at: int = len(GGUF_MAGIC)
    alignment: int = 32

    def end(self) -> int:
        """Where the last tensor ends; 0 for a version that we don't know."""
        if self._number("<I") not in _GGUF_VERSIONS:
            return 0
        tensors, pairs = self._number("<Q"), self._number("<Q")
        for _ in range(pairs):
            self._pair()
        ends = [self._tensor_end() for _ in range(tensors)]
        start = -(-self.at // self.alignment) * self.alignment
        return start + max(ends) if ends else 0

    def _number(self, form: str) -> int:
        (value,) = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return int(value)

    def _string(self) -> bytes:
        length = self._number("<Q")
        self._skip(length)
        return self.data[self.at - length : self.at] if length < 64 else b""

    def _skip(self, length: int) -> None:
        self.at += length
        if self.at > len(self.data):
            raise IndexError

    def _pair(self) -> None:
        key, kind = self._string(), self._number("<I")
        if key == b"general.alignment":
            self.alignment = self._number("<I") or self.alignment
            return
        self._values(kind, 1)

    def _values(self, kind: int, count: int) -> None:
        if kind == _ARRAY:
            for _ in range(count):
                inner, length = self._number("<I"), self._number("<Q")
                self._values(inner, length)
        elif kind == _STRING:
            for _ in range(count):
                self._string()
        else:
            self._skip(_VALUE_BYTES[kind] * count)

    def _tensor_end(self) -> int:
        self._string()
        dimensions = [self._number("<Q") for _ in range(self._number("<I"))]
        block, size = _BLOCKS.get(self._number("<I"), (0, 0))
        offset = self._number("<Q")
        return offset + (math.prod(dimensions) // block * size if block else 1)
