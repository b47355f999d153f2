"""What a short-lived reader of an automatic group has read is released, however it ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pravega_spark.config.policies import RetentionPolicy, StreamConfiguration
from pravega_spark.engine.store import Store
from pravega_spark.errors import StoreError
from pravega_spark.integrity.root_integrity import check_root
from pravega_spark.manager import StreamManager, manager_over
from pravega_spark.reader_groups.reader import EventStreamReader
from pravega_spark.reader_groups.reader_group import ReaderGroup
from pravega_spark.reader_groups.silent_readers import SILENT, Silence, decode_silences
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.fault_plans import Rule
from tests.harness.spy_store import Spy

NAME, GROUP, LEASE = "s/t", "s/g", 60.0
RECORD = f"s/_reader_groups/g/_leases/{SILENT}"
TAIL = 10


class Root:
    """A root in memory with a stream of ten events that waits for an automatic group."""

    def __init__(self, **options: Any) -> None:
        self.clock = FakeRuntime()
        self.inner = memory(self.clock)
        self.manager = self.process()[1]
        self.manager.create_scope("s")
        kept = StreamConfiguration(retention=RetentionPolicy.by_consumption())
        for name in (NAME, "s/u"):
            self.manager.create_stream(name, kept)
            with self.manager.create_writer(name) as writer:
                writer.write_events([b"%d" % n for n in range(TAIL)], routing_key="k")
        options.setdefault("retention", "automatic")
        options.setdefault("streams", [NAME])
        self.group: ReaderGroup = self.manager.create_reader_group(GROUP, **options)

    def process(self) -> tuple[Spy, StreamManager]:
        """Return the store and the manager of a process that has seen nothing yet."""
        store = Spy(self.inner)
        return store, manager_over(store, self.clock)

    @property
    def fresh(self) -> StreamManager:
        return self.process()[1]

    def reader(self, count: int, **options: Any) -> EventStreamReader:
        """Return a reader in a process of its own that has read some events."""
        reader = self.fresh.reader_group(GROUP).create_reader("r", **options)
        for _ in range(count):
            assert reader.read_next_event(0).event
        return reader

    def reported(self, count: int) -> EventStreamReader:
        """Return a reader whose heartbeat reports all but the last of the events it has read."""
        reader = self.reader(count - 1)
        self.clock.sleep(LEASE / 3 + 1)
        assert reader.read_next_event(0).event
        return reader

    def cut(self, name: str = NAME) -> int:
        """Return from where the group holds the stream."""
        (found,) = self.manager.list_subscribers(name)
        assert found.cut is not None
        (offset,) = found.cut.positions.values()
        return offset

    def retain(self, manager: StreamManager | None = None) -> None:
        (manager or self.fresh).retention(NAME).run()


def begins(root: Root) -> int:
    """Return the first event that the group's next reader reads."""
    with root.fresh.reader_group(GROUP).create_reader("next") as reader:
        event = reader.read_next_event(0).event
        assert event is not None
        return int(event.data)


# ------------------------------------------------------------------------------- closing a reader


def test_last_reader_that_closes_releases_what_it_has_read() -> None:
    root = Root()
    root.reader(4).close()
    assert root.cut() == 4
    root.retain()
    assert root.manager.head(NAME).positions == {0: 4}
    assert begins(root) == 4


@pytest.mark.parametrize("acknowledge", ["next", "checkpoint"])
def test_block_that_fails_releases_only_what_was_acknowledged(acknowledge: str) -> None:
    root = Root(acknowledge=acknowledge)
    with pytest.raises(ZeroDivisionError), root.reader(4):
        raise ZeroDivisionError
    acknowledged = 3 if acknowledge == "next" else 0
    assert root.cut() == acknowledged
    assert begins(root) == acknowledged


def test_reader_that_is_not_the_last_leaves_the_checkpoint_to_the_others() -> None:
    root = Root()
    other = root.fresh.reader_group(GROUP).create_reader("other")
    root.reader(4).close()
    assert root.group.last_checkpoint() is None
    assert root.cut() == 0
    other.close()
    assert root.cut() == 4


@pytest.mark.parametrize("retention", ["manual", "none"])
def test_groups_of_another_retention_stay_as_they_are(retention: str) -> None:
    root = Root(retention=retention)
    root.reader(4).close()
    assert root.group.last_checkpoint() is None, "a reset would go to it"
    root.group.initiate_checkpoint().result(0)
    root.manager.repair_reader_groups()
    root.retain()
    assert [found.cut for found in root.manager.list_subscribers(NAME)] in (
        [],
        [root.manager.head(NAME)],
    )
    assert root.manager.head(NAME).positions == {0: 0}


def test_equal_positions_make_no_checkpoint_and_no_commit() -> None:
    root = Root()
    root.reader(4).close()
    first, published = root.group.last_checkpoint(), root.manager.list_subscribers(NAME)
    root.clock.sleep(1)
    root.reader(0).close()
    root.retain()
    root.manager.repair_reader_groups()
    assert root.group.last_checkpoint() == first
    assert root.manager.list_subscribers(NAME) == published, "also not at another time"


def test_group_that_nobody_has_read_gets_no_checkpoint() -> None:
    root = Root()
    root.retain()
    root.manager.repair_reader_groups()
    assert root.group.last_checkpoint() is None


def test_close_that_cannot_publish_does_not_fail_and_retention_publishes() -> None:
    root = Root()
    store, manager = root.process()
    reader = manager.reader_group(GROUP).create_reader("r")
    for _ in range(4):
        reader.read_next_event(0)
    store.rules.add(Rule(StoreError("down"), "put_if_absent", "s/t/events/_delta_log/*"))
    reader.close()
    assert root.cut() == 0
    root.retain()
    assert root.cut() == 4


# ------------------------------------------------------------------------ a reader that is removed


def test_reader_offline_releases_what_was_reported_and_up_to_a_position() -> None:
    root = Root()
    root.reported(4)
    assert root.group.reader_offline("r")
    assert root.cut() == 3
    last = root.reader(3)
    position = last.position
    last.read_next_event(0)
    assert root.group.reader_offline("r", position)
    assert root.cut() == 6


def expired_by_a_call(root: Root) -> None:
    root.clock.sleep(LEASE + 2)
    group = root.fresh.reader_group(GROUP)
    assert group.expire_readers() == []
    root.clock.sleep(LEASE + 2)
    assert group.expire_readers() == ["r"]


def expired_by_calls_of_two_processes(root: Root) -> None:
    root.clock.sleep(LEASE + 2)
    assert root.fresh.reader_group(GROUP).expire_readers() == []
    root.clock.sleep(LEASE + 2)
    assert root.fresh.reader_group(GROUP).expire_readers() == ["r"]


def expired_by_retention(root: Root) -> None:
    root.clock.sleep(LEASE + 2)
    root.retain()
    root.clock.sleep(LEASE + 2)
    root.retain()


def expired_by_repair(root: Root) -> None:
    root.clock.sleep(LEASE + 2)
    assert root.fresh.repair_reader_groups() == {}
    root.clock.sleep(LEASE + 2)
    assert root.fresh.repair_reader_groups() == {}


@pytest.mark.parametrize(
    "expire",
    [
        expired_by_a_call,
        expired_by_calls_of_two_processes,
        expired_by_retention,
        expired_by_repair,
    ],
)
def test_last_reader_that_dies_releases_what_it_has_reported(
    expire: Callable[[Root], None],
) -> None:
    root = Root()
    root.reported(4)
    expire(root)
    assert root.cut() == 3
    assert begins(root) == 3


def test_reader_that_takes_its_own_place_publishes_at_its_first_refresh() -> None:
    root = Root()
    root.reported(4)
    root.clock.sleep(LEASE + 2)
    group = root.fresh.reader_group(GROUP)
    assert group.expire_readers() == []
    root.clock.sleep(LEASE + 2)
    group.create_reader("r").read_next_event(0)
    assert root.cut() == 3


def test_close_in_a_group_that_observes_asks_its_streams_nothing() -> None:
    root = Root(retention="none")
    store, manager = root.process()
    reader = manager.reader_group(GROUP).create_reader("r")
    reader.read_next_event(0)
    store.calls.clear()
    reader.close()
    assert [key for _, key in store.calls if key.startswith(NAME)] == []


def test_buffer_of_a_dead_reader_is_not_released() -> None:
    root = Root(acknowledge="checkpoint")
    root.reported(4)
    expired_by_retention(root)
    assert root.group.online_readers() == []
    assert root.cut() == 0
    assert begins(root) == 0


def test_without_an_interval_close_releases_and_expiry_does_not() -> None:
    root = Root(checkpoint_interval=None)
    root.reported(4)
    expired_by_retention(root)
    assert root.group.online_readers() == []
    root.reader(0, lease=None)
    assert root.group.reader_offline("r"), "nor a call that says no more than an expiry does"
    root.retain()
    assert (root.cut(), root.group.last_checkpoint()) == (0, None)
    root.reader(2).close()
    assert root.cut() == 5
    position = root.reader(2).position
    assert root.group.reader_offline("r", position)
    assert root.cut() == 7


@pytest.mark.parametrize("by", ["retention", "repair"])
def test_what_a_last_reader_left_without_a_checkpoint_is_released_later(by: str) -> None:
    """As one of release 0.1.0 leaves it."""
    root = Root(checkpoint_interval=None)
    root.reported(4)
    expired_by_retention(root)
    assert (root.cut(), root.group.last_checkpoint()) == (0, None)
    root.group.update(checkpoint_interval="30 s")
    assert root.cut() == 0
    if by == "retention":
        root.retain()
    else:
        assert root.manager.repair_reader_groups() == {}
    assert root.cut() == 3


# ------------------------------------------------------------------------ checkpoints by hand


def test_result_publishes_the_newest_checkpoint_that_it_completed() -> None:
    root = Root(checkpoint_interval=None)
    reader = root.reader(3)
    pending = root.group.initiate_checkpoint("one")
    root.clock.sleep(4)
    assert reader.read_next_event(0).checkpoint == "one"
    reader._membership._publish_due = 1e9  # as if its process was killed before it publishes
    reader.read_next_event(0)
    assert pending.done()
    assert root.cut() == 0
    assert pending.result(0).name == "one"
    assert root.cut() == 3


def test_cuts_beyond_what_was_acknowledged_are_never_published() -> None:
    root = Root(acknowledge="checkpoint", checkpoint_interval=None)
    reader = root.reader(3)
    cuts = root.group.generate_stream_cuts()
    root.clock.sleep(4)
    reader.read_next_event(0)
    assert cuts.result(0).stream_cuts[NAME].positions == {0: 3}
    root.retain()
    assert root.manager.repair_reader_groups() == {}
    assert root.cut() == 0


def test_checkpoint_without_a_reader_is_published_once() -> None:
    root = Root(checkpoint_interval=None)
    root.reported(4)
    expired_by_retention(root)
    store, manager = root.process()
    pending = manager.reader_group(GROUP).initiate_checkpoint()
    assert root.cut() == 3
    store.calls.clear()
    pending.result(0)
    assert [key for _, key in store.calls if key.startswith(NAME)] == [], "once"


# --------------------------------------------------------------------------- judges that run once


def test_judge_that_runs_once_expires_nobody_and_one_a_lease_later_does() -> None:
    root = Root()
    root.reported(4)
    store: Store = root.inner
    root.clock.sleep(LEASE - 5)
    root.retain()
    assert RECORD not in [entry.key for entry in store.list("s/_reader_groups/g/_leases")]
    written_ms = root.clock.now_ms() - int(1_000 * (LEASE - 5))
    root.clock.sleep(8)
    root.retain()
    found_ms = root.clock.now_ms()
    (silence,) = (decode_silences(store.get(RECORD)) or {}).values()
    assert silence == Silence(1, written_ms, found_ms)
    for _ in range(3):
        root.clock.sleep(LEASE / 4)
        root.retain()
        assert decode_silences(store.get(RECORD)) == {"r": silence}, "the first one counts"
        assert root.group.online_readers() == ["r"]
    root.clock.sleep(LEASE / 4)
    root.retain()
    assert root.group.online_readers() == []
    assert RECORD not in [entry.key for entry in store.list("s/_reader_groups/g/_leases")]


def test_reader_that_was_silent_and_lives_is_judged_anew() -> None:
    root = Root()
    reader = root.reported(4)
    for _ in range(4):
        root.clock.sleep(LEASE + 2)
        root.retain()
        assert root.group.online_readers() == ["r"]
        reader.keep_alive()
    root.retain()
    assert not root.inner.exists(RECORD), "it names nobody any more"


def test_judge_whose_calls_fail_begins_again() -> None:
    root = Root()
    root.reported(4)
    root.clock.sleep(LEASE + 2)
    root.retain()
    root.clock.sleep(LEASE + 2)
    store, manager = root.process()
    group = manager.reader_group(GROUP)
    store.rules.add(Rule(StoreError("down"), "list", "*/_leases"))
    with pytest.raises(StoreError):
        group.expire_readers()
    store.rules.clear()
    assert group.expire_readers() == [], "the outage may have lasted since the record"
    root.clock.sleep(LEASE + 2)
    assert group.expire_readers() == ["r"]


def test_torn_record_is_named_by_fsck_and_written_again() -> None:
    root = Root()
    root.reported(4)
    root.clock.sleep(LEASE + 2)
    root.retain()
    root.inner.put(RECORD, b"{")
    (torn,) = [note for found in check_root(root.inner) for note in found.rebuilt]
    assert torn.path == RECORD
    root.retain()
    assert [note for found in check_root(root.inner) for note in found.rebuilt] == []


def test_record_is_deleted_with_its_group() -> None:
    root = Root()
    root.reported(4)
    root.clock.sleep(LEASE + 2)
    root.retain()
    root.manager.delete_reader_group(GROUP)
    assert root.inner.list("s/_reader_groups/g/_leases") == []


# -------------------------------------------------------------------------- what maintenance opens


def group_calls(store: Spy) -> set[str]:
    return {key.split("/")[2] for _, key in store.calls if "_reader_groups/" in key}


def test_retention_opens_only_groups_that_hold_events_of_its_stream() -> None:
    root = Root()
    manager = root.manager
    manager.create_reader_group("s/other", ["s/u"], retention="automatic")
    manager.create_reader_group("s/manual", [NAME], retention="manual")
    manager.create_reader_group("s/observer", [NAME])
    manager.create_reader_group("s/done", {NAME: "latest"}, retention="automatic")
    store, fresh = root.process()
    root.retain(fresh)
    assert group_calls(store) == {"g", "manual"}, "it learns the retention of each once"
    store.calls.clear()
    root.retain(fresh)
    assert group_calls(store) == {"g"}


def test_retention_by_time_opens_no_group() -> None:
    root = Root()
    root.manager.update_stream(
        NAME, StreamConfiguration(retention=RetentionPolicy.by_time("1 day"))
    )
    store, fresh = root.process()
    root.retain(fresh)
    assert group_calls(store) == set()


def maintained(root: Root) -> int:
    found = root.fresh.maintain(kinds=["retention"])
    assert found.failures == {}
    return sum(kind.figures["truncated"] for kind in found.kinds.values())


def test_idle_stream_is_due_while_an_automatic_group_holds_events() -> None:
    root = Root()
    for _ in range(3):
        assert maintained(root) == 0
        root.clock.sleep(600)
    root.reported(4)  # it comes, reads and dies without a commit of the stream
    truncated = []
    for _ in range(3):
        root.clock.sleep(600)
        truncated.append(maintained(root))
    assert truncated == [0, 1, 0], "the first round finds it silent"
    assert root.manager.head(NAME).positions == {0: 3}


def test_runs_of_a_groups_streams_release_each_its_own() -> None:
    root = Root(streams=[NAME, "s/u"])
    reader = root.reader(14)
    root.clock.sleep(LEASE / 3 + 1)
    assert reader.read_next_event(0).event
    expired_by_retention(root)
    assert root.cut() in (4, TAIL)
    assert root.cut("s/u") == 0, "it has runs of its own"
    assert maintained(root) == 1
    assert root.cut() + root.cut("s/u") == 14


def test_group_that_cannot_be_opened_fails_and_the_stream_is_truncated_all_the_same() -> None:
    root = Root()
    root.manager.create_reader_group("s/h", [NAME], retention="automatic")
    root.reader(4).close()
    with root.manager.reader_group("s/h").create_reader("r") as reader:
        for _ in range(3):
            reader.read_next_event(0)
    root.inner.put("s/_reader_groups/h/_delta_log/00000000000000000000.json", b"{")
    root.inner.delete(
        [
            entry.key
            for entry in root.inner.list("s/_reader_groups/h/_delta_log")
            if not entry.key.endswith("/00000000000000000000.json")
        ]
    )
    found = root.fresh.maintain(kinds=["retention"])
    assert any("reader group s/h" in what for what in found.failures), found.failures
    assert root.manager.head(NAME).positions == {0: 3}
