"""LM Studio 0.4 or later, by its own REST API (as documented; not run here).

Its OpenAI dialect has no usage in a stream and no switch for thinking, and may load a model inside the request. It has
no switch for its prefix cache (each prompt is new), none to go on after the end token, and no tokenizer to ask.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from typing import Any, ClassVar

from pytest_llmbench.backends import lm_studio_dialect, reach
from pytest_llmbench.backends.lm_studio_dialect import OFF, model_row
from pytest_llmbench.backends.running import Loaded, RunningBackend, Session
from pytest_llmbench.backends.server import sendable
from pytest_llmbench.chat import Reply
from pytest_llmbench.errors import ServerStartError, Unavailable
from pytest_llmbench.matrix import MatrixEntry
from pytest_llmbench.prompts import Prompt
from pytest_llmbench.sample import ServerTimings
from pytest_llmbench.sse import Wire

LIST = "/api/v1/models"
FORMATS = {"MLX": "mlx", "GGUF": "gguf"}


class LmStudio(RunningBackend):
    """LM Studio's server, at `server_url` or on port 1234."""

    name: ClassVar[str] = "lm-studio"
    one_at_a_time: ClassVar[str] = "how many it takes at once is set in the app, which doesn't tell"
    takes_tools: ClassVar[bool] = False
    chat_path: ClassVar[str] = "/api/v1/chat"
    wire: ClassVar[Wire] = lm_studio_dialect.WIRE
    family: ClassVar[str] = r"(?i)lm.?studio|llmster"
    workers: ClassVar[str] = r"(?i)lm.?studio|llmster|llmworker"

    def url(self, entry: MatrixEntry) -> str:
        return entry.server_url or "http://127.0.0.1:1234"

    def key(self, entry: MatrixEntry) -> str | None:
        return super().key(entry) or sendable(os.environ.get("LM_API_TOKEN"), "LM_API_TOKEN")

    def find(self, entry: MatrixEntry) -> None:
        answer = reach.get(self.url(entry), LIST, api_key=self.key(entry))
        if answer is None:
            raise self._absent(entry)
        if answer.status in (401, 403):
            raise Unavailable("LM Studio wants a token", fix="export LM_API_TOKEN=…")
        if answer.status != 200:
            raise Unavailable(f"LM Studio answers {LIST} with HTTP {answer.status}", fix="update it to 0.4 or later")
        row, wanted = model_row(answer.json, entry.model_id), FORMATS.get(entry.fmt)
        if row is None:
            raise Unavailable(f"LM Studio has no model {entry.model_id}", fix=_get(entry))
        if wanted and row.get("format") not in (None, wanted):
            raise Unavailable(f"LM Studio has {row['key']} as {row['format']}, not as {wanted}", fix=_get(entry))

    def _absent(self, entry: MatrixEntry) -> Unavailable:
        start = f"lms server start, then {_get(entry)}"
        if entry.fmt == "MLX" and sys.platform != "darwin":
            on_a_mac = f"on a Mac with Apple silicon: install LM Studio, then {start}"
            return Unavailable("LM Studio runs MLX models on macOS only", fix=on_a_mac)
        if entry.server_url:
            return Unavailable(f"no LM Studio answers at {entry.server_url}", fix="start it there: lms server start")
        installed = shutil.which("lms", path=os.path.expanduser("~/.lmstudio/bin")) or shutil.which("lms")  # noqa: PTH111
        what = "LM Studio's server doesn't run" if installed else "LM Studio is not installed"
        return Unavailable(what, fix=start if installed else f"install LM Studio, then {start}")

    def load(self, session: Session) -> Loaded:
        row = _row(session)
        most = reach.part(row, "max_context_length", kind=int)
        context = min(session.wanted_context, most or session.wanted_context)
        body = {"model": row["key"], "context_length": context, "echo_load_config": True}
        answer = session.client.json("POST", f"{LIST}/load", body, timeout_s=session.patience_s)
        instance_id = reach.part(answer, "instance_id", kind=str)
        if instance_id is None:
            raise ServerStartError(f"LM Studio loaded it, but names no instance_id: {answer!r:.200}; update LM Studio")
        offered = reach.part(row, "capabilities", "reasoning", "allowed_options", kind=list) or ()
        return Loaded(asked=instance_id, answers=instance_id, facts={"reasoning": tuple(map(str, offered))})

    def clear(self, session: Session) -> None:
        for instance in reach.rows(_row(session), "loaded_instances"):
            body = {"instance_id": str(instance.get("id"))}
            session.client.json("POST", f"{LIST}/unload", body, timeout_s=session.patience_s)

    def prove(self, session: Session, loaded: Loaded) -> None:
        instances = {str(row.get("id")): row for row in reach.rows(_row(session), "loaded_instances")}
        if loaded.asked not in instances:
            raise ServerStartError(f"LM Studio answers, but doesn't list {loaded.asked} as loaded")
        session.check_context(reach.part(instances[loaded.asked], "config", "context_length", kind=int))
        offered = loaded.facts["reasoning"]
        if session.settings.think is False and offered and OFF not in offered:
            raise ServerStartError(f"its thinking can't be turned off: LM Studio offers {', '.join(offered)}")

    def body(self, session: Session, loaded: Loaded, prompt: Prompt, **how: Any) -> Mapping[str, Any]:
        tokens, temperature = how["max_tokens"], how["temperature"]
        switches = loaded.facts["reasoning"]
        return lm_studio_dialect.body(
            loaded.asked, prompt, max_tokens=tokens, temperature=temperature, switches=switches
        )

    def timings(self, session: Session, loaded: Loaded, reply: Reply) -> ServerTimings:
        return ServerTimings(decode_tok_s=reply.timings.get("tokens_per_second") or None)


def _get(entry: MatrixEntry) -> str:
    """The command that fetches the entry's model, in its format."""
    wanted = FORMATS.get(entry.fmt)
    return f"lms get {entry.model_id}" + (f" --{wanted}" if wanted else "")


def _row(session: Session) -> dict[str, Any]:
    found = model_row(session.client.json("GET", LIST), session.entry.model_id)
    if found is None:
        raise ServerStartError(f"LM Studio has no model {session.entry.model_id} any more")
    return found
