"""Archived records of a stream: a backup copies those of writers, a restore brings them back."""

from __future__ import annotations

import pytest

from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.stream.archived_records import find_writer
from pravega_spark.engine.writing.identity import (
    BatchOrigin,
    BatchSource,
    NumberedBatch,
    SessionBatch,
    open_session,
    origin_of,
)
from pravega_spark.errors import PravegaSparkError
from tests.harness.backup_world import World, copy_objects, manager_of, stream_of
from tests.harness.small_streams import write


class _FromQuery(BatchSource):
    """A batch of a query whose sources end somewhere."""

    def origin(self, known: BatchOrigin | None) -> BatchOrigin:
        return BatchOrigin("q", "run", 7, "ends")


FROM_QUERY = _FromQuery()


def swept() -> World:
    """Return a world whose sweep has archived the records of its writers."""
    world = World(0)
    record = open_session(world.stream, 1, "w")
    write(world.stream, [("k", b"1")], SessionBatch("w", record.session, 0, 3, "note"))
    write(world.stream, [("k", b"1")], NumberedBatch("query", 7, FROM_QUERY))
    world.runtime.sleep(10 * 3_600)
    world.grow(3)
    world.manager.sweep_stream("s/t", grace="1 h", retain="1 h", keep_records="1 h")
    assert world.stream.view().writer("w") is None
    return world


def test_backup_knows_writers_with_archived_records() -> None:
    world = swept()
    copy = MemoryStore()
    world.manager.backup(copy.url, "s/t")
    record = open_session(stream_of(copy), 1, "w")
    assert (record.session, record.last, record.note) == (2, 3, "note")
    assert write(stream_of(copy), [("k", b"x")], NumberedBatch("query", 7)).duplicate


def test_archives_backups_and_restores_keep_where_a_batch_came_from() -> None:
    world = swept()
    copy = MemoryStore()
    world.manager.backup(copy.url, "s/t")
    restored = copy_objects(copy)
    manager_of(restored).restore()
    for stream in (world.stream, stream_of(copy), stream_of(restored)):
        known = find_writer(stream, stream.view(), "query")
        assert origin_of(known) == BatchOrigin("q", "run", 7, "ends")


def test_backup_omits_archived_records_of_removed_subscribers() -> None:
    world, copy = World(0), MemoryStore()
    world.manager.create_reader_group("s/g", ["s/t"], retention="automatic")
    world.manager.delete_reader_group("s/g")
    world.grow(2)
    world.runtime.sleep(10 * 3_600)
    world.grow(3)
    world.manager.sweep_stream("s/t", grace="1 h", retain="1 h", keep_records="1 h")
    assert world.stream.view().subscriber("s/g") is None
    world.manager.backup(copy.url)
    opened = manager_of(copy)
    opened.create_reader_group("s/g", ["s/t"], retention="automatic")
    assert [subscriber.name for subscriber in opened.list_subscribers("s/t")] == ["s/g"]


def test_restored_stream_knows_writers_with_archived_records() -> None:
    world = swept()
    target = copy_objects(world.store)
    manager_of(target).restore()
    stream = stream_of(target)
    record = open_session(stream, stream.view().life, "w")
    assert (record.session, record.last, record.note) == (2, 3, "note")
    assert "pravega.moved" not in stream.view().snapshot.domains
    with pytest.raises(PravegaSparkError):
        write(stream, [("k", b"x")], NumberedBatch("query", 9))
