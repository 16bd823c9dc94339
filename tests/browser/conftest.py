"""A real Chromium on a page that is made of records in our own formats."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Error, Page, sync_playwright
from report_kit import Opened, launch, make_page


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        try:
            browser = launch(playwright)
        except Error as error:
            # At a desk that is a thing to install; where CI measures it must not pass for tested.
            missing = pytest.fail if os.environ.get("CI") else pytest.skip
            missing(
                f"no Chromium ({error.message.splitlines()[0]}): playwright install chromium, or apt install chromium"
            )
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_page(tmp_path_factory.mktemp("report"))


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(color_scheme="light", viewport={"width": 1400, "height": 1000})
    yield context.new_page()
    context.close()


@pytest.fixture
def opened(page: Page, report: Path) -> Iterator[Opened]:
    """The page, opened; afterwards it must have asked for nothing and complained about nothing."""
    found = Opened(page, report)
    yield found
    assert found.requests == [found.url]
    assert found.complaints == []
