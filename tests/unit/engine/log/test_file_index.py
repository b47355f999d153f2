"""The index of live files finds the same files as a plain replay of the log."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_spark.config.descriptions import FileTotals
from pravega_spark.engine.log.actions import Add
from pravega_spark.engine.log.checkpoint import maintain
from pravega_spark.engine.log.commit import Log
from pravega_spark.engine.log.files import FileIndex, RecentLayer, cell_of
from pravega_spark.engine.log.stored_state import part_key, state_key
from pravega_spark.errors import CorruptLog
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.small_tables import (
    FILE_BYTES,
    add_ids,
    clean,
    event_add,
    put,
    table_log,
    versions,
)

SEGMENTS = (0, 1 << 32 | 1)
KINDS = (
    *("append", "append", "append", "append two", "truncate", "truncate", "compact", "compact"),
    *("state", "state", "state", "checkpoint", "tear", "clean", "again"),
)
ACTIONS = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 1), st.integers(0, 20), st.integers(1, 4)),
    min_size=12,
    max_size=60,
)
QUERIES = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 20), st.integers(1, 30)), min_size=3)


@dataclass
class Naive:
    """A table's files as a plain dict, by the definition of a Delta log."""

    live: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    made: int = 0

    def add(self, segment: int, base: int, rows: int, *, change: bool = True) -> Add:
        self.made += 1
        path = f"f{self.made}"
        self.live[path] = (segment, base, rows)
        return event_add(path, segment, base, rows, change=change)

    def append(self, segment: int, rows: int) -> Add:
        base = self.ends.get(segment, 0)
        self.ends[segment] = base + rows
        return self.add(segment, base, rows)

    def of(self, segment: int) -> list[str]:
        mine = [path for path, (s, _, _) in self.live.items() if s == segment]
        return sorted(mine, key=lambda path: self.live[path][1])

    def find(self, segment: int, start: int, end: int) -> list[str]:
        ranges = [(path, *self.live[path][1:]) for path in self.of(segment)]
        return [path for path, base, rows in ranges if base < end and base + rows > start]


def act(log: Log, runtime: FakeRuntime, naive: Naive, action: str, a: int, b: int, c: int) -> None:
    segment = SEGMENTS[a]
    newest = log.snapshot
    assert newest is not None
    chunks = naive.of(segment)
    if action == "append":
        put(log, action, [naive.append(segment, c)])
    elif action == "append two":
        put(log, action, [naive.append(s, c) for s in (*SEGMENTS, segment)])
    elif action == "truncate" and chunks:
        for path in chunks[:c]:
            del naive.live[path]
        put(log, action, removes=chunks[:c])
    elif action == "compact" and len(chunks) > 1:
        first = b % len(chunks)
        merged = chunks[first : first + c + 1]
        ranges = [naive.live.pop(path) for path in merged]
        rows = ranges[-1][1] + ranges[-1][2] - ranges[0][1]
        put(log, action, [naive.add(segment, ranges[0][1], rows, change=False)], merged)
    elif action == "state":
        maintain(log.reader, max(newest.retention_mark, newest.version - b // 8), checkpoint=False)
    elif action == "checkpoint":
        maintain(log.reader, max(newest.retention_mark, newest.version - b // 8), checkpoint=True)
    elif action == "tear":
        keys = [state_key(log.path, version) for version in log.reader.listed("state")]
        keys += [part_key(log.path, span) for span in log.reader.spans()]
        if keys:
            log.store.put(keys[b % len(keys)], b"torn")
    elif action == "clean":
        clean(log, runtime, max(newest.retention_mark, newest.version - b))


@pytest.mark.medium
@given(ACTIONS, QUERIES, st.booleans())
def test_index_over_any_layers_finds_the_same_files_as_a_plain_replay(
    actions: list[tuple[str, int, int, int]], queries: list[tuple[int, int, int]], is_large: bool
) -> None:
    runtime = FakeRuntime()
    store = memory(runtime)
    log, naive = table_log(store, runtime), Naive()
    if is_large:
        add_ids(log, 200)  # then most states are parts
    follower = Log(store, log.path, runtime)
    for action, a, b, c in actions:
        act(log, runtime, naive, action, a, b, c)
        if action == "again":
            follower.refresh()
            with follower.files() as files:
                files.find(SEGMENTS[a], b, b + c)

    follower.refresh()
    for opened in (log, follower, table_log(store, runtime)):
        with opened.files() as files:
            for a, start, length in queries:
                found = files.find(SEGMENTS[a], start, start + length)
                covered = [add.path for add in found]
                assert covered == naive.find(SEGMENTS[a], start, start + length)
                cells = files.cells(SEGMENTS[a], start, start + length)
                assert cells == [cell_of(add) for add in found]
            everything = [add.path for add in files.all()]
            totals = files.totals()
        assert sorted(everything) == sorted(naive.live)
        assert totals == FileTotals(len(everything), FILE_BYTES * len(everything))


def test_tail_is_found_without_loading_older_layers() -> None:
    layer = RecentLayer(8)
    layer.add(event_add("new", 0, 100, 5))

    def load(version: int) -> RecentLayer:
        raise AssertionError("an older layer was loaded")

    index = FileIndex(layer, load, where="t")
    assert [add.path for add in index.find(0, 101, 104)] == ["new"]
    with pytest.raises(AssertionError, match="older layer"):
        index.find(0, 99, 104)


def test_file_that_is_live_already_is_not_added_again() -> None:
    layer = RecentLayer(-1)
    layer.add(event_add("f", 0, 0, 1))
    with pytest.raises(AssertionError, match="f is added while it is live"):
        layer.add(event_add("f", 0, 1, 1))


def test_files_that_no_layer_holds_are_an_error_and_never_a_shorter_list() -> None:
    runtime = FakeRuntime()
    log = table_log(memory(runtime), runtime)
    for n in range(6):
        put(log, str(n), [event_add(f"f{n}", 0, n, 1)])
    assert clean(log, runtime, 4) == 3
    for folder in ("state", "checkpoint"):
        for entry in log.store.list(f"{log.path}/_pravega/{folder}"):
            log.store.put(entry.key, b"torn")

    with pytest.raises(CorruptLog, match=r"none of its state files or checkpoints is intact"):
        Log(log.store, log.path, runtime).refresh()
    assert versions(log)[:2] == [0, 4]
