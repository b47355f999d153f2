# Databricks notebook source
# MAGIC %md
# MAGIC # A stream that is a Delta table
# MAGIC Write events, read them in batch and as a stream, and look at the same data as a Delta table: all in a minute, without a server.
# MAGIC The notebook runs on Databricks and as plain Python: `python notebooks/quickstart.py --root /tmp/streams`.

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
    parser = argparse.ArgumentParser(description="Run the notebook quickstart as plain Python.")
    parser.add_argument("--root", required=True, help="folder or URL of the streams")
    root = parser.parse_args().root

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
by_user.show()
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
history.orderBy("version").show(truncate=False)
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


def show(figure, name):
    """Display a picture in the notebook; in plain Python, save it to a file."""
    if display is not None:
        display(figure)
    else:
        Path("pictures").mkdir(exist_ok=True)
        figure.savefig(f"pictures/quickstart-{name}.png", dpi=130)


# COMMAND ----------

figure = Figure(figsize=(9, 3.2), layout="constrained")
axes = figure.add_subplot()
segments = sorted({row.segment_id for row in rows})
for row in rows:
    axes.bar(row.user, row.clicks, color=f"C{segments.index(row.segment_id)}")
axes.set(title="Clicks by user; the color is the segment", ylabel="events")
show(figure, "keys")
print(f"quickstart: all 1000 clicks read back, {len(copied)} of them copied exactly once")
