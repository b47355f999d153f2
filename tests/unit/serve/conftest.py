"""A browser's tab for the tests of the page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.browser import BrowserTab, browser_tab


@pytest.fixture(scope="module")
def tab() -> Iterator[BrowserTab]:
    """The tab of a browser of this module; its tests say ``needs_browser``."""
    with browser_tab() as opened:
        yield opened
