"""How hypothesis runs here."""

from __future__ import annotations

from hypothesis import settings

# A busy machine makes any example slow: a deadline would test the machine.
settings.register_profile("llmbench", deadline=None)
settings.load_profile("llmbench")
