"""`python -m llmbench_engine PATH "prompt"`: the answer, as it comes."""

from __future__ import annotations

import argparse
import errno
import sys
from collections.abc import Sequence
from io import TextIOWrapper

from llmbench_engine.engine import Engine
from llmbench_engine.errors import EngineError
from llmbench_engine.parameters import Sampling
from llmbench_engine.tokenizer import Tokenizer


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0, or 2 with a message for a checkpoint or a request that doesn't fit."""
    options = _parser().parse_args(arguments)
    if isinstance(sys.stdout, TextIOWrapper):
        # Such a terminal gets a question mark for what it has no letter for.
        sys.stdout.reconfigure(errors="replace")
    try:
        sampling = Sampling(
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            min_p=options.min_p,
            seed=options.seed,
        )
        with Engine.load(options.path) as engine:
            assert engine.tokenizer is not None
            _stream(engine, _prompt(engine.tokenizer, options), options.max_tokens, sampling)
    except EngineError as error:
        sys.stderr.write(f"llmbench_engine: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        # Whoever read has gone, or the disk is full; the interpreter would complain again when it flushes.
        sys.stdout = None
        if not isinstance(error, BrokenPipeError):
            sys.stderr.write(f"llmbench_engine: the answer couldn't be written: {error.strerror}\n")
            return 2
    return 0


def _stream(engine: Engine, ids: Sequence[int], max_tokens: int, sampling: Sampling) -> None:
    if sys.stdout is None:
        raise OSError(errno.EBADF, "there is no standard output")
    for token in engine.generate(ids, max_tokens=max_tokens, sampling=sampling):
        sys.stdout.write(token.text)
        sys.stdout.flush()
    sys.stdout.write("\n")
    sys.stdout.flush()


def _prompt(tokenizer: Tokenizer, options: argparse.Namespace) -> list[int]:
    if options.raw:
        return tokenizer.encode_prompt(options.prompt)
    messages = [{"role": "user", "content": options.prompt}]
    return tokenizer.apply_chat_template(messages, enable_thinking=options.think)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m llmbench_engine", description="Generate text from a checkpoint.")
    parser.add_argument("path", help="folder with config.json, tokenizer.json and *.safetensors")
    parser.add_argument("prompt")
    parser.add_argument("--max-tokens", type=int, default=256, metavar="N")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0: the likeliest token (default)")
    parser.add_argument("--top-k", type=int, default=0, metavar="K")
    parser.add_argument("--top-p", type=float, default=1.0, metavar="P")
    parser.add_argument("--min-p", type=float, default=0.0, metavar="P")
    parser.add_argument("--seed", type=int, metavar="S", help="the same seed gives the same text")
    parser.add_argument(
        "--think", action=argparse.BooleanOptionalAction, help="thinking on or off, where the template knows it"
    )
    parser.add_argument("--raw", action="store_true", help="the prompt as it is, without the chat template")
    return parser


if __name__ == "__main__":
    sys.exit(main())
