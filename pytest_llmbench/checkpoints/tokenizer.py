"""The tiny checkpoints' tokenizer: 2048 byte-level BPE tokens, the chat's tokens first."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pytest_llmbench.checkpoints import bpe, corpus, script

VOCAB_SIZE = 2048
CHAT_TOKENS = (*script.CONTROL_TOKENS, *script.MARKUP_TOKENS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """`tokens[id]` in the byte alphabet (the chat's tokens in plain text), and the merges."""

    tokens: tuple[str, ...]
    merges: tuple[bpe.Pair, ...]

    def token_id(self, text: str) -> int:
        """Id of the one token that `text` is. Raises KeyError if it is none, or several."""
        spelled = text if text in CHAT_TOKENS else bpe.spell(text)
        try:
            return self.tokens.index(spelled)
        except ValueError:
            raise KeyError(f"{text!r} is not one token of the tiny tokenizer") from None


def make_vocabulary() -> Vocabulary:
    """Trains on the package's own word list and snippets (about a second)."""
    trained = bpe.train(corpus.pretoken_counts(), VOCAB_SIZE - len(CHAT_TOKENS))
    return Vocabulary(tokens=(*CHAT_TOKENS, *trained.tokens), merges=trained.merges)


def tokenizer_json(vocabulary: Vocabulary) -> str:
    """`tokenizer.json` of Hugging Face's `tokenizers`."""
    ids = {token: number for number, token in enumerate(vocabulary.tokens)}
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": ids[token], **_added(token)} for token in CHAT_TOKENS],
        "normalizer": None,
        "pre_tokenizer": _byte_level(trim_offsets=True),
        "post_processor": _byte_level(trim_offsets=False),
        "decoder": _byte_level(trim_offsets=True),
        "model": _model(ids, vocabulary.merges),
    }
    return json.dumps(document, ensure_ascii=False, indent=1) + "\n"


def tokenizer_config_json(vocabulary: Vocabulary, *, context_tokens: int) -> str:
    """`tokenizer_config.json`; the chat template is in it too, for loaders older than `chat_template.jinja`."""
    document = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": False,
        "added_tokens_decoder": {str(vocabulary.token_id(token)): _added(token) for token in CHAT_TOKENS},
        "additional_special_tokens": [script.IM_START, script.IM_END],
        "bos_token": None,
        "eos_token": script.IM_END,
        "pad_token": script.ENDOFTEXT,
        "unk_token": None,
        "errors": "replace",
        "clean_up_tokenization_spaces": False,
        "model_max_length": context_tokens,
        "chat_template": chat_template(),
    }
    return json.dumps(document, indent=1) + "\n"


def chat_template() -> str:
    """The Jinja template: ChatML with reasoning, tools and `enable_thinking`."""
    return corpus.data("chat_template.jinja")


def _added(token: str) -> dict[str, Any]:
    flags = dict.fromkeys(("lstrip", "rstrip", "normalized", "single_word"), False)
    # Markup must survive `skip_special_tokens`: servers look for it in the decoded text.
    return {"content": token, **flags, "special": token in script.CONTROL_TOKENS}


def _byte_level(*, trim_offsets: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": trim_offsets, "use_regex": True}


def _model(ids: dict[str, int], merges: tuple[bpe.Pair, ...]) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": ids,
        # Joined by a space, which every version of `tokenizers` reads.
        "merges": [f"{left} {right}" for left, right in merges],
    }
