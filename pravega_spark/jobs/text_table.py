"""A table for the terminal as plain data; only printing it needs rich."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pravega_spark.printable import printable

if TYPE_CHECKING:
    from rich.table import Table

Side = Literal["left", "right"]

Cell = str | tuple[str, str]
"""A text, or a text and its style."""

FAILED: Cell = ("failed", "red")


def bold(text: str) -> Cell:
    """Return a cell in bold."""
    return text, "bold"


@dataclass(frozen=True)
class TextTable:
    """Rows under headings; each heading has the side to which its column is aligned."""

    columns: Mapping[str, Side]
    rows: Sequence[Sequence[Cell]]

    def render(self) -> Table:
        """Return the table as rich prints it."""
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD)
        for heading, side in self.columns.items():
            table.add_column(heading, justify=side)
        for row in self.rows:
            texts = ((cell, "") if isinstance(cell, str) else cell for cell in row)
            table.add_row(*(Text(printable(text), style) for text, style in texts))
        return table
