"""Counts what the sweeps of a table have deleted so far, in one small object beside its log.

The counts are for people: nothing is decided on them. Each sweep that deleted something replaces
the object, so it does not grow and costs the log no commit. Two sweeps at the same time may lose
the count of one. A damaged or missing object counts from zero.
"""

from __future__ import annotations

import json

from pravega_spark.engine.json_codec import DECODE_ERRORS, to_json, typed
from pravega_spark.engine.log.commit_log import Log
from pravega_spark.model import FileTotals


def read_swept(log: Log) -> FileTotals:
    """Return the number and bytes of the data files that sweeps have deleted."""
    try:
        record = json.loads(log.store.get(_key(log)))
        return FileTotals(typed(record["files"], int), typed(record["bytes"], int))
    except (FileNotFoundError, *DECODE_ERRORS):
        return FileTotals()


def add_swept(log: Log, deleted: FileTotals) -> None:
    """Add what a sweep has just deleted."""
    if deleted.files:
        total = read_swept(log) + deleted
        record = {"files": total.files, "bytes": total.size_bytes}
        log.store.put(_key(log), to_json(record).encode() + b"\n", durable=False)


def delete_swept(log: Log) -> None:
    """Count from zero again, since the table's life has ended."""
    log.store.delete([_key(log)])


def _key(log: Log) -> str:
    return f"{log.path}/_pravega/swept.json"
