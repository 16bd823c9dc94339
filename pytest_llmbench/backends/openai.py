"""Any server that speaks OpenAI's chat: used as it is at the entry's `server_url`; nothing is started, loaded or freed.

Only what that dialect has is asked of it. What several engines have added is asked where the entry says so:
`no_think` sends `chat_template_kwargs`, and an entry's own `fixed_length: true` sends `ignore_eos`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar
from urllib.parse import urlsplit

from pytest_llmbench.backends import answers, reach
from pytest_llmbench.backends.running import Loaded, RunningBackend, Session
from pytest_llmbench.chat import Reply
from pytest_llmbench.errors import RequestError, ServerStartError, Unavailable
from pytest_llmbench.matrix import MatrixEntry
from pytest_llmbench.prompts import Prompt

EXAMPLE = "server_url: http://127.0.0.1:8000/v1"


class OpenAi(RunningBackend):
    """The server at `server_url`, with the key of `api_key_env`."""

    name: ClassVar[str] = "openai"
    chat_path: ClassVar[str] = "/chat/completions"
    # Whoever listens, with what it has started, and nobody above it.
    family: ClassVar[str] = r"(?!)"
    times_load: ClassVar[bool] = False

    def url(self, entry: MatrixEntry) -> str:
        if entry.server_url is None:
            raise Unavailable("the entry has no server_url", fix=EXAMPLE)
        return entry.server_url if urlsplit(entry.server_url).path else f"{entry.server_url}/v1"

    def find(self, entry: MatrixEntry) -> None:
        self.key(entry)
        if not reach.listens(self.url(entry)):
            raise Unavailable(f"nobody listens at {entry.server_url}", fix="start that server, or correct server_url")

    def load(self, session: Session) -> Loaded:
        """It is, or isn't: who lists its models must list ours."""
        name = session.entry.model_id
        try:
            listed = session.client.json("GET", "/models")
        except RequestError as error:
            if error.status not in (404, 405, 501):
                raise
            listed = None
        names = [row.get("id") for row in reach.rows(listed, "data")]
        if names and name not in names:
            raise ServerStartError(f"it lists other models: {', '.join(map(str, names[:9]))}")
        return Loaded(asked=name, answers=name)

    def request_fields(
        self, session: Session, loaded: Loaded, prompt: Prompt, *, fixed_length: bool, cached: bool
    ) -> Mapping[str, Any]:
        fields = answers.thinking_kwargs(think=prompt.think)
        return {**fields, "ignore_eos": True} if fixed_length and session.entry.fixed_length else fields

    def check_answer(self, reply: Reply, loaded: Loaded) -> None:
        """A name may stand for a dated version of itself: gpt-x for gpt-x-2026-01-31."""
        if reply.model is None or not reply.model.startswith(f"{loaded.answers}-"):
            super().check_answer(reply, loaded)
