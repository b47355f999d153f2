"""Batches of a query as joint transactions: several sinks of ``foreachBatch``, all or nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.manager import StreamManager, root_of
from pravega_spark.txn.decision_log import DecisionLog
from pravega_spark.txn.joint import JointWriter
from tests.harness.failpoints import at_failpoint
from tests.harness.small_streams import write
from tests.spark.conftest import Load, finish

SINKS = {"s/even": "CAST(event AS STRING) % 2 = 0", "s/odd": "CAST(event AS STRING) % 2 = 1"}
BATCHES = "s/batches"
"""Holds an event for each batch that was committed: its number."""


class JointBatches:
    """Writes each batch into all sinks in one transaction, with its number, exactly once."""

    def __init__(self, root: str) -> None:
        self.root, self.skipped, self.fails_in = root, 0, ""
        self.shown: list[set[int]] = []
        """What a reader saw of both sinks after the writes of each batch, before its commit."""

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        manager = StreamManager(self.root)
        streams = [*SINKS, BATCHES]
        # Opening the id first carries out what a killed driver has decided.
        with manager.create_joint_writer(streams, "query") as writer:
            if batch_id in map(int, (event.data for event in manager.read(BATCHES))):
                self.skipped += 1
                return
            self._write(writer, frame, batch_id)

    def _write(self, writer: JointWriter, frame: DataFrame, batch_id: int) -> None:
        with writer.begin_transaction() as joint:
            for name, condition in SINKS.items():
                part = frame.where(condition).select("routing_key", "event")
                if name == self.fails_in:
                    part = part.selectExpr(
                        "routing_key", "CAST(raise_error('disk full') AS BINARY) AS event"
                    )
                given = {"root": self.root, "transaction": joint.part_ids[name]}
                part.write.format("pravega").mode("append").options(**given).save(name)
            joint.write_event(BATCHES, str(batch_id).encode())
            self.shown.append({n for name in SINKS for n in numbers(self.root, name)})


def numbers(root: str, name: str) -> list[int]:
    return sorted(int(event.data) for event in StreamManager(root).read(name))


def die() -> None:
    """End a commit like a kill: nothing of it is done from here on, nor undone."""
    raise RuntimeError("killed")


@pytest.mark.versions
@pytest.mark.timeout(1_200)
def test_batches_are_in_all_sinks_once_whatever_fails_or_is_killed(
    root: str, make: Callable[..., StreamLog], follow: Load, tmp_path: Path
) -> None:
    source = make(segments=2)
    for name in (*SINKS, BATCHES):
        make(name)
    process = JointBatches(root)

    def run() -> None:
        query = follow().writeStream.foreachBatch(process).trigger(availableNow=True)
        started = query.option("checkpointLocation", str(tmp_path / "c")).start()
        assert started.awaitTermination(400), "the query did not end"
        finish(started)

    def check(count: int) -> None:
        assert numbers(root, "s/even") == list(range(0, count, 2))
        assert numbers(root, "s/odd") == list(range(1, count, 2))

    def arrive(first: int) -> None:
        write(source, [(f"k{i % 7}", b"%d" % i) for i in range(first, first + 20)])

    arrive(0)
    run()
    check(20)

    # A sink that fails aborts the whole batch, also what the other one has written.
    arrive(20)
    process.fails_in = "s/odd"
    with pytest.raises(PySparkException, match="disk full"):
        run()
    check(20)
    process.fails_in = ""
    run()
    check(40)

    # A driver that is killed before the decision leaves nothing, and the batch runs again.
    arrive(40)
    with at_failpoint("joint.prepared", die), pytest.raises(PySparkException, match="killed"):
        run()
    check(40)
    run()
    check(60)
    assert process.skipped == 0

    # One that is stopped after it has carried it out nowhere: its process does so in the
    # background, or the next run, once.
    arrive(60)
    with at_failpoint("joint.decided", die), pytest.raises(PySparkException, match="killed"):
        run()
    run()
    check(80)
    assert process.skipped == 1
    assert process.shown[-1] == set(range(60)), "nothing of a batch is visible before its commit"
    assert [event.data for event in StreamManager(root).read(BATCHES)] == [b"0", b"1", b"2", b"3"]

    manager = StreamManager(root)
    manager.sweep_scope("s")
    manager.maintain(kinds=["transactions"])
    records = DecisionLog(root_of(manager).store).read().values()
    assert not [record for record in records if record.order is not None]
