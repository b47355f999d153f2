"""The demo's picture: how fast the stream went, and what it said about the flights."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
import pyarrow as pa
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from demo_replay import Story

WRITTEN, READ, LAG, KILLED = "#1f6f8b", "#e07a3f", "#8a5a9e", "#b3261e"
DRY, RAIN = "#c9a227", "#2a5d9f"
INK, FAINT = "#222222", "#8a8a8a"
MOST_KEYS = 20
FEW_DEPARTURES = 20
"""A mean of fewer departures than this is not drawn."""

STYLE = {
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
    names: dict[str, str],
) -> None:
    """Draw throughput and lag over time beside the delays by carrier (or events by key)."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(14, 7.5), dpi=130, layout="constrained")
        figure.suptitle(f"{title}\n", x=0.012, ha="left", fontsize=17, fontweight="bold")
        figure.text(0.0125, 0.925, subtitle, color=FAINT, fontsize=11)
        grid = figure.add_gridspec(2, 2, width_ratios=(1.15, 1), height_ratios=(1, 1))
        rates = figure.add_subplot(grid[0, 0])
        lag = figure.add_subplot(grid[1, 0], sharex=rates)
        _throughput(rates, story)
        _lag(lag, story)
        right = figure.add_subplot(grid[:, 1])
        if "delay_minutes" in table.column_names:
            _delays(right, table, names)
        else:
            _counts(right, table)
        figure.savefig(path)


def _throughput(axes: Axes, story: Story) -> None:
    seconds, written, read = (np.array(column) for column in zip(*story.samples, strict=True))
    edges = np.arange(0, seconds[-1] + 1, 1.0)
    for total, color, label in ((written, WRITTEN, "written"), (read, READ, "read and counted")):
        rate = np.diff(np.interp(edges, seconds, total))
        axes.stairs(rate, edges, color=color, fill=True, alpha=0.25)
        axes.stairs(rate, edges, color=color, label=label, linewidth=1.5)
    axes.set_title("Throughput")
    axes.set_ylabel("events per second")
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_ylim(bottom=0)
    axes.tick_params(labelbottom=False)
    _mark_kill(axes, story, label=True)
    axes.legend(loc="upper right", ncols=2)


def _lag(axes: Axes, story: Story) -> None:
    seconds, written, read = (np.array(column) for column in zip(*story.samples, strict=True))
    behind = np.maximum(written - read, 0)
    axes.fill_between(seconds, behind, color=LAG, alpha=0.25, linewidth=0)
    axes.plot(seconds, behind, color=LAG, linewidth=1.5)
    axes.set_title("Lag of the reading query")
    axes.set_ylabel("events behind the tail")
    axes.set_xlabel("seconds since the replay began")
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_ylim(bottom=0)
    axes.set_xlim(0, seconds[-1])
    _mark_kill(axes, story)


def _mark_kill(axes: Axes, story: Story, *, label: bool = False) -> None:
    if story.killed_at is None:
        return
    back = story.resumed_at or story.ingested_at
    axes.axvspan(story.killed_at, back, color=KILLED, alpha=0.08, linewidth=0)
    axes.axvline(story.killed_at, color=KILLED, linewidth=1.2)
    if label:
        axes.annotate(
            f"ingest killed (SIGKILL),\nback after {back - story.killed_at:.1f} s",
            ((story.killed_at + back) / 2, 0.5),
            xycoords=("data", "axes fraction"),
            ha="center",
            va="center",
            color=KILLED,
            fontsize=9,
        )


def _delays(axes: Axes, table: pa.Table, names: dict[str, str]) -> None:
    """Draw for each carrier the mean delay in dry hours and in rain, joined by a line."""
    columns = [name for name in table.column_names if name not in ("key", "hour")]
    sums = table.group_by("key").aggregate([(name, "sum") for name in columns]).to_pylist()
    rows = []
    for row in sums:
        departed, wet = row["departed_sum"], row["rain_departed_sum"]
        minutes, wet_minutes = row["delay_minutes_sum"], row["rain_delay_minutes_sum"]
        if min(departed - wet, departed) >= FEW_DEPARTURES:
            dry_mean = (minutes - wet_minutes) / (departed - wet)
            wet_mean = wet_minutes / wet if wet >= FEW_DEPARTURES else None
            rows.append((dry_mean, wet_mean, names.get(row["key"], row["key"]), departed))
    rows.sort()
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
