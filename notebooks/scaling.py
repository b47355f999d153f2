# Databricks notebook source
# MAGIC %md
# MAGIC # Scaling without losing order
# MAGIC A stream whose keys become hot is split, and merged again when they cool: under a running writer, and every key keeps its order.
# MAGIC The notebook runs on Databricks and as plain Python: `python notebooks/scaling.py`.

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

# MAGIC %pip install --quiet $package $kept matplotlib

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
# MAGIC ## A day in a minute
# MAGIC Twelve rounds of events. In the middle of the day a few keys take most of the load.

# COMMAND ----------

from collections import Counter
from itertools import pairwise

import pravega_spark as pravega
from pravega_spark import ScalingPolicy, StreamConfiguration

STREAM, ROUNDS, HOT = "scaling/rides", 12, range(4, 9)
manager = pravega.StreamManager(root)
if "scaling" in manager.list_scopes():  # so that the notebook can run again
    manager.delete_scope("scaling", recursive=True)
manager.create_scope("scaling")
manager.create_stream(STREAM, StreamConfiguration(ScalingPolicy.fixed(2)))
written = Counter()


def ride(writer, taxi):
    """Write the taxi's next ride."""
    written[taxi] += 1
    writer.write_event(b"%d" % written[taxi], routing_key=taxi)


def play(writer, number):
    """Write a round's events; some taxis are busy in the middle of the day."""
    for taxi in range(40):
        for _ in range(10 if number in HOT and taxi < 12 else 1):
            ride(writer, f"taxi {taxi}")
    writer.flush()


# COMMAND ----------

# MAGIC %md
# MAGIC ## Split what is hot, merge what is cold
# MAGIC After each round we look at the tail: how many events each open segment got. A segment with more than half of the round's events is split; two neighbours with few of them are merged. The job `pravega-spark-scaling` decides so by rates over minutes, from the log itself.

# COMMAND ----------


def events_of(start, end):
    """Return how many events each segment has between two cuts."""
    ranges = manager.segment_ranges(STREAM, start, end)
    return Counter({each.segment_id: len(each) for each in ranges})


def rescale(load):
    """Split the hottest segment, or merge the two coldest neighbours, if there is a reason to."""
    open_segments = manager.epochs(STREAM)[-1].segments
    hottest = max(open_segments, key=lambda segment: load[segment.segment_id])
    if load[hottest.segment_id] > 60 and len(open_segments) < 6:
        low, high = hottest.key_range.low, hottest.key_range.high
        middle = (low + high) / 2
        manager.scale_stream(STREAM, [hottest.segment_id], [(low, middle), (middle, high)])
        return
    for one, two in pairwise(open_segments):
        if load[one.segment_id] + load[two.segment_id] < 25 and len(open_segments) > 2:
            both = (one.key_range.low, two.key_range.high)
            manager.scale_stream(STREAM, [one.segment_id, two.segment_id], [both])
            return


cuts = [manager.tail(STREAM)]
history = []
with manager.create_writer(STREAM) as writer:
    for number in range(ROUNDS):
        play(writer, number)
        cuts.append(manager.tail(STREAM))
        load = events_of(*cuts[-2:])
        history.append((manager.epochs(STREAM)[-1], load))
        rescale(load)

epochs = manager.epochs(STREAM)
splits, merges = sum(epoch.splits for epoch in epochs), sum(epoch.merges for epoch in epochs)
print(f"{len(epochs)} epochs, {splits} splits, {merges} merges")
assert splits >= 2
assert merges >= 1

# COMMAND ----------

# MAGIC %md
# MAGIC ## Every key kept its order
# MAGIC A reader gets the events of a sealed segment before those of its successors, so order by key survives each split and merge. Spark's source promises the same.

# COMMAND ----------

last = Counter()
for event in manager.read(STREAM):
    assert int(event.data) == last[event.routing_key] + 1, event
    last[event.routing_key] += 1
assert last == written

# COMMAND ----------

# MAGIC %md
# MAGIC ## The picture of the segments
# MAGIC The key space by time, as Pravega's papers draw it: each rectangle is a segment, dark where much was written.

# COMMAND ----------

import matplotlib as mpl
from matplotlib.figure import Figure

mpl.rcParams.update({"axes.spines.right": False, "axes.spines.top": False})
mpl.rcParams.update({"axes.titlelocation": "left", "axes.titleweight": "bold", "font.size": 10})


# COMMAND ----------

figure = Figure(figsize=(11, 4), layout="constrained")
axes = figure.add_subplot()
densest = max(
    load[segment.segment_id] / (segment.key_range.high - segment.key_range.low)
    for epoch, load in history
    for segment in epoch.segments
)
for number, (epoch, load) in enumerate(history):
    for segment in epoch.segments:
        low, high = segment.key_range.low, segment.key_range.high
        heat = load[segment.segment_id] / (high - low) / densest
        color = mpl.colormaps["Reds"](0.05 + 0.85 * heat)
        axes.bar(number, high - low, 1, low, color=color, edgecolor="white", linewidth=0.4)
        style = {"ha": "center", "va": "center", "color": "white" if heat > 0.6 else "black"}
        axes.text(number, (low + high) / 2, f"{load[segment.segment_id]}", **style)
        axes.hlines([low, high], number - 0.5, number + 0.5, color="#222222", linewidth=1)
axes.set(title="Segments over time, with their events in each round", xlabel="round")
axes.set(ylabel="key space", xlim=(-0.5, ROUNDS - 0.5), ylim=(0, 1))
axes.set_xticks(range(ROUNDS))
show(figure, "scaling-segments")

# COMMAND ----------

# MAGIC %md
# MAGIC ## In Spark
# MAGIC The metadata frame has the load of each segment, and a query reads over all splits and merges without a restart.

# COMMAND ----------

spark = pravega.session()
rides = spark.read.format("pravega").option("root", root).load(STREAM)
by_segment = rides.groupBy("segment_id").count().orderBy("segment_id")
show(by_segment)
total = sum(written.values())
assert sum(row["count"] for row in by_segment.collect()) == total
print(f"scaling: {total} events over {splits} splits and {merges} merges, each key in order")
