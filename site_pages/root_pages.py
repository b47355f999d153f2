"""Pages of the repository's root in the site, and links that lead out of ``docs/``.

GitHub shows CONTRIBUTING.md, CHANGELOG.md and SECURITY.md where they stand. The site has them as
pages of its own; its front page is ``docs/index.md`` in place of README.md.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePath

REPOSITORY = Path(__file__).resolve().parents[1]
ROOT_PAGES = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "reporting.md",
}
"""The page of the site that stands for each file."""
_LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#|mailto:)([^)#\s]*)(#[^)\s]*)?\)")
_FENCE = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)


def root_page(name: str) -> str:
    """Return the Markdown of the page that stands for a file of the root."""
    text = (REPOSITORY / name).read_text(encoding="utf-8")
    return relinked(text, PurePath(), PurePath(ROOT_PAGES[name]))


def relinked(text: str, folder: PurePath, page: PurePath) -> str:
    """Return a page's text with links that hold in the site.

    Args:
        text: Markdown whose links are relative to ``folder``.
        folder: A folder of the repository, such as ``docs/adr``.
        page: The place of the page in the site, such as ``adr/README.md``.

    A link to a file that is no page of the site becomes its text.
    """

    def replaced(link: re.Match[str]) -> str:
        label, target, anchor = link[1], link[2], link[3] or ""
        found = os.path.normpath(folder / target)
        if found.startswith("docs/"):
            goal = found.removeprefix("docs/")
        elif found in ROOT_PAGES:
            goal = ROOT_PAGES[found]
        else:
            return label
        return f"[{label}]({os.path.relpath(goal, page.parent)}{anchor})"

    parts = _FENCE.split(text)
    return "".join(
        part if number % 2 else _LINK.sub(replaced, part) for number, part in enumerate(parts)
    )
