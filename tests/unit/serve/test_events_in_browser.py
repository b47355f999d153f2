"""The events of a stream and the entries of a table in a real browser, from a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from pravega_spark import KeyValueTableConfiguration, StreamConfiguration, StreamManager
from tests.harness.browser import BrowserTab, browser_tab, needs_browser
from tests.harness.page_server import page_server
from tests.harness.web_world import TOKEN

pytestmark = [pytest.mark.slow, needs_browser]
EVENTS = 120
ROWS = "document.querySelectorAll('table.events tbody tr').length"
TEXT = "document.querySelector('main').innerText"
LINK = "[...document.querySelectorAll('main a')].find(a => a.textContent === '{}').click()"
OPENED = "!!document.querySelector('.opened .json, .opened .payload')"
BIG = "12345678901234567890"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("events") / "root"
    manager = StreamManager(folder)
    manager.create_scope("nyc")
    manager.create_stream("nyc/f")
    with manager.create_writer("nyc/f", "ingest") as writer:
        for number in range(EVENTS):
            writer.write_event(f'{{"n": {number}, "deep": {{"id": {BIG}}}}}', f"key-{number % 10}")
        writer.flush()
        writer.write_event("turned \u202e and \x1b[31m red", "strange\u202ekey")
    columns = pa.schema([("carrier", pa.string()), ("delay", pa.int64())])
    manager.create_stream("nyc/typed", StreamConfiguration(schema=columns))
    with manager.create_writer("nyc/typed") as writer:
        writer.write_event({"carrier": "UA", "delay": None})
    manager.create_key_value_table("nyc/t", KeyValueTableConfiguration(key_type="string"))
    with manager.key_value_table("nyc/t") as table:
        for number in range(60):
            table.put(f"key-{number:02}", f'{{"value": {number}}}')
        table.flush()
        table.put("key-07", "changed").result()
        table.remove("key-08").result()
    return folder


@pytest.fixture(scope="module")
def tab(root: Path) -> Iterator[BrowserTab]:
    with browser_tab() as opened:
        yield opened


def test_events_are_walked_opened_searched_and_saved(
    root: Path, tab: BrowserTab, tmp_path: Path
) -> None:
    tab.save_to(tmp_path)
    with page_server(root, token=TOKEN) as url:
        tab.open(f"{url}/streams/nyc/f")
        tab.wait_for("document.getElementById('token-dialog').open")
        tab.run(f"document.getElementById('token').value = {TOKEN!r}")
        tab.run("document.querySelector('#token-dialog button').click()")
        tab.wait_for(
            "[...document.querySelectorAll('a')].some(a => a.textContent === 'all events')"
        )
        tab.run(LINK.format("all events"))

        # The newest first; what would turn a line, or colour it, stands as its escape.
        tab.wait_for(f"{ROWS} === 50")
        shown = tab.run(TEXT)
        assert "\\u202e" in shown
        assert "\\x1b[31m" in shown
        assert not {"\u202e", "\x1b"} & set(shown)
        tab.run(LINK.format("Older"))
        tab.wait_for(f"{ROWS} === 50 && location.search.includes('order=newest')")
        address = tab.run("location.href")
        first = tab.run("document.querySelector('table.events tbody tr').innerText")
        tab.open(address)  # a link that was sent to somebody
        tab.wait_for(f"{ROWS} === 50")
        assert tab.run("document.querySelector('table.events tbody tr').innerText") == first

        # An event opens below its row: folded JSON with all digits, the writer, and a file.
        tab.run("document.querySelector('table.events button.link').click()")
        tab.wait_for(OPENED)
        assert BIG in tab.run("document.querySelector('.opened .json').textContent")
        opened = tab.run("document.querySelector('.opened').innerText")
        assert "ingest" in opened
        assert "append, version" in opened
        place = tab.run("document.querySelector('table.events button.link').textContent")
        click = "[...document.querySelectorAll('.opened button')].find(b => b.textContent === '{}')"
        tab.run(f"{click.format('Download')}.click()")
        name = tmp_path / f"nyc-f-{place.replace('#', '-').replace(':', '-')}.bin"
        for _ in range(600):
            if name.exists() and name.stat().st_size:
                break
            tab.run("new Promise(done => setTimeout(done, 50))")
        assert json.loads(name.read_text())["n"] == int(place.partition(":")[2])
        tab.run(f"{click.format('bytes')}.click()")
        assert tab.run("document.querySelector('.opened .payload').textContent")[:6] == "000000"

        # A search, along a key, by the form.
        tab.open(f"{url}/streams/nyc/f/events")
        tab.wait_for(f"{ROWS} === 50")
        tab.run("document.querySelector('.filters input[type=search]').value = '\"n\": 7'")
        tab.run("document.querySelector('.filters button').click()")
        tab.wait_for(f"{ROWS} === 11")
        assert f"Looked at {EVENTS + 1} of {EVENTS + 1} events" in tab.run(TEXT)
        tab.open(f"{url}/streams/nyc/f/events?key=key-7&at=head&order=oldest")
        tab.wait_for(f"{ROWS} === 12")
        tab.open(f"{url}/streams/nyc/typed/events")
        tab.wait_for(f"{ROWS} === 1")
        heads = tab.run("[...document.querySelectorAll('th')].map(each => each.textContent)")
        assert heads[-2:] == ["carrier", "delay"]

        # A position that is no longer, or never was, one has a way on.
        tab.open(f"{url}/streams/nyc/f/events?at=0%230=999")
        tab.wait_for(f"{TEXT}.includes('got 999')")
        tab.run(LINK.format("From the oldest event that is left"))
        tab.wait_for(f"{ROWS} === 50")
        assert not any(TOKEN in asked for asked in tab.requests)
        assert [asked for asked in tab.requests if not asked.startswith(("blob:", url))] == []
        assert [p for p in tab.problems if "999" not in p and "401" not in p] == []


def test_a_newer_event_is_offered_and_hidden_events_are_said(root: Path, tab: BrowserTab) -> None:
    with page_server(root) as url:
        tab.open(f"{url}/streams/nyc/typed/events")
        tab.wait_for(f"{ROWS} === 1 && document.getElementById('live').dataset.state === 'on'")
        with StreamManager(root).create_writer("nyc/typed") as writer:
            writer.write_event({"carrier": "DL", "delay": 4}).result()
        button = "document.querySelector('.head button')"
        tab.wait_for(f"!{button}.hidden")
        tab.run(f"{button}.click()")
        tab.wait_for(f"{ROWS} === 2")
    with page_server(root, "--hide-events") as url:
        for path in ("/streams/nyc/f/events", "/tables/nyc/t", "/tables/nyc/t?changes=1"):
            tab.open(url + path)
            tab.wait_for(f"{TEXT}.includes('--hide-events')")
            assert "key-0" not in tab.run(TEXT)


def test_a_table_is_paged_by_key_and_an_entry_opens_with_its_changes(
    root: Path, tab: BrowserTab
) -> None:
    with page_server(root) as url:
        tab.open(f"{url}/tables")
        tab.wait_for("!!document.querySelector('a.row')")
        tab.run("document.querySelector('a.row').click()")
        tab.wait_for(f"{ROWS} === 50")
        tab.run(LINK.format("Next page"))
        tab.wait_for(f"{ROWS} === 9")
        tab.open(f"{url}/tables/nyc/t?prefix=key-0")
        tab.wait_for(f"{ROWS} === 9")
        assert "key-08" not in tab.run(TEXT)
        tab.run("document.querySelectorAll('table.events button.link')[7].click()")
        tab.wait_for(OPENED)
        assert "changed" in tab.run("document.querySelector('.opened').innerText")
        tab.run(LINK.format("Changes of this key"))
        tab.wait_for(f"{ROWS} === 2")
        tab.open(f"{url}/tables/nyc/t?changes=1")
        tab.wait_for(f"{ROWS} === 50")
        assert "removed" in tab.run(TEXT)


@pytest.mark.parametrize("query", ["", "?contains=event"])
def test_the_address_of_the_newest_events_shows_the_same_ones_later_and_the_opened_one(
    tmp_path: Path, tab: BrowserTab, query: str
) -> None:
    manager = StreamManager(tmp_path / "root")
    manager.create_scope("nyc")
    manager.create_stream("nyc/f")
    names = "[...document.querySelectorAll('button[data-at]')].map(one => one.dataset.at).join()"
    body = "document.querySelector('.opened .payload')?.textContent.includes('event 3')"
    with manager.create_writer("nyc/f") as writer:
        writer.write_events([f"event {number}".encode() for number in range(5)], routing_key="k")
    with page_server(tmp_path / "root") as url:
        tab.open(f"{url}/streams/nyc/f/events{query}")
        tab.wait_for(f"{names} === '0#0=4,0#0=3,0#0=2,0#0=1,0#0=0'")
        steps = tab.run("history.length")
        tab.run("document.querySelectorAll('button[data-at]')[1].click()")
        tab.wait_for(body)
        assert tab.run("history.length") == steps
        address = tab.run("location.href")
        with manager.create_writer("nyc/f") as writer:
            writer.write_events([b"a later event"] * 3, routing_key="k")
        tab.open(f"{url}/streams")
        tab.open(address)
        tab.wait_for(body)
        assert tab.run(names) == "0#0=4,0#0=3,0#0=2,0#0=1,0#0=0"
        tab.run("document.querySelectorAll('button[data-at]')[1].click()")
        assert "open=" not in tab.run("location.href")


def test_a_payload_says_whether_more_of_it_is_there_than_is_shown_and_copied(
    tmp_path: Path, tab: BrowserTab
) -> None:
    manager = StreamManager(tmp_path / "root")
    manager.create_scope("nyc")
    manager.create_stream("nyc/f")
    with manager.create_writer("nyc/f") as writer:
        for payload in (b"\xff\xfe\xfd\xfc", bytes([255] * 17), b"x" * 100_000, b"short"):
            writer.write_event(payload, routing_key="k").result()
    cell = "document.querySelectorAll('table.events tbody tr')[{}].cells[4].textContent"
    buttons = "[...document.querySelectorAll('.opened button')].map(one => one.textContent)"
    with page_server(tmp_path / "root") as url:
        tab.open(f"{url}/streams/nyc/f/events")
        tab.wait_for(f"{ROWS} === 4")
        assert tab.run(cell.format(3)) == "ff fe fd fc"
        assert tab.run(cell.format(2)) == "ff " * 16 + "…"
        tab.run("document.querySelectorAll('button[data-at]')[0].click()")
        tab.wait_for(f"{buttons}.includes('Copy')")
        tab.open(f"{url}/streams/nyc/f/events?open=0%230%3D2")
        tab.wait_for(f"{buttons}.some(one => one.startsWith('Copy the first 64'))")
