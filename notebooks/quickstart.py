# Databricks notebook source
# MAGIC %md
# MAGIC # A stream that is a Delta table
# MAGIC Write events, read them in batch and as a stream, and look at the same data as a Delta table: all in a minute, without a server.
# MAGIC The notebook runs on Databricks and as plain Python: `python notebooks/quickstart.py`.

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
# MAGIC ## Write
# MAGIC Events of one routing key stay in order. Keys are divided among the segments of the stream.

# COMMAND ----------

import pravega_spark as pravega
from pravega_spark import ScalingPolicy, StreamConfiguration

manager = pravega.StreamManager(root)
manager.create_scope("quickstart")
manager.create_stream("quickstart/clicks", StreamConfiguration(ScalingPolicy.fixed(2)))

with manager.create_writer(
    "quickstart/clicks", writer_id="notebook", serializer=pravega.json_serializer
) as writer:
    for number in range(writer.last_event_number, 1_000):  # 0, unless the notebook ran before
        user = f"user-{number % 7}"
        writer.write_event({"user": user, "page": number % 13}, routing_key=user)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Read in batch, with Spark SQL
# MAGIC Each row has its key, its event, and its permanent address: segment and offset.

# COMMAND ----------

spark = pravega.session()
clicks = spark.read.format("pravega").option("root", root).load("quickstart/clicks")
clicks.createOrReplaceTempView("clicks")
by_user = spark.sql("""
    SELECT routing_key AS user, segment_id, count(*) AS clicks,
           count(DISTINCT get_json_object(CAST(event AS STRING), '$.page')) AS pages
    FROM clicks GROUP BY routing_key, segment_id ORDER BY routing_key
""")
show(by_user)
rows = by_user.collect()
assert sum(row.clicks for row in rows) == 1_000
assert len(rows) == 7, "each user is in one segment"

# COMMAND ----------

# MAGIC %md
# MAGIC ## Read as a stream, and write another stream exactly once

# COMMAND ----------

query = (
    spark.readStream.format("pravega")
    .option("root", root)
    .option("startingOffsets", "earliest")
    .load("quickstart/clicks")
    .where("routing_key = 'user-3'")
    .select("routing_key", "event")
    .writeStream.format("pravega")
    .option("root", root)
    .option("checkpointLocation", f"{root}-checkpoints/user-3")
    .trigger(availableNow=True)
    .start("quickstart/user-3")
)
query.awaitTermination()

# COMMAND ----------

# MAGIC %md
# MAGIC ## Read without Spark
# MAGIC The same events, in plain Python. A process that starts in milliseconds needs no JVM.

# COMMAND ----------

copied = [event.data for event in manager.read("quickstart/user-3")]
(count,) = [row.clicks for row in rows if row.user == "user-3"]
assert len(copied) == count

# COMMAND ----------

# MAGIC %md
# MAGIC ## The same data as a Delta table, with its history

# COMMAND ----------

table = f"{root}/quickstart/clicks/events"
events = spark.read.format("delta").load(table)
history = spark.sql(f"DESCRIBE HISTORY delta.`{table}`").select("version", "operation")
show(history.orderBy("version"))
assert events.count() == clicks.count() == 1_000
assert [row.operation for row in history.orderBy("version").limit(2).collect()] == [
    "CREATE STREAM",
    "OPEN WRITER",
]

# COMMAND ----------

# MAGIC %md
# MAGIC ## Which key is where?
# MAGIC A key's place in [0, 1) is a hash of it. Its segment is the one whose range holds that place.

# COMMAND ----------

import matplotlib as mpl
from matplotlib.figure import Figure

mpl.rcParams.update({"axes.spines.right": False, "axes.spines.top": False})
mpl.rcParams.update({"axes.titlelocation": "left", "axes.titleweight": "bold", "font.size": 10})


# COMMAND ----------

figure = Figure(figsize=(9, 3.2), layout="constrained")
axes = figure.add_subplot()
segments = sorted({row.segment_id for row in rows})
for row in rows:
    axes.bar(row.user, row.clicks, color=f"C{segments.index(row.segment_id)}")
axes.set(title="Clicks by user; the color is the segment", ylabel="events")
show(figure, "quickstart-keys")
print(f"quickstart: all 1000 clicks read back, {len(copied)} of them copied exactly once")
