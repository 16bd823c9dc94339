"""The conformance suite has every backend, and its list of limits nothing that isn't in it."""

from __future__ import annotations

import test_conformance
from conformance_kit import subjects
from conformance_limits import CANNOT

from pytest_llmbench.backends import builtin_backends


def test_every_backend_is_a_subject() -> None:
    assert {subject.backend for subject in subjects()} == set(builtin_backends())


def test_every_limit_is_one_of_a_check_and_a_subject() -> None:
    names = {subject.name for subject in subjects()}
    assert [check for check in CANNOT if not hasattr(test_conformance, check)] == []
    assert [(check, name) for check, rows in CANNOT.items() for name in rows if name not in names] == []
