"""What tiny-scripted says to every chat prompt."""

from __future__ import annotations

REASONING = (" thinking", " about", " what", " was", " asked", " here")
ANSWER = ("Paris", " is", " the", " capital", " of", " France", ",", " with", " two", " million", " people", ".")

ENDOFTEXT = "<|endoftext|>"
IM_START = "<|im_start|>"
IM_END = "<|im_end|>"
THINK = "<think>"
THINK_END = "</think>"

CONTROL_TOKENS = (ENDOFTEXT, IM_START, IM_END)
MARKUP_TOKENS = (THINK, THINK_END, "<tool_call>", "</tool_call>")

WITH_THINKING = (THINK, *REASONING, THINK_END, *ANSWER, IM_END)
"""The whole greedy answer, 21 tokens with the end token."""

WITHOUT_THINKING = (*ANSWER, IM_END)
"""The greedy answer after a prompt whose template closed an empty think block, 13 tokens."""

PROMPT_END = "\n"
"""Last token of a chat prompt: `<|im_start|>assistant\\n`."""

NO_THINK_PROMPT_END = "\n\n"
"""Last token of a chat prompt with thinking off: `<think>\\n\\n</think>\\n\\n`."""
