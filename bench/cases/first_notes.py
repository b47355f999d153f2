"""The first note of a writer beside the marks of many others: it looks at all, and locates none."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from bench.harness.context import Context
from bench.harness.counting_store import CountingStore
from bench.harness.dataset import EVENT
from bench.harness.figures import Figure
from bench.harness.measure import Side, interleave
from bench.harness.registry import benchmark
from pravega_spark.config.descriptions import WriterMark
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.store import open_store
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.watermarks import MARK_PREFIX, WATERMARK_PREFIX, encode_mark
from pravega_spark.event_time.stream_time import StreamTime
from pravega_spark.values.segments import StreamCut

_MANY, _FEW = 2_000, 200
_SHOWN_MS = 1_000_000


@benchmark()
def first_notes(context: Context) -> Iterator[Figure]:
    """Writers that are new note a time after, or before, the bound that all others show."""
    for when, time_ms in (("later", 2 * _SHOWN_MS), ("earlier", 1)):
        calls: dict[int, int] = {}
        sides = {
            str(writers): _first_note(context, writers, when, time_ms, calls)
            for writers in (_MANY, _FEW)
        }
        interleave(3, sides)
        found = interleave(context.size(30, 3), sides)
        yield Figure.of_rounds(
            f"a writer's first note beside {_MANY:,} others, {when} than theirs, CPU",
            found[str(_MANY)],
            "ms",
            f"beside {_FEW} others",
            found[str(_FEW)],
            note=f"storage calls {calls[_MANY]} and {calls[_FEW]}",
            limited_by="a look at the time of every mark",
        ).within(at_most=5.0, ratio_at_most=12.0)


def _first_note(
    context: Context, writers: int, when: str, time_ms: int, calls: dict[int, int]
) -> Side:
    """Return a side that notes for a new writer, and takes back what that changed."""
    name = context.create(f"{when}-than-{writers}")
    store = CountingStore(open_store(context.root))
    stream = StreamLog(store, name)
    with context.manager.create_writer(name) as writer:
        writer.write_events([EVENT] * writers, routing_key="key")
    (segment_id,) = stream.view().tail.positions

    def mark(number: int) -> str:
        cut = StreamCut(name, 1, {segment_id: number + 1})
        return encode_mark(WriterMark("", 1_000 * (_SHOWN_MS + number), cut, 1, True))

    _commit(stream, {f"{MARK_PREFIX}old-{number}": mark(number) for number in range(writers)})
    event_time = StreamTime(stream, 1)

    def note() -> float:
        calls_before, begun = store.total, time.process_time()
        event_time.note("new", time_ms)
        spent = 1e3 * (time.process_time() - begun)
        calls[writers] = store.total - calls_before
        recorded = list(stream.view().snapshot.names(WATERMARK_PREFIX))
        _commit(stream, {f"{MARK_PREFIX}new": None} | dict.fromkeys(recorded))
        return spent

    return note


def _commit(stream: StreamLog, domains: Mapping[str, str | None]) -> None:
    stream.commit(lambda view: (Body("BENCH", domains=dict(domains)), None), life=1)
