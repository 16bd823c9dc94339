"""Whether a model calls a tool as it should: the right one of two, with arguments that fit its schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pytest_llmbench.backends.base import TakesTools
from pytest_llmbench.chat import Reply
from pytest_llmbench.chat_tools import ToolCall
from pytest_llmbench.errors import Unavailable
from pytest_llmbench.measure import Meter
from pytest_llmbench.prompts import PromptSpec

LONGEST_SHOWN = 300


def _tool(name: str, description: str, **properties: Mapping[str, Any]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS: Final = (
    _tool(
        "get_weather",
        "The weather in a city at this moment.",
        city={"type": "string", "description": "Name of the city"},
        unit={"type": "string", "enum": ["celsius", "fahrenheit"]},
    ),
    _tool(
        "get_time",
        "The local time in a city.",
        city={"type": "string", "description": "Name of the city"},
    ),
)
SPEC: Final = PromptSpec(
    name="tools", instruction="What is the weather in Paris at this moment, in degrees celsius? Use a tool."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCheck:
    """`problem`: what is wrong with the call, None if nothing is. `seconds`: until the answer was whole."""

    problem: str | None
    seconds: float
    call: ToolCall | None

    @property
    def facts(self) -> dict[str, str | float | bool | None]:
        """For the record and junit."""
        return {
            "tool_call_valid": self.problem is None,
            "tool_call_s": self.seconds,
            "tool_name": self.call.name if self.call else None,
            "tool_arguments": self.call.arguments[:LONGEST_SHOWN] if self.call else None,
        }


def check(meter: Meter) -> ToolCheck:
    """Ask once. Unavailable for a target that can't pass tools on; errors of the target pass through."""
    target = meter.target
    if not isinstance(target, TakesTools):
        raise Unavailable(f"{target.info.backend} has no tools to call", fix="leave out --llmbench-tools")
    tokens, temperature = meter.settings.max_tokens, meter.settings.temperature
    reply = target.call_tools(meter.maker.make(SPEC), TOOLS, max_tokens=tokens, temperature=temperature)
    call = reply.tool_calls[0] if reply.tool_calls else None
    return ToolCheck(problem=_problem(reply, tokens), seconds=reply.end_ns / 1e9, call=call)


def _problem(reply: Reply, max_tokens: int) -> str | None:
    if not reply.tool_calls:
        said = "".join(d.text for d in reply.deltas if d.kind == "content")
        cut = f" (cut at max_tokens {max_tokens})" if reply.finish_reason == "length" else ""
        return f"the model called no tool{cut}; it said: {said[:LONGEST_SHOWN]!r}"
    if len(reply.tool_calls) > 1:
        return f"{len(reply.tool_calls)} calls for one question: {', '.join(c.name for c in reply.tool_calls)}"
    return judge(reply.tool_calls[0])


def judge(call: ToolCall) -> str | None:
    """What is wrong with a call for the weather in Paris in celsius; None if nothing is."""
    if call.name != "get_weather":
        return f"it called {call.name!r}, not 'get_weather'"
    shown = f"{call.arguments[:LONGEST_SHOWN]!r}"
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return f"the arguments are not JSON: {shown}"
    if not isinstance(arguments, dict) or set(arguments) != {"city", "unit"}:
        return f"the arguments are not city and unit: {shown}"
    if not isinstance(arguments["city"], str) or "paris" not in arguments["city"].casefold():
        return f"the city is not Paris: {shown}"
    return None if arguments["unit"] == "celsius" else f"the unit is not celsius: {shown}"
