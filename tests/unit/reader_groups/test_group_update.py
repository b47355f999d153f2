"""Updates of reader groups: what stays, what changes, what is refused, races and crashes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pravega_spark.config.policies import RetentionPolicy, ScalingPolicy, StreamConfiguration
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.subscribers import listed, unsubscribe
from pravega_spark.engine.stream.truncation import truncate
from pravega_spark.errors import (
    CheckpointFailed,
    IllegalState,
    InvalidConfiguration,
    InvalidInput,
    InvalidName,
    InvalidStreamCut,
    NoSuchReaderGroup,
    NoSuchStream,
    PravegaSparkError,
    ReinitializationRequired,
    StaleIdentity,
    StoreError,
    TruncatedData,
)
from pravega_spark.manager import StreamManager
from pravega_spark.reader_groups.configuration import GroupRetention
from pravega_spark.reader_groups.lifecycle import FOLDER
from pravega_spark.reader_groups.repair import repair_changing_groups
from pravega_spark.reader_groups.state import Phase, SegmentKey
from pravega_spark.txn import lifecycle as txn_lifecycle
from pravega_spark.values.segments import END, NOT_REACHED, StreamCut
from tests.harness.failpoints import at_failpoint
from tests.harness.fault_plans import Rule
from tests.harness.group_world import NAME, OpenGroup, World, drain
from tests.harness.simulated_kills import Killed, kill
from tests.harness.small_streams import scale

OTHER = "s/u"
POINTS = ["group.change.noted", "group.change.subscribed", "group.change.done"]


def two_streams() -> World:
    world = World(names=(NAME, OTHER))
    world.write(6)
    world.write(4, OTHER)
    return world


def read(group: OpenGroup, count: int) -> list[bytes]:
    """Read some events with a reader that then leaves at exactly that position."""
    with group.create_reader("a") as reader:
        events = [reader.read_next_event(0).event for _ in range(count)]
    return [event.data for event in events if event is not None]


def subscribed(world: World, name: str = NAME) -> dict[str, tuple[int, str]]:
    found = listed(world.streams[name].view())
    return {info.name: (info.generation, str(info.cut)) for info in found}


def cut(offset: int, name: str = NAME) -> str:
    return f"{name}@1:0#0={offset}"


# ------------------------------------------------------------------------------ what stays


def test_kept_streams_keep_their_positions_and_added_ones_begin_at_their_starts() -> None:
    world = two_streams()
    group = world.created(streams=[NAME])
    first = read(group, 4)
    assert group.update(add={OTHER: cut(1, OTHER)}) == group.generation == 1
    assert {name: str(at) for name, at in group.stream_cuts().items()} == {
        NAME: cut(4),
        OTHER: cut(1, OTHER),
    }
    later = drain(group.create_reader("a"))
    assert first == [b"0", b"1", b"2", b"3"]
    assert sorted(later) == [b"4", b"5", b"7", b"8", b"9"]


def test_fields_that_are_not_given_stay() -> None:
    world = two_streams()
    group = world.created(streams={NAME: (cut(1), cut(5))}, refresh="5 s")
    group.update(checkpoint_interval="9 s", max_outstanding_checkpoints=7)
    found = group.configuration
    assert (found.refresh_ms, found.checkpoint_ms, found.max_outstanding) == (5_000, 9_000, 7)
    assert found.retention is GroupRetention.NONE
    group.update(checkpoint_interval=None, retention="manual", refresh=1)
    found = group.configuration
    assert (found.refresh_ms, found.checkpoint_ms, found.max_outstanding) == (1_000, None, 7)
    assert found.retention is GroupRetention.MANUAL
    assert {name: (str(s), str(e)) for name, (s, e) in found.streams.items()} == {
        NAME: (cut(1), cut(5))
    }
    assert drain(group.create_reader("a")) == [b"1", b"2", b"3", b"4"], "the end cut stays, too"


def test_update_that_changes_nothing_commits_nothing() -> None:
    world = two_streams()
    group = world.created(retention="automatic")
    reader = group.create_reader("a")
    before = group.sync.fetch()
    announced = len(world.store.calls)
    assert group.update() == 0
    assert group.update(retention="automatic", checkpoint_interval=None, add=[], remove=()) == 0
    assert group.sync.fetch() == before
    assert not any(FOLDER in key for _, key in world.store.calls[announced:])
    assert len(drain(reader)) == 10, "its reader continues"


def test_removed_stream_is_forgotten_and_begins_at_its_start_when_it_is_added() -> None:
    world = two_streams()
    group = world.created()
    read(group, 10)
    group.update(remove=[OTHER])
    assert group.configuration.streams.keys() == group.stream_cuts().keys() == {NAME}
    group.update(add=[OTHER])
    assert sorted(drain(group.create_reader("a"))) == [b"6", b"7", b"8", b"9"]


def test_stream_in_add_and_remove_begins_again() -> None:
    world = two_streams()
    group = world.created(streams=[NAME], retention="automatic")
    read(group, 5)
    group.initiate_checkpoint("c").result(0)
    assert group.update(add={NAME: cut(2)}, remove=[NAME]) == 1
    assert subscribed(world) == {"s/g": (1, cut(2))}
    assert drain(group.create_reader("a")) == [b"2", b"3", b"4", b"5"]


def test_last_checkpoint_stays_with_the_starts_of_added_streams() -> None:
    world = two_streams()
    group = world.created(streams=[NAME])
    read(group, 2)
    group.initiate_checkpoint("nightly").result(0)
    read(group, 2)
    group.update(add={OTHER: cut(3, OTHER)})
    last = group.last_checkpoint()
    assert last is not None
    assert last.name == "nightly"
    assert {s: str(at) for s, at in last.stream_cuts.items()} == {
        NAME: cut(2),
        OTHER: cut(3, OTHER),
    }
    assert group.reset() == 2
    assert sorted(drain(group.create_reader("a"))) == [b"2", b"3", b"4", b"5", b"9"]
    group.update(remove=[NAME])
    last = group.last_checkpoint()
    assert last is not None
    assert last.stream_cuts.keys() == {OTHER}
    group.reset()
    assert drain(group.create_reader("a")) == [b"9"]


def test_positions_in_every_map_of_the_state_stay() -> None:
    world = World(segments=3, names=(NAME, OTHER))
    group = world.created(streams={NAME: None, OTHER: (None, "latest")})
    world.write(40)
    scale(world.stream, [0, 1], [(0.0, 2 / 3)])
    merged = max(world.stream.view().active.segment_ids)
    half_merged = {0: END, 1: 2, merged: NOT_REACHED, 2: 1}
    group.reset({NAME: StreamCut(NAME, 1, half_merged)})
    group.create_reader("a").read_next_event(0)
    before = group.state()
    assert before.future
    assert before.assigned
    assert any(offset == END for offset in before.completed.values())
    group.update(refresh="1 s")
    after = group.state()
    assert (after.future, after.completed, after.ends) == (
        before.future,
        before.completed,
        before.ends,
    )
    assert not after.assigned
    assert after.cuts() == before.cuts()
    assert after.next_number >= before.next_number


def test_progress_that_readers_have_reported_is_recorded() -> None:
    world = two_streams()
    group = world.created(streams=[NAME])
    reader = group.create_reader("a", lease="30 s")
    for _ in range(4):
        reader.read_next_event(0)
    world.runtime.sleep(15)
    reader.read_next_event(0)  # its heartbeat says 4; the state still says 0
    (owned,) = group.state().assigned.values()
    assert owned.offset == 0
    pending = group.initiate_checkpoint("c")
    assert group.update(refresh="1 s") == 1
    assert str(group.stream_cuts()[NAME]) == cut(4)
    world.runtime.sleep(4)
    with pytest.raises(ReinitializationRequired, match="was reset or updated"):
        reader.read_next_event(0)
    with pytest.raises(CheckpointFailed):
        pending.result(0)
    assert group.online_readers() == []
    assert drain(group.create_reader("a")) == [b"4", b"5"]


def test_where_checkpoints_acknowledge_an_update_records_only_what_was_acknowledged() -> None:
    world = two_streams()
    group = world.created(streams=[NAME], acknowledge="checkpoint", retention="automatic")
    reader = group.create_reader("a", lease="30 s")
    for _ in range(2):
        reader.read_next_event(0)
    group.initiate_checkpoint("c")
    world.runtime.sleep(4)
    while reader.read_next_event(0).checkpoint is None:
        pass
    for _ in range(2):
        reader.read_next_event(0)
    world.runtime.sleep(15)
    reader.read_next_event(0)
    answered = group.stream_cuts()[NAME]
    assert 0 < sum(offset for _, offset in answered) < 6
    group.update(acknowledge="next")
    assert not group.configuration.acknowledges_at_checkpoints
    assert group.stream_cuts()[NAME] == answered
    assert subscribed(world) == {"s/g": (1, str(answered))}
    group.update(acknowledge="checkpoint", refresh="1 s")
    assert group.configuration.acknowledges_at_checkpoints
    assert group.stream_cuts()[NAME] == answered


# --------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"add": ["s/none"]}, NoSuchStream, "s/none"),
        ({"add": ["s/deleted"]}, NoSuchStream, "s/deleted"),
        ({"add": ["s/sealing"]}, IllegalState, "s/sealing is being sealed"),
        ({"add": [NAME]}, InvalidConfiguration, f"reads {NAME} already"),
        ({"remove": [OTHER]}, InvalidConfiguration, f"does not read {OTHER}"),
        ({"remove": [NAME]}, InvalidConfiguration, "a group needs one. Add a stream"),
        ({"add": OTHER}, InvalidInput, "a list is needed"),
        ({"remove": NAME}, InvalidInput, "a list is needed"),
        ({"remove": ["t"]}, InvalidName, "scope/stream"),
        ({"add": {OTHER: f"{OTHER}@1:0#0=9"}}, InvalidStreamCut, "0#0"),
        ({"add": {OTHER: f"{OTHER}@2:0#0=1"}}, PravegaSparkError, OTHER),
        ({"add": {OTHER: f"{NAME}@1:0#0=1"}}, InvalidConfiguration, f"is a cut of {NAME}"),
        ({"add": {OTHER: (cut(3, OTHER), cut(2, OTHER))}}, InvalidStreamCut, "after the end"),
        ({"retention": "some"}, InvalidConfiguration, "retention is one of"),
        ({"acknowledge": "never"}, InvalidConfiguration, "acknowledge"),
        ({"retention": None}, InvalidConfiguration, "retention is one of"),
        ({"refresh": "soon"}, InvalidInput, "refresh time"),
        ({"checkpoint_interval": 0.01}, InvalidConfiguration, "checkpoint interval"),
        ({"max_outstanding_checkpoints": 0}, InvalidConfiguration, "of at least 1 .*, got 0"),
    ],
)
def test_wrong_update_changes_nothing(
    given: dict[str, Any], error: type[Exception], text: str
) -> None:
    world = World(names=(NAME, OTHER, "s/deleted", "s/sealing"))
    world.write(6)
    world.write(4, OTHER)
    lifecycle.seal(world.streams["s/deleted"])
    lifecycle.delete(world.streams["s/deleted"])
    leave_sealing(world)
    group = world.created(streams=[NAME], retention="automatic")
    reader = group.create_reader("a")
    before = group.state()
    with pytest.raises(error, match=text):
        group.update(**given)
    assert group.state() == before
    assert subscribed(world) == {"s/g": (0, cut(0))}
    assert world.store.list(FOLDER) == [], "no announcement stays"
    assert len(drain(reader)) == 6


def leave_sealing(world: World) -> None:
    stream = world.streams["s/sealing"]
    txn_lifecycle.begin(stream, 1, lease_ms=60_000, execution_ms=60_000)
    with at_failpoint("seal.sealing", kill), pytest.raises(Killed):
        lifecycle.seal(stream)


def test_group_that_holds_data_refuses_an_added_start_below_the_head() -> None:
    world = two_streams()
    truncate(world.streams[OTHER], StreamCut(OTHER, 1, {0: 2}))
    group = world.created(streams=[NAME])
    behind = {OTHER: cut(1, OTHER)}
    with pytest.raises(TruncatedData, match=r"=1 lies below the head .* use s/u@1:0#0=2"):
        group.update(add=behind, retention="automatic")
    assert group.generation == 0
    group.update(add=behind)
    reader = group.create_reader("a")
    with pytest.raises(TruncatedData, match="were truncated before they were read"):
        drain(reader)
    assert len(drain(reader)) >= 2, "an observer's reader learns it once and continues"


def test_group_that_does_not_exist_cannot_be_updated() -> None:
    world = two_streams()
    with pytest.raises(NoSuchReaderGroup):
        world.group("s/never").update(refresh="1 s")


# ------------------------------------------------------------------------------ subscriptions


def test_observer_that_becomes_a_subscriber_holds_what_it_has_not_read() -> None:
    world = two_streams()
    group = world.created(streams=[NAME])
    read(group, 4)
    group.update(retention="automatic")
    assert subscribed(world) == {"s/g": (1, cut(4))}
    assert drain(group.create_reader("a")) == [b"4", b"5"]
    group.update(retention="none")
    assert subscribed(world) == {}
    assert group.state().phase is Phase.ACTIVE
    assert group.state().former_streams == {}


def test_subscription_begins_at_the_last_checkpoint_to_which_a_reset_returns() -> None:
    world = two_streams()
    group = world.created(streams=[NAME])
    read(group, 2)
    group.initiate_checkpoint("c").result(0)
    read(group, 3)
    group.update(retention="automatic")
    assert subscribed(world) == {"s/g": (1, cut(2))}
    truncate(world.stream, StreamCut(NAME, 1, {0: 2}))
    group.reset()
    assert drain(group.create_reader("a")) == [b"2", b"3", b"4", b"5"]


def test_update_releases_nothing_that_the_group_holds() -> None:
    world = two_streams()
    group = world.created(streams=[NAME], retention="manual")
    group.publish({NAME: cut(2)})
    read(group, 5)
    group.initiate_checkpoint("c").result(0)
    group.update(refresh="1 s")
    assert subscribed(world) == {"s/g": (1, cut(2))}, "as published, not as read"
    group.update(add=[OTHER])
    assert subscribed(world) == {"s/g": (2, cut(2))}
    assert subscribed(world, OTHER) == {"s/g": (2, cut(0, OTHER))}
    group.publish({NAME: cut(3), OTHER: cut(1, OTHER)})
    group.update(remove=[NAME], retention="automatic")
    assert subscribed(world) == {}
    assert subscribed(world, OTHER) == {"s/g": (3, cut(1, OTHER))}


def test_subscription_that_expired_begins_again_at_an_update() -> None:
    world = two_streams()
    group = world.created(streams=[NAME], retention="automatic")
    read(group, 3)
    unsubscribe(world.stream, "s/g", 1)
    assert subscribed(world) == {}
    group.update(refresh="1 s")
    assert subscribed(world) == {}, "the stream ignores the generation that it was released in"
    group.update(refresh="2 s")
    assert subscribed(world) == {"s/g": (2, cut(3))}


def test_an_expired_group_subscribes_again_with_the_retention_that_it_has() -> None:
    world = two_streams()
    group = world.created(streams=[NAME], retention="automatic")
    read(group, 3)
    assert group.update(retention="automatic") == 0
    unsubscribe(world.stream, "s/g", 0)
    unsubscribe(world.stream, "s/g", 1)
    assert group.lifecycle.subscriptions.expired(group.state()) == [NAME]
    assert group.update(retention="automatic") == 1
    assert group.update(retention="automatic") == 2, "the stream was released in generation 1, too"
    assert subscribed(world) == {"s/g": (2, cut(3))}
    assert group.update(retention="automatic") == 2


def test_checkpoints_are_published_after_an_update() -> None:
    world = two_streams()
    group = world.created(streams=[NAME], retention="automatic", checkpoint_interval="5 s")
    group.update(refresh="1 s")
    reader = group.create_reader("a")
    drain(reader)
    for _ in range(6):
        world.runtime.sleep(4)
        reader.read_next_event(0)
    assert subscribed(world) == {"s/g": (1, cut(6))}


@pytest.mark.parametrize("drops_records", [False, True])
def test_group_behind_the_head_holds_from_the_head_and_its_reader_learns_so_once(
    drops_records: bool,
) -> None:
    world = two_streams()
    group = world.created(streams=[NAME])
    read(group, 1)
    group.initiate_checkpoint("c").result(0)
    if drops_records:
        scale(world.stream, [0], [(0.0, 1.0)])
    truncate(world.stream, StreamCut.LATEST)
    head = str(world.stream.view().head)
    group.update(retention="automatic")
    assert subscribed(world) == {"s/g": (1, head)}
    (new,) = world.write(1)
    reader = group.create_reader("a")
    with pytest.raises(TruncatedData, match="were truncated before they were read"):
        reader.read_next_event(0)
    assert drain(reader) == [new]


@pytest.mark.medium
def test_observer_of_10_000_events_becomes_a_subscriber_and_reads_none_of_them_again(
    tmp_path: Path,
) -> None:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    retention = RetentionPolicy.by_consumption()
    manager.create_stream(NAME, StreamConfiguration(ScalingPolicy.fixed(2), retention))
    group = manager.create_reader_group("s/g", [NAME], checkpoint_interval=None)

    def write(first: int, last: int) -> None:
        with manager.create_writer(NAME) as writer:
            for number in range(first, last):
                writer.write_event(b"%d" % number, f"key-{number % 50}")

    def read_all() -> list[int]:
        with group.create_reader("a") as reader:
            found = [e.data for e in iter(lambda: reader.read_next_event(0.5).event, None)]
        return sorted(map(int, found))

    write(0, 10_000)
    assert read_all() == list(range(10_000))
    write(10_000, 10_500)
    assert group.update(retention="automatic") == 1
    assert group.lag().events == 500
    done = manager.retention(NAME).run()
    assert done.truncated is not None
    assert done.truncated.events == 10_000
    assert done.explanation.held_by == "subscriber s/g"
    assert manager.retention(NAME).run().truncated is None, "it holds what it has not read"
    assert read_all() == list(range(10_000, 10_500))


@pytest.mark.medium
@pytest.mark.parametrize("point", ["group.change.noted", "group.change.subscribed"])
def test_retention_during_an_update_deletes_nothing_that_the_group_has_to_read(
    tmp_path: Path, point: str
) -> None:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    retention = RetentionPolicy.by_consumption()
    manager.create_stream(NAME, StreamConfiguration(retention=retention))
    with manager.create_writer(NAME) as writer:
        writer.write_events([b"%d" % number for number in range(10)], "k")
    ahead = manager.create_reader_group("s/ahead", [NAME], retention="manual")
    ahead.publish({NAME: manager.tail(NAME)})
    group = manager.create_reader_group("s/g", [NAME])
    with group.create_reader("a") as reader:
        for _ in range(4):
            assert reader.read_next_event(1.0).event
    truncated: list[int] = []

    def run() -> None:
        done = StreamManager(tmp_path).retention(NAME).run()
        truncated.append(0 if done.truncated is None else done.truncated.events)

    with at_failpoint(point, run):
        group.update(retention="automatic")
    assert truncated == [4], "it finished the update first"
    with group.create_reader("a") as reader:
        found = [e.data for e in iter(lambda: reader.read_next_event(0.5).event, None)]
    assert found == [b"%d" % number for number in range(4, 10)]


# --------------------------------------------------------------------------------------- lives


def recreate(world: World, name: str = NAME) -> None:
    stream = world.streams[name]
    life, configuration = stream.view().life, stream.view().record.configuration
    lifecycle.seal(stream)
    lifecycle.delete(stream)
    lifecycle.create(stream, life + 1, configuration)


def test_update_does_not_adopt_the_next_life_of_a_stream() -> None:
    world = two_streams()
    group = world.created()
    read(group, 10)
    recreate(world)
    (new,) = world.write(1)
    group.update(retention="automatic")
    assert group.state().lives == {NAME: 1, OTHER: 1}
    assert subscribed(world) == {}
    assert subscribed(world, OTHER).keys() == {"s/g"}
    reader = group.create_reader("a")
    with pytest.raises(NoSuchStream, match="remove it, and add it"):
        drain(reader)
    assert drain(reader) == []
    reader.close()
    group.update(remove=[NAME], add=[NAME])
    assert group.state().lives == {NAME: 2, OTHER: 1}
    assert subscribed(world).keys() == {"s/g"}
    assert drain(group.create_reader("a")) == [new]


def test_deleted_stream_stops_no_update_and_can_be_removed() -> None:
    world = two_streams()
    group = world.created(retention="automatic")
    lifecycle.seal(world.stream)
    lifecycle.delete(world.stream)
    group.update(refresh="1 s")
    group.update(remove=[NAME])
    assert group.state().lives.keys() == {OTHER}
    assert len(drain(group.create_reader("a"))) == 4
    assert group.reset() == 3


def test_added_stream_that_is_created_again_is_read_in_the_life_that_was_added() -> None:
    world = two_streams()
    group = world.created(streams=[NAME], retention="automatic")
    with at_failpoint("group.change.noted", lambda: recreate(world, OTHER)):
        group.update(add=[OTHER])
    assert group.state().lives[OTHER] == 1
    assert subscribed(world, OTHER) == {}


# ----------------------------------------------------------------------------------- crashes


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("repairer", ["opening", "retention"])
def test_half_made_update_is_finished_by_another_process(point: str, repairer: str) -> None:
    world = two_streams()
    group = world.created(retention="manual")
    group.publish({NAME: cut(3)})
    read(group, 9)
    with at_failpoint(point, kill), pytest.raises(Killed):
        group.update(remove=[OTHER], retention="automatic")
    known = group.sync.fetch()
    assert known is not None
    assert known.state.phase is (Phase.ACTIVE if point == POINTS[2] else Phase.CHANGING)
    another = world.group()
    if repairer == "opening":
        assert another.generation == 1
    else:
        repair_changing_groups(world.store, another.lifecycle.streams, world.runtime)
    known = world.group().sync.fetch()
    assert known is not None
    assert (known.state.phase, known.state.renewed_streams) == (Phase.ACTIVE, frozenset())
    assert subscribed(world) == {"s/g": (1, cut(3))}
    assert subscribed(world, OTHER) == {}
    assert another.update(retention="none") == 2
    assert subscribed(world) == {}


@pytest.mark.parametrize("point", POINTS[:2])
def test_readers_wait_for_the_subscriptions_of_an_update(point: str) -> None:
    world = two_streams()
    group = world.created()
    with at_failpoint(point, kill), pytest.raises(Killed):
        group.update(retention="automatic")
    sync = world.group().lifecycle.sync
    known = sync.fetch()
    assert known is not None
    assert known.state.phase is Phase.CHANGING
    assert len(drain(world.group().create_reader("a"))) == 10, "it finishes the update first"
    assert subscribed(world).keys() == subscribed(world, OTHER).keys() == {"s/g"}


# ------------------------------------------------------------------------------------- races


def during(
    world: World, group: OpenGroup, act: Callable[[], object], **given: Any
) -> int | PravegaSparkError:
    """Update a group while another process acts before the commit of the update."""
    acted: list[bool] = []

    def hook(operation: str, key: str) -> None:
        if operation == "put_if_absent" and "_reader_groups/g/_delta_log" in key and not acted:
            acted.append(True)
            act()

    world.store.hook = hook
    try:
        return group.update(**given)
    except PravegaSparkError as error:
        return error
    finally:
        world.store.hook = None
        assert acted


def test_two_updates_of_different_fields_lose_nothing() -> None:
    world = two_streams()
    group = world.created(streams=[NAME])
    read(group, 2)
    other = world.group()
    found = during(
        world, group, lambda: other.update(refresh="9 s", add=[OTHER]), retention="manual"
    )
    assert found == group.generation == 2
    assert group.configuration.refresh_ms == 9_000
    assert group.configuration.retention is GroupRetention.MANUAL
    assert group.state().lives.keys() == {NAME, OTHER}
    assert subscribed(world) == {"s/g": (2, cut(2))}
    assert subscribed(world, OTHER) == {"s/g": (2, cut(0, OTHER))}


def test_later_of_two_updates_that_add_a_stream_is_refused() -> None:
    world = two_streams()
    group = world.created(streams=[NAME])
    other = world.group()
    found = during(world, group, lambda: other.update(add=[OTHER]), add=[OTHER])
    assert isinstance(found, InvalidConfiguration)
    assert group.generation == 1


def test_update_during_a_reset_keeps_the_positions_of_the_reset() -> None:
    world = two_streams()
    group = world.created(streams=[NAME], retention="automatic")
    read(group, 5)
    other = world.group()
    assert during(world, group, lambda: other.reset({NAME: cut(1)}), refresh="1 s") == 2
    assert drain(group.create_reader("a")) == [b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize("again", [False, True])
def test_update_of_a_group_that_is_deleted_meanwhile_changes_nothing(again: bool) -> None:
    world = two_streams()
    group = world.created(streams=[NAME], retention="automatic")
    other = world.group()

    def act() -> None:
        other.delete()
        if again:
            other.create(other_configuration)

    other_configuration = group.configuration
    found = during(world, group, act, refresh="1 s")
    assert isinstance(found, StaleIdentity if again else NoSuchReaderGroup)
    assert subscribed(world).keys() == ({"s/g"} if again else set())
    if again:
        assert group.configuration == other_configuration


def test_reader_that_joins_and_a_checkpoint_that_completes_during_an_update() -> None:
    world = two_streams()
    group = world.created(streams=[NAME])

    def act() -> None:
        read(world.group(), 3)
        world.group().initiate_checkpoint("c").result(0)
        read(world.group(), 1)
        world.group().create_reader("b")

    assert during(world, group, act, retention="automatic") == 1
    assert group.online_readers() == []
    assert subscribed(world) == {"s/g": (1, cut(3))}, "the newest checkpoint, not the one seen"
    assert drain(group.create_reader("a")) == [b"4", b"5"]


def test_updates_resets_and_readers_race_and_every_change_counts() -> None:
    world = two_streams()
    world.created(streams=[NAME])
    errors: list[BaseException] = []
    generations: list[int] = []

    def work(change: Callable[[OpenGroup, int], int]) -> None:
        group = world.group()
        try:
            for number in range(5):
                generations.append(change(group, number))
        except BaseException as error:
            errors.append(error)

    def swap(group: OpenGroup, number: int) -> int:
        return group.update(remove=[OTHER]) if number % 2 else group.update(add=[OTHER])

    workers = [
        threading.Thread(target=work, args=(change,))
        for change in (
            lambda group, number: group.update(refresh=f"{number + 4} s"),
            lambda group, number: group.update(retention="none" if number % 2 else "automatic"),
            lambda group, number: group.update(max_outstanding_checkpoints=number + 4),
            swap,
        )
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert errors == []
    assert sorted(generations) == list(range(1, 21)), "each change began one generation"
    found = world.group()
    assert found.configuration.refresh_ms == 8_000
    assert found.configuration.max_outstanding == 8
    assert found.configuration.retention is GroupRetention.AUTOMATIC
    assert found.state().lives.keys() == {NAME, OTHER}
    assert subscribed(world)["s/g"][0] == subscribed(world, OTHER)["s/g"][0] == 20
    assert len(drain(found.create_reader("a"))) == 10


def test_late_calls_of_the_generation_before_change_no_subscription() -> None:
    world = two_streams()
    group = world.created(streams=[NAME], retention="automatic")
    world.store.rules.add(Rule(StoreError("down"), "put_if_absent", "s/t/events/_delta_log/*"))
    read(group, 3)
    world.store.rules.clear()
    before = group.state()
    group.update(refresh="1 s")
    group.lifecycle.subscriptions.publish_last_checkpoint(before)
    group.lifecycle.subscriptions.unsubscribe(before)
    assert subscribed(world) == {"s/g": (1, cut(0))}
    group.lifecycle.subscriptions.publish_last_checkpoint(group.state())
    assert subscribed(world) == {"s/g": (1, cut(3))}, "the same checkpoint in its new generation"


def test_generation_in_which_a_stream_began_is_known() -> None:
    world = two_streams()
    group = world.created(streams=[NAME])
    group.update(add=[OTHER])
    group.update(refresh="1 s")
    state = group.state()
    assert state.began == {NAME: 0, OTHER: 1}
    assert state.continued_streams(0) == {NAME}
    assert [state.continues(generation) for generation in range(4)] == [False, True, True, False]
    group.reset()
    assert group.state().began == {NAME: 3, OTHER: 3}
    group.delete()
    known = group.sync.fetch()
    assert known is not None
    assert not known.state.continues(3)


def test_state_of_an_older_version_began_in_its_generation() -> None:
    world = two_streams()
    group = world.created()
    group.reset()
    codec = group.sync._codec
    rows = codec.encode(group.state())
    value = rows["group"]["value"].replace(',"began":{"s/t":1,"s/u":1},"renewed":[]', "")
    assert "began" not in value
    found = codec.decode({**rows, "group": {**rows["group"], "value": value}})
    assert found == group.state()
    assert SegmentKey(NAME, 0) in found.unassigned
