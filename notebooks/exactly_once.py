# Databricks notebook source
# MAGIC %md
# MAGIC # Exactly once, whatever crashes
# MAGIC A writer that dies, a query that is stopped in the middle, a reader that loses its buffer: each continues, and every event counts once.
# MAGIC The notebook runs on Databricks and as plain Python: `python notebooks/exactly_once.py`.

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
# MAGIC ## A writer that dies
# MAGIC A writer with an id of its own has a number for each event. After a crash it asks the stream which was the last, and goes on with the next. The note is stored in the same commit as the events before it, so a program can keep its place in a file there.

# COMMAND ----------

import contextlib

import pravega_spark as pravega
from pravega_spark import ScalingPolicy, StreamConfiguration

SOURCE, TARGET, LINES = "once/orders", "once/copy", 600
manager = pravega.StreamManager(root)
if "once" in manager.list_scopes():  # so that the notebook can run again
    manager.delete_scope("once", recursive=True)
manager.create_scope("once")
manager.create_stream(SOURCE, StreamConfiguration(ScalingPolicy.fixed(2)))
attempts = []


def ingest(crash_after):
    """Write the lines that are missing; die after some of them."""
    with manager.create_writer(SOURCE, writer_id="ingest") as writer:
        first = writer.last_event_number
        attempts.append((first, min(LINES, first + crash_after)))
        for line in range(first, LINES):
            if line == first + crash_after:
                writer.flush(note=f"orders.csv:{line}")
                raise MemoryError(f"died before line {line}")
            writer.write_event(b"order %d" % line, routing_key=f"customer {line % 20}")


for crash_after in (250, 150, LINES):
    with contextlib.suppress(MemoryError):
        ingest(crash_after)
print("lines of each attempt:", attempts)
assert attempts == [(0, 250), (250, 400), (400, 600)]
assert sorted(int(e.data.split()[1]) for e in manager.read(SOURCE)) == list(range(LINES))

# COMMAND ----------

# MAGIC %md
# MAGIC ## A query that is stopped in the middle
# MAGIC The sink numbers the batches of a query in the log of the stream that it writes. A batch that Spark does again after a crash is found there, and not written twice. Here the first run stops after two batches of three.

# COMMAND ----------

from uuid import uuid4

from pyspark.errors import StreamingQueryException

spark = pravega.session()
checkpoint = f"{root}-checkpoints/{uuid4()}"


def copy(batches):
    """Run the query until its source is done, or stop it after some batches; return their rows."""
    done = []

    def write(frame, batch_id):
        frame.write.format("pravega").option("root", root).option("txnAppId", "copy").option(
            "txnVersion", batch_id
        ).mode("append").save(TARGET)
        done.append((batch_id, frame.count()))
        if len(done) == batches:
            raise InterruptedError("after its effect, and before Spark has noted the batch")

    orders = spark.readStream.format("pravega").option("root", root)
    orders = orders.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 200)
    query = (
        orders.load(SOURCE)
        .select("routing_key", "event")
        .writeStream.option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .foreachBatch(write)
        .start()
    )
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        if "InterruptedError" not in str(error):
            raise
    return done


manager.create_stream(TARGET, StreamConfiguration(ScalingPolicy.fixed(1)))
runs = [copy(2), copy(None)]
print("batches and rows of each run:", runs)
assert runs[0][-1] == runs[1][0], "the batch is done again"
copies = [event.data for event in manager.read(TARGET)]
assert len(copies) == len(set(copies)) == LINES, "and written once"

# COMMAND ----------

# MAGIC %md
# MAGIC ## A reader that loses its buffer
# MAGIC With `acknowledge="checkpoint"` a reader of a group may keep events in memory: only those before a checkpoint that it answered count as processed. This reader fails with a full buffer, and the next one reads exactly those events again.

# COMMAND ----------

import time

group = manager.create_reader_group(
    "once/files", [SOURCE], refresh="200 ms", acknowledge="checkpoint"
)
stored, buffer = [], []


def read_on(reader, limit=LINES):
    """Read up to a number of events into the buffer, and store it at a checkpoint's marker."""
    for _ in range(limit):
        read = reader.read_next_event(timeout=1.0)
        if read.checkpoint:
            stored.extend(buffer)
            buffer.clear()
            print(f"stored {len(stored)} orders at checkpoint {read.checkpoint}")
        elif read.event:
            buffer.append(read.event.data)
        else:
            break


with contextlib.suppress(MemoryError), group.create_reader("reader-1") as reader:
    read_on(reader, 200)
    group.initiate_checkpoint("first")
    time.sleep(0.5)
    read_on(reader, 100)
    raise MemoryError(f"{len(buffer)} orders are lost from the buffer")

buffer.clear()
with group.create_reader("reader-2") as reader:
    read_on(reader)
    stored += buffer  # before the end of the block, which acknowledges them

assert len(stored) == len(set(stored)) == LINES
assert group.lag().events == 0

# COMMAND ----------

# MAGIC %md
# MAGIC ## What was done, and what was done twice
# MAGIC The writer never repeats a line. Spark repeats the batch that it had not noted, and the stream drops the repetition.

# COMMAND ----------

import matplotlib as mpl
from matplotlib.figure import Figure

mpl.rcParams.update({"axes.spines.right": False, "axes.spines.top": False})
mpl.rcParams.update({"axes.titlelocation": "left", "axes.titleweight": "bold", "font.size": 10})


# COMMAND ----------

figure = Figure(figsize=(11, 3.4), layout="constrained")
left, right = figure.subplots(1, 2)
for number, (first, last) in enumerate(attempts):
    left.barh(number, last - first, left=first, color="#1f6f8b")
    if last < LINES:
        left.plot(last, number, "x", color="#b3261e", markersize=11, markeredgewidth=3)
left.set(title="Lines of each attempt of the writer", xlabel="line", yticks=range(len(attempts)))
left.set_yticklabels([f"attempt {n + 1}" for n in range(len(attempts))])
left.invert_yaxis()

seen = set()
for number, run in enumerate(runs):
    for batch, count in run:
        again = batch in seen
        seen.add(batch)
        right.bar(batch + number * 0.42, count, 0.4, color="#dddddd" if again else f"C{number}")
        if again:
            right.annotate(
                "done again,\nwritten once", (batch + 0.42, count), ha="center", va="bottom"
            )
right.set(title="Rows of each batch of the query", xlabel="batch", ylabel="rows", ylim=(0, 270))
right.set_xticks(sorted(seen))
show(figure, "exactly_once-runs")
print(
    f"exactly_once: {LINES} orders over {len(attempts) - 1} crashes, {len(copies)} copies, none twice"
)
