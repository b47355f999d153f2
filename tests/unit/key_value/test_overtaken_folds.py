"""A fold that others overtake, and the cut of a fold whose segments were split and truncated."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from pravega_spark import StreamManager
from pravega_spark.engine.layout.epochs import split
from pravega_spark.engine.log.retained import raise_horizon
from pravega_spark.engine.log.sweep import sweep_table
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.truncation import truncate
from pravega_spark.errors import TooBusy, TruncatedData
from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from pravega_spark.key_value.fold import fold
from pravega_spark.key_value.folded_table import FoldedTable, folded_table
from pravega_spark.key_value.shared_table import table_configuration
from pravega_spark.key_value.snapshot import table_snapshot
from pravega_spark.manager import root_of
from pravega_spark.retention.run import RetentionOptions, run_retention
from pravega_spark.scaling.commit import scale_stream
from pravega_spark.values.segments import KeyRange
from tests.harness.failpoints import at_failpoint, register
from tests.harness.fake_runtime import FakeRuntime, manager_of
from tests.harness.releases import run_release

T, LOG = "s/t", "s/_kv_tables/t"


class Table:
    """A table in the hands of processes that each open it anew."""

    def __init__(self) -> None:
        self.runtime = FakeRuntime()
        self.manager = manager_of(self.runtime)
        self.manager.create_scope("s")
        self.manager.create_key_value_table(T, KeyValueTableConfiguration("string"))

    def opened(self) -> tuple[StreamLog, FoldedTable]:
        log = StreamLog(root_of(self.manager).store, LOG, self.runtime)
        return log, folded_table(log, table_configuration(log.view()))

    def put(self, key: str) -> None:
        self.manager.key_value_table(T).put(key, b"1").result()

    def fold(self) -> Any:
        return fold(*self.opened())

    def split(self, parts: int = 2) -> None:
        log, _ = self.opened()
        split_all(log, parts)

    def retain(self) -> None:
        """Truncate what is folded, and delete its files at once."""
        log, _ = self.opened()
        run_retention(log, RetentionOptions(root={}))
        sweep_table(log.log, grace_ms=0, retain_ms=0)

    def keys(self) -> list[str]:
        """Return the keys as a process finds them that opens the table now, by both ways."""
        manager = StreamManager(self.manager.root, runtime=self.runtime)
        found = [entry.key for entry in manager.key_value_table(T).entries()]
        snapshot = table_snapshot(self.opened()[0])
        folded = [] if snapshot.folded is None else list(snapshot.folded.entries())
        assert len(folded) + snapshot.changes >= len(found)
        return sorted(str(key) for key in found)


def split_all(log: StreamLog, parts: int) -> None:
    view = log.view()
    scale_stream(log, view.active.segment_ids, split(KeyRange(0.0, 1.0), parts), life=1)


@pytest.fixture
def table() -> Table:
    return Table()


@pytest.mark.parametrize("splits", ["before the publish", "after the publish"])
def test_a_table_opens_whose_fold_ends_at_segments_that_were_split_and_truncated(
    table: Table, splits: str
) -> None:
    table.put("a")
    if splits == "before the publish":
        with at_failpoint("fold.publish", table.split):
            table.fold()
    else:
        table.fold()
        table.split()
    table.retain()
    log, folded = table.opened()
    assert [offset for _, offset in log.view().head] == [0, 0]
    assert table.keys() == ["a"]
    table.put("b")
    assert table.keys() == ["a", "b"]
    assert table.fold().events == 1
    assert table.keys() == ["a", "b"]
    table.retain()
    assert log.view().oldest_epoch == 1, "what no fold names any more is forgotten"
    table.split(1)
    table.put("c")
    table.split(3)
    table.retain()
    assert table.keys() == ["a", "b", "c"]
    assert folded.read() is not None


def test_a_truncation_past_the_fold_is_a_loss(table: Table) -> None:
    table.put("a")
    table.fold()
    table.put("b")
    table.split()
    log, _ = table.opened()
    truncate(log, log.view().tail, past_subscribers=True)
    with pytest.raises(TruncatedData):
        table.keys()
    with pytest.raises(TruncatedData):
        table.fold()


def test_a_fold_that_is_overtaken_between_its_two_reads_begins_again(table: Table) -> None:
    table.put("a")

    def overtake() -> None:
        table.put("b")
        table.fold()
        table.retain()
        table.put("c")

    with at_failpoint("fold.view", overtake):
        done = table.fold()
    assert done.events == 1
    assert done.is_published
    assert table.keys() == ["a", "b", "c"]


def test_a_fold_whose_changes_another_one_folds_and_truncates_begins_again(table: Table) -> None:
    table.put("a")
    table.fold()
    table.put("b")
    log, folded = table.opened()
    read = folded.read

    def overtaken(*args: Any) -> Any:
        found = read(*args)
        patched.stop()
        table.fold()
        table.retain()
        table.put("c")
        return found

    patched = mock.patch.object(folded, "read", overtaken)
    patched.start()
    assert fold(log, folded).is_published
    assert table.keys() == ["a", "b", "c"]


def test_a_fold_that_could_not_commit_lets_nothing_be_truncated(table: Table) -> None:
    for key in "ab":
        table.put(key)
        table.fold()
    table.put("c")

    def pass_the_staged_files() -> None:
        log = table.opened()[1].log
        for _ in range(2):  # as two sweeps do whose grace is shorter than the fold
            newest = log.refresh()
            assert newest is not None
            raise_horizon(log, newest.version)

    with at_failpoint("fold.written", pass_the_staged_files):
        done = table.fold()
    assert (done.merge.is_committed, done.is_published) == (False, False)
    table.retain()
    assert table.keys() == ["a", "b", "c"]


def test_a_fold_that_is_always_overtaken_gives_up_and_changes_nothing(table: Table) -> None:
    done: list[str] = []

    def overtake() -> None:
        register("fold.view", None)  # the fold that overtakes is not overtaken itself
        done.append(f"k{len(done):02}")
        table.put(done[-1])
        table.fold()
        register("fold.view", overtake)

    register("fold.view", overtake)
    try:
        with pytest.raises(TooBusy, match="table s/t was folded by other processes"):
            table.fold()
    finally:
        register("fold.view", None)
    assert table.keys() == done


LOSE = """
import sys
import pravega_spark
import pravega_spark.errors
from pravega_spark.engine.layout.epochs import split
from pravega_spark.engine.stream import subscribers
from pravega_spark.key_value import fold as module
from pravega_spark.key_value.folded_source import folded_table
from pravega_spark.key_value.table_configuration import KeyValueTableConfiguration
from pravega_spark.model import KeyRange
from pravega_spark.retention.retention_options import RetentionOptions
from pravega_spark.retention.retention_run import run_retention
from pravega_spark.scaling.scale_commit import scale_stream
manager = pravega_spark.StreamManager(sys.argv[1])
manager.create_scope("s")
publish = subscribers.publish
for name in ("s/after", "s/before"):
    manager.create_key_value_table(name, KeyValueTableConfiguration("string"))
    table = manager.key_value_table(name)
    table.put("a", b"1").result()
    log = table._stream
    def scale():
        view = log.view()
        scale_stream(log, view.active.segment_ids, split(KeyRange(0.0, 1.0), 2), life=1)
    def publish_late(*args, **named):
        scale()
        return publish(*args, **named)
    if name == "s/before":
        subscribers.publish = publish_late
    module.fold(log, folded_table(log, table.configuration))
    if name == "s/after":
        scale()
    run_retention(log, RetentionOptions(root={}))
    try:
        pravega_spark.StreamManager(sys.argv[1] + "/.").key_value_table(name).get("a")
    except pravega_spark.errors.TruncatedData:
        print("lost", name)
"""
READ = """
import sys
import pravega_spark
manager = pravega_spark.StreamManager(sys.argv[1])
for name in ("s/after", "s/before"):
    with manager.key_value_table(name) as table:
        table.put("c", b"3").result()
        print(sorted(entry.key for entry in table.entries()))
"""


@pytest.mark.medium
def test_tables_that_the_release_before_could_not_open_are_opened_and_healed(
    tmp_path: Path,
) -> None:
    assert run_release("0.1.0", LOSE, tmp_path) == "lost s/after\nlost s/before\n"
    manager = StreamManager(tmp_path)
    for name in ("s/after", "s/before"):
        with manager.key_value_table(name) as table:
            assert [entry.key for entry in table.entries()] == ["a"]
            table.put("b", b"2").result()
            log = table._stream
            assert fold(log, folded_table(log, table.configuration)).is_published
    manager.backup(tmp_path.parent / f"{tmp_path.name}-copy")
    expected = "['a', 'b', 'c']\n"
    assert run_release("0.1.0", READ, tmp_path) == expected * 2


def test_the_release_before_reads_what_a_split_fold_left_here(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    for name in ("s/after", "s/before"):
        manager.create_key_value_table(name, KeyValueTableConfiguration("string"))
        with manager.key_value_table(name) as table:
            table.put("a", b"1").result()
            log = table._stream
            fold(log, folded_table(log, table.configuration))
            split_all(log, 2)
            run_retention(log, RetentionOptions(root={}))
            table.put("b", b"2").result()
    assert run_release("0.1.0", READ, tmp_path) == "['a', 'b', 'c']\n" * 2
