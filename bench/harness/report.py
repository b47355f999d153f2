"""The results as a table and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from bench.harness.figures import Figure

_GOOD, _MISSED, _GRAY, _INK = "#2a7f62", "#d1603d", "#6b7280", "#111827"


def number(value: float | None, unit: str = "") -> str:
    """Return a number with three significant digits."""
    if value is None:
        return "-"
    if abs(value) >= 1e6:
        text = f"{value / 1e6:.2f} M"
    elif abs(value) >= 100:
        text = f"{value:,.0f}"
    else:
        text = f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"
    return f"{text} {unit}".strip()


def table(figures: Sequence[Figure]) -> Table:
    """Return the results as a table for a terminal."""
    found = Table(box=box.SIMPLE_HEAD, title="pravega_spark beside its peers, in one run")
    found.add_column("figure", min_width=24)
    found.add_column("value", justify="right", no_wrap=True)
    found.add_column("peer or floor", min_width=20)
    found.add_column("its value", justify="right", no_wrap=True)
    found.add_column("ratio", justify="right", no_wrap=True)
    found.add_column("target", no_wrap=True)
    found.add_column("met", justify="center", no_wrap=True)
    for figure in figures:
        found.add_row(
            figure.name,
            number(figure.value, figure.unit),
            figure.peer or "-",
            number(figure.peer_value, figure.unit),
            "-" if figure.ratio is None else f"{figure.ratio:.2f}x",
            figure.target or "-",
            "-" if not figure.target else "[green]yes[/]" if figure.met else "[red]no[/]",
        )
    return found


def explain(console: Console, figure: Figure) -> None:
    """Print one finished figure; if its target is missed, print what bounds it."""
    mark = "" if not figure.target else "[green]met[/]  " if figure.met else "[red]missed[/]  "
    ratio = "" if figure.ratio is None else f", {figure.ratio:.2f}x of {figure.peer}"
    console.print(f"  {mark}{figure.name}: {number(figure.value, figure.unit)}{ratio}")
    if figure.note:
        console.print(f"    {figure.note}", style="dim")
    if figure.target and not figure.met:
        console.print(f"    target {figure.target}; bounded by {figure.limited_by}", style="yellow")


def draw(figures: Sequence[Figure], path: Path) -> None:
    """Draw each figure's margin to its target."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    shown = [figure for figure in figures if figure.target][::-1]
    margins = [max(figure.margin, 1e-3) for figure in shown]
    low = min([0.4, *(m / 1.5 for m in margins)])
    high = max([2.5, *(m * 3.2 for m in margins)])
    chart, axes = pyplot.subplots(figsize=(12, 1.9 + 0.62 * len(shown)), layout="constrained")
    for row, (figure, margin) in enumerate(zip(shown, margins, strict=True)):
        color = _GOOD if figure.met else _MISSED
        left, right = min(1.0, margin), max(1.0, margin)
        axes.barh(row, right - left, left=left, height=0.56, color=color, zorder=2)
        value = number(figure.value, figure.unit)
        ratio = "" if figure.ratio is None else f"  ({figure.ratio:.2f}x)"
        axes.text(
            right * 1.05, row + 0.13, value + ratio,
            va="center", fontsize=10, fontweight="bold", color=color,
        )  # fmt: skip
        axes.text(right * 1.05, row - 0.2, figure.target, va="center", fontsize=8.5, color=_GRAY)
        peer = f"against {figure.peer}" if figure.peer else ""
        for text, up, size, shade in ((figure.name, 0.13, 10, _INK), (peer, -0.2, 8.5, _GRAY)):
            axes.text(
                -0.012, row + up, text, transform=axes.get_yaxis_transform(),
                ha="right", va="center", fontsize=size, color=shade,
            )  # fmt: skip
    axes.axvline(1.0, color=_INK, linewidth=1.4, zorder=3)
    axes.set_xscale("log", base=2)
    axes.set_xlim(low, high)
    ticks = [2.0**k for k in range(-10, 11) if low <= 2.0**k <= high]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(_times))
    axes.set_yticks([])
    axes.tick_params(axis="both", length=0)
    axes.grid(axis="x", color="#e5e7eb", zorder=0)
    axes.set_xlabel("how far inside its target (log scale)", color=_GRAY, fontsize=9)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
    met = sum(figure.met for figure in shown)
    axes.set_title(
        f"pravega_spark: {met} of {len(shown)} targets met",
        loc="left", fontsize=14, fontweight="bold", pad=14,
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    chart.savefig(path, dpi=130, facecolor="white")
    pyplot.close(chart)


def _times(value: float, _: int) -> str:
    return "target" if value == 1 else f"{value:g}x" if value > 1 else f"1/{1 / value:g}"
