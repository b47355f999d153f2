"""Every page, in both colours and at both widths: axe finds nothing, all names and texts fit.

The root has names as long as they may be, and texts that would turn a line or become markup.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.browser import BrowserTab, needs_browser
from tests.harness.page_server import page_server
from tests.harness.strange_root import (
    GROUP,
    HOSTILE_SHOWN,
    LONG,
    SCOPE,
    STREAM,
    TABLE,
    TYPED,
    make_strange_root,
)
from tests.harness.tcp_proxy import Network, tcp_proxy
from tests.harness.tiers import sized
from tests.harness.web_world import TOKEN

pytestmark = [pytest.mark.slow, needs_browser]
WIDTHS = (1400, 390)
PAGES = {
    "/": "Needs attention",
    "/streams": LONG,
    f"/streams/{STREAM}": "Recent history",
    f"/streams/{TYPED}": "Recent history",
    f"/streams/{STREAM}/events": "Looked at",
    f"/streams/{TYPED}/events": "Looked at",
    f"/streams/{SCOPE}/none": "does not exist",
    f"/streams/{SCOPE}/none/events": "does not exist",
    "/groups": LONG,
    f"/groups/{GROUP}": "generation",
    f"/groups/{SCOPE}/none": "does not exist",
    "/tables": LONG,
    f"/tables/{TABLE}": "version of the log",
    f"/tables/{TABLE}?changes=1": "Looked at",
    f"/tables/{SCOPE}/none": "does not exist",
    "/api/docs": "/v1/scopes",
    "/nowhere": "no such page",
}
"""The pages, with a text that each shows once it has its data."""
SETTLED = (
    "![...document.querySelectorAll('.loading')].some(element => element.offsetParent) && "
    "document.getElementById('live').dataset.state"
)
OUTSIDE = """[...document.querySelectorAll('main *')].filter(element => {
  const {left, right, width} = element.getBoundingClientRect();
  let at = element.parentElement;
  while (at && getComputedStyle(at).overflowX === 'visible') at = at.parentElement;
  return !at && width > 1 && (left < -1 || right > innerWidth + 1);
}).map(element => element.outerHTML.slice(0, 120))"""
"""Elements that reach beyond the screen, but in what scrolls or cuts by itself."""
SCROLLED = """[...document.querySelectorAll('main .scroll, main pre')].filter(element =>
  element.scrollWidth > element.clientWidth + 1).map(element => element.textContent.slice(0, 80))"""
"""What one would have to push aside to read."""
READ = """[document.title, document.body.innerText, ...[...document.querySelectorAll('*')].flatMap(
  element => ['title', 'aria-label', 'aria-valuetext', 'placeholder'].map(name =>
    element.getAttribute(name) || ''))].join('\\n')"""
"""All that people read, or hear."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("strange") / "root"
    make_strange_root(str(folder))
    return folder


@pytest.fixture(scope="module")
def url(root: Path) -> Iterator[str]:
    with page_server(root) as opened:
        yield opened


@pytest.mark.long
@pytest.mark.parametrize("path", PAGES)
def test_axe_finds_nothing_and_everything_fits(tab: BrowserTab, url: str, path: str) -> None:
    with tab.without_policy():
        for width in WIDTHS:
            tab.colours("light")
            tab.open(url + path, width=width, height=9000)  # all is seen, and so it is loaded
            tab.wait_for(f"{SETTLED} === 'on'")
            tab.wait_for(f"document.body.innerText.includes({PAGES[path]!r})")
            for colours in ("light", "dark"):
                tab.colours(colours)
                assert tab.faults() == [], (width, colours)
                assert tab.faint_texts() == [], (width, colours)
            assert tab.run(OUTSIDE) == []
            assert tab.run("document.documentElement.scrollWidth") == width
            assert tab.run(SCROLLED) == []
            assert tab.run("document.querySelector('header').offsetHeight") < 60  # one line
            read = tab.run(READ)
            assert set(read).isdisjoint("\u202e\u2066\x1b")
            assert "owned" not in tab.run("document.title")
            if path in ("/streams", f"/streams/{STREAM}"):
                assert HOSTILE_SHOWN[:40] in read
    for width in (320, 920, 800, 1024, 1200)[: sized(2, 5)]:  # drawings follow in a moment
        tab.resize(width, 9000)
        fits = f"document.documentElement.scrollWidth === {width} && {OUTSIDE}.length === 0"
        tab.wait_for(f"{fits} && {SCROLLED}.length === 0")


@pytest.mark.parametrize("width", WIDTHS)
def test_axe_finds_nothing_while_the_page_asks_searches_or_has_lost_its_server(
    tab: BrowserTab, root: Path, width: int
) -> None:
    with (
        tab.without_policy(),
        page_server(root, token=TOKEN) as upstream,
        tcp_proxy(upstream) as proxy,
    ):
        tab.open(f"{proxy.url}/streams", width=width)
        tab.wait_for("document.activeElement.id === 'token'")
        _in_both_colours(tab)
        tab.write("wrong-token-of-some-length")
        tab.press("Enter")
        tab.wait_for("document.querySelector('#token-dialog [role=alert]') !== null")
        tab.wait_for("document.activeElement.id === 'token'")
        _in_both_colours(tab)
        tab.write(TOKEN)
        tab.press("Enter")
        tab.wait_for(f"document.body.innerText.includes({LONG!r})")
        tab.press("/")
        tab.write("nothing that is there")
        tab.wait_for("document.body.innerText.includes('No stream')")
        _in_both_colours(tab)
        proxy.network = Network.REFUSE
        tab.wait_for("!document.getElementById('away').hidden")
        _in_both_colours(tab)
        assert tab.run("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize("width", WIDTHS)
def test_axe_finds_nothing_of_what_is_damaged_and_while_the_storage_is_away(
    tab: BrowserTab, tmp_path: Path, width: int
) -> None:
    root = tmp_path / "root"
    make_strange_root(str(root))
    next((root / TYPED / "events").rglob("*.parquet")).unlink()
    torn = root / STREAM / "events/_delta_log"
    for commit in torn.glob("*.json"):
        commit.write_text("torn")
    findings = "document.querySelectorAll('.findings tbody tr').length"
    with tab.without_policy(), page_server(root) as url:
        for path, shows in (
            (f"/streams/{TYPED}/events", f"{MAIN}.includes('cannot be read')"),
            (f"/streams/{STREAM}", "!!document.querySelector('.problem.card')"),
            ("/streams", "!!document.querySelector('.chip.bad')"),
            ("/", f"{findings} > 1 && {MAIN}.includes('damaged')"),
        ):
            tab.open(url + path, width=width, height=9000)
            tab.wait_for(f"{SETTLED} === 'on' && {shows}")
            _in_both_colours(tab)
            assert tab.run("document.documentElement.scrollWidth") == width, path
            assert tab.run(OUTSIDE) == [], path
        root.rename(tmp_path / "away")
        tab.wait_for("document.getElementById('live').dataset.state === 'unstored'")
        _in_both_colours(tab)
        assert tab.run("document.documentElement.scrollWidth") == width
        assert tab.run(OUTSIDE) == []


MAIN = "document.querySelector('main').innerText"


def _in_both_colours(tab: BrowserTab) -> None:
    for colours in ("light", "dark"):
        tab.colours(colours)
        assert tab.faults() == [], colours
