"""What a benchmark says: one value beside its peer, held against its target."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the results.

    ``ratio`` is the median over the rounds of value / peer, each pair measured within seconds.
    ``margin`` says how far inside its target a figure is: 1 is just met, 2 is twice as good.
    ``limited_by`` says what bounds the figure, for when the target is missed.
    """

    name: str
    value: float
    unit: str
    peer: str = ""
    peer_value: float | None = None
    ratio: float | None = None
    target: str = ""
    met: bool = True
    margin: float = 1.0
    note: str = ""
    limited_by: str = ""

    def within(
        self,
        *,
        at_most: float | None = None,
        at_least: float | None = None,
        ratio_at_most: float | None = None,
        ratio_at_least: float | None = None,
    ) -> Figure:
        """Return the figure held against its limits; all that are given must hold."""
        ratio = self.ratio if self.ratio is not None else 0.0
        margins: list[float] = []
        texts: list[str] = []
        for measured, most, least, unit in (
            (ratio, ratio_at_most, ratio_at_least, "x"),
            (self.value, at_most, at_least, f" {self.unit}"),
        ):
            if most is not None:
                margins.append(most / measured if measured > 0 else 0.0)
                texts.append(f"<= {most:,.10g}{unit}")
            if least is not None:
                margins.append(measured / least)
                texts.append(f">= {least:,.10g}{unit}")
        margin = min(margins)
        return replace(self, target=" and ".join(texts), margin=margin, met=margin >= 1.0)


def save(figures: Sequence[Figure], path: Path) -> None:
    """Write the figures as a JSON list."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(figure) for figure in figures], indent=2) + "\n")
