"""The page in a real browser, from a real server process, on a root with an hour of history."""

from __future__ import annotations

from pathlib import Path

import pytest

from pravega_spark import StreamManager
from tests.harness.browser import BrowserTab, needs_browser
from tests.harness.lively_root import HOSTILE, make_lively_root
from tests.harness.page_server import page_server
from tests.harness.web_world import TOKEN

pytestmark = [pytest.mark.slow, needs_browser]
UNNAMED = """
[...document.querySelectorAll('button, a, input, [role=img], [tabindex="0"]')].filter(element =>
  !(element.getAttribute('aria-label') || element.textContent.trim() || element.title)).length
"""
"""How many elements a screen reader could not name."""
BOXES = "document.querySelectorAll('.picture g[data-segment]').length"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page") / "root"
    make_lively_root(str(folder))
    return folder


def test_the_page_shows_streams_follows_them_and_draws_their_segments(
    root: Path, tab: BrowserTab
) -> None:
    with page_server(root) as url:
        tab.open(f"{url}/streams")
        tab.wait_for("document.querySelectorAll('tr[data-stream]').length === 6")
        names = tab.run("[...document.querySelectorAll('a.row')].map(a => a.textContent)")
        assert names == ["flights", "weather", "clicks", "orders", "payments", "retired"]
        tab.wait_for("document.getElementById('live').dataset.state === 'on'")

        # Text of tags is text: no element of it exists, and its code did not run.
        chip = "document.querySelector('tr[data-stream=\"nyc/weather\"] .chip').textContent"
        assert tab.run(chip) == HOSTILE
        assert tab.run("document.querySelectorAll('main img').length") == 0
        assert "owned" not in tab.run("document.title")

        # What is written now is shown without a reload.
        cell = "document.querySelector('tr[data-stream=\"nyc/weather\"]').cells[4].textContent"
        assert tab.run(cell) == "1"
        with StreamManager(root).create_writer("nyc/weather") as writer:
            writer.write_events([b"rain", b"sun"], routing_key="x")
        tab.wait_for(f"{cell} === '3'")

        # By keys: to the second stream, and to its page.
        tab.press("j")
        tab.press("k")
        tab.wait_for("document.activeElement.textContent === 'flights'")
        tab.run("document.activeElement.click()")
        tab.wait_for(f"{BOXES} === 13")
        assert tab.run("location.pathname") == "/streams/nyc/flights"
        tab.wait_for("document.querySelectorAll('.timeline li').length > 5")
        box = "document.querySelector('[data-segment=\"2#1\"]').getAttribute('aria-label')"
        assert tab.run(box).startswith("Segment 2#1: keys [0, 0.25)")
        assert tab.run("document.querySelector('main').innerText").count("nyc/archive") >= 2

        # A split shows up by itself.
        StreamManager(root).scale_stream(
            "nyc/flights", seal=["11#5"], key_ranges=[(0.75, 0.9), (0.9, 1.0)]
        )
        tab.wait_for(f"{BOXES} === 15")

        # Deep links, the way back, and the other pages.
        tab.run("history.back()")
        tab.wait_for("document.querySelectorAll('tr[data-stream]').length === 6")
        for path, sign in (
            ("/groups", "fulfilment"),
            ("/groups/nyc/archive", "last checkpoint"),
            ("/tables", "inventory"),
            ("/streams/shop/payments", "aborted"),
            ("/streams/nyc/none", "does not exist"),
            ("/?q=aviation", "flights"),
            ("/api/docs", "/v1/scopes"),
        ):
            tab.open(url + path)
            tab.wait_for(f"document.body?.innerText.includes({sign!r})")
            assert tab.run(UNNAMED) == 0, path

        assert [asked for asked in tab.requests if not asked.startswith(url)] == []
        expected = f"{url}/api/streams/nyc/none"
        assert [p for p in tab.problems if expected not in p] == []


def test_a_server_with_a_token_asks_for_it_once(root: Path, tab: BrowserTab) -> None:
    with page_server(root, token=TOKEN) as url:
        tab.open(f"{url}/streams")
        tab.wait_for("document.getElementById('token-dialog').open")
        assert tab.run("document.querySelectorAll('tr[data-stream]').length") == 0
        tab.run(f"document.getElementById('token').value = {TOKEN!r}")
        tab.run("document.querySelector('#token-dialog button').click()")
        tab.wait_for("document.querySelectorAll('tr[data-stream]').length === 6")
        tab.open(f"{url}/streams/nyc/flights")
        tab.wait_for(f"{BOXES} > 10")
        assert not any(TOKEN in asked for asked in tab.requests)


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_the_page_has_light_and_dark_colours(root: Path, tab: BrowserTab, colours: str) -> None:
    with page_server(root) as url:
        tab.colours(colours)
        tab.open(f"{url}/streams/nyc/flights")
        tab.wait_for(f"{BOXES} > 10")
        ground = tab.run("getComputedStyle(document.body).backgroundColor")
        brightness = sum(map(int, ground[4:-1].split(","))) / 3
        assert (brightness > 200) == (colours == "light")
        assert tab.run("document.documentElement.scrollWidth <= innerWidth")
