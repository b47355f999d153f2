"""The demo's picture: throughput, lag, retention, and the delays of the flights."""

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

from flights.replay import Timeline
from flights.retention import RetentionResult

WRITTEN, READ, LAG, KILLED = "#1f6f8b", "#e07a3f", "#8a5a9e", "#b3261e"
DRY, RAIN = "#c9a227", "#2a5d9f"
DELETED, KEPT = "#dcdcdc", "#3c7d4f"
INK, FAINT = "#222222", "#8a8a8a"
MOST_KEYS = 20
STEP_SECONDS = 0.05
SMOOTHING_SECONDS = 0.8
FEW_DEPARTURES = 20
"""Means of fewer departures are not drawn."""

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
    timeline: Timeline,
    table: pa.Table,
    retained: RetentionResult,
    names: dict[str, str],
) -> None:
    """Draw throughput, lag, what retention kept, and delays by carrier (or events by key)."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(14, 7.5), dpi=130, layout="constrained")
        figure.suptitle(f"{title}\n", x=0.012, ha="left", fontsize=17, fontweight="bold")
        figure.text(0.0125, 0.925, subtitle, color=FAINT, fontsize=11)
        grid = figure.add_gridspec(3, 2, width_ratios=(1.15, 1), height_ratios=(1, 1, 0.2))
        rates = figure.add_subplot(grid[0, 0])
        lag = figure.add_subplot(grid[1, 0], sharex=rates)
        _throughput(rates, timeline)
        _lag(lag, timeline)
        _retention(figure.add_subplot(grid[2, 0]), retained)
        right = figure.add_subplot(grid[:, 1])
        if "delay_minutes" in table.column_names:
            _delays(right, table, names)
        else:
            _counts(right, table)
        figure.savefig(path)


def _throughput(axes: Axes, timeline: Timeline) -> None:
    """Draw rates, smoothed because the events of a batch arrive all at once."""
    seconds, written, _ = _columns(timeline)
    at = np.arange(0, seconds[-1], STEP_SECONDS)
    reach = np.arange(-4 * SMOOTHING_SECONDS, 4 * SMOOTHING_SECONDS + STEP_SECONDS, STEP_SECONDS)
    weights = np.exp(-0.5 * (reach / SMOOTHING_SECONDS) ** 2)
    first = _first_event(timeline)
    reading = np.zeros(len(at))
    for start, end, events in timeline.reads:
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
    _mark_kill(axes, timeline, label=True)
    _mark_splits(axes, timeline)
    axes.legend(loc="lower right", bbox_to_anchor=(1, 0.985), ncols=2, borderpad=0)


def _lag(axes: Axes, timeline: Timeline) -> None:
    seconds, written, read = _columns(timeline)
    behind = np.maximum(written - read, 0)
    axes.fill_between(seconds, behind, step="post", color=LAG, alpha=0.18, linewidth=0)
    axes.step(seconds, behind, where="post", color=LAG, linewidth=1.8)
    axes.set_title("Lag of the reading query")
    axes.set_ylabel("events behind the tail")
    axes.set_xlabel("seconds since the first event")
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_ylim(bottom=0)
    axes.set_xlim(0, seconds[-1])
    _mark_kill(axes, timeline)


def _retention(axes: Axes, retained: RetentionResult) -> None:
    """Draw how much retention deleted, and how much it kept for which subscriber."""
    deleted, kept = retained.truncated_events, retained.left.stays.events
    axes.barh(0, deleted, color=DELETED)
    axes.barh(0, kept, left=deleted, color=KEPT)
    axes.text(deleted * 0.01, 0, f"{deleted:,} consumed, deleted", va="center")
    label = f"{kept:,} unread, kept for {retained.left.held_by or 'no subscriber'}"
    axes.text(deleted * 0.99, 0, label, ha="right", va="center", color=KEPT)
    axes.set_title("Retention by consumption")
    axes.set_xlim(0, max(1, deleted + kept))
    axes.axis("off")


def _mark_splits(axes: Axes, timeline: Timeline) -> None:
    """Draw a line at the time of the split."""
    if not timeline.splits:
        return
    at = timeline.splits[0].at - _first_event(timeline)
    axes.axvline(at, color=WRITTEN, linewidth=1.2, linestyle="--")
    count = len(timeline.splits)
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


def _mark_kill(axes: Axes, timeline: Timeline, *, label: bool = False) -> None:
    """Shade the time from the kill to the next written event."""
    if timeline.killed_at is None:
        return
    first = _first_event(timeline)
    killed, back = timeline.killed_at - first, (timeline.resumed_at or timeline.ingested_at) - first
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


def _first_event(timeline: Timeline) -> float:
    """Return the time of the last sample with an empty stream."""
    return max((at for at, written, _ in timeline.samples if not written), default=0.0)


def _columns(timeline: Timeline) -> list[Floats]:
    """Return seconds since the first event, events written, and events read."""
    seconds, written, read = np.array(timeline.samples, dtype=float).T
    seconds = seconds - _first_event(timeline)
    return [column[seconds >= 0] for column in (seconds, written, read)]


def _delays(axes: Axes, table: pa.Table, names: dict[str, str]) -> None:
    """Draw the mean delay of each carrier in dry hours and in rain, joined by a line."""
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
    """Draw the number of events of the most frequent keys."""
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
