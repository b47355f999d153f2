"""Queries in reader groups over an outage of their store. Arguments: root, folder of checkpoints.

Prints "ready" when ``s/steady`` is read by a query without end, and a query that reads ``s/last``
by ``availableNow`` is in its only batch. The parent then begins the outage and sends a line: the
batch ends, and soon the run. The app prints how long Spark's listener thread needed for the events
of another query meanwhile, and what the run failed with. It waits for a line, which says that the
outage is over, and prints the rest.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.listener import StreamingQueryListener

from pravega_spark import StreamLagListener
from pravega_spark.spark.groups.group_listener import GroupListener
from pravega_spark.spark.jvm import query_events
from pravega_spark.spark.session import session

query_events._DELIVER_SECONDS = GroupListener._exit_seconds = 60.0
"""At the end of the process, however slow the machine is."""


class _Seen(StreamingQueryListener):
    """The runs whose reports, and whose ends, Spark has delivered."""

    def __init__(self) -> None:
        self.reported: set[str] = set()
        self.ended: set[str] = set()

    def onQueryStarted(self, event: Any) -> None: ...

    def onQueryIdle(self, event: Any) -> None: ...

    def onQueryProgress(self, event: Any) -> None:
        self.reported.add(str(event.progress.runId))

    def onQueryTerminated(self, event: Any) -> None:
        self.ended.add(str(event.runId))


def _wait(condition: Callable[[], bool], seconds: float = 200.0) -> float:
    """Wait until a condition holds; return for how long."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + seconds, "the condition never held"
        time.sleep(0.05)
    return time.monotonic() - began


def main(root: str, checkpoints: str) -> None:
    """Run the queries; see the module."""
    spark = session(
        **{
            "spark.master": "local[3]",
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.showConsoleProgress": "false",
        }
    )
    spark.sparkContext.setLogLevel("OFF")
    lag, seen = StreamLagListener(), _Seen()
    spark.streams.addListener(lag)
    spark.streams.addListener(seen)

    def start(name: str, of_batch: Callable[[DataFrame, int], None], **trigger: Any) -> Any:
        options = {"root": root, "startingOffsets": "earliest", "readerGroup": f"s/of-{name}"}
        if name == "steady":  # it sits the outage out, as the variable says for no other call
            options["retryTimeout"] = "5 minutes"
        frame = spark.readStream.format("pravega").options(**options).load(f"s/{name}")
        writer = frame.writeStream.foreachBatch(of_batch).trigger(**trigger)
        return writer.option("checkpointLocation", f"{checkpoints}/{name}").start()

    def count(batch: DataFrame, _: int) -> None:
        batch.count()

    def hold(batch: DataFrame, _: int) -> None:
        batch.count()
        print("ready", flush=True)
        sys.stdin.readline()

    steady = start("steady", count, processingTime="200 milliseconds")
    _wait(lambda: any(of.numInputRows for of in steady.recentProgress))
    last = start("last", hold, availableNow=True)
    _wait(lambda: str(last.runId) in seen.reported)
    rate = spark.readStream.format("rate").load().writeStream.format("noop")
    other = rate.trigger(once=True).start()
    other.awaitTermination(100)
    late = _wait(lambda: str(other.runId) in seen.ended)
    _wait(lambda: str(last.runId) in seen.ended)
    print(
        json.dumps({"late": late, "in_vain": "StoreUnavailable" in str(last.exception())}),
        flush=True,
    )
    sys.stdin.readline()
    # Not processAllAvailable: the call for news that the outage has held up may not have the last.
    _wait(lambda: sum(of.numInputRows for of in steady.recentProgress) == 15)
    failure = steady.exception()
    steady.stop()
    is_measured = lag.find(str(steady.id)) is not None
    found = {"steady": failure and str(failure)[-500:], "is_measured": is_measured}
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
