r"""Texts that others gave, as people may see them: no character moves the cursor or turns the line.

Tags, notes, keys, names of checkpoints, ids of applications and names of files may hold escape
sequences of terminals, line breaks and marks that turn the direction of a line. They are stored and
handed out as they are. Where a person reads them, in a table, an error, a log or on a page, each
such character stands as its escape in Python: ``\x1b``, ``\n``, ``\u202e``. So do characters
without any width, such as the mark of the byte order (``\ufeff``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

UNKNOWN: Final = "-"
"""What a table shows for None and for an empty text."""

_MOVING: Final = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # C0 with line breaks and tabs, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # what turns the direction of a text
    "\u00ad\u200b\u2060-\u2064\ufeff"  # what nobody sees, though it makes two texts differ
    "\u2028\u2029"  # separators of lines and paragraphs
    "\ud800-\udfff"  # lone surrogates, which no terminal can be given
    "]"
)


def printable(text: str) -> str:
    """Return a text on one line, with escapes for what would move the cursor or turn the text.

    A text without such characters stays as it is, backslashes too: what was escaped stays so.
    """
    return _MOVING.sub(_escape, text)


def printable_lines(text: str) -> str:
    """Return a text of several lines, each of them :func:`printable`."""
    return "\n".join(map(printable, text.split("\n")))


def printable_json(text: str) -> str:
    """Return a line of JSON with JSON's own escapes for the same characters: it says the same."""
    return _MOVING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def cell_text(cell: object) -> str:
    """Return what a table shows of a value."""
    return UNKNOWN if cell is None or cell == "" else printable(str(cell))


def table_lines(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return the lines of a table: the headings, then the rows, in columns."""
    cells = [headings, *([cell_text(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]


def is_printable(text: str) -> bool:
    """Return True if :func:`printable` leaves a text as it is."""
    return _MOVING.search(text) is None


def _escape(found: re.Match[str]) -> str:
    return repr(found[0])[1:-1]
