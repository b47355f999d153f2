"""Creating and deleting a group in a scope of few streams, and of a hundred times as many."""

from __future__ import annotations

import time
from collections.abc import Iterator

from bench.harness.context import Context
from bench.harness.counting_store import CountingStore
from bench.harness.figures import Figure
from bench.harness.measure import Side, interleave
from bench.harness.registry import benchmark
from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.engine.runtime.json_codec import to_json
from pravega_spark.engine.state.scopes import Scope
from pravega_spark.engine.state.state_table import TableChange
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.reader_groups.configuration import ReaderGroupConfiguration
from pravega_spark.reader_groups.lifecycle import open_group

_SIZES = 100, 1_000, 10_000


@benchmark()
def group_creation(context: Context) -> Iterator[Figure]:
    """The second group of a process and those after it: what others are in the scope is known."""
    calls: dict[int, int] = {}
    sides = {str(streams): _group(streams, calls) for streams in _SIZES}
    found = interleave(context.size(40, 3), sides)
    few, *more = _SIZES
    for many in more:
        yield Figure.of_rounds(
            f"create and delete a group in a scope of {many:,} streams, CPU",
            found[str(many)],
            "ms",
            f"a scope of {few}",
            found[str(few)],
            note=f"storage calls {calls[many]} and {calls[few]}",
            limited_by="a file of 512 rows that holds the group's row is written again",
        ).within(ratio_at_most=1.5)


def _group(streams: int, calls: dict[int, int]) -> Side:
    """Return a side that creates a group and deletes it, by a handle of its own each."""
    store = CountingStore(MemoryStore(f"scope-of-{streams}"))
    scope, configuration = Scope(store, "bench"), StreamConfiguration(ScalingPolicy.fixed(1))
    scope.create()
    stream = open_stream(store, "bench/read")
    lifecycle.create(stream, 1, configuration)
    row = {"kind": "stream", "life": 1, "version": -1, "tags": []}
    text = to_json(configuration.to_json())
    names = ["read", *(f"stream-{number}" for number in range(1, streams))]
    rows = {name: {"name": name, "configuration": text, **row} for name in names}
    scope.table.change(lambda state: (TableChange("FILL", changes=rows), None))
    wanted, made = ReaderGroupConfiguration(["bench/read"]), 0

    def once() -> float:
        nonlocal made
        made += 1
        name = f"bench/group-{made}"
        calls_before, begun = store.total, time.process_time()
        open_group(store, name).create(wanted)
        open_group(store, name).delete()
        spent = 1e3 * (time.process_time() - begun)
        made_calls = store.total - calls_before
        calls[streams] = min(made_calls, calls.get(streams, made_calls))
        return spent

    once()
    return once
