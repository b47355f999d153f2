"""The open streams of a process: of somewhat more than it keeps, it finds most again."""

from __future__ import annotations

import pytest

from pravega_spark.engine.runtime import SYSTEM, Runtime
from pravega_spark.engine.store import Store
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.stream import open_streams
from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.engine.stream.stream_log import StreamLog


@pytest.mark.parametrize(("count", "most_share"), [(100, 0.0), (103, 0.3), (1_000, 1.0)])
def test_a_scan_of_somewhat_more_streams_than_are_kept_opens_few_again(
    count: int, most_share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = 0

    class Counted(StreamLog):
        def __init__(self, store: Store, name: str, runtime: Runtime = SYSTEM) -> None:
            nonlocal opened
            opened += 1
            super().__init__(store, name, runtime)

    monkeypatch.setattr(open_streams, "OPEN_STREAMS", 100)
    monkeypatch.setattr(open_streams, "StreamLog", Counted)
    monkeypatch.setattr(open_streams, "_open", open_streams._OpenStreams())
    store, names = MemoryStore(), [f"s/{number}" for number in range(count)]
    for name in names:
        open_stream(store, name)
    opened = 0
    for _ in range(5):
        for name in names:
            assert open_stream(store, name).name == name
    assert opened <= 5 * count * most_share
    assert len(open_streams._open._kept) <= 100
