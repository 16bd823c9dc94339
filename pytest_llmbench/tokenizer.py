"""A checkpoint folder's tokenizer and chat template, through the libraries `tokenizers` and `jinja2`.

The template is the checkpoint's, so it is data from elsewhere: it runs in jinja2's immutable sandbox, with the settings
and helpers that transformers gives to chat templates (`apply_chat_template`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_llmbench.errors import UsageError
from pytest_llmbench.prompts import Message

if TYPE_CHECKING:
    from jinja2 import Template
    from tokenizers import Tokenizer as FastTokenizer

_REPAIR = "the checkpoint is damaged, fetch or make it again"
# transformers' own block, which marks for training what a model said: any other block treats white space the same.
_GENERATION_TAG = re.compile(r"(?<=\{%)([-+]?\s*)(end)?generation(?=\s*[-+]?%\})")


class FolderTokenizer:
    """The tokenizer of a checkpoint folder (`tokenizer.json` and a chat template)."""

    def __init__(self, tokenizer: FastTokenizer, template: Template, special_tokens: Mapping[str, str]) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._special_tokens = special_tokens

    def prompt_ids(self, messages: Sequence[Message], *, think: bool | None) -> Sequence[int]:
        from jinja2 import TemplateError

        choice = {} if think is None else {"enable_thinking": think}
        try:
            text = self._template.render(
                messages=[{"role": m.role, "content": m.content} for m in messages],
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **self._special_tokens,
                **choice,
            )
        except (TemplateError, TypeError) as error:
            raise UsageError(
                f"the model's chat template refuses {' and '.join(m.role for m in messages)} messages: {error}; "
                "name prompts of another form for it"
            ) from error
        return self.text_ids(text)

    def text_ids(self, text: str) -> Sequence[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def load(folder: Path) -> FolderTokenizer | None:
    """The folder's tokenizer; None where the libraries, `tokenizer.json` or a chat template are missing."""
    if find_spec("tokenizers") is None or find_spec("jinja2") is None:
        return None
    path = folder / "tokenizer.json"
    if not path.is_file():
        return None
    config = _read_json(folder / "tokenizer_config.json")
    source = _template_source(folder, config)
    if source is None:
        return None
    return FolderTokenizer(_vocabulary(path), _compile(source, folder), _special_tokens(config))


def _vocabulary(path: Path) -> FastTokenizer:
    from tokenizers import Tokenizer as FastTokenizer

    try:
        tokenizer: FastTokenizer = FastTokenizer.from_file(str(path))
    except Exception as error:  # the library raises Exception itself
        raise UsageError(f"{path}: no tokenizer ({error}); {_REPAIR}") from error
    # Some files carry a length limit and padding for training: a prompt's length would end there.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise UsageError(f"{path}: not JSON ({error}); {_REPAIR}") from error
    if not isinstance(data, dict):
        raise UsageError(f"{path}: no JSON object; {_REPAIR}")
    return data


def template_source(folder: Path) -> str | None:
    """The text of the folder's chat template; None where it has none. UsageError for a damaged configuration."""
    return _template_source(folder, _read_json(folder / "tokenizer_config.json"))


def _template_source(folder: Path, config: Mapping[str, Any]) -> str | None:
    """`chat_template.jinja` wins over the configuration's own, which may be a list of named ones."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8", errors="replace")
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {t.get("name"): t.get("template") for t in template if isinstance(t, dict)}
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


def _plain_block(tag: re.Match[str]) -> str:
    return tag[1] + ("endif" if tag[2] else "if true")


def _compile(source: str, folder: Path) -> Template:
    from datetime import datetime

    from jinja2 import TemplateError, TemplateSyntaxError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, **layout: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **layout)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
    try:
        return environment.from_string(_GENERATION_TAG.sub(_plain_block, source))
    except TemplateSyntaxError as error:
        raise UsageError(
            f"{folder}: the chat template is no Jinja (line {error.lineno}: {error}); {_REPAIR}"
        ) from error
