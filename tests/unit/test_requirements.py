"""Conditions of the machine, each with the fix where there is one."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from pytest_llmbench.errors import Unavailable
from pytest_llmbench.matrix import REQUIREMENTS
from pytest_llmbench.requirements import _CHECKS, check

BESIDE = Path(__file__)


@pytest.mark.parametrize(
    "requirement",
    [
        f"platform:{sys.platform}",
        f"platform:{sys.platform}-{os.uname().machine}",
        "memory_gb:0.5",
        "binary:sh",
        "package:pytest",
        "package:pytest-xdist",
        "package:json",
        f"file:{Path(__file__).name}",
        f"file:{__file__}",
        "env:PATH",
    ],
)
def test_what_holds_here_passes(requirement: str) -> None:
    check([requirement], beside=BESIDE)


@pytest.mark.parametrize(
    ("requirement", "words", "fix"),
    [
        ("platform:amiga-m68k", "needs amiga-m68k, this is", ""),
        ("memory_gb:1000000", "needs 1000000 GB of memory", ""),
        ("binary:no-such-program", "no-such-program is not on PATH", "install no-such-program"),
        ("package:no-such-package", "no-such-package is not installed", "pip install no-such-package"),
        ("package:no.such.module", "no.such.module is not installed", "pip install no.such.module"),
        ("env:LLMBENCH_NOT_SET", "LLMBENCH_NOT_SET is not set", "export LLMBENCH_NOT_SET=…"),
        ("file:no/such/file", "no file no/such/file", "put no/such/file there"),
        ("file:~nobody-of-this-name/x", "no file", "put"),
    ],
)
def test_what_does_not_hold_says_so_with_its_fix(requirement: str, words: str, fix: str) -> None:
    with pytest.raises(Unavailable) as caught:
        check(["env:PATH", requirement], beside=BESIDE)
    assert words in caught.value.reason
    assert caught.value.fix.startswith(fix)


def test_an_empty_variable_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMBENCH_EMPTY", "")
    with pytest.raises(Unavailable):
        check(["env:LLMBENCH_EMPTY"], beside=BESIDE)


def test_each_kind_that_a_matrix_may_name_is_checked() -> None:
    assert set(_CHECKS) == set(REQUIREMENTS)
