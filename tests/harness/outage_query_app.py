"""A query that copies ``s/in`` to ``s/out`` until a line of input. Arguments: root, checkpoint."""

from __future__ import annotations

import json
import sys
import time

from pravega_spark.spark.session import session


def main(root: str, checkpoint: str) -> None:
    """Print a line after the first batch; after the line of input finish, and print the outcome."""
    where = {"root": root, "retryTimeout": "1 minute"}
    launch = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.showConsoleProgress": "false",
    }
    spark = session(delta=False, **launch)
    query = (
        spark.readStream.format("pravega")
        .options(startingOffsets="earliest", **where)
        .load("s/in")
        .writeStream.format("pravega")
        .options(checkpointLocation=checkpoint, **where)
        .trigger(processingTime="200 milliseconds")
        .start("s/out")
    )
    while query.isActive and not any(batch.numInputRows for batch in query.recentProgress):
        time.sleep(0.1)
    print("ready", flush=True)
    sys.stdin.readline()
    if query.isActive:
        query.processAllAvailable()
    failure = query.exception()
    query.stop()
    print(json.dumps({"failure": None if failure is None else str(failure)}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
