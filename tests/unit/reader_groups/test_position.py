"""Positions: only those that a reader returned are accepted, since others continue there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pravega_spark.errors import InvalidInput
from pravega_spark.reader_groups.position import Position
from pravega_spark.reader_groups.state import SegmentKey
from pravega_spark.values.segments import END
from tests.harness.group_world import NAME, World, drain

KEY = SegmentKey(NAME, 0)
OFFSETS = ["6e1", "1.5", "1.0", "-5", "NaN", "Infinity", "true", "null", '"end"', '"future"',
           '"1"', "[1]", "{}", "9223372036854775808", "1" * 5_000]  # fmt: skip
TEXTS = [
    *(f'{{"s/t":{{"0#0":{offset}}}}}' for offset in OFFSETS),
    '{"s/t":{"0#0":1,"0#0":2}}',
    '{"s/t":{"0#0":1},"s/t":{"0#0":2}}',
    '{"s/t":{"0#00":1}}',
    '{"s/t":{"00#0":1}}',
    '{"s/t":{"0":1}}',
    '{"s/t":{"9999999999#0":1}}',
    '{"st":{"0#0":1}}',
    '{"s/t":1}',
    "[]",
    "7",
    "",
    "\ud800",
    "[" * 100_000,
]
OBJECTS: list[Any] = [
    5,
    b"{}",
    {KEY: 1},
    [KEY],
    Position(5),  # type: ignore[arg-type]
    Position({KEY: 1.0}),  # type: ignore[dict-item]
    Position({KEY: True}),
    Position({KEY: END}),
    Position({"s/t": 1}),  # type: ignore[dict-item]
    Position({SegmentKey("s/t", "0#0"): 1}),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("given", [*TEXTS, *OBJECTS], ids=lambda given: repr(given)[:40])
def test_anything_except_a_position_is_refused(given: Any) -> None:
    with pytest.raises(InvalidInput):
        Position.of(given)


def test_error_names_what_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"the offset 60\.0 for s/t/0#0"):
        Position.parse('{"s/t":{"0#0":6e1}}')
    with pytest.raises(InvalidInput, match=r"^5 is not a position of a reader"):
        Position.of(5)  # type: ignore[arg-type]


def test_text_of_a_position_parses_to_the_same_position() -> None:
    position = Position({KEY: 3, SegmentKey(NAME, 1): 0})
    assert dict(Position.parse(str(position)).offsets) == position.offsets
    assert Position.of(position) is position
    assert dict(Position.parse("{}").offsets) == {}


@pytest.mark.parametrize("given", ['{"s/t":{"0#0":6.0}}', '{"s/t":{"0#0":-1}}', 5])
def test_call_with_an_invalid_position_changes_nothing(given: Any) -> None:
    world = World()
    events = world.write(100)
    group = world.created()
    reader = group.create_reader("a")
    for _ in range(10):
        reader.read_next_event(0)
    before = group.state()
    calls: list[Callable[[], object]] = [
        lambda: group.reader_offline("a", given),
        lambda: group.cuts_at([given]),
        lambda: reader.close_at(given),
    ]
    for call in calls:
        with pytest.raises(InvalidInput):
            call()
    with pytest.raises(InvalidInput, match="positions: a list is needed"):
        group.cuts_at(5)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="positions: a list is needed"):
        group.cuts_at(str(reader.position))
    assert world.group().state() == before
    assert drain(reader) == events[10:]


def test_group_with_an_offset_that_an_older_version_wrote_as_a_float_continues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    events = world.write(10)
    group = world.created()
    reader = group.create_reader("a")
    reader.read_next_event(0)
    group.initiate_checkpoint("c")
    lenient = Position({KEY: 6.0})  # type: ignore[dict-item]
    with monkeypatch.context() as older:
        older.setattr(Position, "of", lambda given: given)
        assert group.reader_offline("a", lenient)

    found = world.group()
    assert found.stream_cuts() == found.last_checkpoint().stream_cuts  # type: ignore[union-attr]
    assert str(found.stream_cuts()[NAME]) == "s/t@1:0#0=6"
    assert found.lag().events == 4
    assert found.reset() == 1
    assert found.initiate_checkpoint("d").result(0).stream_cuts == found.stream_cuts()
    assert drain(found.create_reader("b")) == events[6:]
