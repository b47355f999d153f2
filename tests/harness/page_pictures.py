"""``python -m tests.harness.page_pictures [FOLDER]``: pictures of the page, of a root with an hour.

Without a folder these are the pictures of docs/serve.md, in docs/images. With one, it gets each
page in both colours and at both widths, to look at.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.harness.browser import BrowserTab, browser_tab
from tests.harness.lively_root import make_lively_root
from tests.harness.page_server import page_server

DOCS = Path(__file__).parents[2] / "docs/images"
WIDE, PHONE = 1280, 390
PAGES = {
    "overview": "/",
    "streams": "/streams",
    "stream": "/streams/nyc/flights",
    "groups": "/groups",
    "group": "/groups/nyc/archive",
    "tables": "/tables",
    "api": "/api/docs",
    "nowhere": "/nowhere",
}
SHOWN = (
    ("serve-overview", "overview", WIDE, 640, "light"),
    ("serve-streams", "streams", WIDE, 640, "light"),
    ("serve-stream", "stream", WIDE, 960, "light"),
    ("serve-dark", "stream", WIDE, 960, "dark"),
    ("serve-phone", "streams", PHONE, 780, "light"),
)
"""The pictures of docs/serve.md: name, page, width, height, colours."""

SETTLED = """document.querySelector('main h1') !== null &&
  ![...document.querySelectorAll('main .loading')].some(element =>
    element.getBoundingClientRect().top < innerHeight)"""
"""All that is seen has its data."""


def take(tab: BrowserTab, url: str, file: Path, width: int, height: int, colours: str) -> None:
    """Save the picture of a page once it shows its data; of height 0 it is the whole page."""
    tab.colours(colours)
    tab.open(url, width=width, height=height or 9000)
    tab.wait_for("document.getElementById('live').dataset.state === 'on'")
    tab.wait_for(SETTLED)
    tab.wait_for("document.getElementById('version').textContent !== ''")
    tab.run("new Promise(resolve => setTimeout(resolve, 700))")  # charts draw at the next frames
    tab.resize(width, height or 900)
    tab.picture(file, whole=not height)
    print(file)


def main(folders: list[str]) -> None:
    """Make the root, and take the pictures."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        make_lively_root(str(root), steps=110)
        with page_server(root) as url, browser_tab() as tab:
            for name, page, width, height, colours in SHOWN if not folders else ():
                take(tab, url + PAGES[page], DOCS / f"{name}.png", width, height, colours)
            for target in map(Path, folders):
                target.mkdir(parents=True, exist_ok=True)
                for page, path in PAGES.items():
                    for width in (WIDE, PHONE):
                        for colours in ("light", "dark"):
                            file = target / f"{page}-{width}-{colours}.png"
                            take(tab, url + path, file, width, 0, colours)


if __name__ == "__main__":
    main(sys.argv[1:])
