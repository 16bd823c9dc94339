"""What a checkpoint says about its tokenizer beside `tokenizer.json`: special tokens, added tokens, end of sequence.

The rules are those by which transformers 5 makes a tokenizer of the same folder. Two of them surprise: where there is
a `tokenizer.json`, its post-processor alone decides on begin and end tokens (`add_bos_token` and `add_eos_token` are
not read); and a token that only the configuration lists is added to the vocabulary. One of its habits isn't followed:
for some `tokenizer_class` it makes the whole pipeline anew from the vocabulary, and forgets added tokens that only
`tokenizer.json` lists; here that file holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from llmbench_engine.config import read_object
from llmbench_engine.errors import CheckpointError

CONFIG = "tokenizer_config.json"
_STANDARD = tuple(f"{role}_token" for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerConfig:
    """`values` as in the file; `named` special tokens by role (`bos_token`, …), `extra` ones without a role.

    `listed` are the added tokens in order of their ids, or None where the configuration has no such list and those of
    `tokenizer.json` are meant.
    """

    path: Path
    values: Mapping[str, Any]
    named: Mapping[str, AddedToken]
    extra: tuple[AddedToken, ...]
    listed: tuple[AddedToken, ...] | None

    @property
    def special_tokens(self) -> dict[str, str]:
        """Text of the named special tokens, as chat templates see them."""
        return {role: token.content for role, token in self.named.items()}

    def missing_from(self, present: Iterable[AddedToken]) -> list[AddedToken]:
        """The tokens to add to a tokenizer that has these added tokens, in the order in which they get their ids."""
        present = list(present)
        tokens = list(present if self.listed is None else self.listed)
        known = {token.content for token in (*present, *tokens)}
        for token in (*self.named.values(), *self.extra):
            if token.content not in known:
                known.add(token.content)
                tokens.append(token)
        names = set(self.special_tokens.values())
        unchanged = {_flags(token) for token in present}
        promoted = (_special(token) if token.content in names else token for token in tokens)
        return [token for token in promoted if _flags(token) not in unchanged]


def read_tokenizer_config(folder: Path) -> TokenizerConfig:
    """The folder's `tokenizer_config.json`; an empty one where there is none. CheckpointError where it is damaged."""
    path = folder / CONFIG
    values = _read(path)
    listed = _listed(values, path)
    if listed is None:
        # Older transformers wrote the special tokens to a file of their own, which beats the configuration.
        values |= _read(folder / "special_tokens_map.json")
    extra = values.get("extra_special_tokens") or values.get("additional_special_tokens") or []
    roles = dict(_roles(values)) | _object(values, "model_specific_special_tokens", path)
    if isinstance(extra, list):
        unnamed = tuple(_token(value, path, "extra_special_tokens") for value in extra)
    else:
        unnamed, roles = (), roles | _object(values, "extra_special_tokens", path)
    named = {role: _token(value, path, role) for role, value in roles.items() if value is not None}
    return TokenizerConfig(path=path, values=values, named=named, extra=unnamed, listed=listed)


def read_eos_ids(folder: Path) -> frozenset[int]:
    """`eos_token_id` of `generation_config.json`, else of `config.json`; empty where neither says."""
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        value = _read(path).get("eos_token_id")
        if value is not None:
            ids = value if isinstance(value, list) else [value]
            if not all(type(token) is int and token >= 0 for token in ids):
                raise CheckpointError(f"is {value!r}; a token id, or a list, is needed", path=path, key="eos_token_id")
            return frozenset(ids)
    return frozenset()


def _read(path: Path) -> dict[str, Any]:
    """Empty where there is no file."""
    return read_object(path) or {}


def _listed(values: Mapping[str, Any], path: Path) -> tuple[AddedToken, ...] | None:
    key = "added_tokens_decoder"
    table = values.get(key)
    if table is None:
        return None
    if not isinstance(table, dict) or not all(isinstance(v, dict) and k.isdecimal() for k, v in table.items()):
        raise CheckpointError("is not an object of tokens by their ids", path=path, key=key)
    return tuple(_token(table[k], path, f"{key}.{k}", special=False) for k in sorted(table, key=int))


def _object(values: Mapping[str, Any], key: str, path: Path) -> dict[str, Any]:
    value = values.get(key) or {}
    if not isinstance(value, dict):
        raise CheckpointError(f"is {value!r}; an object of tokens by their roles is needed", path=path, key=key)
    return value


def _roles(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        # Others of this ending are switches (`add_bos_token`), but for a multimodal model's own roles.
        if key in _STANDARD or (key.endswith("_token") and isinstance(value, (str, dict))):
            yield key, value


def _token(value: Any, path: Path, key: str, *, special: bool = True) -> AddedToken:
    """A token that is written as its text, or as an object with `content` and the flags of `AddedToken`."""
    if isinstance(value, str):
        return AddedToken(value, special=special)
    if not isinstance(value, dict) or not isinstance(value.get("content"), str):
        raise CheckpointError(
            f"is {value!r}; a token's text, or an object with its content, is needed", path=path, key=key
        )
    return AddedToken(value["content"], **{"special": special} | {f: bool(value[f]) for f in _FLAGS if f in value})


def _special(token: AddedToken) -> AddedToken:
    flags = {flag: getattr(token, flag) for flag in _FLAGS}
    return AddedToken(token.content, **flags | {"special": True})


def _flags(token: AddedToken) -> tuple[Any, ...]:
    # `==` of the library compares the content alone.
    return (token.content, *(getattr(token, flag) for flag in _FLAGS))
