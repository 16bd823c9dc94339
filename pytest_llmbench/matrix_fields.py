"""How each value of a matrix file is read. Every function raises `MatrixError` with the line of the value."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection
from functools import partial

from yaml.nodes import MappingNode, Node, ScalarNode

from pytest_llmbench.matrix import (
    BUILTIN_PROMPTS,
    CONCURRENCY_PREFIX,
    GATED_METRICS,
    MOST_STREAMS,
    REQUIREMENTS,
    CustomPrompt,
    Gate,
    Hardware,
    Settings,
)
from pytest_llmbench.yaml_nodes import Item, NodeReader, Read, short, suggestion

MOST_RUNS = 10_000
A_DAY_S = 86_400.0
LONGEST_NAME = 120
"""Names become file names and test ids."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_ADDRESS = re.compile(r"https?://([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:]+\])(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REQUIREMENT_VALUES = {
    "platform": re.compile(r"(darwin|linux)(-[a-z0-9_]+)?"),
    "memory_gb": re.compile(r"(?!0+(\.0*)?$)[0-9]+(\.[0-9]+)?"),
    "binary": re.compile(r"\S+"),
    "package": _NAME,
    "env": _VARIABLE,
    "file": re.compile(r"\S(.*\S)?"),
}


def entry_readers(nodes: NodeReader, backends: Collection[str], prompts: Collection[str]) -> dict[str, Read]:
    """The keys of an entry, each with what reads its value; names as in `MatrixEntry`."""
    text, filled, boolean = nodes.string, nodes.filled, nodes.boolean
    return {
        "id": partial(identifier, nodes),
        "backend": partial(nodes.choice, names=backends, what="backend"),
        "model_id": filled,
        **dict.fromkeys(("model", "name", "group", "fmt", "quant", "reason", "known_issue", "prereq"), text),
        "kv_cache": filled,
        **dict.fromkeys(("enabled", "no_think", "fixed_length"), boolean),
        **dict.fromkeys(("server_binary", "api_key"), filled),
        "server_url": partial(address, nodes),
        "api_key_env": partial(variable, nodes),
        "extra_args": partial(arguments, nodes),
        "env": partial(environment, nodes),
        "prompts": partial(prompt_names, nodes, names=prompts),
        "max_tokens": partial(nodes.integer, low=1),
        "temperature": nodes.number,
        "server_timeout": partial(nodes.number, positive=True, high=A_DAY_S),
        "gates": partial(gates, nodes),
        "concurrency": partial(levels, nodes),
        "requires": lambda node: nodes.unique(node, partial(requirement, nodes)),
    }


def identifier(nodes: NodeReader, node: Node) -> str:
    """A name that can stand in a test's id."""
    name = nodes.string(node)
    if len(name) > LONGEST_NAME:
        nodes.source.fail(node, f"{short(name)} has {len(name)} characters; a name has at most {LONGEST_NAME}")
    if not _NAME.fullmatch(name):
        nodes.source.fail(
            node, f"{short(name)} is no valid name; use letters, digits and ._+- and start with a letter or digit"
        )
    return name


def address(nodes: NodeReader, node: Node) -> str:
    """Where a server that runs already is: `http://host:port`, with a path or without; no user, password or query."""
    url = nodes.string(node)
    if "@" in url or "?" in url:
        # Not shown: that is where a password or a key stands.
        nodes.source.fail(
            node,
            "an address has no user, password or query: it would be no server's address alone, and be recorded; "
            "write for instance http://127.0.0.1:8000/v1, and name the key's variable in api_key_env",
        )
    found = _ADDRESS.fullmatch(url)
    if found is None or not 0 < int((found[2] or ":80")[1:]) < 65536:
        nodes.source.fail(node, f"{short(url)} is no server's address; write for instance http://127.0.0.1:8000/v1")
    return url.rstrip("/")


def variable(nodes: NodeReader, node: Node) -> str:
    """The name of an environment variable."""
    return _variable(nodes, node, nodes.string(node))


def _variable(nodes: NodeReader, node: Node, name: str) -> str:
    if not _VARIABLE.fullmatch(name):
        nodes.source.fail(node, "expected the name of an environment variable: letters, digits and _")
    return name


def arguments(nodes: NodeReader, node: Node) -> tuple[str, ...]:
    """Command-line arguments: a list, or one string that is split as a shell would.

    A list's numbers and booleans are taken as they are written: `[-fa, on, -c, 8192]` needs no quotes.
    """
    if not isinstance(node, ScalarNode):
        return tuple(nodes.scalar(item) for item in nodes.items(node))
    try:
        return tuple(shlex.split(nodes.string(node)))
    except ValueError as error:
        nodes.source.fail(node, f"can't be split into arguments: {error}")


def environment(nodes: NodeReader, node: Node) -> tuple[tuple[str, str], ...]:
    """Variables with their values as they are written."""
    return tuple(
        (_variable(nodes, item.key, name), nodes.scalar(item.value)) for name, item in nodes.mapping(node).items()
    )


def prompt_names(nodes: NodeReader, node: Node, names: Collection[str]) -> tuple[str, ...]:
    """At least one of the prompts in `names`."""
    return nodes.unique(node, partial(nodes.choice, names=names, what="prompt"), filled=True)


def levels(nodes: NodeReader, node: Node) -> tuple[int, ...]:
    """How many requests run at once, one number or more; an empty list: no such test."""
    return nodes.unique(node, partial(nodes.integer, low=1, high=MOST_STREAMS))


def gates(nodes: NodeReader, node: Node) -> tuple[Gate, ...]:
    """`metric: {at_least: x, at_most: y}`, one bound or both; `metric@4` is for four requests at once."""
    return tuple(nodes.each(nodes.mapping(node).values(), partial(_gate, nodes)))


def _gate(nodes: NodeReader, item: Item) -> Gate:
    metric, level = _gated(nodes, item.key)
    node = item.value
    bounds = nodes.record(node, ("at_least", "at_most"), "a gate")
    if not bounds:
        nodes.source.fail(node, f"the gate on {metric} has no bound; give at_least or at_most")
    gate = Gate(metric=metric, level=level, **{name: nodes.number(bound) for name, bound in bounds.items()})
    if gate.at_least is not None and gate.at_most is not None and gate.at_least > gate.at_most:
        nodes.source.fail(node, f"no {metric} is at least {gate.at_least:g} and at most {gate.at_most:g}")
    return gate


def _gated(nodes: NodeReader, node: Node) -> tuple[str, int | None]:
    metric, at, level = nodes.string(node).partition("@")
    if metric not in GATED_METRICS:
        nodes.source.fail(node, f"unknown metric {short(metric)}; {suggestion(metric, GATED_METRICS)}")
    if at and not (level.isdecimal() and 0 < int(level) <= MOST_STREAMS):
        nodes.source.fail(node, f"{short(level)} is no number of requests at once; write for instance {metric}@4")
    return metric, int(level) if at else None


def requirement(nodes: NodeReader, node: Node) -> str:
    """`kind:value` with a kind of `REQUIREMENTS`, for instance `memory_gb:48`."""
    text = nodes.string(node)
    name, _, value = text.partition(":")
    if name not in REQUIREMENTS:
        nodes.source.fail(node, f"unknown requirement {short(name)}; {suggestion(name, REQUIREMENTS)}")
    if not _REQUIREMENT_VALUES[name].fullmatch(value):
        nodes.source.fail(node, f"{short(text)} isn't a valid requirement; write for instance {_example(name)}")
    return text


def _example(name: str) -> str:
    examples = {
        "platform": "platform:darwin",
        "memory_gb": "memory_gb:48",
        "binary": "binary:llama-server",
        "package": "package:mlx-lm",
        "env": "env:API_KEY",
        "file": "file:~/models/model.gguf",
    }
    return examples[name]


def custom_prompts(nodes: NodeReader, node: Node) -> tuple[CustomPrompt, ...]:
    """`name: text` or `name: {text: …, system: …, max_tokens: …}`."""
    return tuple(nodes.each(nodes.mapping(node).values(), partial(_custom_prompt, nodes)))


def _custom_prompt(nodes: NodeReader, item: Item) -> CustomPrompt:
    name = identifier(nodes, item.key)
    if name in BUILTIN_PROMPTS or name.startswith(CONCURRENCY_PREFIX):
        nodes.source.fail(item.key, f"the prompt {name!r} is built in; choose another name")
    if not isinstance(item.value, MappingNode):
        return CustomPrompt(name=name, text=nodes.filled(item.value))
    readers = prompt_readers(nodes)
    fields = nodes.record(item.value, readers, "a custom prompt")
    if "text" not in fields:
        nodes.source.fail(item.value, f"the custom prompt {name!r} has no `text`")
    return CustomPrompt(name=name, **nodes.values(nodes.without_nulls(fields, keep=("text",)), readers))


def prompt_readers(nodes: NodeReader) -> dict[str, Read]:
    """The keys of a custom prompt that is a mapping; names as in `CustomPrompt`."""
    return {"text": nodes.filled, "system": nodes.string, "max_tokens": partial(nodes.integer, low=1)}


def hardware(nodes: NodeReader, node: Node) -> Hardware:
    """Free text about the machine, and its memory in GB."""
    readers = hardware_readers(nodes)
    return Hardware(**nodes.values(nodes.without_nulls(nodes.record(node, readers, "hardware")), readers))


def hardware_readers(nodes: NodeReader) -> dict[str, Read]:
    """The keys of `hardware`; names as in `Hardware`."""
    text = dict.fromkeys(("name", "platform", "chip", "os"), nodes.string)
    return {**text, "memory_gb": partial(nodes.number, positive=True)}


def settings(nodes: NodeReader, node: Node) -> Settings:
    """Numbers within their bounds; `bench_port: null` asks for a free port."""
    readers = setting_readers(nodes)
    return Settings(**nodes.values(nodes.record(node, readers, "settings"), readers))


def setting_readers(nodes: NodeReader) -> dict[str, Read]:
    """The keys of `settings`, each with what reads its value; names as in `Settings`."""
    return {
        "runs": partial(nodes.integer, low=1, high=MOST_RUNS),
        "warmup": partial(nodes.integer, high=MOST_RUNS),
        "max_tokens": partial(nodes.integer, low=1),
        "temperature": nodes.number,
        "server_timeout": partial(nodes.number, positive=True, high=A_DAY_S),
        "cooldown": partial(nodes.number, high=A_DAY_S),
        "bench_port": lambda port: None if nodes.is_null(port) else nodes.integer(port, low=1, high=65535),
        "fixed_length": nodes.boolean,
        "concurrency": partial(levels, nodes),
    }
