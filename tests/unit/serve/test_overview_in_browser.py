"""The first page and the groups in a real browser: what shouts, and that it does so by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from pravega_spark import StreamManager
from tests.harness.browser import BrowserTab, needs_browser
from tests.harness.lively_root import make_lively_root
from tests.harness.page_server import page_server

pytestmark = [pytest.mark.slow, needs_browser]
ROWS = "[...document.querySelectorAll('a.row')].map(a => a.textContent)"
BODY = "document.querySelector('main').innerText"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("overview") / "root"
    make_lively_root(str(folder))
    return folder


def test_the_first_page_names_what_needs_attention_and_links_to_it(
    root: Path, tab: BrowserTab
) -> None:
    with page_server(root) as url:
        tab.open(f"{url}/")
        tab.wait_for(f"{ROWS}.includes('shop/fulfilment')")
        events = StreamManager(root).reader_group("shop/fulfilment").lag().events
        row = "[...document.querySelectorAll('tbody tr')].find(r => r.innerText.includes('fulfil'))"
        assert f"{events} events unread, and no reader" in tab.run(f"{row}.innerText")
        colour = tab.run(f"getComputedStyle({row}.querySelector('.chip')).color")
        assert colour != tab.run("getComputedStyle(document.querySelector('.muted')).color")
        assert "Looked at 6 of 6 streams and 3 of 3 reader groups" in tab.run(BODY)

        # What is written now is counted without a reload.
        with StreamManager(root).create_writer("shop/orders") as writer:
            writer.write_events([b"1", b"2", b"3"], routing_key="x")
        tab.wait_for(f"{row}.innerText.includes('{events + 3} events unread')")

        tab.run(f"{row}.querySelector('a.row').click()")
        tab.wait_for(f"{BODY}.includes('Reading against writing')")
        assert tab.run("location.pathname") == "/groups/shop/fulfilment"
        tab.wait_for("document.querySelectorAll('.plot path').length > 0")
        tab.wait_for(f"{BODY}.includes('events behind')")
        assert tab.run("document.querySelector('.head .chip').textContent") == "no reader"

        # The lag in seconds, by the switch.
        tab.run(
            "[...document.querySelectorAll('.switch button')]"
            ".find(b => b.textContent === 'seconds').click()"
        )
        label = "document.querySelector('.plot').getAttribute('aria-label')"
        tab.wait_for(f"{label} === 'Age of the oldest unread event'")
        assert tab.problems == []


def test_a_root_in_which_all_is_well_is_quiet(tmp_path: Path, tab: BrowserTab) -> None:
    manager = StreamManager(tmp_path / "root")
    manager.create_scope("nyc")
    manager.create_stream("nyc/f")
    with page_server(tmp_path / "root") as url:
        tab.open(f"{url}/")
        tab.wait_for(f"{BODY}.includes('Nothing needs attention')")
        assert "Looked at 1 of 1 stream " in tab.run(BODY)
        assert tab.run("document.querySelectorAll('main .chip').length") == 0


def test_a_long_name_leaves_room_for_what_is_said_and_warnings_have_their_colour(
    tmp_path: Path, tab: BrowserTab
) -> None:
    manager = StreamManager(tmp_path / "root")
    manager.create_scope("nyc")
    for stream in ("f", "n" * 250):
        manager.create_stream(f"nyc/{stream}")
        log = tmp_path / "root" / "nyc" / stream / "events" / "_delta_log"
        (log / f"{0:020d}.json").write_text("torn")
    with page_server(tmp_path / "root") as url:
        tab.open(f"{url}/")
        tab.wait_for("document.querySelectorAll('.findings tbody tr').length === 2")
        what, whole = (
            tab.run(f"document.querySelector('.findings {part}').clientWidth")
            for part in ("tbody td:nth-child(3)", "tbody")
        )
        assert what > 0.48 * whole
        colours = [
            tab.run(f"getComputedStyle(document.querySelector('.tile {number}')).color")
            for number in (".count.bad", ".count:not(.bad)")
        ]
        assert colours[0] != colours[1]


def test_old_links_to_the_list_of_streams_go_on_to_work(root: Path, tab: BrowserTab) -> None:
    current = "document.querySelector('[aria-current]').textContent"
    with page_server(root) as url:
        tab.open(f"{url}/?q=aviation")
        tab.wait_for(f"{ROWS}.join() === 'flights'")
        assert tab.run(current) == "Streams"
        tab.open(f"{url}/streams")
        tab.wait_for(f"{ROWS}.length === 6")
        tab.open(f"{url}/")
        tab.wait_for(f"{BODY}.includes('Needs attention')")
        assert tab.run(current) == "Overview"


def test_groups_have_states_and_are_sorted_by_a_click(root: Path, tab: BrowserTab) -> None:
    with page_server(root) as url:
        tab.open(f"{url}/groups")
        tab.wait_for(f"{ROWS}.join() === 'archive,dashboards,fulfilment'")
        tab.run(
            "[...document.querySelectorAll('th button')]"
            ".find(b => b.textContent === 'Behind').click()"
        )
        lag = {n: StreamManager(root).reader_group(n).lag().events for n in GROUPS}
        order = ",".join(n.partition("/")[2] for n in sorted(GROUPS, key=lambda n: -lag[n]))
        assert order != "archive,dashboards,fulfilment"
        tab.wait_for(f"{ROWS}.join() === {order!r} && location.search.includes('sort=lag')")
        states = "[...document.querySelectorAll('td .chip')].map(c => c.textContent)"
        assert set(tab.run(states)) <= {"no reader", "up to date", "waits"}
        tab.open(f"{url}/groups?sort=lag&down=1")  # the address keeps the order
        tab.wait_for(f"{ROWS}.join() === {order!r}")
        assert tab.run("document.querySelector('th[aria-sort]').textContent") == "Behind"


GROUPS = ("nyc/archive", "nyc/dashboards", "shop/fulfilment")
