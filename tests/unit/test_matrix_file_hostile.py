"""Facts about hostile and arbitrary matrix files: they load or are refused, soon, and never otherwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_llmbench.errors import MatrixError
from pytest_llmbench.matrix import (
    BUILTIN_PROMPTS,
    METRICS,
    Matrix,
    MatrixEntry,
)
from pytest_llmbench.matrix_file import load

BACKENDS = ("mlx-lm", "ollama", "llama-server", "openai")
ONE = "tests:\n- id: a\n  backend: mlx-lm\n  model_id: m\n"
Write = Callable[[str | bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(content: str | bytes) -> Path:
        path = tmp_path / "m.yaml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write_file


def with_fields(text: str) -> str:
    """The smallest matrix, with more lines (from line 5 on) in its only entry."""
    return ONE + "".join(f"  {line}\n" for line in text.split("\n"))


# What would exhaust a careless reader


def nested(opening: str, closing: str = "") -> str:
    return f"tests: {opening * 100_000}{closing * 100_000}\n"


@pytest.mark.parametrize("text", [nested("["), nested("[", "]"), nested("{a: "), f"tests:\n{'- ' * 9999}a"])
def test_deep_nesting_is_an_error(write: Write, text: str) -> None:
    with pytest.raises(MatrixError, match="nested more than 50 levels deep"):
        load(write(text), backends=BACKENDS)


def layers(first_layer: str, following: str) -> str:
    """Forty layers, each an anchor whose value names the one before ten times."""
    lines = [f"- &n0 {first_layer}"]
    for layer in range(1, 40):
        lines.append(f"- &n{layer} " + following.format(", ".join([f"*n{layer - 1}"] * 10)))
    return "\n".join(["tests:", *lines, ""])


def test_nested_aliases_are_not_expanded(write: Write) -> None:
    with pytest.raises(MatrixError, match=r"m\.yaml:2: expected a mapping, found a list"):
        load(write(layers("[x]", "[{}]")), backends=BACKENDS)


def test_nested_merges_cost_no_more_than_their_text(write: Write) -> None:
    head = "{id: a, backend: mlx-lm, model_id: m}"
    with pytest.raises(MatrixError, match=r"m\.yaml:3: id 'a' is already used in line 2"):
        load(write(layers(head, "{{<<: [{}]}}")), backends=BACKENDS)


def test_merging_without_end_is_an_error(write: Write) -> None:
    names = ", ".join(f"V{number}: 1" for number in range(1000))
    text = f"defaults:\n  env: &env {{{names}}}\n" + with_fields(f"env: {{<<: [{', '.join(['*env'] * 200)}]}}")
    with pytest.raises(MatrixError, match=r"m\.yaml:2: merges .* more than 100000 keys"):
        load(write(text), backends=BACKENDS)


def test_a_chain_of_merges_is_an_error_before_the_stack_ends(write: Write) -> None:
    chain = ["&c0 {A: 1}", *(f"&c{link} {{<<: *c{link - 1}}}" for link in range(1, 2000))]
    text = f"tests:\n- {{extra_args: [{', '.join(chain)}], <<: *c1999}}\n"
    with pytest.raises(MatrixError, match="too long a chain"):
        load(write(text), backends=BACKENDS)


# Whatever is in a file

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,8}", fullmatch=True)
TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20).filter(str.strip)
BOUNDS = st.floats(min_value=0, max_value=86_400)
ENTRY = st.fixed_dictionaries(
    {"id": NAMES, "backend": st.sampled_from(BACKENDS), "model_id": TEXT},
    optional={
        "model": TEXT,
        "group": TEXT,
        "enabled": st.booleans(),
        "reason": TEXT,
        "extra_args": st.lists(TEXT, max_size=3),
        "prompts": st.lists(st.sampled_from(BUILTIN_PROMPTS), min_size=1, max_size=3, unique=True),
        "no_think": st.booleans(),
        "temperature": BOUNDS,
        "max_tokens": st.integers(1, 10**6),
        "env": st.dictionaries(st.from_regex(r"[A-Z_]{1,5}", fullmatch=True), TEXT, max_size=2),
        "concurrency": st.lists(st.integers(1, 64), max_size=3, unique=True),
        "gates": st.dictionaries(
            st.sampled_from(METRICS),
            st.one_of(st.fixed_dictionaries({"at_least": BOUNDS}), st.fixed_dictionaries({"at_most": BOUNDS})),
            max_size=2,
        ),
    },
)
MATRIX = st.fixed_dictionaries(
    {"tests": st.lists(ENTRY, min_size=1, max_size=3, unique_by=lambda entry: entry["id"])},
    optional={"settings": st.fixed_dictionaries({"runs": st.integers(1, 99), "cooldown": BOUNDS})},
)
IN_ONE_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def plain(entry: MatrixEntry, written: dict[str, Any]) -> dict[str, Any]:
    """The fields that were written, in the shape in which they were written."""
    shapes: dict[str, Callable[[Any], Any]] = {
        "extra_args": list,
        "prompts": list,
        "concurrency": list,
        "env": dict,
        "gates": lambda gates: {
            gate.metric: {
                bound: getattr(gate, bound) for bound in ("at_least", "at_most") if getattr(gate, bound) is not None
            }
            for gate in gates
        },
    }
    return {name: shapes.get(name, lambda value: value)(getattr(entry, name)) for name in written}


@IN_ONE_FOLDER
@given(written=MATRIX, flow=st.sampled_from([None, True, False]))
def test_what_was_written_is_what_is_read(write: Write, written: dict[str, Any], flow: bool | None) -> None:
    found = load(write(yaml.safe_dump(written, default_flow_style=flow)), backends=BACKENDS)
    assert [plain(entry, test) for entry, test in zip(found.entries, written["tests"], strict=True)] == written["tests"]
    for name, value in written.get("settings", {}).items():
        assert getattr(found.settings, name) == value


PIECES = [
    *("tests:", "- ", "id", ": ", "a", "\n", "  ", "backend: mlx-lm", "model_id: m", "defaults", "env", "gates"),
    *("[", "]", "{", "}", ",", "#", "&a ", "*a", "<<: ", "!!int ", "!!bool ", "!x ", "? ", "|", ">-", "'", '"'),
    *("%YAML 1.1\n", "%TAG ! x\n", "---\n", "...", "\\", '"\\UFFFFFFFF"', '"\\ud800"', "\t", "\r", "\x85", "\0"),
    *(".nan", "1:60", "0x", "0b", "1" * 5000, "~", "=", "2026-01-01", "settings: {runs: ", "prompts: [short]"),
]
ANY_YAML = st.one_of(
    st.text(max_size=60),
    st.lists(st.sampled_from(PIECES), max_size=25).map("".join),
    st.tuples(MATRIX.map(yaml.safe_dump), st.integers(0, 300), st.sampled_from(PIECES)).map(
        lambda parts: parts[0][: parts[1]] + parts[2] + parts[0][parts[1] :]
    ),
)


def outcome(path: Path) -> Matrix | MatrixError:
    try:
        return load(path, backends=BACKENDS)
    except MatrixError as error:
        return error


@IN_ONE_FOLDER
@given(text=ANY_YAML)
def test_any_text_loads_or_is_refused_with_a_line_of_the_file(write: Write, text: str) -> None:
    data = text.encode("utf-8", "surrogatepass")
    found = outcome(write(data))
    lines = len(data.splitlines()) + 1  # bytes know \n, \r and \r\n only
    assert 1 <= found.line <= lines if isinstance(found, MatrixError) else found.entries


@IN_ONE_FOLDER
@given(data=st.binary(max_size=80))
def test_any_bytes_load_or_are_refused(write: Write, data: bytes) -> None:
    found = outcome(write(data))
    assert 1 <= found.line <= len(data.splitlines()) + 1 if isinstance(found, MatrixError) else found.entries
