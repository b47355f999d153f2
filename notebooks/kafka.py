# Databricks notebook source
# MAGIC %md
# MAGIC # Coming from Kafka
# MAGIC A query of Spark's Kafka source becomes one of `pravega` by its format and its root; the columns and options stay. With a broker, a topic is copied at the end.
# MAGIC The notebook runs on Databricks and as plain Python: `python notebooks/kafka.py`.

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

# MAGIC %pip install --quiet $package $kept

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


# With the bootstrap servers of a broker, a topic of it is copied.
root, servers, topic = parameters(root=ROOT, servers="", topic="orders")

# COMMAND ----------

# MAGIC %md
# MAGIC ## A frame for two topics
# MAGIC The frame has Kafka's columns. Its column `topic` names the stream of each row; each stream gets its rows once, in order. A key may be any bytes with `keyEncoding=percent`, and a row without a value, Kafka's tombstone, is skipped on request.

# COMMAND ----------

import pravega_spark as pravega

spark = pravega.session()
manager = pravega.StreamManager(root)
if "kafka" in manager.list_scopes():  # so that the notebook can run again
    manager.delete_scope("kafka", recursive=True)
manager.create_scope("kafka")

rows = spark.sql("""
    SELECT
        IF(id % 10 = 9, unhex('ff00'), CAST(concat('customer ', id % 10) AS BINARY)) AS key,
        IF(id % 10 = 8, NULL, CAST(concat('order ', id) AS BINARY)) AS value,
        IF(id % 2 = 0, 'orders', 'returns') AS topic
    FROM range(100)
""")
KAFKA = {
    "root": root,
    "columnNames": "kafka",
    "keyEncoding": "percent",
    "kafka.bootstrap.servers": servers or "broker:9092",  # of no use here: one warning names it
}
if dbutils is None:
    spark.sparkContext.setLogLevel("ERROR")
writer = rows.write.format("pravega").mode("append").options(**KAFKA)
writer.options(scope="kafka", nullValues="skip", txnAppId="orders", txnVersion="1").save()
writer.save()  # the same again: it has the same number, and adds nothing
counts = {name: manager.stream_info(f"kafka/{name}").events for name in ("orders", "returns")}
print(counts)
assert counts == {"orders": 40, "returns": 50}

# COMMAND ----------

# MAGIC %md
# MAGIC ## A query with Kafka's options
# MAGIC `assign` limits a read to partitions, which are segments here. Times may be given for each of them, with Kafka's -2 and -1 for the earliest and the latest. Headers are null: an event is bytes with a key and a time.

# COMMAND ----------

reader = spark.read.format("pravega").options(**KAFKA).option("includeHeaders", "true")
assigned = reader.option("assign", '{"kafka/orders": [0], "kafka/returns": [0]}')
found = assigned.option(
    "startingOffsetsByTimestamp", '{"kafka/orders": {"0": -2}, "kafka/returns": {"0": -2}}'
).load()
found.printSchema()
keys = {bytes(key) for (key,) in found.select("key").distinct().collect()}
assert found.count() == 90
assert b"\xff\x00" in keys

# COMMAND ----------

# MAGIC %md
# MAGIC ## Streams into files, and a topic into a stream
# MAGIC The jobs `export_stream` and `import_stream` do it from the command line, for Kafka, Delta, Parquet, CSV and JSON lines: `python -m pravega_spark.jobs.import_stream --help`. They are a few lines, such as these.

# COMMAND ----------

from uuid import uuid4


def copy(frame, stream, checkpoint):
    """Copy all that there is of a streaming frame into a stream, exactly once; return the query."""
    options = {**KAFKA, "eventTime": "timestamp", "stream": stream}
    writer = frame.select("key", "value", "timestamp").writeStream.format("pravega")
    writer = writer.options(**options, checkpointLocation=checkpoint)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


checkpoints = f"{root}-checkpoints/{uuid4()}"
source = spark.readStream.format("pravega").options(**KAFKA, startingOffsets="earliest")
for _ in range(2):  # the second run continues where the first has ended, and finds nothing
    copy(source.load("kafka/orders"), "kafka/archive", f"{checkpoints}/orders")
assert manager.stream_info("kafka/archive").events == 40

# COMMAND ----------

# MAGIC %md
# MAGIC With a broker, the same function copies a topic. Spark needs its connector: `--packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0`.

# COMMAND ----------

if servers:
    topics = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
    topics = topics.option("subscribe", topic).option("startingOffsets", "earliest").load()
    copied = copy(topics, "kafka/copied", f"{checkpoints}/topic")
    print(copied.lastProgress["numInputRows"], "rows of", topic)
else:
    print("no broker is named: no topic was copied")

# COMMAND ----------

print(f"kafka: {sum(counts.values())} rows in 2 streams, each once, {len(keys)} keys")
