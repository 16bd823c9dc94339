"""One timed request: its raw stamps, and every figure that can be derived from them.

Stamps are nanoseconds of our own monotonic clock, counted from the moment at which the request started to go out on
an open connection. Counts are tokens as the server's usage, or else the model's tokenizer, gives them; the number of
chunks is never taken for a number of tokens. None means "not measured"; 0 is a value.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from pytest_llmbench import stats

Kind = Literal["content", "reasoning"]

EARLY_STOP = 0.8
"""A run that gave less than this share of the tokens it was asked for stopped early."""

OVERRUN = 1.25
"""A run that gave more than this many times as many tokens as it was asked for didn't keep to them."""

ONE_READ_S = 20e-6
"""Deltas closer than this were waiting together; no decoder gives 50,000 tokens a second to one sequence."""

FEWEST_GAPS = 4

SAMPLE_METRICS = (
    "ttft_s",
    "ttfv_s",
    "prefill_tok_s",
    "decode_tok_s",
    "itl_p50_s",
    "itl_p95_s",
    "itl_p99_s",
    "total_s",
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "thinking_tokens",
    "visible_tokens",
    "server_prefill_tok_s",
    "server_decode_tok_s",
    "diffusion_steps",
    "diffusion_step_s",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """A piece of text as it arrived; several tokens may share one delta, and one token may need several."""

    at_ns: int
    kind: Kind
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTimings:
    """What the server says of itself, kept beside our clock's figures. Seconds, tokens per second, bytes.

    Of speculative decoding: how many tokens the draft proposed and how many of these were kept; `tokens_per_step` is
    tokens of the answer per pass of the target model. Of a diffusion model: how many passes over the whole answer it
    made, and seconds for each.
    """

    prompt_tokens: int | None = None
    prompt_s: float | None = None
    prefill_tok_s: float | None = None
    decode_tokens: int | None = None
    decode_s: float | None = None
    decode_tok_s: float | None = None
    peak_memory_bytes: int | None = None
    drafted_tokens: int | None = None
    accepted_tokens: int | None = None
    tokens_per_step: float | None = None
    diffusion_steps: int | None = None
    diffusion_step_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One request and its answer.

    `unseen`: what came before the first delta, or between deltas, without a stamp, so that figures which need its
    stamp are None. "thinking": the server keeps the thinking to itself, and the first token was one of it; "answer":
    the whole answer is made at once, as diffusion models do.

    `sent_ns`: of one of several requests at once, its zero on a clock that they share; None for one by itself.
    """

    prompt: str
    deltas: tuple[Delta, ...]
    end_ns: int
    requested_tokens: int
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    token_source: Literal["usage", "tokenizer", "engine"] | None = None
    thinking_tokens: int | None = None
    visible_tokens: int | None = None
    first_delta_tokens: int = 1
    silent_tokens: int = 0
    first_delta_source: Literal["tokenizer", "engine", "assumed"] = "assumed"
    timings: ServerTimings = ServerTimings()
    answered_by: str | None = None
    unseen: Literal["thinking", "answer"] | None = None
    invalid: str | None = None
    sent_ns: int | None = None

    @property
    def text(self) -> str:
        """The visible answer."""
        return "".join(d.text for d in self.deltas if d.kind == "content")

    @property
    def reasoning(self) -> str:
        """The thinking that the server kept apart from the answer."""
        return "".join(d.text for d in self.deltas if d.kind == "reasoning")

    @property
    def total_s(self) -> float:
        return self.end_ns / 1e9

    @property
    def ttft_s(self) -> float | None:
        """Seconds to the first text of any kind."""
        return self.deltas[0].at_ns / 1e9 if self.deltas and self.unseen is None else None

    @property
    def ttfv_s(self) -> float | None:
        """Seconds to the first visible text."""
        if self.unseen == "answer":
            return None
        return next((d.at_ns / 1e9 for d in self.deltas if d.kind == "content"), None)

    @property
    def prefill_source(self) -> Literal["server", "client"]:
        """`server`: over the server's own prompt time; `client`: over the time to the first token."""
        return "server" if self.timings.prompt_s else "client"

    @property
    def prefill_tok_s(self) -> float | None:
        """Prompt tokens that no cache answered, per second (see `prefill_source`)."""
        seconds = self.timings.prompt_s or self.ttft_s
        if self.prompt_tokens is None or not seconds:
            return None
        return (self.prompt_tokens - (self.cached_tokens or 0)) / seconds

    @property
    def decode_tok_s(self) -> float | None:
        """Tokens with text after the first delta, per second between first and last delta.

        Tokens that show no text (think tags, the end token) are in the usage, but not between the deltas.
        """
        if self.completion_tokens is None or len(self.deltas) < 2 or self.unseen is not None:
            return None
        window_ns = self.deltas[-1].at_ns - self.deltas[0].at_ns
        tokens = self.completion_tokens - self.first_delta_tokens - self.silent_tokens
        return tokens * 1e9 / window_ns if window_ns > 0 and tokens > 0 else None

    @property
    def gaps_s(self) -> tuple[float, ...]:
        """Seconds between one delta and the next."""
        stamps = [d.at_ns for d in self.deltas]
        return tuple((b - a) / 1e9 for a, b in itertools.pairwise(stamps))

    @property
    def bunched(self) -> bool:
        """Whether most deltas came in one read with another: then we read late, and the gaps aren't the server's."""
        gaps = self.gaps_s
        return len(gaps) >= FEWEST_GAPS and sum(gap < ONE_READ_S for gap in gaps) > len(gaps) / 2

    @property
    def itl_unit(self) -> Literal["per_token", "per_chunk"]:
        """Whether a gap is one token's or a chunk's of several."""
        tokens = (self.thinking_tokens or 0) + (self.visible_tokens or 0)
        return "per_token" if tokens and tokens == len(self.deltas) else "per_chunk"

    @property
    def itl_p50_s(self) -> float | None:
        return stats.percentile(self.gaps_s, 50, min_n=1)

    @property
    def itl_p95_s(self) -> float | None:
        return stats.percentile(self.gaps_s, 95, min_n=stats.P95_MIN_N)

    @property
    def itl_p99_s(self) -> float | None:
        return stats.percentile(self.gaps_s, 99, min_n=stats.P99_MIN_N)

    @property
    def server_prefill_tok_s(self) -> float | None:
        return self.timings.prefill_tok_s

    @property
    def server_decode_tok_s(self) -> float | None:
        return self.timings.decode_tok_s

    @property
    def diffusion_steps(self) -> int | None:
        return self.timings.diffusion_steps

    @property
    def diffusion_step_s(self) -> float | None:
        return self.timings.diffusion_step_s

    @property
    def stopped_early(self) -> bool | None:
        """Whether the answer is shorter than was asked for; None without a count."""
        if self.completion_tokens is None:
            return None
        return self.completion_tokens < EARLY_STOP * self.requested_tokens

    @property
    def ran_over(self) -> bool | None:
        """Whether the answer is longer than was asked for, or is counted so; None without a count."""
        if self.completion_tokens is None:
            return None
        return self.completion_tokens > OVERRUN * self.requested_tokens

    def metrics(self) -> dict[str, float | None]:
        """Every figure of this sample by its name (`SAMPLE_METRICS`)."""
        return {name: getattr(self, name) for name in SAMPLE_METRICS}

    def to_json(self) -> dict[str, Any]:
        """The sample as it is stored: deltas as three parallel lists, everything derived left out but named."""
        raw = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("deltas", "timings")}
        return raw | {
            "delta_ns": [d.at_ns for d in self.deltas],
            "delta_kind": [d.kind for d in self.deltas],
            "delta_text": [d.text for d in self.deltas],
            "timings": {f.name: getattr(self.timings, f.name) for f in fields(self.timings)},
            "prefill_source": self.prefill_source,
            "itl_unit": self.itl_unit,
            "stopped_early": self.stopped_early,
            "ran_over": self.ran_over,
            "metrics": self.metrics(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Sample:
        """The inverse of `to_json` (derived figures are derived again)."""
        columns = zip(data["delta_ns"], data["delta_kind"], data["delta_text"], strict=True)
        own = {f.name for f in fields(cls)} - {"deltas", "timings"}
        return cls(
            deltas=tuple(Delta(at_ns=ns, kind=kind, text=text) for ns, kind, text in columns),
            timings=ServerTimings(**data["timings"]),
            **{name: data[name] for name in own if name in data},
        )
