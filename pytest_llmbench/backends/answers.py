"""From a server's whole answer to a sample, and the check that the expected model gave it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pytest_llmbench.chat import Reply
from pytest_llmbench.counting import count_tokens, why_invalid
from pytest_llmbench.errors import RequestError
from pytest_llmbench.prompts import Prompt, Tokenizer
from pytest_llmbench.sample import Sample, ServerTimings


def chat_body(
    model: str,
    prompt: Prompt,
    *,
    max_tokens: int,
    temperature: float,
    fields: Mapping[str, Any],
    length_field: str = "max_tokens",
) -> dict[str, Any]:
    """A request for OpenAI's chat; `fields` are what the server's dialect adds."""
    return {
        "model": model,
        "messages": [{"role": m.role, "content": m.content} for m in prompt.messages],
        length_field: max_tokens,
        "temperature": temperature,
        "stream_options": {"include_usage": True},
        **fields,
    }


def thinking_kwargs(*, think: bool | None) -> dict[str, Any]:
    """The switch that goes through to the chat template, as most engines have it; nothing where nothing is said."""
    return {} if think is None else {"chat_template_kwargs": {"enable_thinking": think}}


def hides_thinking(reply: Reply) -> bool:
    """Whether the usage counts thinking that was in none of the answer's pieces."""
    details = reply.usage.get("completion_tokens_details") or {}
    shown = any(d.kind == "reasoning" or "<think>" in d.text for d in reply.deltas)
    return bool(details.get("reasoning_tokens")) and not shown


def check_model(reply: Reply, expected: str) -> None:
    """RequestError where the answer names another model; some servers name none."""
    if reply.model is not None and reply.model != expected:
        raise RequestError(
            f"asked {expected!r}, but {reply.model!r} answered; is another server on this port?", status=200
        )


def cached_tokens(reply: Reply) -> int | None:
    """As OpenAI's usage has it; None where the server doesn't say."""
    details = reply.usage.get("prompt_tokens_details") or {}
    found: int | None = details.get("cached_tokens")
    return found


def to_sample(
    prompt: Prompt,
    reply: Reply,
    *,
    max_tokens: int,
    cached: bool,
    cached_tokens: int | None,
    timings: ServerTimings,
    tokenizer: Tokenizer | None,
) -> Sample:
    """The answer with its tokens counted; invalid where it doesn't measure what it is meant to."""
    sample = Sample(
        prompt=prompt.name,
        deltas=reply.deltas,
        end_ns=reply.end_ns,
        requested_tokens=max_tokens,
        finish_reason=reply.finish_reason,
        prompt_tokens=reply.usage.get("prompt_tokens"),
        completion_tokens=reply.usage.get("completion_tokens"),
        token_source="usage" if reply.usage.get("completion_tokens") is not None else None,
        cached_tokens=cached_tokens,
        timings=timings,
        answered_by=reply.model,
        unseen="thinking" if hides_thinking(reply) else None,
    )
    sample = count_tokens(sample, tokenizer, reply.usage)
    return replace(sample, invalid=why_invalid(sample, prompt, cached=cached))
