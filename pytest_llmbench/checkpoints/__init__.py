"""Tiny checkpoints, made offline and the same to the byte everywhere, so that real servers run without a download."""

from __future__ import annotations

from pytest_llmbench.checkpoints.tiny import NAMES, make_tiny

__all__ = ["NAMES", "make_tiny"]
