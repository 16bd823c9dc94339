"""A checkpoint folder's tokenizer and chat template, through the libraries `tokenizers` and `jinja2`.

The template is the checkpoint's, so it is data from elsewhere: it runs in jinja2's immutable sandbox, with the settings
and helpers that transformers gives to chat templates (`apply_chat_template`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_llmbench.errors import UsageError
from pytest_llmbench.prompts import Message

if TYPE_CHECKING:
    from jinja2 import Template
    from tokenizers import Tokenizer as FastTokenizer


class FolderTokenizer:
    """The tokenizer of a checkpoint folder (`tokenizer.json` and a chat template)."""

    def __init__(self, tokenizer: FastTokenizer, template: Template, special_tokens: Mapping[str, str]) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._special_tokens = special_tokens

    def prompt_ids(self, messages: Sequence[Message], *, think: bool | None) -> Sequence[int]:
        choice = {} if think is None else {"enable_thinking": think}
        text = self._template.render(
            messages=[{"role": m.role, "content": m.content} for m in messages],
            add_generation_prompt=True,
            **self._special_tokens,
            **choice,
        )
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def text_ids(self, text: str) -> Sequence[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def load(folder: Path) -> FolderTokenizer | None:
    """The folder's tokenizer; None where the libraries, `tokenizer.json` or a chat template are missing."""
    try:
        from tokenizers import Tokenizer as FastTokenizer
    except ImportError:
        return None
    path = folder / "tokenizer.json"
    if not path.is_file():
        return None
    config = _read_json(folder / "tokenizer_config.json")
    source = _template_source(folder, config)
    if source is None:
        return None
    return FolderTokenizer(FastTokenizer.from_file(str(path)), _compile(source), _special_tokens(config))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise UsageError(f"{path}: not JSON ({error}); the checkpoint is damaged, fetch or make it again") from error
    return data if isinstance(data, dict) else {}


def _template_source(folder: Path, config: Mapping[str, Any]) -> str | None:
    """`chat_template.jinja` wins over the configuration's own, which may be a list of named ones."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {t["name"]: t["template"] for t in template}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """`bos_token` and its like, which older files store as objects."""
    found = {}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        value = config.get(name)
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str):
            found[name] = value
    return found


def _compile(source: str) -> Template:
    from datetime import datetime

    from jinja2 import TemplateError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def tojson(value: Any, indent: int | None = None, **_: Any) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
    return environment.from_string(source)
