from __future__ import annotations

import pickle
from itertools import pairwise
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_spark.engine.chunks import routing
from pravega_spark.engine.chunks.chunk import EVENT_SCHEMA, encode_events
from pravega_spark.engine.chunks.routing import Router, position, positions, split
from pravega_spark.errors import InvalidInput
from pravega_spark.values.segments import KeyRange, Segment, make_segment_id

# SELECT xxhash64(key), shiftrightunsigned(xxhash64(key), 11) / 9007199254740992D, by Spark 4.2.0.
SPARK = {
    "": (-7444071767201028348, "0x1.3162b05612efcp-1"),
    "a": (-8582455328737087284, "0x1.11c9fcb35bef6p-1"),
    "hello": (-4367754540140381902, "0x1.86c53cc631aa7p-1"),
    "UA": (-536276471978638185, "0x1.f11d86c7b4a08p-1"),
    "é": (2065146811275570100, "0x1.ca8e0154f1c68p-4"),
    "k" * 100: (-7904949170509730645, "0x1.2497f539287f5p-1"),
    "🚀": (2445000386519680682, "0x1.0f73172dd1960p-3"),
    "line\nbreak": (2860575876228197090, "0x1.3d9674d3dd114p-3"),
    "x" * 31: (-1716462135722163746, "0x1.d05bcd9043be8p-1"),
    "y" * 32: (5202031258905353636, "0x1.20c54f7946206p-2"),
}
KEYS = st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=4))


def segments(*lows: float, epoch: int = 0) -> list[Segment]:
    bounds = [*lows, 1.0]
    return [
        Segment(make_segment_id(number, epoch), KeyRange(low, high))
        for number, (low, high) in enumerate(pairwise(bounds))
    ]


def even(count: int) -> Router:
    return Router(segments(*(i / count for i in range(count))))


def table_of(keys: list[str | None]) -> pa.Table:
    return encode_events(keys, np.arange(len(keys)), [b"%d" % i for i in range(len(keys))])


@pytest.mark.parametrize("key", SPARK)
def test_position_equals_the_one_of_spark(key: str) -> None:
    signed, place = SPARK[key]
    assert position(key) == float.fromhex(place)
    assert position(key) == ((signed % (1 << 64)) >> 11) / 9007199254740992


def test_positions_equal_those_of_spark() -> None:
    expected = [float.fromhex(place) for _, place in SPARK.values()]
    assert positions(pa.array(list(SPARK))).tolist() == expected


@given(KEYS)
def test_positions_agree_with_position_in_every_arrow_type(keys: list[str | None]) -> None:
    plain = pa.array(keys, pa.string())
    half = len(keys) // 2
    forms = [
        plain,
        plain.cast(pa.large_string()),
        plain.dictionary_encode(),
        pa.chunked_array([plain[:half], plain[half:]]),
        pa.chunked_array([plain[:half].dictionary_encode(), plain[half:].dictionary_encode()]),
    ]
    for form in forms:
        found = positions(form)
        assert found.dtype == np.float64
        assert [None if np.isnan(p) else p for p in found.tolist()] == [
            None if key is None else position(key) for key in keys
        ]


def test_positions_of_no_chunks_are_empty() -> None:
    assert positions(pa.chunked_array([], pa.string())).tolist() == []


def test_key_without_utf8_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no UTF-8 form"):
        position("\ud800")


def test_positions_are_uniform() -> None:
    found = positions(pa.array([f"key-{i}" for i in range(100_000)]))
    counts = np.bincount((found * 64).astype(int), minlength=64)
    expected = 100_000 / 64
    assert ((counts - expected) ** 2 / expected).sum() < 130  # chi-square, 63 degrees: p < 1e-6
    assert found.min() >= 0.0
    assert found.max() < 1.0


def test_key_on_a_border_belongs_to_the_upper_segment() -> None:
    place = position("hello")
    upper = Router(segments(0.0, place))
    lower = Router(segments(0.0, np.nextafter(place, 1.0)))
    assert upper.segment_of("hello") == upper.assign(pa.array(["hello"]))[0] == 1
    assert lower.segment_of("hello") == lower.assign(pa.array(["hello"]))[0] == 0


@given(KEYS, st.integers(1, 40), st.integers(0, 1000))
def test_assign_agrees_with_segment_of(keys: list[str | None], count: int, start: int) -> None:
    router = even(count)
    expected, turn = [], start
    for key in keys:
        expected.append(router.segment_of(key) if key is not None else turn % count)
        turn += key is None
    found = router.assign(pa.array(keys, pa.string()), start=start)
    assert found.dtype == np.int64
    assert found.tolist() == expected


@pytest.mark.parametrize("count", [1, 2, 255, 256, 257, 1000])
def test_null_keys_go_round_robin_over_all_segments(count: int) -> None:
    found = even(count).assign(pa.nulls(2 * count + 1, pa.string()), start=count - 1)
    assert found.tolist() == [(count - 1 + i) % count for i in range(2 * count + 1)]


def test_router_orders_segments_by_range() -> None:
    forward = segments(0.0, 0.25, 0.5, epoch=3)
    router = Router(forward[::-1])
    assert router.segment_ids == tuple(segment.segment_id for segment in forward)
    assert router.segment_of("é") == forward[0].segment_id  # at 0.11
    assert router.segment_of("y" * 32) == forward[1].segment_id  # at 0.28
    assert router.segment_of("UA") == forward[2].segment_id  # at 0.97


@pytest.mark.parametrize(
    "chosen", [[], [0], [0, 2], [1, 2], [0, 1, 1, 2]], ids=["none", "end", "gap", "start", "twice"]
)
def test_router_of_segments_that_do_not_tile_is_refused(chosen: list[int]) -> None:
    tiles = segments(0.0, 0.25, 0.5)
    with pytest.raises(AssertionError):
        Router([tiles[i] for i in chosen])


def test_router_pickles() -> None:
    router = pickle.loads(pickle.dumps(even(5)))
    assert router.segment_of("hello") == even(5).segment_of("hello")


@given(KEYS, st.integers(1, 5), st.integers(0, 9))
def test_split_keeps_every_event_once_and_in_order(
    keys: list[str | None], count: int, start: int
) -> None:
    router, table = even(count), table_of(keys)
    ids = router.assign(table.column("routing_key"), start=start)
    parts = split(table, router, start)
    assert [segment_id for segment_id, _ in parts] == sorted(set(ids.tolist()))
    for segment_id, part in parts:
        assert part.schema.equals(EVENT_SCHEMA)
        assert part.to_pylist() == table.filter(pa.array(ids == segment_id)).to_pylist()


def test_split_of_chunked_columns_is_stable() -> None:
    keys: list[str | None] = [f"{i % 7}" for i in range(1000)]
    whole = table_of(keys)
    chunked = pa.concat_tables([whole.slice(at, 90) for at in range(0, 1000, 90)])
    expected = [(i, part.to_pylist()) for i, part in split(whole, even(300))]
    assert [(i, part.to_pylist()) for i, part in split(chunked, even(300))] == expected


def test_split_of_a_table_too_large_to_reorder_gives_the_same() -> None:
    table = table_of([None if i % 3 else f"{i % 7}" for i in range(1000)])
    expected = [(i, part.to_pylist()) for i, part in split(table, even(5), 2)]
    with patch.object(routing, "_REORDER_BYTES", 1000):
        assert [(i, part.to_pylist()) for i, part in split(table, even(5), 2)] == expected


@pytest.mark.parametrize("count", [1, 4])
def test_split_into_one_part_copies_nothing(count: int) -> None:
    table = table_of(["same"] * 10)
    ((_, part),) = split(table, even(count))
    for name in EVENT_SCHEMA.names:
        ours, theirs = part.column(name).chunk(0).buffers(), table.column(name).chunk(0).buffers()
        assert [b and b.address for b in ours] == [b and b.address for b in theirs]


def test_split_casts_other_types_and_drops_other_columns() -> None:
    table = table_of(["a", None, "b", "a"])
    foreign = pa.table(
        {
            "event": table["event"].cast(pa.large_binary()),
            "extra": [1, 2, 3, 4],
            "routing_key": table["routing_key"].dictionary_encode(),
            "timestamp": table["timestamp"].cast(pa.timestamp("ns", "Europe/Berlin")),
        }
    )
    found = split(foreign, even(3), start=2)
    expected = split(table, even(3), start=2)
    assert [(i, p.to_pylist()) for i, p in found] == [(i, p.to_pylist()) for i, p in expected]


def test_split_of_no_events_has_no_parts() -> None:
    assert split(EVENT_SCHEMA.empty_table(), even(1)) == []
    assert split(EVENT_SCHEMA.empty_table(), even(3)) == []


def test_split_of_null_keys_begins_at_start() -> None:
    parts = split(table_of([None] * 4), even(3), start=1)
    assert [(i, part["event"].to_pylist()) for i, part in parts] == [
        (0, [b"2"]),
        (1, [b"0", b"3"]),
        (2, [b"1"]),
    ]
