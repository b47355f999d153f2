"""A figure: one measured value, its peer, and its target."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from bench.harness.measure import ratio


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the results.

    ``ratio`` is the median of value / peer over the rounds; each pair is measured within seconds.
    ``margin`` is 1 if the target is just met, and 2 if the value is twice as good.
    ``limited_by`` names what bounds the value; the report prints it if the target is missed.
    ``benchmark`` and ``day`` say what measured it, and when.
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
    benchmark: str = ""
    day: str = ""

    @classmethod
    def of_rounds(
        cls,
        name: str,
        ours: Sequence[float],
        unit: str,
        peer: str,
        theirs: Sequence[float],
        *,
        note: str = "",
        limited_by: str = "",
    ) -> Figure:
        """Return the figure of rounds in which both sides were measured: medians and the ratio."""
        return cls(
            name,
            statistics.median(ours),
            unit,
            peer,
            statistics.median(theirs),
            ratio(ours, theirs),
            note=note,
            limited_by=limited_by,
        )

    def within(
        self,
        *,
        at_most: float | None = None,
        at_least: float | None = None,
        ratio_at_most: float | None = None,
        ratio_at_least: float | None = None,
    ) -> Figure:
        """Return the figure with its target; all given limits must hold."""
        margins: list[float] = []
        texts: list[str] = []
        for measured, most, least, unit in (
            (self.ratio or 0.0, ratio_at_most, ratio_at_least, "x"),
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


def load(path: Path) -> list[Figure]:
    """Read figures that ``save`` wrote."""
    return [Figure(**row) for row in json.loads(path.read_text(encoding="utf-8"))]
