"""Secrets leave texts; ordinary words stay."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.secrets import (
    HIDDEN,
    argument_secrets,
    environment_secrets,
    hide_command,
    hide_secrets,
    is_secret_name,
)

SECRETS = st.text(st.characters(codec="utf-8", exclude_characters="*"), min_size=1)


@given(text=st.text(), secrets=st.lists(SECRETS, max_size=4), data=st.data())
def test_no_secret_is_left_in_a_text(text: str, secrets: list[str], data: st.DataObject) -> None:
    for secret in secrets:
        at = data.draw(st.integers(0, len(text)))
        text = text[:at] + secret + text[at:]
    hidden = hide_secrets(text, secrets)
    assert not any(secret in hidden for secret in secrets)


def test_the_longer_secret_goes_first() -> None:
    assert hide_secrets("abc abcdef", ["abc", "abcdef"]) == f"{HIDDEN} {HIDDEN}"


def test_a_secret_is_found_in_a_url_too() -> None:
    assert hide_secrets("GET /?key=a%2Fb%3D%3D", ["a/b=="]) == f"GET /?key={HIDDEN}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
        ("authorization: abc", "authorization: ***"),
        ('{"Authorization": "Basic dXNlcg=="}', '{"Authorization": "Basic ***"}'),
        ("using bearer sk-1234 here", "using bearer *** here"),
        ("max_tokens=512 num_key_value_heads=8", "max_tokens=512 num_key_value_heads=8"),
    ],
)
def test_authorization_values_go_without_being_known(text: str, expected: str) -> None:
    assert hide_secrets(text) == expected


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["serve", "--api-key", "abcd"], "serve --api-key '***'"),
        (["serve", "--api-key=abcd", "--port", "1"], "serve '--api-key=***' --port 1"),
        (["serve", "--hf_token", "abcd"], "serve --hf_token '***'"),
        (["env", "OPENAI_API_KEY=abcd", "serve"], "env 'OPENAI_API_KEY=***' serve"),
        (["curl", "-H", "Authorization: Bearer abcd"], "curl -H 'Authorization: Bearer ***'"),
        (["serve", "--max-tokens", "512"], "serve --max-tokens 512"),
        (["serve", "--api-key", "--verbose"], "serve --api-key --verbose"),
        (["serve", "--other", "known"], "serve --other '***'"),
    ],
)
def test_a_command_is_shown_without_its_secrets(argv: list[str], expected: str) -> None:
    assert hide_command(argv, ["known"]) == expected


def test_numbers_and_switches_behind_a_secrets_name_are_no_secrets() -> None:
    assert argument_secrets(["env", "MAX_TOKENS=512", "--token", "5", "--key=auto"]) == frozenset()
    assert environment_secrets({"TOKENIZERS_PARALLELISM": "false", "KEY_BITS": "8", "API_KEY": "x"}) == {"x"}
    assert environment_secrets({"API_KEY": "short", "HF_TOKEN": "long-enough"}, shortest=8) == {"long-enough"}


@pytest.mark.parametrize("name", ["API_KEY", "hf_token", "Authorization", "AWS_SECRET_ACCESS", "DbPassword"])
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["PATH", "HOME", "OLLAMA_HOST", "KV_CACHE_TYPE"])
def test_other_names(name: str) -> None:
    assert not is_secret_name(name)
