"""What a group asks each of its streams, or tells it: many of them at a time on an object store."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeVar

from pravega_spark.engine.store.parallel_calls import in_rounds
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.reader_groups.group_table import Streams

_Found = TypeVar("_Found")


def of_each(
    streams: Streams, names: Collection[str], function: Callable[[StreamLog], _Found]
) -> dict[str, _Found]:
    """Return what a function finds of each stream, in the order of their names.

    After an error no further call begins, and the error of the first stream that failed is raised.
    """
    logs = [streams(name) for name in sorted(names)]
    found = in_rounds(logs[0].store, function, logs) if logs else []
    return {log.name: one for log, one in zip(logs, found, strict=True)}
