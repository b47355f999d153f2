"""Reader groups: what refreshes of the group's state cost its reader, on slow storage."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from typing import cast

from bench.harness.context import SCOPE, Context
from bench.harness.dataset import backlog
from bench.harness.figures import Figure
from bench.harness.measure import Side, interleave, percentile, timed
from bench.harness.registry import benchmark
from bench.harness.slow_store import SlowStore
from pravega_spark import ReaderGroup
from pravega_spark.engine.store import Store, open_store
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.reader_groups.lifecycle import GroupLifecycle

_DELAY_SECONDS = 0.030
_PAUSE_SECONDS = 0.002
"""The work of a slow application on an event; a fast one has none."""
_REFRESHES = {"refreshing": 0.05, "quiet": 3_600.0}
"""The interval of refreshes of each side, in seconds."""
_numbers = count()


def _reading(context: Context, refresh: float, pause_seconds: float, events: int) -> Side:
    """Return a side that reads ``events`` events of a backlog: the p99 of a call, in ms."""
    stream, _ = backlog(context)
    name = f"{SCOPE}/refreshed-{next(_numbers)}"
    context.manager.create_reader_group(name, [stream], refresh=refresh, checkpoint_interval=None)
    slow = SlowStore(open_store(context.root))
    store = cast(Store, slow)
    streams = {stream: StreamLog(store, stream)}
    group = ReaderGroup(GroupLifecycle(store, name, streams.__getitem__))
    reader = group.create_reader("one", lease=5.0)

    def read() -> None:
        assert reader.read_next_event(60.0).event is not None

    def p99() -> float:
        slow.delay_seconds = 0.0
        read()
        slow.delay_seconds = _DELAY_SECONDS
        seconds = []
        for _ in range(events):
            seconds.append(timed(read))
            if pause_seconds:
                time.sleep(pause_seconds)
        return 1e3 * percentile(seconds, 0.99)

    return p99


@benchmark()
def group_refresh(context: Context) -> Iterator[Figure]:
    """The p99 of ``read_next_event`` while refreshes follow one another, against without them."""
    events = context.size(20_000, 500)
    fast = {name: _reading(context, refresh, 0.0, events) for name, refresh in _REFRESHES.items()}
    found = interleave(context.size(10, 1), fast)
    yield Figure.of_rounds(
        "read_next_event during refreshes, 30 ms for each storage call, p99",
        found["refreshing"],
        "ms",
        "the same without refreshes",
        found["quiet"],
        note="a wrapper delays the calls of a local disk; the reader takes events as fast as it "
        "can, with a refresh in flight most of the time",
    ).within(ratio_at_most=1.2)
    events = context.size(1_000, 50)
    slow = {
        n: _reading(context, refresh, _PAUSE_SECONDS, events) for n, refresh in _REFRESHES.items()
    }
    found = interleave(context.size(10, 1), slow)
    yield Figure.of_rounds(
        "the same with an event every 2 ms",
        found["refreshing"],
        "ms",
        "the same without refreshes",
        found["quiet"],
        note="every 20th call begins or adopts a refresh, so the p99 is that of such a call",
        limited_by="waking a thread and adopting the state, once in each refresh",
    ).within(at_most=1.0)
