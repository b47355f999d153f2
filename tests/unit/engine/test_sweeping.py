from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pravega_spark.engine.append import Succession
from pravega_spark.engine.stream import Stream
from pravega_spark.engine.sweeping import SweepResult, sweep, version_at
from pravega_spark.engine.writers import anonymous_id
from pravega_spark.errors import CommitUnknown
from tests.support import (
    FakeRuntime,
    again,
    all_events,
    at_crash_point,
    make_stream,
    memory,
    staged,
    versions,
    write,
)

HOUR_MS = 3_600_000


def stream_of() -> tuple[FakeRuntime, Stream]:
    runtime = FakeRuntime()
    return runtime, make_stream(memory(runtime), runtime)


def sweep_now(stream: Stream, hours: int = 2) -> SweepResult:
    return sweep(again(stream), grace_ms=hours * HOUR_MS, retain_ms=hours * HOUR_MS)


def test_version_at_a_time_is_the_newest_one_committed_by_then() -> None:
    runtime, stream = stream_of()
    for n in range(5):
        runtime.sleep(60)
        write(stream, [("k", b"%d" % n)])
    now = runtime.now_ms()
    assert version_at(stream, now) == 5
    assert version_at(stream, now - 60_000) == 4
    assert version_at(stream, now - 60_001) == 3
    assert version_at(stream, 0) == 0


def test_log_of_a_stream_that_is_always_written_and_swept_does_not_grow_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pravega_spark.engine.hygiene.CHECKPOINT_COMMITS", 32)
    runtime, stream = stream_of()
    kept = []
    for hour in range(40):
        for n in range(6):
            write(stream, [("k", b"%d" % (6 * hour + n))])
            runtime.sleep(600)
            if n in (2, 5):
                sweep_now(stream)  # twice an hour: more often than a mark must stand
        kept.append(len(versions(stream.log)))
    assert max(kept[20:]) < 120 < stream.view().version
    assert versions(stream.log)[0] == 0
    assert [event for _, event in all_events(again(stream))] == [b"%d" % n for n in range(240)]


def test_never_committed_files_go_after_the_grace_and_not_before() -> None:
    runtime, stream = stream_of()
    for n in range(3):
        write(stream, [("k", b"%d" % n)])
    staged(stream, [("k", b"never")])
    runtime.sleep(3_600)
    for n in range(3):
        write(stream, [("k", b"%d" % n)])
    assert sweep_now(stream).files == 0
    runtime.sleep(7_200)
    for n in range(3):
        write(stream, [("k", b"%d" % n)])
    result = sweep_now(stream)
    assert result.files == 1
    assert len(all_events(stream)) == 9


def test_idle_stream_is_left_alone() -> None:
    runtime, stream = stream_of()
    write(stream, [("k", b"x")])
    for _ in range(5):
        runtime.sleep(24 * 3_600)
        sweep_now(stream)
    assert stream.view().version <= 2


def test_writers_without_an_id_leave_the_state_and_become_history() -> None:
    runtime, stream = stream_of()
    names = [anonymous_id(n, f"token{n}") for n in range(4)]
    for name in names:
        write(stream, [("k", b"x")], Succession(name, 0, 0, 1))
    runtime.sleep(3 * 3_600)
    assert sweep_now(stream).writers == 3  # the newest one's last commit is the horizon
    assert [name for name in names if again(stream).view().writer(name)] == names[3:]
    with pytest.raises(CommitUnknown, match="open a new writer"):
        write(stream, [("k", b"y")], Succession(names[0], 0, 1, 2))
    (entry,) = stream.store.list("s/t/metadata/data")
    rows = pq.read_table(pa.BufferReader(stream.store.get(entry.key))).to_pylist()
    assert sorted(row["name"] for row in rows) == [f"pravega.writer.{name}" for name in names[:3]]


@pytest.mark.parametrize("point", ["sweep.history", "sweep.delete"])
def test_two_sweeps_at_once_do_no_harm(point: str) -> None:
    runtime, stream = stream_of()
    for n in range(3):
        staged(stream, [("k", b"never")])
        write(stream, [("k", b"%d" % n)], Succession(anonymous_id(n, f"t{n}"), 0, 0, 1))
    runtime.sleep(3 * 3_600)
    with at_crash_point(point, lambda: sweep_now(stream)):
        sweep_now(stream)
    assert len(all_events(again(stream))) == 3
    assert len(stream.store.list(f"{stream.path}/data")) == 3
