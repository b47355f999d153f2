# Databricks notebook source
# MAGIC %md
# MAGIC # A stream that is a Delta table
# MAGIC Write events, read them in batch and as a stream, and look at the same data as a Delta table.
# MAGIC The notebook runs on Databricks and as plain Python: `python notebooks/tour.py --root /tmp/streams`.

# COMMAND ----------

# MAGIC %pip install pravega-spark

# COMMAND ----------

# DBTITLE 1,Parameters
import argparse

dbutils = globals().get("dbutils")
if dbutils is not None:
    dbutils.widgets.text("root", "", "Root of the streams")
    root = dbutils.widgets.get("root")
else:
    parser = argparse.ArgumentParser(description="Run the tour as plain Python.")
    parser.add_argument("--root", required=True, help="folder or URL of the streams")
    root = parser.parse_args().root

# COMMAND ----------

# MAGIC %md
# MAGIC ## Write
# MAGIC Events of one routing key stay in order. A writer with an id of its own resumes exactly where it stopped.

# COMMAND ----------

import pravega_spark as pravega
from pravega_spark import ScalingPolicy, StreamConfiguration

manager = pravega.StreamManager(root)
manager.create_scope("tour")
manager.create_stream("tour/clicks", StreamConfiguration(scaling=ScalingPolicy.fixed(2)))

with manager.create_writer(
    "tour/clicks", writer_id="notebook", serializer=pravega.json_serializer
) as writer:
    for number in range(writer.last_event_number, 1_000):
        user = f"user-{number % 7}"
        writer.write_event({"user": user, "page": number % 13}, routing_key=user)
    writer.flush(note="all 1000 clicks")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Read in batch, with Spark SQL

# COMMAND ----------

spark = pravega.session()
clicks = spark.read.format("pravega").option("root", root).load("tour/clicks")
pages = clicks.selectExpr("routing_key", "get_json_object(cast(event as string), '$.page') as page")
by_user = pages.groupBy("routing_key").count().orderBy("routing_key")
by_user.show()

# COMMAND ----------

# MAGIC %md
# MAGIC ## Read as a stream, and write another stream exactly once

# COMMAND ----------

query = (
    spark.readStream.format("pravega")
    .option("root", root)
    .option("startingOffsets", "earliest")
    .load("tour/clicks")
    .where("routing_key = 'user-3'")
    .select("routing_key", "event")
    .writeStream.format("pravega")
    .option("root", root)
    .option("checkpointLocation", f"{root}-checkpoints/user-3")
    .trigger(availableNow=True)
    .start("tour/user-3")
)
query.awaitTermination()

# COMMAND ----------

# MAGIC %md
# MAGIC ## Read in a group, and store results at checkpoints
# MAGIC The readers of a group share its segments. With `acknowledge="checkpoint"` a reader may keep events in memory: only those before a checkpoint that it answered count as processed. Here a reader fails with a full buffer, and the next one reads exactly those events again.

# COMMAND ----------

import contextlib
import time

group = manager.create_reader_group(
    "tour/files", ["tour/clicks"], refresh="200 ms", acknowledge="checkpoint"
)
group.reset({"tour/clicks": "earliest"})  # so that the notebook can run again
stored, buffer = [], []


def read_on(reader, limit=1_000):
    """Read up to a number of events into the buffer, and store it at a checkpoint's marker."""
    for _ in range(limit):
        read = reader.read_next_event(timeout=2.0)
        if read.checkpoint:
            stored.extend(buffer)
            buffer.clear()
            print(f"stored {len(stored)} clicks at checkpoint {read.checkpoint}")
        elif read.event:
            buffer.append(read.event.data)
        else:
            break


with contextlib.suppress(MemoryError), group.create_reader("reader-1") as reader:
    read_on(reader, 400)
    group.initiate_checkpoint("first")
    time.sleep(1)
    read_on(reader, 100)
    raise MemoryError(f"{len(buffer)} clicks are lost from the buffer")

buffer.clear()
with group.create_reader("reader-2") as reader:
    read_on(reader)
    stored += buffer  # before the end of the block, which acknowledges them

assert len(stored) == 1_000
assert group.lag().events == 0

# COMMAND ----------

# MAGIC %md
# MAGIC ## The same data as a Delta table, with its history

# COMMAND ----------

table = f"{root}/tour/clicks/events"
events = spark.read.format("delta").load(table)
history = spark.sql(f"DESCRIBE HISTORY delta.`{table}`").select("version", "operation")
history.orderBy("version").show(truncate=False)

assert events.count() == clicks.count() == 1_000
assert sum(1 for _ in manager.read("tour/user-3")) == events.where("routing_key = 'user-3'").count()
assert [row.operation for row in history.orderBy("version").limit(2).collect()] == [
    "CREATE STREAM",
    "OPEN WRITER",
]
print("tour: all 1000 clicks read back, 1 stream copied exactly once")
