"""The demo's picture: how fast the stream went, what it keeps, what it said of the flights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from flights.replay import Story
from flights.retention import Retained

WRITTEN, READ, LAG, KILLED = "#1f6f8b", "#e07a3f", "#8a5a9e", "#b3261e"
DRY, RAIN = "#c9a227", "#2a5d9f"
GONE, KEPT = "#dcdcdc", "#3c7d4f"
INK, FAINT = "#222222", "#8a8a8a"
MOST_KEYS = 20
STEP_SECONDS = 0.05
SMOOTHING_SECONDS = 0.8
FEW_DEPARTURES = 20
"""A mean of fewer departures than this is not drawn."""

Floats = npt.NDArray[np.float64]

STYLE: Any = {
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.axisbelow": True,
    "axes.grid": True,
    "font.size": 10,
    "grid.color": "#e6e6e6",
    "legend.frameon": False,
    "xtick.color": INK,
    "ytick.color": INK,
}


def draw(
    path: Path,
    *,
    title: str,
    subtitle: str,
    story: Story,
    table: pa.Table,
    retained: Retained,
    names: dict[str, str],
) -> None:
    """Draw throughput, lag, what is kept, and the delays by carrier (or events by key)."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(14, 7.5), dpi=130, layout="constrained")
        figure.suptitle(f"{title}\n", x=0.012, ha="left", fontsize=17, fontweight="bold")
        figure.text(0.0125, 0.925, subtitle, color=FAINT, fontsize=11)
        grid = figure.add_gridspec(3, 2, width_ratios=(1.15, 1), height_ratios=(1, 1, 0.2))
        rates = figure.add_subplot(grid[0, 0])
        lag = figure.add_subplot(grid[1, 0], sharex=rates)
        _throughput(rates, story)
        _lag(lag, story)
        _retention(figure.add_subplot(grid[2, 0]), retained)
        right = figure.add_subplot(grid[:, 1])
        if "delay_minutes" in table.column_names:
            _delays(right, table, names)
        else:
            _counts(right, table)
        figure.savefig(path)


def _throughput(axes: Axes, story: Story) -> None:
    """Draw rates, smoothed so that a batch, which comes at once, can be read as a rate."""
    seconds, written, _ = _columns(story)
    at = np.arange(0, seconds[-1], STEP_SECONDS)
    reach = np.arange(-4 * SMOOTHING_SECONDS, 4 * SMOOTHING_SECONDS + STEP_SECONDS, STEP_SECONDS)
    weights = np.exp(-0.5 * (reach / SMOOTHING_SECONDS) ** 2)
    first = _first_event(story)
    reading = np.zeros(len(at))
    for start, end, events in story.reads:
        reading += events * ((at >= start - first) & (at < end - first)) / (end - start)
    writing = np.gradient(np.interp(at, seconds, written), STEP_SECONDS)
    for rate, color, label in (
        (writing, WRITTEN, "written"),
        (reading, READ, "read and counted"),
    ):
        smooth = np.convolve(rate, weights / weights.sum())[len(reach) // 2 :][: len(at)]
        axes.fill_between(at, smooth, color=color, alpha=0.18, linewidth=0)
        axes.plot(at, smooth, color=color, label=label, linewidth=1.8)
    axes.set_title("Throughput")
    axes.set_ylabel("events per second, smoothed")
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_ylim(0, axes.dataLim.ymax * 1.25)
    axes.tick_params(labelbottom=False)
    _mark_kill(axes, story, label=True)
    _mark_splits(axes, story)
    axes.legend(loc="lower right", bbox_to_anchor=(1, 0.985), ncols=2, borderpad=0)


def _lag(axes: Axes, story: Story) -> None:
    seconds, written, read = _columns(story)
    behind = np.maximum(written - read, 0)
    axes.fill_between(seconds, behind, step="post", color=LAG, alpha=0.18, linewidth=0)
    axes.step(seconds, behind, where="post", color=LAG, linewidth=1.8)
    axes.set_title("Lag of the reading query")
    axes.set_ylabel("events behind the tail")
    axes.set_xlabel("seconds since the first event")
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_ylim(bottom=0)
    axes.set_xlim(0, seconds[-1])
    _mark_kill(axes, story)


def _retention(axes: Axes, retained: Retained) -> None:
    """Draw how much retention let go, and how much it kept for whom."""
    gone, kept = retained.truncated_events, retained.left.stays.events
    axes.barh(0, gone, color=GONE)
    axes.barh(0, kept, left=gone, color=KEPT)
    axes.text(gone * 0.01, 0, f"{gone:,} consumed, gone", va="center")
    says = f"{kept:,} unread, kept for {retained.left.held_by or 'nobody'}"
    axes.text(gone * 0.99, 0, says, ha="right", va="center", color=KEPT)
    axes.set_title("Retention by consumption")
    axes.set_xlim(0, max(1, gone + kept))
    axes.axis("off")


def _mark_splits(axes: Axes, story: Story) -> None:
    """Draw a line where segments were split."""
    if not story.splits:
        return
    at = story.splits[0].at - _first_event(story)
    axes.axvline(at, color=WRITTEN, linewidth=1.2, linestyle="--")
    count = len(story.splits)
    axes.annotate(
        f"{count} segment{'s' * (count > 1)} split",
        (at, 0.97),
        xytext=(-5, 0),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        rotation=90,
        ha="right",
        va="top",
        color=WRITTEN,
    )


def _mark_kill(axes: Axes, story: Story, *, label: bool = False) -> None:
    """Shade the time from the kill to the next event written."""
    if story.killed_at is None:
        return
    first = _first_event(story)
    killed, back = story.killed_at - first, (story.resumed_at or story.ingested_at) - first
    axes.axvspan(killed, back, color=KILLED, alpha=0.07, linewidth=0)
    axes.axvline(killed, color=KILLED, linewidth=1.2)
    if label:
        axes.annotate(
            f"ingest killed,\nback after {back - killed:.1f} s",
            (killed, 0.97),
            xytext=(6, 0),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            va="top",
            color=KILLED,
            fontsize=9,
        )


def _first_event(story: Story) -> float:
    """Return when the last look was that saw an empty stream."""
    return max((at for at, written, _ in story.samples if not written), default=0.0)


def _columns(story: Story) -> list[Floats]:
    """Return seconds since the first event, events written and events read."""
    seconds, written, read = np.array(story.samples, dtype=float).T
    seconds = seconds - _first_event(story)
    return [column[seconds >= 0] for column in (seconds, written, read)]


def _delays(axes: Axes, table: pa.Table, names: dict[str, str]) -> None:
    """Draw for each carrier the mean delay in dry hours and in rain, joined by a line."""
    columns = [name for name in table.column_names if name not in ("key", "hour")]
    sums = table.group_by("key").aggregate([(name, "sum") for name in columns]).to_pylist()
    rows = []
    for row in sums:
        departed, wet = row["departed_sum"], row["rain_departed_sum"]
        minutes, wet_minutes = row["delay_minutes_sum"], row["rain_delay_minutes_sum"]
        if departed - wet >= FEW_DEPARTURES:
            dry_mean = (minutes - wet_minutes) / (departed - wet)
            wet_mean = wet_minutes / wet if wet >= FEW_DEPARTURES else None
            rows.append((dry_mean, wet_mean, names.get(row["key"], row["key"]), departed))
    rows.sort(key=lambda row: row[0])
    for place, (dry, wet_mean, _, _) in enumerate(rows):
        if wet_mean is not None:
            axes.plot((dry, wet_mean), (place, place), color="#cfcfcf", linewidth=3, zorder=2)
            axes.scatter(wet_mean, place, color=RAIN, s=60, zorder=3)
        axes.scatter(dry, place, color=DRY, s=60, zorder=3)
    labels = [f"{name}  ({departed:,})" for _, _, name, departed in rows]
    axes.set_yticks(range(len(rows)), labels)
    axes.set_title("Departure delay by carrier (departures)")
    axes.set_xlabel("mean delay of departure, minutes")
    axes.grid(axis="y", visible=False)
    axes.set_xlim(left=0)
    axes.scatter([], [], color=DRY, s=60, label="hours without rain")
    axes.scatter([], [], color=RAIN, s=60, label="hours with rain or snow")
    axes.legend(loc="lower right")


def _counts(axes: Axes, table: pa.Table) -> None:
    """Draw how many events each key has; the most frequent ones."""
    sums = table.group_by("key").aggregate([("events", "sum")])
    sums = sums.sort_by([("events_sum", "descending"), ("key", "ascending")])
    keys = [str(key) for key in sums["key"].to_pylist()[:MOST_KEYS]]
    counts = sums["events_sum"].to_pylist()[:MOST_KEYS]
    places = range(len(keys), 0, -1)
    axes.barh(places, counts, color=WRITTEN, height=0.7)
    axes.set_yticks(places, keys)
    more = sums.num_rows - len(keys)
    axes.set_title(f"Events by key{f' (and {more:,} keys with fewer)' if more else ''}")
    axes.set_xlabel("events")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(axis="y", visible=False)
