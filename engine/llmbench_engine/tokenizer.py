"""A checkpoint folder's tokenizer: the same ids as transformers, through the `tokenizers` library alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as FastTokenizer

from llmbench_engine.chat_template import ChatTemplates, read_chat_templates
from llmbench_engine.detokenizer import SUPPORTED, Detokenizer, detokenizer_factory
from llmbench_engine.errors import CheckpointError, InvalidRequest
from llmbench_engine.tokenizer_config import TokenizerConfig, read_eos_ids, read_tokenizer_config


class Tokenizer:
    """Text to ids and back. Never changes after `load`, so that several threads may use one.

    `eos_ids` end a sequence; `bos_id` is None where the checkpoint names no such token.
    """

    __slots__ = ("_chat", "_fast", "_special_tokens", "bos_id", "detokenizer", "eos_ids")

    detokenizer: Callable[[], Detokenizer]
    """Makes the detokenizer of a new sequence. Its text is `decode` of all its ids."""

    def __init__(
        self,
        fast: FastTokenizer,
        *,
        detokenizer: Callable[[], Detokenizer],
        special_tokens: Mapping[str, str],
        eos_ids: frozenset[int],
        chat: ChatTemplates,
    ) -> None:
        self._fast = fast
        self._special_tokens = special_tokens
        self._chat = chat
        self.detokenizer = detokenizer
        self.bos_id = self._id_of("bos_token")
        eos_id = self._id_of("eos_token")
        self.eos_ids = eos_ids if eos_id is None else eos_ids | {eos_id}

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """The tokenizer of the folder `path`. CheckpointError where a file is missing, damaged or not supported."""
        config, vocabulary = read_tokenizer_config(path), vocabulary_file(path)
        fast = _vocabulary(vocabulary)
        fast.add_tokens(config.missing_from(fast.get_added_tokens_decoder().values()))
        fast.encode_special_tokens = bool(config.values.get("split_special_tokens"))
        _check_spaces(fast, config)
        return cls(
            fast,
            detokenizer=_detokenizer(fast, vocabulary),
            special_tokens=config.special_tokens,
            eos_ids=read_eos_ids(path),
            chat=read_chat_templates(path, config.values, config.path),
        )

    @property
    def vocabulary_size(self) -> int:
        """Number of tokens, added ones included; the model may have room for more."""
        return self._fast.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of the text; special tokens in it become their ids. InvalidRequest for text that is no Unicode.

        `add_special_tokens` puts what the checkpoint's post-processor says around it, a begin token for instance.
        """
        try:
            return self._fast.encode(text, add_special_tokens=add_special_tokens).ids
        except TypeError as error:
            raise InvalidRequest(f"the prompt is no text, or has a lone surrogate: {text[:80]!r}") from error

    def encode_prompt(self, text: str) -> list[int]:
        """Ids of a prompt as mlx-lm gives it to a model: special tokens around it, unless it begins with one."""
        bos = self._special_tokens.get("bos_token")
        return self.encode(text, add_special_tokens=bos is None or not text.startswith(bos))

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Text of the ids; those without a token are left out, bytes that are no UTF-8 become U+FFFD."""
        return self._fast.decode(ids, skip_special_tokens=skip_special_tokens)

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        enable_thinking: bool | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> list[int]:
        """Ids of a conversation, whose messages and tools are JSON objects. Errors as `ChatTemplates.render`.

        `enable_thinking` None leaves the choice to the template; `variables` reach it as they are.
        """
        choice = {} if enable_thinking is None else {"enable_thinking": enable_thinking}
        given = {"add_generation_prompt": add_generation_prompt} | choice | variables
        text = self._chat.render(messages, tools, {**self._special_tokens, **given})
        return self.encode(text, add_special_tokens=False)

    def _id_of(self, role: str) -> int | None:
        content = self._special_tokens.get(role)
        return None if content is None else self._fast.token_to_id(content)


def vocabulary_file(folder: Path) -> Path:
    """The folder's `tokenizer.json`. CheckpointError where it is missing."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError("is missing; the engine reads no other form of a tokenizer", path=path)
    return path


def _vocabulary(path: Path) -> FastTokenizer:
    try:
        fast = FastTokenizer.from_file(str(path))
    except Exception as error:  # the library raises Exception itself
        raise CheckpointError(f"is no tokenizer: {error}", path=path) from error
    # Left over from training in some checkpoints: prompts would be cut or filled up.
    fast.no_truncation()
    fast.no_padding()
    return fast


def _detokenizer(fast: FastTokenizer, path: Path) -> Callable[[], Detokenizer]:
    # The library's state of a decoder is its JSON: reading the whole file again would take longer than its parsing.
    decoder = None if fast.decoder is None else json.loads(fast.decoder.__getstate__())
    factory = detokenizer_factory(decoder, fast.id_to_token)
    if factory is None:
        raise CheckpointError(f"is {json.dumps(decoder)[:200]}; supported: {SUPPORTED}", path=path, key="decoder")
    return factory


def _check_spaces(fast: FastTokenizer, config: TokenizerConfig) -> None:
    """CheckpointError where decoding would have to drop spaces afterwards, which can't be done token by token."""
    key = "clean_up_tokenization_spaces"
    forced = f"{key}_for_bpe_even_though_it_will_corrupt_output"
    if config.values.get(key) and (type(fast.model).__name__ != "BPE" or config.values.get(forced)):
        raise CheckpointError(
            "is true; supported: false, or true with BPE, which ignores it", path=config.path, key=key
        )
