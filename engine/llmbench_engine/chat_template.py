"""A checkpoint's chat templates: Jinja, run in the immutable sandbox with what transformers gives to them.

jinja2 is imported at the first use: it takes longer to import than a small model takes to load.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmbench_engine.errors import CheckpointError, EngineError, InvalidRequest

if TYPE_CHECKING:
    from jinja2 import Environment, Template, nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser

_REASONING = ("reasoning_content", "thinking", "reasoning")
# What expressions of a template raise over data that it isn't made for, besides jinja2's own errors.
_REFUSALS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


class ChatTemplates:
    """The templates of one checkpoint by name; most have one, `default`, and some a `tool_use` beside it."""

    def __init__(self, sources: Mapping[str, str], path: Path) -> None:
        self._sources = sources
        self._compiled: dict[str, Template] = {}
        self.path = path

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any],
    ) -> str:
        """The conversation as text. InvalidRequest where the template refuses it, or it isn't JSON data.

        CheckpointError where the checkpoint has no template for it, or one that is no Jinja.
        """
        if not messages:
            raise InvalidRequest("a conversation without messages; give at least one")
        name = self._name(with_tools=tools is not None)
        template = self._compiled.get(name) or self._compile(name)
        data = {key: _plain(value, key) for key, value in {"documents": None, **variables, "tools": tools}.items()}
        data["messages"] = [_message(message) for message in messages]
        from jinja2 import TemplateError

        try:
            return template.render(data)
        except (TemplateError, *_REFUSALS) as error:
            raise InvalidRequest(f"{self.path}: the chat template {name} refuses this conversation: {error}") from error

    def _name(self, *, with_tools: bool) -> str:
        name = "tool_use" if with_tools and "tool_use" in self._sources else "default"
        if name not in self._sources:
            has = ", ".join(sorted(self._sources)) or "none"
            raise CheckpointError(
                f"has no chat template {name} (it has: {has}); give the prompt as text",
                path=self.path,
                key="chat_template",
            )
        return name

    def _compile(self, name: str) -> Template:
        try:
            from jinja2 import TemplateSyntaxError
        except ImportError as error:
            raise EngineError("chat templates need the package jinja2; fix: pip install jinja2") from error
        try:
            template = _environment().from_string(self._sources[name])
        except TemplateSyntaxError as error:
            problem = f"is no Jinja (template {name}, line {error.lineno}): {error}"
            raise CheckpointError(problem, path=self.path, key="chat_template") from error
        return self._compiled.setdefault(name, template)


def read_chat_templates(folder: Path, config: Mapping[str, Any], config_path: Path) -> ChatTemplates:
    """The folder's templates: files beat those in `tokenizer_config.json` (`config`). CheckpointError for others."""
    files = {path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    path = folder / "chat_template.jinja"
    if path.is_file():
        files["default"] = path
    if files:
        return ChatTemplates({name: _read(file) for name, file in files.items()}, path)
    return ChatTemplates(_configured(config.get("chat_template"), config_path), config_path)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except ValueError as error:
        raise CheckpointError(f"is not UTF-8: {error}", path=path) from error


def _configured(value: Any, path: Path) -> dict[str, str]:
    """The configuration's templates: one text, or a list of objects with name and template."""
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    try:
        named = {entry["name"]: entry["template"] for entry in value}
    except (KeyError, TypeError) as error:
        raise CheckpointError("is neither a text nor a list of them by name", path=path, key="chat_template") from error
    if not all(isinstance(text, str) for pair in named.items() for text in pair):
        raise CheckpointError("has a name or a template that is no text", path=path, key="chat_template")
    return named


def _message(message: Any) -> dict[str, Any]:
    """A message without its empty fields, its reasoning under the names that templates read."""
    if not isinstance(message, Mapping):
        raise InvalidRequest(f"a message is {message!r}; an object with role and content is needed")
    fields = {key: _plain(value, f"messages.{key}") for key, value in message.items() if value is not None}
    reasoning = next((fields[name] for name in _REASONING if name in fields), None)
    return fields if reasoning is None else {"thinking": reasoning, **fields, "reasoning_content": reasoning}


def _plain(value: Any, where: str) -> Any:
    """A copy in JSON's own types: what else an object can do is no business of a template."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item, where) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, where) for item in value]
    raise InvalidRequest(f"{where}: a {type(value).__name__} is no JSON data")


def _environment() -> Environment:
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    extensions: list[str | type[Extension]] = [loopcontrols, _generation_extension()]
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _generation_extension() -> type[Extension]:
    from jinja2 import nodes
    from jinja2.ext import Extension

    class Generation(Extension):
        """`{% generation %}` marks, for training, what a model said; here it only opens a scope."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)

    return Generation


def _raise_exception(message: str) -> None:
    from jinja2 import TemplateError

    raise TemplateError(message)


def _tojson(value: Any, ensure_ascii: bool = False, **layout: Any) -> str:
    # jinja2's own filter escapes for HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, **layout)


def _strftime_now(form: str) -> str:
    from datetime import datetime

    # Local time without its zone, so that `%z` is empty as in transformers.
    return datetime.now().astimezone().replace(tzinfo=None).strftime(form)
