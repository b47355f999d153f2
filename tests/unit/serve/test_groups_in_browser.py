"""The page of a group in a real browser, from a server whose clock is the test's."""

from __future__ import annotations

from typing import Any
from urllib.request import urlopen

import pytest

from tests.harness.browser import BrowserTab, needs_browser
from tests.harness.counted_store import CountedRoot
from tests.harness.two_readers import QUICK, SLOW, two_readers
from tests.harness.web_world import web_server

pytestmark = [pytest.mark.slow, needs_browser]
ROWS = """Object.fromEntries(
  [...document.querySelector('section.card[aria-label={}]').querySelectorAll('tbody tr')]
    .map(row => [row.cells[{}].textContent, Object.fromEntries(
      [...row.cells].map(cell => [cell.dataset.label, cell.textContent]))]))"""
"""The cells of each row of a card, by the name in a column, and their headings."""


def test_the_page_names_the_rates_of_each_reader_and_each_segment(tab: BrowserTab) -> None:
    root = CountedRoot()
    with web_server(root.manager) as url:

        def look() -> None:
            root.runtime.sleep(10)
            for path in ("attention", "groups/nyc/g"):
                with urlopen(f"{url}/api/{path}", timeout=60) as answer:
                    assert answer.status == 200

        with two_readers(root, look):
            tab.open(f"{url}/groups/nyc/g")
            tab.wait_for(f"Object.keys({ROWS.format('Segments', 3)}).length === 2")
            found = [tab.run(ROWS.format("Readers", 0)), tab.run(ROWS.format("Segments", 3))]
            legend = "document.querySelector('section.card[aria-label=Readers] .legend')"
            assert all(name in tab.run(f"{legend}.textContent") for name in (QUICK, SLOW))
            for rows in found:
                assert set(rows) == {QUICK, SLOW}
                quick, slow = rows[QUICK], rows[SLOW]
                assert 4.5 < per_second(quick["Read"]) < 7.5
                assert 1.8 < per_second(quick["Written"]) < 2.2
                assert quick["Caught up in"].endswith((" s", " min"))
                assert 0.7 < per_second(slow["Read"]) < 1.3
                assert 4.5 < per_second(slow["Written"]) < 5.5
                assert slow["Caught up in"] == "never at this rate"
            assert tab.problems == []


def per_second(cell: Any) -> float:
    number, unit = cell.split("/")
    assert unit == "s"
    return float(number)
