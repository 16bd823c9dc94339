"""A tokenizer of any size: the tiny one, cut short or filled up, so that each id of a model is a token."""

from __future__ import annotations

from pytest_llmbench.checkpoints.bpe import byte_alphabet
from pytest_llmbench.checkpoints.tokenizer import CHAT_TOKENS, Vocabulary, make_vocabulary
from pytest_llmbench.errors import UsageError

SMALLEST = len(CHAT_TOKENS) + len(byte_alphabet())


def vocabulary_of_size(size: int) -> Vocabulary:
    """`size` tokens. Those past the tiny tokenizer's read ` t02048`, and no text is ever encoded to them.

    Raises UsageError below `SMALLEST`, the chat's tokens and 256 bytes.
    """
    if size < SMALLEST:
        raise UsageError(f"a tokenizer has {SMALLEST} tokens at least, not {size}; raise the model's vocab_size")
    trained = make_vocabulary()
    filler = tuple(f"Ġt{number:05}" for number in range(len(trained.tokens), size))
    tokens = (*trained.tokens, *filler)[:size]
    known = set(tokens)
    merges = tuple(pair for pair in trained.merges if {*pair, "".join(pair)} <= known)
    return Vocabulary(tokens=tokens, merges=merges)
