"""A text in place of a list is refused, not read letter by letter; digits are ASCII."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pravega_spark import (
    ReaderGroupConfiguration,
    StreamConfiguration,
    StreamManager,
)
from pravega_spark.errors import InvalidInput
from pravega_spark.spark import option_values
from pravega_spark.values.segments import EventPointer, StreamCut, parse_segment
from pravega_spark.values.units import parse_duration_ms, parse_size_bytes


@pytest.fixture
def manager(tmp_path: Any) -> StreamManager:
    manager = StreamManager(str(tmp_path / "root"))
    manager.create_scope("s")
    manager.create_stream("s/a")
    return manager


@pytest.mark.parametrize("events", ["abc", b"abc", bytearray(b"abc"), {"a": 1}, None, 7])
def test_atomic_write_that_is_not_a_list_is_refused_and_writes_nothing(
    manager: StreamManager, events: Any
) -> None:
    with manager.create_writer("s/a") as writer, pytest.raises(InvalidInput) as refused:
        writer.write_events(events)
    assert type(events).__name__ in str(refused.value)
    assert "give a list, or one event to write_event" in str(refused.value)
    with manager.create_transactional_writer("s/a") as writers:
        transaction = writers.begin_transaction()
        with pytest.raises(InvalidInput, match="give a list, or one event"):
            transaction.write_events(events)
        transaction.commit()
    assert list(manager.read("s/a")) == []


def test_lists_tuples_and_generators_of_events_are_written(manager: StreamManager) -> None:
    with manager.create_writer("s/a") as writer:
        for events in (["a"], ("b", b"c"), (text for text in "de")):
            writer.write_events(events, "k")
    assert b"".join(event.data for event in manager.read("s/a")) == b"abcde"


REFUSED: dict[str, Callable[[StreamManager], object]] = {
    "seal": lambda manager: manager.scale_stream("s/a", "0", [(0, 1)]),
    "seal a number": lambda manager: manager.scale_stream("s/a", 0, [(0, 1)]),  # type: ignore[arg-type]
    "key ranges": lambda manager: manager.scale_stream("s/a", [0], "01"),  # type: ignore[arg-type]
    "streams": lambda manager: manager.create_reader_group("s/g", "s/a"),
    "configuration": lambda manager: ReaderGroupConfiguration("s/a"),
    "tags": lambda manager: StreamConfiguration(tags="abc"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_text_in_place_of_a_list_is_refused(manager: StreamManager, name: str) -> None:
    with pytest.raises(InvalidInput, match=r"a list|a set"):
        REFUSED[name](manager)


@pytest.mark.medium
@pytest.mark.parametrize("to", ["earliest", "s/a@1:0#0=0", ["s/a"], 7])
def test_group_is_reset_to_cuts_by_stream_and_not_to_the_letters_of_a_text(
    manager: StreamManager, to: Any
) -> None:
    group = manager.create_reader_group("s/g", ["s/a"])
    with pytest.raises(InvalidInput, match=r"a mapping from streams to cuts, got .*earliest"):
        group.reset(to)
    assert group.reset({"s/a": "earliest"}) == 1


ARABIC, SUPERSCRIPT = "\u0663", "\u00b2"
PARSED: list[Callable[[str], object]] = [
    lambda digit: StreamCut.parse(f"s/a@1:0#0={digit}"),
    lambda digit: StreamCut.parse(f"s/a@{digit}:0#0=1"),
    lambda digit: EventPointer.parse(f"s/a@1:0#0={digit}"),
    lambda digit: parse_segment(f"{digit}#0"),
    lambda digit: parse_duration_ms("the time", f"{digit} s"),
    lambda digit: parse_size_bytes("the size", f"{digit} kb"),
    lambda digit: option_values.positive_integer("rows", digit),
    lambda digit: option_values.non_negative_integer("version", digit),
    lambda digit: option_values.duration_ms("time", digit),
    lambda digit: option_values.timestamp("time", digit),
]


@pytest.mark.parametrize("number", range(len(PARSED)))
@pytest.mark.parametrize("digit", [ARABIC, SUPERSCRIPT])
def test_digits_of_other_scripts_are_not_numbers(number: int, digit: str) -> None:
    PARSED[number]("3")
    with pytest.raises(InvalidInput):
        PARSED[number](digit)
