"""The page in a real browser, from a real server process, on a root with an hour of history."""

from __future__ import annotations

import re
import time
from pathlib import Path
from urllib.request import urlopen

import pytest

from pravega_spark import KeyValueTableConfiguration, StreamManager
from tests.harness.browser import BrowserTab, needs_browser
from tests.harness.fake_runtime import FakeRuntime
from tests.harness.lively_root import HOSTILE, make_lively_root
from tests.harness.page_server import page_server
from tests.harness.tcp_proxy import Network, tcp_proxy
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
            assert "``" not in tab.run("document.body.textContent"), path

        assert [asked for asked in tab.requests if not asked.startswith(url)] == []
        expected = f"{url}/api/streams/nyc/none"
        assert [p for p in tab.problems if expected not in p] == []


def test_a_server_with_a_token_asks_for_it_and_says_that_one_is_wrong(
    root: Path, tab: BrowserTab
) -> None:
    def give(token: str) -> None:
        tab.wait_for("document.activeElement.id === 'token' && !document.activeElement.value")
        tab.write(token)
        tab.press("Enter")

    refused = "document.querySelector('#token-dialog [role=alert]')"
    with page_server(root, token=TOKEN) as url:
        tab.open(f"{url}/streams")
        tab.wait_for("document.getElementById('token-dialog').open")
        assert tab.run(f"{refused} === null")
        assert tab.run("document.querySelectorAll('tr[data-stream]').length") == 0
        give("another-token-of-some-length")
        tab.wait_for(f"{refused}.textContent.includes('refused')")
        give("a token that no header can have: \u202e")
        tab.wait_for(f"{refused}.textContent.includes('refused')")
        give(TOKEN)
        tab.wait_for("document.querySelectorAll('tr[data-stream]').length === 6")
        assert tab.run("document.getElementById('token-dialog') === null")
        tab.open(f"{url}/streams/nyc/flights")
        tab.wait_for(f"{BOXES} > 10")
        assert not any(TOKEN in asked for asked in tab.requests)


def test_the_page_of_a_server_that_is_away_says_so_and_comes_back_by_itself(
    root: Path, tab: BrowserTab
) -> None:
    away = "!document.getElementById('away').hidden"
    cell = "document.querySelector('tr[data-stream=\"shop/orders\"]').cells[4].textContent"
    with page_server(root) as upstream, tcp_proxy(upstream) as proxy:
        tab.open(f"{proxy.url}/streams")
        tab.wait_for("document.getElementById('live').dataset.state === 'on'")
        tab.wait_for("document.querySelectorAll('tr[data-stream]').length === 6")
        before = int(tab.run(cell))

        # It keeps what it shows, and shows what came meanwhile.
        proxy.network = Network.REFUSE
        tab.wait_for(
            f"{away} && document.getElementById('away').innerText.includes('not answered')"
        )
        assert tab.run("document.getElementById('live').textContent") == "connection lost"
        assert tab.run("document.querySelectorAll('tr[data-stream]').length") == 6
        with StreamManager(root).create_writer("shop/orders") as writer:
            writer.write_event(b"while the server was away", routing_key="x")
        proxy.network = Network.GOOD
        tab.wait_for(f"!({away}) && document.getElementById('live').dataset.state === 'on'")
        tab.wait_for(f"{cell} === '{before + 1}'")

        # After a click it gets what the new view shows.
        proxy.network = Network.REFUSE
        tab.wait_for(away)
        tab.run("document.querySelector('[data-nav=groups]').click()")
        tab.wait_for("document.querySelector('h1').textContent === 'Reader groups'")
        assert tab.run(away)
        assert not tab.run("document.body.innerText.includes('Failed to fetch')")
        proxy.network = Network.GOOD
        tab.run("document.querySelector('#away button').click()")
        tab.wait_for(f"!({away}) && document.body.innerText.includes('fulfilment')")


def test_a_server_that_hangs_without_a_word_is_noticed_and_waited_for(
    root: Path, tab: BrowserTab
) -> None:
    away = "!document.getElementById('away').hidden"
    with page_server(root) as upstream, tcp_proxy(upstream) as proxy:
        tab.open(f"{proxy.url}/streams")
        tab.wait_for("document.getElementById('live').dataset.state === 'on'")
        tab.wait_for("document.querySelectorAll('tr[data-stream]').length === 6")

        # No connection is refused or reset, but no byte arrives any more.
        proxy.network = Network.STALL
        tab.wait_for(
            f"{away} && document.getElementById('away').innerText.includes('not answered since')"
        )
        assert tab.run("document.getElementById('live').textContent") == "connection lost"
        assert tab.run("document.querySelectorAll('tr[data-stream]').length") == 6
        tab.run("document.querySelector('[data-nav=groups]').click()")
        tab.wait_for("document.querySelector('h1').textContent === 'Reader groups'")
        assert tab.run(away)
        proxy.network = Network.GOOD
        tab.wait_for(f"!({away}) && document.body.innerText.includes('fulfilment')")
        tab.wait_for("document.getElementById('live').dataset.state === 'on'")


def test_a_click_at_a_server_that_hangs_is_answered_once_it_is_back(
    root: Path, tab: BrowserTab
) -> None:
    away = "!document.getElementById('away').hidden"
    with page_server(root) as upstream, tcp_proxy(upstream) as proxy:
        tab.open(f"{proxy.url}/streams")
        tab.wait_for("document.querySelectorAll('tr[data-stream]').length === 6")
        proxy.network = Network.STALL
        tab.run("document.querySelector('[data-nav=groups]').click()")  # it does not know yet
        tab.wait_for("document.querySelector('h1').textContent === 'Reader groups'")
        tab.wait_for(away)
        proxy.network = Network.GOOD
        tab.wait_for(f"!({away}) && document.body.innerText.includes('fulfilment')")


def test_in_the_search_arrows_walk_and_enter_opens(root: Path, tab: BrowserTab) -> None:
    found = "[...document.querySelectorAll('a.row')].map(a => a.textContent).join()"
    with page_server(root) as url:
        tab.open(f"{url}/groups/nyc/archive")
        tab.wait_for("document.body.innerText.includes('last checkpoint')")
        tab.press("/")
        tab.write("raw")
        tab.press("Enter")  # on a page without a list: to the streams that match
        tab.wait_for(f"{found} === 'flights,clicks'")
        assert tab.run("location.pathname + location.search") == "/streams?q=raw"
        tab.press("ArrowDown")
        tab.press("ArrowDown")
        tab.wait_for("document.activeElement.textContent === 'clicks'")
        tab.press("ArrowUp")
        tab.press("ArrowUp")
        tab.wait_for("document.activeElement.id === 'search'")
        tab.press("ArrowDown")
        tab.press("Enter")
        tab.wait_for("location.pathname === '/streams/nyc/flights'")

        # Enter in the search opens what has the name, however quickly it follows the name.
        tab.open(f"{url}/streams")
        tab.wait_for("document.querySelectorAll('tr[data-stream]').length === 6")
        tab.press("/")
        tab.write("orders")
        tab.press("Enter")
        tab.wait_for("location.pathname === '/streams/shop/orders'")


def test_an_unknown_address_has_the_pages_frame_and_a_way_on(root: Path, tab: BrowserTab) -> None:
    with page_server(root) as url:
        for path in ("/nowhere/at/all", "/streams/nyc/%E0%A4%A"):
            tab.open(url + path)
            tab.wait_for("document.querySelector('h1').textContent === 'There is no such page'")
            assert tab.run("document.title") == "Not found · pravega_spark"
            tab.run("document.querySelector('main a').click()")
            tab.wait_for("location.pathname === '/'")


def test_on_a_phone_each_stream_is_a_card_with_its_sparkline_up_to_now(
    root: Path, tab: BrowserTab
) -> None:
    with page_server(root) as url:
        tab.open(f"{url}/streams", width=390, height=844)
        tab.wait_for("document.querySelectorAll('tr[data-stream] svg.spark').length === 6")
        spark = "document.querySelector('tr[data-stream] svg.spark').getBoundingClientRect()"
        card = "document.querySelector('tr[data-stream]').getBoundingClientRect()"
        assert tab.run(f"{spark}.right <= innerWidth && {spark}.width > 300")
        assert tab.run(f"Math.abs({spark}.right - {card}.right) < 2")
        label = "getComputedStyle(document.querySelector('td.trend'), '::after').content"
        assert tab.run(label) == '"now"'
        names = "[...document.querySelector('tr[data-stream]').cells].map(td => td.dataset.label)"
        assert tab.run(names)[1:4] == ["Events/s", "Last hour", "Bytes/s"]
        assert tab.run("document.querySelector('header').offsetHeight") < 60
        tab.press("/")
        tab.wait_for("document.getElementById('search').offsetWidth > 300")


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
        assert tab.faint_texts() == []


def test_a_page_whose_storage_is_away_says_so_keeps_what_it_shows_and_comes_back(
    tmp_path: Path, tab: BrowserTab
) -> None:
    manager = StreamManager(tmp_path / "root")
    manager.create_scope("nyc")
    manager.create_stream("nyc/f")
    with manager.create_writer("nyc/f") as writer:
        writer.write_events([b"x"] * 7, routing_key="k")
    manager.close()
    notice = "document.getElementById('away')"
    live = "document.getElementById('live').textContent"
    cell = "document.querySelector('tr[data-stream=\"nyc/f\"]')?.cells[4].textContent"
    with page_server(tmp_path / "root") as url:
        tab.open(f"{url}/streams")
        tab.wait_for(f"{cell} === '7' && {live} === 'live'")
        (tmp_path / "root").rename(tmp_path / "away")
        tab.wait_for(f"!{notice}.hidden && {live} === 'storage away'")
        tab.wait_for(f"{notice}.innerText.includes('is no longer the root that')")
        said = tab.run(f"{notice}.innerText")
        assert re.search(r"has not reached its storage since \d\d:\d\d:\d\d: ", said)
        assert "use the present root in a new process." in said
        assert "anager" not in said  # nobody who reads it calls Python
        assert "This page keeps what it shows, and tries again by itself." in said
        assert tab.run(cell) == "7"
        assert not tab.run("!!document.querySelector('tr .chip')"), "no stream is to blame"

        # What is clicked meanwhile waits, and says nothing wrong of the root.
        tab.run("document.querySelector('[data-nav=groups]').click()")
        tab.wait_for("document.querySelector('h1').textContent === 'Reader groups'")
        tab.wait_for(f"{live} === 'storage away'")
        main = tab.run("document.querySelector('main').innerText")
        assert "no reader groups" not in main
        assert "is no longer the root" not in main

        (tmp_path / "away").rename(tmp_path / "root")
        tab.wait_for(f"{notice}.hidden && {live} === 'live'")
        assert tab.run(f"{notice}.firstElementChild.textContent") == ""
        tab.wait_for("document.querySelector('main').innerText.includes('no reader groups')")
        tab.open(f"{url}/")
        tab.wait_for("document.querySelector('main').innerText.includes('Nothing needs attention')")


ABSENT = (
    ("/streams/nyc/none", "stream nyc/none does not exist"),
    ("/streams/nyc/none/events", "stream nyc/none does not exist"),
    ("/groups/nyc/none", "reader group nyc/none does not exist"),
    ("/tables/nyc/none", "table nyc/none does not exist"),
    ("/tables/nyc/none?changes=1", "table nyc/none does not exist"),
)


def test_the_page_of_what_does_not_exist_is_one_message_without_controls(
    root: Path, tab: BrowserTab
) -> None:
    with page_server(root) as url:
        for path, said in ABSENT:
            tab.open(url + path)
            tab.wait_for(f"document.querySelector('.missing')?.innerText.includes({said!r})")
            assert tab.run("document.querySelector('main').innerText.split('exist').length") == 2
            controls = "document.querySelectorAll('main :is(button, input, select, .card)')"
            assert tab.run(f"[...{controls}].every(one => !one.checkVisibility())"), path
            tab.run("document.querySelector('.missing a').click()")
            tab.wait_for(f"location.pathname === '/{path.split('/')[1]}'")


MADE = (
    ("/streams/nyc/f", "readable events"),
    ("/streams/nyc/f/events", "Looked at"),
    ("/groups/nyc/f", "generation"),
    ("/tables/nyc/f", "version of the log"),
)


@pytest.mark.parametrize(("path", "said"), MADE)
def test_what_is_made_while_its_page_waits_is_shown(
    tmp_path: Path, tab: BrowserTab, path: str, said: str
) -> None:
    manager = StreamManager(tmp_path / "root")
    manager.create_scope("nyc")
    manager.create_stream("nyc/other")
    with page_server(tmp_path / "root") as url:
        tab.open(url + path)
        tab.wait_for("document.querySelector('.missing')?.innerText.includes('does not exist')")
        if path.startswith("/streams"):
            manager.create_stream("nyc/f")
        elif path.startswith("/groups"):
            manager.create_reader_group("nyc/f", ["nyc/other"])
        else:
            manager.create_key_value_table("nyc/f", KeyValueTableConfiguration(key_type="string"))
        tab.wait_for(f"document.querySelector('main').innerText.includes({said!r})")
        assert not tab.run("document.querySelector('.missing').checkVisibility()")


@pytest.mark.parametrize(("path", "said"), [row for row in MADE if row[0].startswith("/streams")])
def test_a_stream_that_is_made_before_its_absent_page_hears_of_changes_is_shown(
    tmp_path: Path, tab: BrowserTab, path: str, said: str
) -> None:
    manager = StreamManager(tmp_path / "root")
    manager.create_scope("nyc")
    with page_server(tmp_path / "root") as url, urlopen(f"{url}/api/live", timeout=120) as other:
        with tab.held("*/api/live*"):
            tab.open(url + path)
            tab.wait_for("document.querySelector('.missing')?.innerText.includes('does not exist')")
            manager.create_stream("nyc/f")
            while b'"stream": "f"' not in (line := other.readline()):
                assert line  # the server tells of each change once
        tab.wait_for(f"document.querySelector('main').innerText.includes({said!r})")


@pytest.mark.parametrize("path", [path for path, _ in MADE])
def test_what_is_deleted_while_its_page_is_open_is_said_with_the_age_of_what_is_shown(
    tmp_path: Path, tab: BrowserTab, path: str
) -> None:
    manager = StreamManager(tmp_path / "root")
    manager.create_scope("nyc")

    def make() -> None:
        if path.startswith("/streams"):
            manager.create_stream("nyc/f")
        elif path.startswith("/groups"):
            manager.create_reader_group("nyc/f", ["nyc/other"])
        else:
            manager.create_key_value_table("nyc/f", KeyValueTableConfiguration(key_type="string"))

    manager.create_stream("nyc/other")
    make()
    shown = "segments, epoch" if path == "/streams/nyc/f" else dict(MADE)[path]
    main = "document.querySelector('main').innerText"
    with page_server(tmp_path / "root") as url:
        tab.open(url + path)
        tab.wait_for(f"{main}.includes({shown!r})")
        if path.startswith("/streams"):
            manager.seal_stream("nyc/f")
            manager.delete_stream("nyc/f")
        elif path.startswith("/groups"):
            manager.delete_reader_group("nyc/f")
        else:
            manager.delete_key_value_table("nyc/f")
        tab.wait_for(f"/was deleted. What is shown is of .*, \\d+ s ago/.test({main})")
        assert tab.run(f"{main}.includes({shown!r})"), "it keeps what it showed"
        assert not tab.run(f"{main}.includes('create it')"), "nobody is told to create it"
        chip = "[...document.querySelectorAll('.head .chip')].map(one => one.textContent).join()"
        if path in ("/streams/nyc/f", "/groups/nyc/f"):
            assert tab.run(chip) == "deleted"
        make()
        tab.wait_for(f"!{main}.includes('was deleted')")


def test_the_page_of_an_absent_stream_does_not_go_on_asking_for_its_curves(
    root: Path, tab: BrowserTab
) -> None:
    with page_server(root) as url:
        tab.open(f"{url}/streams/nyc/none")
        tab.wait_for("document.querySelector('.missing')?.innerText.includes('does not exist')")
        asked = len(tab.requests)
        tab.wait_for("performance.now() > 17000")  # curves of an hour are asked for each 15 s
        tab.requests = tab.requests[asked:]
        tab.run("fetch('/ping').then(() => 0)")  # so that all requests so far are known
        assert [request for request in tab.requests if "/traffic" in request] == []


def test_the_list_of_streams_says_that_maintenance_is_overdue_in_the_colour_of_warnings(
    tmp_path: Path, tab: BrowserTab
) -> None:
    late = FakeRuntime()
    late.wall_ms = time.time() * 1_000 - 86_400_000
    manager = StreamManager(tmp_path / "root", runtime=late)
    manager.create_scope("nyc")
    manager.create_stream("nyc/f")
    manager.close()
    chip = "document.querySelector('.head .chip')"
    warn = "getComputedStyle(document.querySelector('.tile .count.warn')).color"
    with page_server(tmp_path / "root") as url:
        tab.open(f"{url}/streams")
        tab.wait_for(f"{chip}?.textContent === 'maintenance overdue: 1 of 7'")
        assert tab.run(f"{chip}.title") == "No recent run of: sweeping"
        colour = tab.run(f"getComputedStyle({chip}).color")
        tab.open(f"{url}/")
        tab.wait_for("document.querySelector('.tile .count.warn')?.textContent === '1'")
        assert tab.run(warn) == colour
        zero = "getComputedStyle(document.querySelector('.tile .count:not(.warn)')).color"
        assert tab.run(zero) != colour  # nothing is critical, and its 0 has no colour
