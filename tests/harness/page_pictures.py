"""``python -m tests.harness.page_pictures [FOLDER]``: pictures of the page, of a root with an hour.

Without a folder these are the pictures of docs/serve.md, in docs/images. With one, it gets each
page in both colours and at both widths, to look at; then again some pages of the root with a lost
file, and at last one whose storage is away.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.harness.browser import BrowserTab, browser_tab
from tests.harness.lively_root import make_lively_root
from tests.harness.page_server import page_server

DOCS = Path(__file__).parents[2] / "docs/images"
WIDE, PHONE = 1400, 390
EVENTS = "/streams/shop/payments/events"
PAGES = {
    "overview": "/",
    "streams": "/streams",
    "stream": "/streams/nyc/flights",
    "events": EVENTS,
    "groups": "/groups",
    "group": "/groups/nyc/archive",
    "tables": "/tables",
    "table": "/tables/shop/inventory",
    "changes": "/tables/shop/inventory?changes=1",
    "absent": "/streams/nyc/none",
    "api": "/api/docs",
    "nowhere": "/nowhere",
}
DAMAGED = {"damaged-events": EVENTS, "damaged-overview": "/"}
SHOWN = (
    ("serve-overview", "overview", WIDE, 640, "light"),
    ("serve-streams", "streams", WIDE, 640, "light"),
    ("serve-stream", "stream", WIDE, 960, "light"),
    ("serve-dark", "stream", WIDE, 960, "dark"),
    ("serve-phone", "streams", PHONE, 780, "light"),
)
"""The pictures of docs/serve.md: name, page, width, height, colours."""

SETTLED = """document.querySelector('main h1') !== null &&
  ![...document.querySelectorAll("main .loading")].some(element => element.checkVisibility() &&
    element.getBoundingClientRect().top < innerHeight)"""
"""All that is seen has its data."""


def take(tab: BrowserTab, url: str, file: Path, width: int, height: int, colours: str) -> None:
    """Save the picture of a page once it shows its data; of height 0 it is the whole page."""
    tab.colours(colours)
    tab.open(url, width=width, height=height or 9000)
    settle(tab)
    save(tab, file, width, height)


def settle(tab: BrowserTab) -> None:
    """Wait until the page shows its data."""
    tab.wait_for("document.getElementById('live').dataset.state === 'on'")
    tab.wait_for(SETTLED)
    tab.wait_for("document.getElementById('version').textContent !== ''")


def save(tab: BrowserTab, file: Path, width: int, height: int) -> None:
    """Save the picture of what is shown."""
    tab.run("new Promise(resolve => setTimeout(resolve, 700))")  # charts draw at the next frames
    tab.resize(width, height or 900)
    tab.picture(file, whole=not height)
    print(file)


def take_all(tab: BrowserTab, url: str, root: Path, target: Path) -> None:
    """Save the pictures to look at; the root is damaged afterwards, and elsewhere."""
    target.mkdir(parents=True, exist_ok=True)
    looks = [(width, colours) for width in (WIDE, PHONE) for colours in ("light", "dark")]
    for pages in (PAGES, DAMAGED):
        if pages is DAMAGED:
            min((root / "shop/payments/events").rglob("*.parquet")).unlink()
        for page, path in pages.items():
            for width, colours in looks:
                take(tab, url + path, target / f"{page}-{width}-{colours}.png", width, 0, colours)
    tab.open(f"{url}/streams", width=WIDE)
    settle(tab)
    root.rename(root.with_name("away"))
    tab.wait_for("document.getElementById('live').dataset.state === 'unstored'")
    for width, colours in looks:
        tab.colours(colours)
        tab.resize(width, 900)
        save(tab, target / f"away-{width}-{colours}.png", width, 0)


def main(folders: list[str]) -> None:
    """Make the root, and take the pictures."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        make_lively_root(str(root), steps=110)
        with page_server(root) as url, browser_tab() as tab:
            for target in folders:
                take_all(tab, url, root, Path(target))
            for name, page, width, height, colours in SHOWN if not folders else ():
                take(tab, url + PAGES[page], DOCS / f"{name}.png", width, height, colours)


if __name__ == "__main__":
    main(sys.argv[1:2])
