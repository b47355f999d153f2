"""A program whose driver is Spark's: a query that writes each file of a folder, and batch reads."""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.sim.answers import cut_of
from tests.sim.lives import Body, Life
from tests.sim.workloads.common import KEYS, stream_of
from tests.soak.lives import RealLife

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CONF = {
    "spark.master": "local[2,4]",  # a task is tried again, as on a cluster
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.log.level": "OFF",
}


def query(batches: int) -> Body:
    """Return a program that has a streaming query write files, each a micro-batch.

    A batch is recorded as a transaction that is an append: once in the stream, whole or not at all,
    however often the driver and its workers are killed. After some the stream is read by a batch
    frame.
    """

    def body(life: Life) -> None:
        assert isinstance(life, RealLife)
        folder = life.folder
        (folder / "in").mkdir(parents=True, exist_ok=True)
        stream_of(life)
        spark, writing, state = _session(folder), None, life.state
        while state.setdefault("batch", 0) < batches:
            state["batch"] += 1
            if writing is None or not writing.isActive:
                writing = _started(spark, life, folder)
            _write(life, writing, folder, state["batch"])
            if life.source.random() < 0.5 or state["batch"] == batches:
                _read(life, spark)
        if writing is not None:
            writing.stop()

    return body


def _session(folder: Path) -> SparkSession:
    from pravega_spark.spark.session import session

    return session(
        delta=False, **_CONF, **{"spark.sql.warehouse.dir": f"{folder.parent}/warehouse"}
    )


def _started(spark: SparkSession, life: Life, folder: Path) -> Any:
    lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(f"{folder}/in")
    rows = lines.selectExpr("split(value, ' ')[0] AS routing_key", "split(value, ' ')[1] AS event")
    writer = rows.writeStream.format("pravega").option("root", life.root)
    return writer.option("checkpointLocation", f"{folder}/checkpoint").start(life.stream)


def _write(life: Life, writing: Any, folder: Path, number: int) -> None:
    """Give the query a file, and wait until it has written all that it was given."""
    name, keys = f"{life.author}-{number}", life.source.sample(KEYS, 2)
    pairs = [[key, f"{name}.{n}"] for n, key in enumerate(keys)]
    staged = life.begin("stage", transaction=name, streams={life.stream: pairs})
    call = life.begin("commit", transaction=name, append=True)
    aside = folder / f"{number}.aside"
    aside.write_text("".join(f"{key} {event}\n" for key, event in pairs))
    os.replace(aside, folder / "in" / f"{number}.txt")
    try:
        writing.processAllAvailable()
    except Exception:  # Spark's, Java's or py4j's, by what was killed: the batch may come later
        traceback.print_exc()
        call.ended_with(TimeoutError())
    else:
        staged.ok()
        call.ok()


def _read(life: Life, spark: SparkSession) -> None:
    """Read from the head to the present tail by a frame."""
    stream = stream_of(life)
    head, tail = life.until_it_works(stream.head), life.until_it_works(stream.tail)
    cuts = {"from": cut_of(head), "to": cut_of(tail)}
    call = life.begin("read", stream=life.stream, **cuts)
    options = {"startingStreamCut": str(head), "endingStreamCut": str(tail), "root": life.root}
    try:
        frame = spark.read.format("pravega").options(**options).load(life.stream)
        found = frame.select("segment_id", "offset", "routing_key", "event").collect()
    except Exception:  # as above, and where the head has moved meanwhile
        traceback.print_exc()
        call.ended_with(TimeoutError())
        return
    rows = [[str(row[0]), row[1], row[2], _text(row[3])] for row in sorted(found)]
    call.ok({**cuts, "events": rows})


def _text(event: Any) -> str:
    return event if isinstance(event, str) else bytes(event).decode()
