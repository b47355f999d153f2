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
from tests.harness.tcp_proxy import Network, tcp_proxy
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
        tab.until(lambda: name.exists() and name.stat().st_size > 0)
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


def test_the_address_of_a_table_shows_the_same_entries_later_and_the_opened_one(
    tmp_path: Path, tab: BrowserTab
) -> None:
    manager = StreamManager(tmp_path / "root")
    manager.create_scope("nyc")
    manager.create_key_value_table("nyc/t", KeyValueTableConfiguration(key_type="string"))
    first = "document.querySelectorAll('button[data-at]')[0]"
    names = "[...document.querySelectorAll('button[data-at]')].map(one => one.textContent).join()"
    body = "document.querySelector('.opened .payload')?.textContent === '{}'"
    newer = "[...document.querySelectorAll('.head button')].find(one => !one.hidden)"
    with manager.key_value_table("nyc/t") as table:
        table.put("a", "old").result()
        table.put("b", "b").result()
        with page_server(tmp_path / "root") as url:
            tab.open(f"{url}/tables/nyc/t")
            tab.wait_for(f"{names} === 'a,b'")
            steps = tab.run("history.length")
            tab.run(f"{first}.click()")
            tab.wait_for(body.format("old"))
            assert tab.run("history.length") == steps
            address = tab.run("location.href")
            table.put("a", "new").result()
            table.put("a0", "later").result()
            tab.wait_for(f"!!{newer}")  # the page that was open says so, and keeps what it shows
            assert tab.run(names) == "a,b"
            tab.open(f"{url}/streams")
            tab.open(address)  # a link that was sent to somebody
            tab.wait_for(body.format("old"))
            assert tab.run(names) == "a,b"
            assert "the last change" in tab.run(f"{TEXT}")
            tab.run(f"{newer}.click()")
            tab.wait_for(f"{names} === 'a,a0,b'")
            tab.run(f"{first}.click()")
            tab.wait_for(body.format("new"))
            assert "open=" in tab.run("location.href")
            tab.run(f"{first}.click()")
            tab.wait_for("!location.href.includes('open=')")

            tab.open(f"{url}/tables/nyc/t?changes=1")
            tab.wait_for(f"{names} === 'a0,a,b,a'")
            address = tab.run("location.href")
            table.remove("b").result()
            tab.open(f"{url}/tables/nyc/t?changes=1")
            tab.wait_for(f"{names} === 'b,a0,a,b,a'")
            tab.open(address)
            tab.wait_for(f"{names} === 'a0,a,b,a'")


@pytest.mark.parametrize("key_type", ["string", "bytes"])
def test_a_key_that_nobody_can_type_is_found_by_what_the_page_shows_and_copies(
    tmp_path: Path, tab: BrowserTab, key_type: str
) -> None:
    manager = StreamManager(tmp_path / "root")
    manager.create_scope("nyc")
    manager.create_key_value_table("nyc/t", KeyValueTableConfiguration(key_type=key_type))
    keys = ["a\0\x1b[31m\u202eb", "a\\x00", '"q"', "two\nlines"]
    with manager.key_value_table("nyc/t") as table:
        for key in keys:
            table.put(key, "x")
        table.flush()
    names = "[...document.querySelectorAll('button[data-at]')].map(one => one.textContent)"
    field = "document.querySelector('.filters input')"
    with page_server(tmp_path / "root") as url:
        tab.let_copy(url)
        tab.open(f"{url}/tables/nyc/t")
        tab.wait_for(f"{names}.length === {len(keys)}")
        shown = tab.run(names)
        assert len(set(shown)) == len(keys)
        assert all(name.isprintable() for name in shown)
        for at, name in enumerate(shown):
            tab.open(f"{url}/tables/nyc/t")
            tab.wait_for(f"{names}.length === {len(keys)}")
            tab.run(f"document.querySelectorAll('button[data-at]')[{at}].click()")
            copy = "[...document.querySelectorAll('.opened button')]"
            copy += ".find(one => one.textContent === 'Copy key')"
            tab.wait_for(f"!!{copy}")
            tab.run(f"{copy}.click()")
            tab.wait_for(f"navigator.clipboard.readText().then(found => found === {name!r})")
            tab.run(f"{field}.focus()")
            tab.write(name)
            tab.press("Enter")
            tab.wait_for(f"{names}.join('|') === {json.dumps(name)}")


def test_a_download_that_stalls_says_so_and_can_be_tried_again(
    tmp_path: Path, tab: BrowserTab
) -> None:
    manager = StreamManager(tmp_path / "root")
    manager.create_scope("nyc")
    manager.create_stream("nyc/f")
    size = 8 << 20
    with manager.create_writer("nyc/f") as writer:
        writer.write_event(b"x" * size, "k").result()
    (saved := tmp_path / "saved").mkdir()
    tab.save_to(saved)
    button = "[...document.querySelectorAll('button')].find(one => one.textContent === 'Download')"
    said = f"{button}.parentElement.querySelector('.problem').textContent"
    with page_server(tmp_path / "root") as upstream, tcp_proxy(upstream) as proxy:
        tab.open(f"{proxy.url}/streams/nyc/f/events?open=0%230%3D0")
        tab.wait_for(f"!!{button}")
        before = tab.received_bytes
        proxy.network = Network.SLOW
        tab.run(f"{button}.click()")
        tab.until(lambda: tab.received_bytes > before + 200_000)
        proxy.network = Network.STALL
        tab.wait_for(f"/The download broke off after [0-9.]+ [KM]iB. Try again./.test({said})")
        assert list(saved.iterdir()) == []
        proxy.network = Network.GOOD
        tab.run(f"{button}.click()")
        file = saved / "nyc-f-0-0-0.bin"
        tab.until(lambda: file.exists() and file.stat().st_size == size)
        assert tab.run(said) == ""


COPIED = "navigator.clipboard.readText()"
CLICKED = """button => new Promise(done => {
  new MutationObserver(() => done(button.textContent)).observe(button, {childList: true});
  button.click();
})"""
"""What a button says next once it was clicked."""


def test_copy_takes_what_its_button_names_to_the_clipboard_as_it_is(
    tmp_path: Path, tab: BrowserTab
) -> None:
    manager = StreamManager(tmp_path / "root")
    manager.create_scope("nyc")
    manager.create_stream("nyc/f")
    payload = "turned \u202e and \x1b[31m red\r\n\tand a second line"
    with manager.create_writer("nyc/f") as writer:
        writer.write_event(payload, "the key").result()
    (event,) = manager.read("nyc/f")
    button = "[...document.querySelectorAll('main button')].find(one => one.textContent === {!r})"
    with page_server(tmp_path / "root") as url:
        tab.let_copy(url)
        tab.open(f"{url}/streams/nyc/f/events?open=0%230%3D0")
        for name, text in (
            ("Copy", payload),
            ("Copy key", "the key"),
            ("Copy pointer", str(event.pointer)),
        ):
            tab.wait_for("!!" + button.format(name))
            assert tab.run(f"({CLICKED})({button.format(name)})") == "copied"
            assert tab.run(COPIED) == text
        answer = "fetch('/api/streams/nyc/f/events').then(found => found.json())"
        tab.run(f"({CLICKED})({button.format('Copy the position')})")
        assert tab.run(COPIED) == tab.run(f"{answer}.then(page => page.older)")


def test_a_payload_says_why_it_is_text_and_shows_what_a_line_would_obey(
    tmp_path: Path, tab: BrowserTab
) -> None:
    manager = StreamManager(tmp_path / "root")
    manager.create_scope("nyc")
    manager.create_stream("nyc/f")
    deep = "[" * 70 + "1" + "]" * 70
    strange = "over\rwritten \u202e turned\x1b[31m red\r\nsecond\tline"
    with manager.create_writer("nyc/f") as writer:
        for text in (deep, '{"n": 1}', "[1", strange):
            writer.write_event(text, "k").result()
    opened = "document.querySelector('.opened')?.innerText"
    with page_server(tmp_path / "root") as url:
        for offset, is_said in ((0, True), (1, False), (2, False)):
            tab.open(f"{url}/streams/nyc/f/events?open=0%230%3D{offset}")
            tab.wait_for(f"{opened}.includes('Copy pointer')")
            said = tab.run(f"{opened}.includes('JSON of more than 60 levels is shown as text')")
            assert said == is_said, offset
        tab.open(f"{url}/streams/nyc/f/events?open=0%230%3D3")
        tab.wait_for("!!document.querySelector('.opened .payload')")
        shown = tab.run("document.querySelector('.opened .payload').textContent")
        assert shown == "over\\rwritten \\u202e turned\\x1b[31m red\\r\nsecond\tline"


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

        # From here on it goes on as a page of the newest events does.
        tab.run("document.querySelector('.filters input[type=search]').value = 'event 2'")
        tab.run("document.querySelector('.filters button').click()")
        tab.wait_for(f"{names} === '0#0=2'")
        tab.open(address)
        tab.wait_for(body)
        tab.wait_for("document.getElementById('live').dataset.state === 'on'")
        with manager.create_writer("nyc/f") as writer:
            writer.write_event(b"the last event", "k").result()
        newer = "document.querySelector('.head button')"
        tab.wait_for(f"!{newer}.hidden")
        tab.run(f"{newer}.click()")
        tab.wait_for(f"{names}.startsWith('0#0=8,0#0=7,')")


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
