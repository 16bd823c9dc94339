"""The report page: one HTML file with data, styles and scripts in it, which works without a network."""

from __future__ import annotations

from pytest_llmbench.report.page import html

__all__ = ["html"]
