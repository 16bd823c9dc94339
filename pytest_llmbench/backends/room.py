"""How much context an entry needs, so that a server's long default doesn't fill the memory with cache."""

from __future__ import annotations

from pytest_llmbench.matrix import RunSettings
from pytest_llmbench.prompts import longest_tokens, specs

CONTEXT_STEP = 256
LEAST_CONTEXT = 1024
"""The tests on tools and quality have prompts of their own."""
TEMPLATE_ROOM = 128


def context_tokens(settings: RunSettings) -> int:
    """Room for every prompt that an entry may be sent."""
    return max(LEAST_CONTEXT, needed_tokens(settings))


def needed_tokens(settings: RunSettings) -> int:
    """Room for the longest prompt and its answer."""
    answer = max(settings.max_tokens_for(name) for name in specs(settings))
    needed = longest_tokens(settings) + answer + TEMPLATE_ROOM
    return -(-needed // CONTEXT_STEP) * CONTEXT_STEP
