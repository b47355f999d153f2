"""Arguments of the wrong kind are refused before anything is done; the error shows the value."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf, nan
from typing import Any

import pytest

from pravega_spark import (
    CheckpointFuture,
    EventPointer,
    EventReader,
    EventStreamReader,
    KeyRange,
    ReaderGroup,
    ReaderGroupConfiguration,
    RetentionPolicy,
    ScalingPace,
    Stream,
    StreamConfiguration,
    StreamCut,
    StreamManager,
    Transaction,
)
from pravega_spark.config.policies import LimitUnit, RetentionType, ScalingPolicy
from pravega_spark.errors import InvalidInput
from pravega_spark.manager import root_of
from pravega_spark.values.checks import shown

_roots = itertools.count(1)
S = "s/t"


@dataclass
class World:
    """A stream with two events, and one object of each kind that works on it."""

    manager: StreamManager
    stream: Stream
    group: ReaderGroup
    reader: EventStreamReader
    plain: EventReader
    transaction: Transaction
    tail: StreamCut
    checkpoint: CheckpointFuture


@pytest.fixture(scope="module")
def world() -> World:
    """One for all tests, since what is refused changes nothing."""
    manager = StreamManager(f"memory://arguments-{next(_roots)}")
    manager.create_scope("s")
    manager.create_stream(S, StreamConfiguration(ScalingPolicy.fixed(2)))
    with manager.create_writer(S) as writer:
        writer.write_events([b"one", b"two"], "key")
    group = manager.create_reader_group("s/g", [S])
    reader = group.create_reader("r")
    transaction = manager.create_transactional_writer(S).begin_transaction(lease="10 minutes")
    stream = manager.stream(S)
    return World(
        manager,
        stream,
        group,
        reader,
        stream.create_reader(),
        transaction,
        stream.tail(),
        group.initiate_checkpoint(),
    )


Call = Callable[[World, Any], Any]
WHOLE: dict[str, Call] = {
    "segments of a time": lambda w, v: w.stream.segments(time_ms=v),
    "segments of an epoch": lambda w, v: w.stream.segments(epoch=v),
    "check_scale": lambda w, v: w.stream.check_scale(v),
    "next_cut": lambda w, v: w.plain.next_cut(w.tail, v),
    "read_events": lambda w, v: w.reader.read_events(v, timeout=0),
    "max_outstanding": lambda w, v: ReaderGroupConfiguration([S], max_outstanding_checkpoints=v),
    "offset of a pointer": lambda w, v: w.plain.fetch(EventPointer(S, 1, 0, v)),
    "start of a range": lambda w, v: w.plain.read_range(replace(_range(w), start=v)),
    "end of a range": lambda w, v: w.plain.read_range(replace(_range(w), end=v)),
    "minimum to keep": lambda w, v: RetentionPolicy(RetentionType.TIME, LimitUnit.TIME_MS, v),
    "maximum to keep": lambda w, v: RetentionPolicy(RetentionType.TIME, LimitUnit.TIME_MS, 0, v),
    "subscribe": lambda w, v: w.stream.subscribe("batch", generation=v),
    "unsubscribe": lambda w, v: w.stream.unsubscribe("batch", generation=v),
    "publish": lambda w, v: w.stream.publish("batch", w.tail, generation=v),
    "segment": lambda w, v: w.stream.segment(v),
    "segments": lambda w, v: ScalingPolicy.fixed(v),
}
TIMEOUT: dict[str, Call] = {
    "follow": lambda w, v: w.stream.follow(timeout=v),
    "flush": lambda w, v: w.stream.create_writer().flush(timeout=v),
    "read_next_event": lambda w, v: w.reader.read_next_event(v),
    "read_events": lambda w, v: w.reader.read_events(timeout=v),
    "notifications": lambda w, v: w.group.notifications(timeout=v),
    "result of a checkpoint": lambda w, v: w.checkpoint.result(v),
}
NUMBER: dict[str, Call] = {
    "low key": lambda w, v: KeyRange(v, 1.0),
    "high key": lambda w, v: KeyRange(0.0, v),
    "pace": lambda w, v: ScalingPace().scaled(v),
}
FLAG: dict[str, Call] = {
    "recursive": lambda w, v: w.manager.delete_scope("s", recursive=v),
    "past_subscribers": lambda w, v: w.stream.truncate(w.tail, past_subscribers=v),
    "wait": lambda w, v: w.transaction.commit(wait=v),
    "sweep": lambda w, v: w.stream.retention().run(sweep=v),
}
FUNCTION: dict[str, Call] = {
    "writer": lambda w, v: w.stream.create_writer("id", serializer=v),
    "transactional writer": lambda w, v: w.stream.create_transactional_writer("id", serializer=v),
    "transaction": lambda w, v: w.stream.transaction(w.transaction.id, serializer=v),
    "plain reader": lambda w, v: w.stream.create_reader(deserializer=v),
    "read": lambda w, v: w.stream.read(deserializer=v),
    "follow": lambda w, v: w.stream.follow(deserializer=v),
    "fetch_event": lambda w, v: w.stream.fetch_event(f"{S}@1:0#0=0", deserializer=v),
    "reader of a group": lambda w, v: w.group.create_reader("other", deserializer=v),
}
OTHER: dict[str, tuple[Call, list[Any]]] = {
    "tag": (lambda w, v: w.manager.list_streams("s", tag=v), [5, True, b"x", ["x"]]),
    "options": (lambda w, v: StreamManager("memory://x", storage_options=v), [0, "x", {1: 2}]),
    "copy": (lambda w, v: w.manager.backup("memory://x", storage_options=v), [0, "x", ["y"]]),
    "range": (lambda w, v: w.plain.read_range(v), [0, "x", None, (0, 1)]),
    "time": (lambda w, v: w.plain.cut_at(v), [nan, inf, True, 1.5, "5", None]),
    "policy": (lambda w, v: w.stream.retention().explain(policy=v), ["by time", 5]),
    "type": (lambda w, v: RetentionPolicy(v, LimitUnit.NONE), ["time", None]),
    "unit": (lambda w, v: RetentionPolicy(RetentionType.TIME, v), ["ms", 0]),
    "offset": (lambda w, v: StreamCut(S, 1, {0: v}), [True, 1.0, "5"]),
}


def _cases(calls: dict[str, Call], values: list[Any]) -> list[tuple[str, Call, Any]]:
    return [(name, call, value) for name, call in calls.items() for value in values]


CASES = [
    *_cases(WHOLE, [nan, inf, -1, True, 1.5, "0"]),
    *_cases(TIMEOUT, [nan, inf, 10**400, -1, True, "5", []]),
    *_cases(NUMBER, [nan, inf, 10**400, "5", [], None]),
    *_cases(FLAG, ["no", 1, 0, None]),
    *_cases(FUNCTION, [5, "json", []]),
    *((name, call, value) for name, (call, values) in OTHER.items() for value in values),
]


def _range(world: World) -> Any:
    return world.stream.segment_ranges()[0]


@pytest.mark.parametrize(
    ("call", "value"), [case[1:] for case in CASES], ids=[f"{c[0]}-{shown(c[2])}" for c in CASES]
)
def test_wrong_kind_of_argument_is_refused(world: World, call: Call, value: Any) -> None:
    if value == "0" and call is WHOLE["segment"]:
        value = "0.5"  # a text may name a segment
    store: Any = root_of(world.manager).store
    before = {key: found.data for key, found in store._objects.items()}
    with pytest.raises(InvalidInput) as raised:
        call(world, value)
    kind = "dict" if isinstance(value, dict) else type(value).__name__
    assert shown(value) in str(raised.value) or kind in str(raised.value)
    assert {key: found.data for key, found in store._objects.items()} == before


def test_time_and_epoch_together_are_refused(world: World) -> None:
    with pytest.raises(InvalidInput, match="by time_ms 5 and by epoch 0: give one of the two"):
        world.stream.segments(time_ms=5, epoch=0)


def test_reversed_range_is_refused(world: World) -> None:
    rng = _range(world)
    with pytest.raises(InvalidInput, match="the end of a range must be a whole number of at least"):
        world.plain.read_range(replace(rng, start=2, end=1))


def test_future_epoch_names_the_active_one(world: World) -> None:
    with pytest.raises(InvalidInput, match=r"s/t has no epoch 7 yet; the active one is 0"):
        world.stream.check_scale(7)


def test_refused_writer_opens_no_session(world: World) -> None:
    with world.stream.create_writer("id") as writer:
        writer.write_event(b"x")
        with pytest.raises(InvalidInput):
            world.stream.create_writer("id", serializer=5)  # type: ignore[arg-type]
        writer.write_event(b"y").result()  # not fenced
