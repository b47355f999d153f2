# Databricks notebook source
# MAGIC %md
# MAGIC # Transactions
# MAGIC Events that become visible together, or never: in one stream, from several processes, over several streams, and with the position of a reader.
# MAGIC The notebook runs on Databricks and as plain Python: `python notebooks/transactions.py`.

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
# MAGIC ## Nothing is visible before the commit
# MAGIC A transaction's events are stored while it is open, and nobody sees them. The commit is one entry of the stream's log and moves no data, however much it is.

# COMMAND ----------

import pravega_spark as pravega
from pravega_spark import ScalingPolicy, StreamConfiguration, TransactionStatus

MOVES, AUDIT, BALANCES = "bank/moves", "bank/audit", "bank/balances"
manager = pravega.StreamManager(root)
if "bank" in manager.list_scopes():  # so that the notebook can run again
    manager.delete_scope("bank", recursive=True)
manager.create_scope("bank")
manager.create_stream(MOVES, StreamConfiguration(ScalingPolicy.fixed(4)))
journal = []


def note(what, written):
    """Record how many events were written, and how many a reader sees."""
    journal.append((what, written, manager.stream_info(MOVES).events))


note("begin", 0)
with manager.create_transactional_writer(MOVES, writer_id="teller") as writer:
    with writer.begin_transaction() as txn:
        for number in range(4):
            txn.write_event(b"-100", routing_key="alice")
            txn.write_event(b"+100", routing_key="bob")
            txn.flush()
            note("flush", 2 * number + 2)
    note("commit", 8)
    assert txn.status is TransactionStatus.COMMITTED

    try:
        with writer.begin_transaction() as refused:
            refused.write_event(b"-1000", routing_key="alice")
            refused.flush()
            note("flush", 9)
            raise ValueError("alice has no 1000")
    except ValueError as error:
        print(error)
    note("abort", 8)
    assert refused.status is TransactionStatus.ABORTED
assert [seen for _, _, seen in journal] == [0, 0, 0, 0, 0, 8, 8, 8]

# COMMAND ----------

import matplotlib as mpl
from matplotlib.figure import Figure

mpl.rcParams.update({"axes.spines.right": False, "axes.spines.top": False})
mpl.rcParams.update({"axes.titlelocation": "left", "axes.titleweight": "bold", "font.size": 10})


# COMMAND ----------

figure = Figure(figsize=(9, 3.2), layout="constrained")
axes = figure.add_subplot()
steps = range(len(journal))
axes.step(
    steps, [written for _, written, _ in journal], where="mid", label="written", color="#e07a3f"
)
axes.step(steps, [seen for *_, seen in journal], where="mid", label="visible", color="#1f6f8b")
axes.set(title="Events that are written, and events that are visible", ylabel="events")
axes.set_xticks(steps, [what for what, *_ in journal])
axes.legend(frameon=False)
show(figure, "transactions-visible")

# COMMAND ----------

# MAGIC %md
# MAGIC ## One transaction, several processes
# MAGIC Any process can write into a transaction that it knows by its id: here a Spark job, whose tasks stage their rows, and this notebook, which commits.

# COMMAND ----------

spark = pravega.session()
interest = spark.range(20).selectExpr("concat('account ', id) AS routing_key", "'+1' AS event")
with manager.create_transactional_writer(MOVES) as writer, writer.begin_transaction() as txn:
    options = {"root": root, "transaction": txn.id}
    interest.write.format("pravega").options(**options).mode("append").save(MOVES)
    txn.write_event(b"-20", routing_key="the bank")
    assert manager.stream_info(MOVES).events == 8
assert manager.stream_info(MOVES).events == 29

# COMMAND ----------

# MAGIC %md
# MAGIC ## Over several streams
# MAGIC A joint transaction is in all of its streams or in none, whatever process dies when. The metadata frame shows what is under way.

# COMMAND ----------

manager.create_stream(AUDIT)
with manager.create_joint_writer([MOVES, AUDIT]) as writer:
    with writer.begin_transaction() as both:
        both.write_event(MOVES, b"-9", routing_key="alice")
        both.write_event(AUDIT, b"alice paid bob", routing_key="alice")
    undecided = writer.begin_transaction()
    undecided.write_event(AUDIT, b"bob paid carol")
    frames = spark.read.format("pravega").options(root=root, metadata="JointTransactions").load()
    waiting = frames.where("status = 'OPEN'")
    show(waiting.select("transaction", "streams", "age_seconds"))
    assert [row.transaction for row in waiting.collect()] == [undecided.id]
    undecided.abort()
assert [manager.stream_info(name).events for name in (MOVES, AUDIT)] == [30, 1]

# COMMAND ----------

# MAGIC %md
# MAGIC ## Read, process, write
# MAGIC A group with `acknowledge="transaction"` moves its position in the same decision as its results. A crash before the commit hands the events out again, and one after it does not.

# COMMAND ----------

manager.create_stream(BALANCES)
group = manager.create_reader_group("bank/booking", [MOVES], acknowledge="transaction")
with group.create_reader("booking-1") as reader, manager.create_joint_writer([BALANCES]) as writer:
    for is_crash in (True, False):
        txn = writer.begin_transaction(readers=[reader])
        moves = []
        while event := reader.read_next_event(timeout=0.5).event:
            moves.append(int(event.data))
        txn.write_event(BALANCES, str(sum(moves)).encode())
        if is_crash:
            txn.abort()
        else:
            txn.commit()
        print(f"{len(moves)} moves, of which {0 if is_crash else len(moves)} count")
        assert len(moves) == 30, "all of them again after the abort"

balances = [event.data for event in manager.read(BALANCES)]
assert balances == [b"-9"]
assert group.lag().events == 0
print(f"transactions: {len(moves)} moves booked, each once; alice, bob and the bank agree")
