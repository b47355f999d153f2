# Databricks notebook source
# MAGIC %md
# MAGIC # A shop on streams
# MAGIC What stands beside events: key-value tables, time, shared state, bytes, and large events. All of it is Delta tables in one root, without a server.
# MAGIC The notebook runs on Databricks and as plain Python: `python notebooks/shop.py`.

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

import pandas as pd
import pyspark.sql.functions as F

import pravega_spark as pravega
from pravega_spark import KeyValueTableConfiguration, ScalingPolicy, StreamConfiguration
from pravega_spark.errors import BadKeyVersion

spark = pravega.session()
manager = pravega.StreamManager(root)
if "shop" in manager.list_scopes():  # so that the notebook can run again
    manager.delete_scope("shop", recursive=True)
manager.create_scope("shop")
one_segment = StreamConfiguration(scaling=ScalingPolicy.fixed(1))

# COMMAND ----------

# MAGIC %md
# MAGIC ## A key-value table
# MAGIC A put costs an append. A change on a condition is decided at its commit, so nobody sells the last pear twice.

# COMMAND ----------

manager.create_key_value_table("shop/stock", KeyValueTableConfiguration(key_type="string"))
stock = manager.key_value_table("shop/stock")
for fruit, pieces in (("apple", 5), ("pear", 1), ("plum", 9)):
    stock.put(fruit, str(pieces))
stock.flush()

last = stock.get("pear", fresh=True)
stock.replace("pear", "0", last.version)
try:
    stock.replace("pear", "0", last.version)
except BadKeyVersion as refused:
    print(refused)

table = pravega.key_value_frame(spark, "shop/stock", root=root)
table = table.selectExpr("key", "CAST(value AS STRING) AS pieces").orderBy("key")
show(table)
assert [row.pieces for row in table.collect()] == ["5", "0", "9"]

# COMMAND ----------

# MAGIC %md
# MAGIC ## Time
# MAGIC Writers say how far their time is, and the stream's watermark follows. So a job knows when an hour is complete, and Spark drops no row of a slow segment.

# COMMAND ----------

BEGIN, MINUTE = 1_782_900_000_000, 60_000
manager.create_stream("shop/visits", StreamConfiguration(scaling=ScalingPolicy.fixed(2)))
with manager.create_writer("shop/visits", writer_id="door") as door:
    for number in range(19):
        at = BEGIN + 10 * number * MINUTE
        door.write_event(str(at).encode(), routing_key=f"guest {number % 7}")
        door.note_time(at)
    door.flush()
    time = manager.event_time("shop/visits")
    time.update()
    before = time.cut_at(BEGIN + 60 * MINUTE)
    print(time.watermark())

assert len(list(manager.read("shop/visits", "earliest", before))) >= 6

visits = (
    spark.readStream.format("pravega")
    .option("root", root)
    .option("startingOffsets", "earliest")
    .option("includeWatermark", "true")
    .load("shop/visits")
    .withColumn("time", F.timestamp_millis(F.col("event").cast("string").cast("long")))
)
hours = pravega.with_stream_watermark(visits, "time").groupBy(F.window("time", "1 hour")).count()
query = hours.writeStream.format("memory").queryName("hours").outputMode("append").start()
query.processAllAvailable()
query.stop()

complete = spark.table("hours").orderBy("window").collect()
assert [row["count"] for row in complete] == [6, 6, 6]

# COMMAND ----------

# MAGIC %md
# MAGIC Spark closed the hours that the watermark has passed. The last one is open: a guest may still come.

# COMMAND ----------

import matplotlib as mpl
from matplotlib.figure import Figure

mpl.rcParams.update({"axes.spines.right": False, "axes.spines.top": False})
mpl.rcParams.update({"axes.titlelocation": "left", "axes.titleweight": "bold", "font.size": 10})

figure = Figure(figsize=(9, 2.4), layout="constrained")
axes = figure.add_subplot()
for visit in range(19):
    axes.plot(visit / 6, visit % 7, "o", color="#1f6f8b" if visit < 18 else "#e07a3f")
for hour, row in enumerate(complete):
    axes.axvspan(hour, hour + 1, color="#d5e3e8" if hour % 2 else "#e8f0f2", zorder=0)
    axes.text(hour + 0.5, 7, f"complete: {row['count']} visits", ha="center")
axes.set(title="Visits, and the hours that are complete", xlabel="hour", ylabel="guest")
axes.set(ylim=(-0.5, 8), yticks=range(7))
show(figure, "shop-hours")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Shared state
# MAGIC All processes apply the same updates in the same order. A name is added to the set once, whoever tries.

# COMMAND ----------


def join(shared, name):
    """Add a name to the state, which is a list; return whether it is new."""

    def generate(known, updates):
        if name not in known:
            updates.append(name)
        return bool(updates)

    return shared.update_state(generate)


manager.create_stream("shop/staff", one_segment)
here, elsewhere = (
    manager.state_synchronizer("shop/staff", lambda known, name: [*known, name]) for _ in range(2)
)
here.initialize([])
assert join(here, "ann")
assert not join(elsewhere, "ann")
assert join(elsewhere, "bob")
here.fetch_updates()
print("staff:", here.get_state())
assert here.get_state() == ["ann", "bob"]

# COMMAND ----------

# MAGIC %md
# MAGIC ## Bytes
# MAGIC A stream of one segment is a file that grows: everything in Python that takes a binary file reads and writes it.

# COMMAND ----------

manager.create_stream("shop/prices", one_segment)
with manager.create_byte_writer("shop/prices") as file:
    pd.DataFrame({"fruit": ["apple", "pear"], "price": [0.5, 0.7]}).to_csv(file, index=False)
    file.close_and_seal()
with manager.create_byte_reader("shop/prices") as file:
    prices = pd.read_csv(file)
assert list(prices.price) == [0.5, 0.7]

# COMMAND ----------

# MAGIC %md
# MAGIC ## Large events
# MAGIC A film of the till is one event, in order with the small ones. Its payload is read when it is asked for, and Spark gives its bytes.

# COMMAND ----------

manager.create_stream("shop/till", one_segment)
film = bytes(range(256)) * 40_000  # 10 MB
with manager.create_writer("shop/till", large_events=True) as writer:
    for event in (b"opened", film, b"closed"):
        writer.write_event(event, routing_key="till 1")

opened, large, closed = manager.read("shop/till")
with large.open() as file:
    file.seek(5_000_000)
    assert file.read(100) == film[5_000_000:5_000_100]

till = spark.read.format("pravega").option("root", root).load("shop/till")
assert till.selectExpr("max(length(event))").first()[0] == len(film)

options = {"root": root, "stream": "shop/till", "metadata": "Storage"}
stored = spark.read.format("pravega").options(**options).load().where("files > 0")
show(stored.select("kind", "files", "size_bytes", "large_events", "large_bytes"))
assert stored.where("kind = 'live'").first().large_bytes == len(film)
print(f"shop: {len(complete)} hours, a staff of 2, a film of 10 MB")
