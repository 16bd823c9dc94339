"""What a subject of the conformance suite can't be checked for, and why: by check (a test's name) and by subject."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

RUNS_ANYWAY = ("openai", "ollama", "lm-studio", "docker-model-runner")
RECORDED = ("docker-model-runner", "unsloth-studio")

TELLS_NO_CACHE = "it doesn't tell how much of a prompt its cache answered; each prompt is new from its first token"
HAS_NO_CACHE = "each answer is a process of its own: nothing is cached"
NOT_STARTED = "it runs anyway: we don't start it, and leave it running"
INSIDE = "it is no process of its own"
SAME_RECORDING = "replay: the recorded answer is the same whatever was asked"


def each(names: Iterable[str], reason: str) -> dict[str, str]:
    return dict.fromkeys(names, reason)


CANNOT: Mapping[str, Mapping[str, str]] = {
    "test_it_tells_its_version": {
        "openai": "the protocol has no question for the version",
        "lm-studio": "its REST API has no question for the version",
        "unsloth-studio": "replay: there is no installed package to ask",
    },
    "test_the_load_is_timed": {"openai": "whatever runs there has its model already"},
    "test_it_listens_on_a_port_of_its_own": {
        **each(RUNS_ANYWAY, NOT_STARTED),
        "engine": INSIDE,
        "diffusion-cli": "it is no server",
    },
    "test_thinking_is_switched": {
        "litert-lm": "it counts its thinking, but doesn't send it (test_litert_lm)",
        "diffusion-cli": "it has no switch for thinking",
        **each(RECORDED, SAME_RECORDING),
    },
    "test_tokens_are_counted": {"diffusion-cli": "it tells no tokens, only steps"},
    "test_no_cache_answers_a_new_prompt": {
        **each(("vllm-mlx", "litert-lm", "lm-studio", "unsloth-studio"), TELLS_NO_CACHE),
        "diffusion-cli": HAS_NO_CACHE,
    },
    "test_a_repeated_prompt_is_answered_by_the_cache": {
        **each(("vllm-mlx", "litert-lm", "lm-studio", "unsloth-studio"), TELLS_NO_CACHE),
        "diffusion-cli": HAS_NO_CACHE,
        "mlx-vlm": "its prefix cache is off unless the entry's env turns it on (test_mlx_servers)",
        "omlx": "its cache is of blocks of 256 tokens, written behind the answers (test_mlx_servers)",
        "docker-model-runner": SAME_RECORDING,
    },
    "test_a_fixed_length_is_kept_or_its_lack_is_marked": {
        **each(RECORDED, SAME_RECORDING),
        "diffusion-cli": "it tells no tokens, only steps",
    },
    "test_memory_is_that_of_its_own_processes": {
        "docker-model-runner": "replay: the port is Docker's own, and no engine is running",
        "diffusion-cli": "its processes are gone when an answer is there; their peak is kept (test_diffusion_cli)",
    },
    "test_what_was_started_is_gone_afterwards_and_nothing_else": {
        "engine": INSIDE,
        "diffusion-cli": "each of its processes ends with its answer",
    },
    "test_a_program_that_is_not_there_is_told_with_the_fix": {
        **each(RUNS_ANYWAY, NOT_STARTED),
        "engine": INSIDE,
    },
    "test_its_usage_error_is_in_ours": {
        **each(RUNS_ANYWAY, NOT_STARTED),
        "engine": "it takes no extra_args (test_engine_backend)",
        "unsloth-studio": "replay: there is no program that could complain",
    },
    "test_a_taken_port_is_left_to_its_owner": {
        **each(RUNS_ANYWAY, NOT_STARTED),
        "engine": INSIDE,
        "diffusion-cli": "it is no server",
    },
    "test_a_prompt_longer_than_the_context_is_refused_or_read_whole": {
        **each(RECORDED, SAME_RECORDING),
        "lm-studio": "replay: how it refuses such a prompt isn't documented",
    },
}
