"""Types of arguments that several scripts here take."""

from __future__ import annotations

import argparse
from pathlib import Path


def count(text: str) -> int:
    """A number above 0."""
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return int(text)


def counts(text: str) -> list[int]:
    """Such numbers, with commas between them."""
    return [count(part) for part in text.split(",")]


def checkpoint(text: str) -> Path:
    """The folder of a checkpoint."""
    if not (Path(text) / "config.json").is_file():
        raise argparse.ArgumentTypeError(
            f"{text}: no checkpoint, it has no config.json; `llmbench checkpoint random --shape NAME FOLDER` makes one"
        )
    return Path(text)


def folder(text: str) -> Path:
    """A folder, made where it isn't there yet; its whole path."""
    path = Path(text).resolve()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text}: no folder, and none can be made ({error.strerror})") from error
    return path
