"""LM Studio's words: requests, the events of an answer, and its list of models (REST API v1)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pytest_llmbench.backends import reach
from pytest_llmbench.errors import RequestError
from pytest_llmbench.prompts import Prompt
from pytest_llmbench.sse import Wire

DELTAS = {"reasoning.delta": "reasoning", "message.delta": "content"}
OFF, ON = "off", "on"


def _chunk(event: Mapping[str, Any]) -> Mapping[str, Any]:
    """One of its named events. They don't tell why an answer ended."""
    kind = str(event.get("type"))
    if kind.startswith("model_load."):
        raise RequestError("LM Studio loaded a model inside the request", status=200)
    if kind == "chat.start":
        return {"model": event.get("model_instance_id"), "choices": [{}]}
    if kind in DELTAS:
        return {"choices": [{"delta": {DELTAS[kind]: event.get("content")}}]}
    if kind != "chat.end":
        return {}
    stats = reach.part(event, "result", "stats", kind=dict) or {}
    details = {"reasoning_tokens": stats.get("reasoning_output_tokens")}
    counts = {"prompt_tokens": stats.get("input_tokens"), "completion_tokens": stats.get("total_output_tokens")}
    return {"done": True, "usage": {**counts, "completion_tokens_details": details}, "timings": stats}


WIRE = Wire(chunk=_chunk)


def body(
    instance_id: str, prompt: Prompt, *, max_tokens: int, temperature: float, switches: Collection[str]
) -> dict[str, Any]:
    """A chat request, of which nothing is kept. `switches`: the settings of its thinking that the model knows."""
    texts = {role: "\n".join(m.content for m in prompt.messages if m.role == role) for role in ("system", "user")}
    found = {
        "model": instance_id,
        "input": texts["user"],
        "store": False,
        "temperature": temperature,
        "max_output_tokens": max_tokens,
    }
    if texts["system"]:
        found["system_prompt"] = texts["system"]
    switch = ON if prompt.think else OFF
    return {**found, "reasoning": switch} if prompt.think is not None and switch in switches else found


def model_row(listed: Any, name: str) -> dict[str, Any] | None:
    """The model of that key, or the only one whose key is that behind its publisher."""
    found = [row for row in reach.rows(listed, "models") if isinstance(row.get("key"), str)]
    exact = [row for row in found if row["key"] == name]
    alike = exact or [row for row in found if row["key"].rpartition("/")[2] == name]
    return alike[0] if len(alike) == 1 else None
