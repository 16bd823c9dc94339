"""Text from token ids, one id at a time: what `tokenizers` would decode all of them to, as early as it is settled.

`tokenizers.decoders.DecodeStream` is not used: it decodes again from its last output at each step, which is quadratic
while a model emits bytes that are no UTF-8, and it withholds a real U+FFFD.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

Piece = Callable[[int], str | None]
"""A token's spelling in the vocabulary; None for an id outside it."""

SUPPORTED = "ByteLevel; a Sequence of Replace (of a string), ByteFallback, Fuse and Strip (at the start), in this order"
_SUPPORTED_STEPS = re.compile("(Replace )*ByteFallback Fuse (Strip )?")
_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")


class Detokenizer(Protocol):
    """One sequence's text. Constant time a token, on average."""

    def add(self, token: int) -> str:
        """The text that this token settles, maybe none: never a part of a character. Ids without a token add none."""

    def finish(self) -> str:
        """The rest; U+FFFD for bytes that have stayed incomplete. The sequence ends here: nothing can be added."""


class ByteLevelVocabulary:
    """The bytes of each token of a byte-level vocabulary, looked up once, and the text that they alone are, if any."""

    __slots__ = ("_alphabet", "_known", "_piece")

    def __init__(self, piece: Piece) -> None:
        self._piece = piece
        self._alphabet = {character: byte for byte, character in enumerate(byte_alphabet())}
        self._known: dict[int, tuple[bytes, str | None]] = {}

    def __call__(self, token: int) -> tuple[bytes, str | None]:
        known = self._known.get(token)
        if known is None:
            known = self._known[token] = self._look_up(self._piece(token) or "")
        return known

    def _look_up(self, piece: str) -> tuple[bytes, str | None]:
        try:
            spelled = bytes(self._alphabet[character] for character in piece)
        except KeyError:  # an added token is plain text
            return piece.encode(), piece
        try:
            return spelled, spelled.decode()
        except UnicodeDecodeError:
            return spelled, None


class ByteLevelDetokenizer:
    """Tokens are bytes, and the text is all of them read as UTF-8."""

    __slots__ = ("_decoder", "_vocabulary", "_waiting")

    def __init__(self, vocabulary: ByteLevelVocabulary) -> None:
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._waiting = False

    def add(self, token: int) -> str:
        spelled, text = self._vocabulary(token)
        if text is not None and not self._waiting:
            return text
        text = self._decoder.decode(spelled)
        self._waiting = bool(self._decoder.getstate()[0])
        return text

    def finish(self) -> str:
        return self._decoder.decode(b"", True)


class ByteFallbackVocabulary:
    """The text of each token, or the byte that it stands for, looked up once; None for an id without a token."""

    __slots__ = ("_known", "_piece", "_replacements")

    def __init__(self, piece: Piece, replacements: Sequence[tuple[str, str]]) -> None:
        self._piece = piece
        self._replacements = replacements
        self._known: dict[int, str | int | None] = {}

    def __call__(self, token: int) -> str | int | None:
        if token not in self._known:
            self._known[token] = self._look_up(token)
        return self._known[token]

    def _look_up(self, token: int) -> str | int | None:
        piece = self._piece(token)
        if piece is None:
            return None
        for old, new in self._replacements:
            piece = piece.replace(old, new)
        byte = _BYTE.fullmatch(piece)
        return int(byte[1], 16) if byte else piece


class ByteFallbackDetokenizer:
    """Tokens are text, but for `<0xNN>`: a run of these is UTF-8, or one U+FFFD a byte if any of it isn't.

    So the text of a run is settled only where it ends. `strips` says how many of which character the whole text loses
    at its start.
    """

    __slots__ = ("_run", "_strips", "_vocabulary")

    def __init__(self, vocabulary: ByteFallbackVocabulary, strips: tuple[str, int]) -> None:
        self._vocabulary = vocabulary
        self._strips = strips
        self._run = bytearray()

    def add(self, token: int) -> str:
        found = self._vocabulary(token)
        if isinstance(found, str):
            return self._stripped(self._end_of_run() + found)
        if found is not None:
            self._run.append(found)
        return ""

    def finish(self) -> str:
        return self._stripped(self._end_of_run())

    def _end_of_run(self) -> str:
        if not self._run:
            return ""
        try:
            text = self._run.decode()
        except UnicodeDecodeError:
            text = "\ufffd" * len(self._run)
        self._run.clear()
        return text

    def _stripped(self, text: str) -> str:
        """Without those of the text's first characters that the decoder strips."""
        character, left = self._strips
        while left and text.startswith(character):
            text, left = text[1:], left - 1
        self._strips = character, 0 if text else left
        return text


def detokenizer_factory(decoder: Mapping[str, Any] | None, piece: Piece) -> Callable[[], Detokenizer] | None:
    """What makes detokenizers that do as `decoder` of `tokenizer.json` does; None if it isn't one of `SUPPORTED`."""
    if decoder is None:
        return None
    if decoder["type"] == "ByteLevel":
        byte_level = ByteLevelVocabulary(piece)
        return lambda: ByteLevelDetokenizer(byte_level)
    steps = decoder.get("decoders", [])
    if not _SUPPORTED_STEPS.fullmatch("".join(f"{step['type']} " for step in steps)):
        return None
    patterns = [(step["pattern"].get("String"), step["content"]) for step in steps if step["type"] == "Replace"]
    content, start, stop = _strip(steps[-1])
    if stop or any(pattern is None for pattern, _ in patterns):
        return None
    fallback = ByteFallbackVocabulary(piece, patterns)
    return lambda: ByteFallbackDetokenizer(fallback, (content, start))


def _strip(step: Mapping[str, Any]) -> tuple[str, int, int]:
    return (step["content"], step["start"], step["stop"]) if step["type"] == "Strip" else (" ", 0, 0)


def byte_alphabet() -> list[str]:
    """The character that stands for each byte in a byte-level vocabulary (GPT-2's `bytes_to_unicode`).

    Printable Latin-1 characters stand for themselves, the 68 others are numbered from U+0100.
    """
    itself = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in itself else chr(next(others)) for byte in range(0x100)]
