"""Count an answer's tokens, and say whether it measures what it was meant to.

Tokens come from the server's usage, else from the model's tokenizer over the whole text; never from chunks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pytest_llmbench.prompts import Prompt, Tokenizer
from pytest_llmbench.sample import Sample

MOST_SILENT_TOKENS = 3
"""An opening and a closing think tag, and the end token. Broken characters make a tokenizer count otherwise."""

TOKEN_SLACK = 8
"""By how many tokens a server's template may differ from ours before the prompt isn't the one we sent."""


def count_tokens(sample: Sample, tokenizer: Tokenizer | None, usage: Mapping[str, Any]) -> Sample:
    """Add what only a tokenizer can tell: thinking and visible tokens, and how many the first delta held."""
    details = usage.get("completion_tokens_details") or {}
    thinking = details.get("reasoning_tokens")
    if tokenizer is None or not sample.deltas:
        return replace(sample, thinking_tokens=thinking)
    visible = len(tokenizer.text_ids(sample.text)) if sample.text else 0
    if thinking is None:
        thinking = len(tokenizer.text_ids(sample.reasoning)) if sample.reasoning else 0
    completion, source = sample.completion_tokens, sample.token_source
    if completion is None:
        completion, source = thinking + visible, "tokenizer"
    silent = min(max(0, completion - thinking - visible), MOST_SILENT_TOKENS)
    # Alone, one token's text may be split into several; each of the later deltas has one at least.
    most = completion - silent - (len(sample.deltas) - 1)
    return replace(
        sample,
        thinking_tokens=thinking,
        visible_tokens=visible,
        completion_tokens=completion,
        token_source=source,
        first_delta_tokens=max(1, min(most, len(tokenizer.text_ids(sample.deltas[0].text)))),
        first_delta_source="tokenizer",
        silent_tokens=silent,
    )


def why_invalid(sample: Sample, prompt: Prompt, *, cached: bool) -> str | None:
    """Why a sample doesn't measure what it is meant to; None if it does."""
    if not sample.deltas:
        return "no text came"
    if not cached and sample.cached_tokens is not None and sample.cached_tokens > prompt.shared_tokens:
        return f"a prefix cache answered {sample.cached_tokens} tokens of a prompt that was new"
    sent, seen = prompt.tokens, sample.prompt_tokens
    if sent is not None and seen is not None and abs(seen - sent) > TOKEN_SLACK:
        return f"the server saw {seen} prompt tokens, but {sent} were sent"
    return None
