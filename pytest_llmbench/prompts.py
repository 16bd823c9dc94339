"""The prompts, each made unique at its first token and as many tokens long as it says.

A prefix cache answers a prompt that it has seen: so every request starts with another word, and the longest prefix
that a prompt shares with an earlier one is known (`Prompt.shared_tokens`). Where the model's tokenizer is at hand, the
length after the chat template is exact to the token; else it is an estimate, and `exact` is False.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from pytest_llmbench.errors import UsageError
from pytest_llmbench.matrix import CONTEXT_TOKENS, CustomPrompt, RunSettings, concurrency_prompt

CHARACTERS_PER_TOKEN = 4
"""English text and code under the usual vocabularies; only where there is no tokenizer."""

MOST_PIECES_PER_TOKEN = 16
"""A piece of filler is a word or so: with more of them than this, the count has stopped to grow."""

CONCURRENCY_TOKENS = 512
"""Of each prompt of several requests at once, as in a parity plan."""

UNKNOWN_PREFIX_TOKENS = 64
"""What a chat template may put before the prompt, where no tokenizer can tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    role: str
    content: str


GREETING = Message(role="user", content="Hello")
"""What every model is asked before a prompt of a maker's, to see it loaded."""


class Tokenizer(Protocol):
    """The model's own vocabulary and chat template."""

    def prompt_ids(self, messages: Sequence[Message], *, think: bool | None) -> Sequence[int]:
        """Token ids of the whole prompt, chat template and generation prompt included."""

    def text_ids(self, text: str) -> Sequence[int]:
        """Token ids of bare text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSpec:
    """What a prompt asks, and how long it is to be. `tokens` None: as long as its text is."""

    name: str
    instruction: str
    tokens: int | None = None
    system: str | None = None
    filler: str | None = None
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One request's messages. `tokens` counts the chat template; None without a tokenizer."""

    name: str
    messages: tuple[Message, ...]
    tokens: int | None
    exact: bool
    shared_tokens: int
    think: bool | None = None
    max_tokens: int | None = None


_CODE_TASK = "Rewrite the module below so that each step is a strategy object. Keep its behaviour."
_CONTEXT_TASK = "Read the module below. Then name its three weakest functions and rewrite the first of them."
_BUILTIN = (
    PromptSpec(name="short", tokens=64, instruction="Write a Python function that tells if n is prime."),
    PromptSpec(
        name="long",
        tokens=128,
        instruction="Tell what happens, layer by layer, between typing an address and seeing the page. Be thorough.",
    ),
    PromptSpec(
        name="code", tokens=2048, instruction=_CODE_TASK, system="You are a careful Python engineer.", filler="code"
    ),
    *(
        PromptSpec(name=name, tokens=tokens, instruction=_CONTEXT_TASK, filler="code")
        for name, tokens in CONTEXT_TOKENS.items()
    ),
)


def builtin(name: str) -> PromptSpec:
    """The specification of a built-in prompt; UsageError for a name that isn't one."""
    for spec in _BUILTIN:
        if spec.name == name:
            return spec
    raise UsageError(f"no built-in prompt {name!r}; there are: {', '.join(s.name for s in _BUILTIN)}")


def specs(settings: RunSettings) -> dict[str, PromptSpec]:
    """What each of an entry's prompts asks, by name; a custom prompt is as long as its text."""
    custom = {c.name: c for c in settings.custom_prompts}
    named = {name: _custom_spec(custom[name]) if name in custom else builtin(name) for name in settings.prompts}
    return named | {spec.name: spec for spec in map(concurrency, settings.concurrency)}


def concurrency(level: int) -> PromptSpec:
    """What each of `level` requests at once asks."""
    name = concurrency_prompt(level)
    return PromptSpec(name=name, tokens=CONCURRENCY_TOKENS, instruction=_CONTEXT_TASK, filler="code")


def _custom_spec(custom: CustomPrompt) -> PromptSpec:
    return PromptSpec(name=custom.name, instruction=custom.text, system=custom.system, max_tokens=custom.max_tokens)


def longest_tokens(settings: RunSettings) -> int:
    """An upper estimate of the longest prompt among an entry's, in tokens, the chat template not counted."""
    return max(
        spec.tokens or len(spec.instruction.encode()) + len((spec.system or "").encode())
        for spec in specs(settings).values()
    )


def _code_pieces() -> Iterator[str]:
    """Words of an endless Python module, no two functions alike, each with the white space behind it."""
    verbs = ("load", "check", "merge", "rank", "split", "price", "audit", "round", "pack", "send")
    nouns = ("order", "invoice", "parcel", "ledger", "quote", "route", "stock", "refund", "region", "batch")
    for number in itertools.count(1):
        verb, noun = verbs[number % 10], nouns[(number // 10 + 3 * number) % 10]
        source = (
            f"def {verb}_{noun}_{number}(items, limit={number % 97}):\n"
            f'    """{verb.capitalize()} each {noun} up to the limit."""\n'
            f"    kept = [item for item in items if item.{noun}_id % {number % 13 + 2}]\n"
            f"    if len(kept) > limit:\n        kept = kept[:limit]\n"
            f"    return sum(item.amount for item in kept), kept\n\n\n"
        )
        yield from (word + " " for word in source.split(" "))


def _prose_pieces() -> Iterator[str]:
    """Words of endless prose, for prompts that are short of their length."""
    subjects = ("The reader", "A colleague", "Our team", "The author", "A student", "The reviewer")
    wishes = ("wants short sentences", "asks for one example", "knows the basics", "has little time", "likes lists")
    for number in itertools.count(1):
        sentence = f" {subjects[number % 6]} {wishes[number % 5]} in part {number}."
        yield from (" " + word for word in sentence.split())


def _nonces() -> Iterator[str]:
    """First words in random order: single characters and words that vocabularies hold as different tokens."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
    words = "After Before Every From Given How If Just Let Many Now On Please Since Then Under What You Zero"
    starts = [*alphabet, *words.split(), *"àéñøßλπшж中日한"]
    shuffled = random.sample(starts, len(starts))
    for start in itertools.chain(shuffled, itertools.cycle(shuffled)):
        yield f"{start}{random.randrange(16**8):08x}"


class PromptMaker:
    """Makes the prompts of one loaded model; remembers what it made, so that each differs from all before."""

    def __init__(self, tokenizer: Tokenizer | None, *, think: bool | None = None) -> None:
        self._tokenizer = tokenizer
        self._think = think
        self._nonces = _nonces()
        self.template_tokens = self._template_tokens()
        self._seen = [] if tokenizer is None else [self._start([GREETING])]

    def make(self, spec: PromptSpec) -> Prompt:
        """A prompt that no earlier one of this maker, nor the greeting, shares more than the template's start with."""
        nonce, shared = self._fresh_nonce(spec)
        prompt = self._fit(spec, nonce)
        if self._tokenizer is not None:
            self._seen.append(self._start(prompt.messages))
        return replace(prompt, shared_tokens=shared)

    def _ids(self, messages: Sequence[Message]) -> Sequence[int]:
        assert self._tokenizer is not None
        return self._tokenizer.prompt_ids(messages, think=self._think)

    def _start(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """The ids by which prompts are told apart."""
        return tuple(self._ids(messages)[: self.template_tokens + 64])

    def _template_tokens(self) -> int:
        if self._tokenizer is None:
            return UNKNOWN_PREFIX_TOKENS
        one, other = (self._ids([Message(role="user", content=text)]) for text in ("Alpha", "9 zebras"))
        return shared_prefix(one, other)

    def _fresh_nonce(self, spec: PromptSpec) -> tuple[str, int]:
        if self._tokenizer is None:
            return next(self._nonces), self.template_tokens
        tried: list[tuple[int, str]] = []
        for nonce in itertools.islice(self._nonces, 100):
            ids = self._start(_messages(spec, nonce, ""))
            tried.append((max(shared_prefix(ids, old) for old in self._seen), nonce))
            if tried[-1][0] <= self.template_tokens:
                return nonce, self.template_tokens
        shared, nonce = min(tried)
        return nonce, shared

    def _fit(self, spec: PromptSpec, nonce: str) -> Prompt:
        pieces = _Pieces(_code_pieces() if spec.filler == "code" else _prose_pieces())

        def prompt(body: str, tokens: int | None, exact: bool) -> Prompt:
            return Prompt(
                name=spec.name,
                messages=_messages(spec, nonce, body),
                tokens=tokens,
                exact=exact,
                shared_tokens=0,
                think=self._think,
                max_tokens=spec.max_tokens,
            )

        if self._tokenizer is None:
            return prompt(_estimated_body(spec, pieces), None, False)
        if spec.tokens is None:
            return prompt("", len(self._ids(_messages(spec, nonce, ""))), True)
        body, tokens = fit_body(lambda text: len(self._ids(_messages(spec, nonce, text))), pieces.first, spec.tokens)
        return prompt(body, tokens, tokens == spec.tokens)


class _Pieces:
    """The first n pieces of an endless text, as one string."""

    def __init__(self, source: Iterator[str]) -> None:
        self._source = source
        self._made: list[str] = []

    def first(self, n: int) -> str:
        self._made.extend(itertools.islice(self._source, max(0, n - len(self._made))))
        return "".join(self._made[:n])


def _messages(spec: PromptSpec, nonce: str, body: str) -> tuple[Message, ...]:
    """The nonce stands before everything that we write, the system message included."""
    text = f"{spec.instruction}\n\n{body}" if spec.filler else spec.instruction + body
    if spec.system is None:
        return (Message(role="user", content=f"{nonce} {text}"),)
    return (Message(role="system", content=f"{nonce} {spec.system}"), Message(role="user", content=text))


def _estimated_body(spec: PromptSpec, pieces: _Pieces) -> str:
    missing = (spec.tokens or 0) * CHARACTERS_PER_TOKEN - len(spec.instruction)
    n = 0
    while len(pieces.first(n)) < missing:
        n = n * 2 + 1
    return pieces.first(n)[: max(0, missing)]


def shared_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many leading ids two prompts have in common."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def fit_body(count: Callable[[str], int], first: Callable[[int], str], target: int) -> tuple[str, int]:
    """The body with which the prompt is `target` tokens long, and its real length.

    `count(body)` is the whole prompt's length; `first(n)` the first n pieces of the filler. Falls short only where even
    an empty body is too long, or where the vocabulary leaves no way to add single tokens.
    """
    n, tokens = _largest_that_fits(count, first, target)
    if tokens >= target:
        return first(n), tokens
    for fewer, pad in itertools.product(range(min(n, 4) + 1), (" a", " x", ".", "!", "\n", " 1")):
        body = first(n - fewer)
        missing = target - (tokens if fewer == 0 else count(body))
        for copies in (missing, missing - 1, missing + 1):
            if copies >= 0 and count(body + pad * copies) == target:
                return body + pad * copies, target
    return first(n), tokens


def _largest_that_fits(count: Callable[[str], int], first: Callable[[int], str], target: int) -> tuple[int, int]:
    """The number of pieces with the most tokens that are not above `target`, found by false position."""
    low, at_low = 0, count("")
    if at_low >= target:
        return low, at_low
    high = max(1, target - at_low)
    while (at_high := count(first(high))) <= target:
        low, at_low, high = high, at_high, high * 2
        if high > MOST_PIECES_PER_TOKEN * target:
            return low, at_low
    while high - low > 1:
        guess = low + round((high - low) * (target - at_low) / (at_high - at_low))
        middle = min(max(guess, low + 1), high - 1)
        tokens = count(first(middle))
        if tokens <= target:
            low, at_low = middle, tokens
        else:
            high, at_high = middle, tokens
    return low, at_low
