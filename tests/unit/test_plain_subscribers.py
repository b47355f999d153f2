"""Plain subscribers: consumers without a reader group that hold a stream's data."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from pravega_spark import RetentionPolicy, StreamConfiguration, StreamManager, SubscriberInfo
from pravega_spark.errors import (
    GenerationMismatch,
    HeldBySubscriber,
    InvalidName,
    InvalidStreamCut,
    NoSuchStream,
    NoSuchSubscriber,
    TruncatedData,
)
from pravega_spark.manager import root_of
from pravega_spark.values.segments import StreamCut
from tests.harness.backup_world import copy_objects
from tests.harness.backup_world import manager_of as copy_manager_of
from tests.harness.failpoints import at_failpoint
from tests.harness.fake_runtime import FakeRuntime, manager_of
from tests.harness.warm_children import FORKED

S, NIGHTLY = "s/t", "nightly-batch"
KEEP = StreamConfiguration(retention=RetentionPolicy.by_consumption())


@pytest.fixture
def runtime() -> FakeRuntime:
    return FakeRuntime()


@pytest.fixture
def manager(runtime: FakeRuntime) -> StreamManager:
    """A manager with a stream of ten events that keeps what its subscribers need."""
    made = manager_of(runtime)
    made.create_scope("s")
    made.create_stream(S, KEEP)
    write(made, 10)
    return made


def write(manager: StreamManager, count: int) -> None:
    with manager.create_writer(S) as writer:
        writer.write_events([b"%d" % n for n in range(count)])


def at(offset: int, life: int = 1) -> StreamCut:
    return StreamCut(S, life, {0: offset})


def only(manager: StreamManager) -> SubscriberInfo:
    (found,) = manager.list_subscribers(S)
    return found


def version(manager: StreamManager) -> int:
    return manager.stream_info(S).version


def test_subscriber_holds_from_the_head_of_its_own_commit(manager: StreamManager) -> None:
    manager.truncate_stream(S, at(2))
    with at_failpoint("commit.before", lambda: manager.truncate_stream(S, at(4))):
        assert manager.subscribe(S, NIGHTLY) == 0
    assert (only(manager).cut, only(manager).published_ms) == (at(4), None)
    with pytest.raises(HeldBySubscriber, match="subscriber nightly-batch is protected") as held:
        manager.truncate_stream(S, at(5))
    assert held.value.subscribers == (NIGHTLY,)
    assert manager.retention(S).run().explanation.held_by == f"subscriber {NIGHTLY}"
    assert manager.publish(S, NIGHTLY, at(7))
    manager.retention(S).run()
    assert manager.head(S) == at(7)


def test_subscriber_holds_from_a_given_start(manager: StreamManager) -> None:
    manager.subscribe(S, NIGHTLY, at(6))
    manager.subscribe(S, "tailing", "latest")
    manager.retention(S).run()
    assert manager.head(S) == at(6)
    assert [found.cut for found in manager.list_subscribers(S)] == [at(6), at(10)]
    with pytest.raises(InvalidStreamCut):
        manager.subscribe(S, "beyond", at(11))
    with pytest.raises(TruncatedData):
        manager.subscribe(S, "passed", at(1))


def test_second_subscription_commits_nothing_and_moves_nothing(manager: StreamManager) -> None:
    assert manager.subscribe(S, NIGHTLY) == 0
    manager.publish(S, NIGHTLY, at(5))
    before = version(manager), only(manager)
    assert manager.subscribe(S, NIGHTLY) == 0
    assert manager.subscribe(S, NIGHTLY, at(1)) == 0
    assert not manager.publish(S, NIGHTLY, at(5))
    assert (version(manager), only(manager)) == before


def test_removed_subscriber_returns_in_the_next_generation(manager: StreamManager) -> None:
    assert not manager.unsubscribe(S, NIGHTLY)
    assert manager.subscribe(S, NIGHTLY) == 0
    manager.publish(S, NIGHTLY, at(5))
    assert manager.unsubscribe(S, NIGHTLY)
    before = version(manager)
    assert not manager.unsubscribe(S, NIGHTLY)
    assert version(manager) == before
    assert manager.list_subscribers(S) == []
    with pytest.raises(NoSuchSubscriber, match="nightly-batch is not a subscriber of stream s/t"):
        manager.publish(S, NIGHTLY, at(6))
    assert manager.subscribe(S, NIGHTLY) == 2, "the removal was generation 1"
    assert (only(manager).cut, only(manager).published_ms) == (at(0), None)


def test_calls_with_a_generation_that_is_not_newer_do_nothing(manager: StreamManager) -> None:
    assert manager.subscribe(S, NIGHTLY, generation=3) == 3
    before = version(manager)
    for late in (2, 3):
        assert manager.subscribe(S, NIGHTLY, at(4), generation=late) == 3
    assert not manager.unsubscribe(S, NIGHTLY, generation=2)
    assert version(manager) == before
    for wrong in (2, 4):
        with pytest.raises(GenerationMismatch, match="generation 3") as raised:
            manager.publish(S, NIGHTLY, at(4), generation=wrong)
        assert (raised.value.subscriber, raised.value.current_generation) == (NIGHTLY, 3)
    assert manager.publish(S, NIGHTLY, at(4), generation=3)
    assert manager.subscribe(S, NIGHTLY, generation=4) == 4
    assert only(manager).cut == at(4), "a renewed subscriber keeps its cut"
    assert manager.subscribe(S, NIGHTLY, at(1), generation=5) == 5
    assert only(manager).cut == at(1)
    assert manager.unsubscribe(S, NIGHTLY, generation=6)
    assert manager.subscribe(S, NIGHTLY, generation=6) == 6
    assert manager.list_subscribers(S) == [], "a late subscription does nothing"


def test_subscriber_does_not_go_back(manager: StreamManager) -> None:
    manager.subscribe(S, NIGHTLY)
    manager.publish(S, NIGHTLY, at(5))
    with pytest.raises(InvalidStreamCut, match="Unsubscribe and subscribe to start again"):
        manager.publish(S, NIGHTLY, at(4))


def test_name_of_a_reader_group_is_refused_with_the_next_step(manager: StreamManager) -> None:
    group = manager.create_reader_group("s/g", [S], retention="manual")
    for call in (
        lambda: manager.subscribe(S, "s/g"),
        lambda: manager.unsubscribe(S, "s/g"),
        lambda: manager.publish(S, "s/g", at(4)),
    ):
        with pytest.raises(InvalidName, match=r'create the reader group with retention="manual"'):
            call()
    manager.subscribe(S, "g")
    group.publish({S: at(3)})
    manager.publish(S, "g", at(6))
    assert {f.name: f.cut for f in manager.list_subscribers(S)} == {"g": at(6), "s/g": at(3)}
    manager.delete_reader_group("s/g")
    assert [found.name for found in manager.list_subscribers(S)] == ["g"]


def test_silent_plain_subscriber_is_released_only_by_expiry(
    manager: StreamManager, runtime: FakeRuntime
) -> None:
    manager.subscribe(S, NIGHTLY, at(4))
    runtime.sleep(30 * 86_400)
    manager.retention(S).run()
    assert only(manager).name == NIGHTLY, "only groups that the root lacks are released"
    done = manager.retention(S).run(expire="7 days")
    assert done.explanation.idle == (NIGHTLY,)
    assert manager.list_subscribers(S) == []
    with pytest.raises(NoSuchSubscriber, match="it expired"):
        manager.publish(S, NIGHTLY, at(6))
    assert manager.subscribe(S, NIGHTLY) == 1


def test_deleted_stream_takes_its_subscribers_along(manager: StreamManager) -> None:
    manager.subscribe(S, NIGHTLY, generation=7)
    manager.seal_stream(S)
    assert manager.publish(S, NIGHTLY, at(10)), "a sealed stream is still read"
    manager.delete_stream(S)
    with pytest.raises(NoSuchStream):
        manager.subscribe(S, NIGHTLY)
    manager.create_stream(S, KEEP)
    write(manager, 10)
    assert manager.list_subscribers(S) == []
    with pytest.raises(NoSuchSubscriber):
        manager.publish(S, NIGHTLY, at(5, life=manager.stream_info(S).life))
    with pytest.raises(InvalidStreamCut, match="is of life 1"):
        manager.subscribe(S, NIGHTLY, at(5, life=1))
    assert manager.subscribe(S, NIGHTLY) == 0


def test_backup_and_restore_keep_plain_subscribers(manager: StreamManager) -> None:
    manager.subscribe(S, NIGHTLY, generation=3)
    manager.publish(S, NIGHTLY, at(4))
    manager.subscribe(S, "former")
    manager.unsubscribe(S, "former")
    done = manager.backup("memory://plain-subscribers", S)
    assert done.subscribers == {}
    copy = StreamManager("memory://plain-subscribers")
    assert (only(copy).name, only(copy).cut) == (NIGHTLY, at(4))
    restored = copy_manager_of(copy_objects(root_of(copy).store))
    life = restored.restore().streams[S].life or 0
    found = only(restored)
    assert (found.name, found.generation, found.cut) == (NIGHTLY, 3, at(4, life=life))
    assert restored.publish(S, NIGHTLY, at(6, life=life), generation=3)


def subscribe_and_publish(root: str, count: int) -> None:
    manager = StreamManager(root)
    assert manager.subscribe(S, NIGHTLY) == 0
    for n in range(1, count + 1):
        try:
            manager.publish(S, NIGHTLY, at(n))
        except InvalidStreamCut:  # the other process is further
            continue


def test_processes_subscribe_once_and_the_furthest_cut_stays(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    manager.create_stream(S, KEEP)
    write(manager, 10)
    arguments = str(tmp_path), 10
    processes = [FORKED.Process(target=subscribe_and_publish, args=arguments) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    found = only(manager)
    assert (found.generation, found.cut) == (0, at(10))


def test_processes_of_a_subscriber_pass_one_generation_to_every_call(
    manager: StreamManager,
) -> None:
    for generation in (manager.subscribe(S, NIGHTLY), 7):
        assert manager.subscribe(S, NIGHTLY, generation=generation) == generation
        assert manager.publish(S, NIGHTLY, at(3 + generation), generation=generation)
        assert manager.unsubscribe(S, NIGHTLY, generation=generation)
        assert manager.list_subscribers(S) == []
        before = version(manager)
        assert not manager.unsubscribe(S, NIGHTLY, generation=generation)
        assert manager.subscribe(S, NIGHTLY, generation=generation) == generation, "it is late"
        assert version(manager) == before
    assert manager.subscribe(S, NIGHTLY, generation=8) == 8
    assert not manager.unsubscribe(S, NIGHTLY, generation=7)
    assert only(manager).generation == 8


def test_new_subscriber_is_refused_a_start_below_the_head(manager: StreamManager) -> None:
    manager.truncate_stream(S, at(4))
    before = version(manager)
    for start in (at(3), str(at(0))):
        with pytest.raises(TruncatedData) as refused:
            manager.subscribe(S, NIGHTLY, start)
        assert refused.value.head == at(4)
    assert version(manager) == before
    manager.subscribe(S, NIGHTLY, at(4))
    assert only(manager).cut == at(4)
    manager.publish(S, NIGHTLY, at(6))
    assert manager.subscribe(S, NIGHTLY, at(3)) == 0, "a present one stays as it is"
    with pytest.raises(TruncatedData):
        manager.subscribe(S, NIGHTLY, at(3), generation=1)
    assert only(manager).cut == at(6)


def test_start_that_is_truncated_before_the_commit_is_refused(manager: StreamManager) -> None:
    truncate = partial(manager.truncate_stream, S, at(4))
    with at_failpoint("commit.before", truncate), pytest.raises(TruncatedData):
        manager.subscribe(S, NIGHTLY, at(3))
    assert manager.list_subscribers(S) == []


@pytest.mark.parametrize("start", ["z/q@1:0#0=1", "s/t@2:0#0=1", "s/t@1:0#0=99", "s/t@1:7#0=1"])
def test_start_of_a_present_subscriber_must_be_a_cut_of_this_stream_and_life(
    manager: StreamManager, start: str
) -> None:
    manager.subscribe(S, NIGHTLY, generation=3)
    for generation in (None, 2, 3):
        with pytest.raises(InvalidStreamCut):
            manager.subscribe(S, NIGHTLY, start, generation=generation)
