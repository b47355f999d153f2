"""The page of a stream in a real browser: what it says of times, and of what it cannot know."""

from __future__ import annotations

from pathlib import Path

import pytest

from pravega_spark import StreamManager
from tests.harness.browser import BrowserTab, needs_browser
from tests.harness.page_server import page_server

pytestmark = [pytest.mark.slow, needs_browser]
TEXT = "document.querySelector('main').innerText"


def test_ages_go_on_to_be_true_while_nothing_changes(tmp_path: Path, tab: BrowserTab) -> None:
    manager = StreamManager(tmp_path / "root")
    manager.create_scope("a")
    manager.create_stream("a/idle")
    with manager.create_writer("a/idle") as writer:
        writer.write_event(b"x", "k").result()
    ages = "[...document.querySelectorAll('main time')].map(one => one.textContent)"
    with page_server(tmp_path / "root") as url:
        for path, count in (("/streams", 1), ("/streams/a/idle", 4)):
            tab.open(url + path)
            tab.wait_for(f"{ages}.length >= {count}")
            first = tab.run(ages)
            older = f"(age, at) => parseInt(age) > (parseInt({first}[at]) || 0)"
            tab.wait_for(f"{ages}.length === {len(first)} && {ages}.every({older})")


def test_the_page_of_a_stream_that_is_lost_keeps_what_it_showed_and_says_so(
    tmp_path: Path, tab: BrowserTab
) -> None:
    manager = StreamManager(tmp_path / "root")
    manager.create_scope("a")
    manager.create_stream("a/fast")
    with manager.create_writer("a/fast") as writer:
        writer.write_events([b"x"] * 7, routing_key="k")
    manager.close()
    tiles = "document.querySelector('.tiles').innerText.replace(/\\s+/g, ' ')"
    (folder,) = (path for path in (tmp_path / "root").rglob("fast") if path.is_dir())
    with page_server(tmp_path / "root") as url:
        tab.open(f"{url}/streams/a/fast")
        tab.wait_for(f"{tiles}.includes('7 readable events')")
        tab.wait_for("document.getElementById('live').dataset.state === 'on'")
        folder.rename(folder.with_name("away"))
        tab.wait_for(f"{TEXT}.includes('What is shown is of ')")
        tab.wait_for("document.querySelector('.head .chip.bad')?.textContent === 'damaged'")
        assert "7 readable events" in tab.run(tiles)

        day = "[...document.querySelectorAll('.ranges button')].find(b => b.textContent === '24 h')"
        caption = "document.querySelector('.ranges [role=status]').textContent"
        tab.run(f"{day}.click()")  # of a day the curves are asked for each six minutes
        tab.wait_for(f"{caption}.includes('a/fast')")
        folder.with_name("away").rename(folder)
        tab.wait_for(f"{caption}.startsWith('means of 5 minutes')")
        folder.rename(folder.with_name("away"))
        tab.wait_for("document.querySelector('.head .chip.bad')?.textContent === 'damaged'")

        tab.open(f"{url}/streams/a/fast")  # now there is nothing to keep
        tab.wait_for("document.querySelector('.problem.card')?.innerText.includes('fast')")
        assert tab.run(tiles) == ""

        folder.with_name("away").rename(folder)
        tab.wait_for(f"{tiles}.includes('7 readable events')")
        tab.wait_for("document.querySelector('.problem.card') === null")
        chips = "[...document.querySelectorAll('.head .chip')].map(one => one.textContent).join()"
        assert tab.run(chips) == "active"
        assert "What is shown is of" not in tab.run(TEXT)
        tab.wait_for(f"{TEXT}.includes('Recent history')")

        tab.open(f"{url}/streams")  # and the list says so as it happens, too
        row = "document.querySelector('tr[data-stream=\"a/fast\"]')"
        tab.wait_for(f"{row}?.cells[4].textContent === '7' && !{row}.querySelector('.chip')")
        tab.wait_for("document.getElementById('live').dataset.state === 'on'")
        folder.rename(folder.with_name("away"))
        tab.wait_for(f"{row}.querySelector('.chip')?.textContent === 'damaged'")
        folder.with_name("away").rename(folder)
        tab.wait_for(f"{row}.cells[4].textContent === '7' && !{row}.querySelector('.chip')")
