"""write_table: rows of Arrow tables as events, in order with other writes; no wrong row.

The encoder is called alone for what no reader can see: that rows are not copied, and that an
array of gigabytes is read where its rows are; and the queue is asked how full it ever was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.engine.writing.encode import EventTable
from pravega_spark.engine.writing.futures import OpenTable, PendingWrites
from pravega_spark.errors import (
    EventTooLarge,
    InvalidInput,
    ObjectClosed,
    PravegaSparkError,
    StoreFull,
)
from pravega_spark.event_writer import EventStreamWriter, queue_of
from pravega_spark.values.limits import MAX_EVENT_BYTES, WRITER_BATCH_BYTES
from pravega_spark.values.segments import EventPointer
from tests.harness.fault_plans import Rule
from tests.harness.small_streams import all_events, events_of, make_stream, scale
from tests.harness.spy_store import Spy

WAIT = 30.0


def table_of(events: Any, keys: Any = None, kind: Any = None, key_kind: Any = None) -> pa.Table:
    columns = {"event": pa.array(events, kind or pa.binary())}
    if keys is not None:
        columns["routing_key"] = pa.array(keys, key_kind or pa.string())
    return pa.table(columns)


def numbered(first: int, last: int) -> pa.Table:
    rows = range(first, last)
    return table_of([b"%d" % n for n in rows], [f"k{n % 7}" for n in rows])


def test_rows_keep_their_order_by_key_between_other_writes() -> None:
    stream = make_stream(runtime=SYSTEM, segments=4)
    with EventStreamWriter(stream, "w") as writer:
        writer.write_event(b"0", "k0")
        future = writer.write_table(numbered(1, 500))
        writer.write_events([b"500", b"501"], "k0")
        writer.write_table(numbered(502, 900).to_batches()[0])
        late = writer.write_event(b"900", "k0")
        pointers = future.result(WAIT)
        late.result(WAIT)
        assert writer.last_event_number == 901
    found: dict[str | None, list[int]] = {}
    for key, event in all_events(stream):
        found.setdefault(key, []).append(int(event))
    assert sum(map(len, found.values())) == 901
    assert all(numbers == sorted(numbers) for numbers in found.values())
    assert len(pointers) == 499
    check(stream, pointers, range(1, 500))
    assert pointers[-1] == pointers[498]
    assert pointers[2:4] == (pointers[2], pointers[3])
    with pytest.raises(IndexError):
        pointers[499]


def check(stream: Any, pointers: Any, numbers: Any) -> None:
    segments: dict[int, list[tuple[str | None, bytes]]] = {}
    for pointer, number in zip(pointers, numbers, strict=True):
        assert isinstance(pointer, EventPointer)
        if pointer.segment_id not in segments:
            segments[pointer.segment_id] = events_of(stream, pointer.segment_id)
        found = segments[pointer.segment_id][pointer.offset]
        assert found == (f"k{number % 7}", b"%d" % number)


@pytest.mark.medium
def test_large_table_goes_into_several_commits_and_its_pointers_lead_to_its_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("batch", "encode"):
        monkeypatch.setattr(f"pravega_spark.engine.writing.{name}.WRITER_BATCH_EVENTS", 64)
    stream = make_stream(runtime=SYSTEM, segments=3)
    before = stream.view().version
    with EventStreamWriter(stream) as writer:
        writer.write_event(b"0", "k0")
        future = writer.write_table(numbered(1, 1_000))
        check(stream_read(stream, future), future.result(WAIT), range(1, 1_000))
    assert stream.view().version - before >= 1_000 // 64


def stream_read(stream: Any, future: Any) -> Any:
    future.result(WAIT)
    return stream


def test_table_waits_for_room_in_the_buffer_and_enters_it_in_parts() -> None:
    store, waiting = Spy(), []
    stream = make_stream(store, SYSTEM)
    writer = EventStreamWriter(stream, buffer_bytes=4_000)
    sizes: list[int] = []
    complete = queue_of(writer).put

    def put(rows: Any) -> None:
        sizes.append(rows.size_bytes)
        waiting.append(queue_of(writer).accepted_bytes - queue_of(writer)._completed_bytes)
        complete(rows)

    queue_of(writer).put = put  # type: ignore[assignment, method-assign]
    events = [b"e" * 84] * 400
    writer.write_table(table_of(events)).result(WAIT)
    assert sum(sizes) == 400 * 100
    assert max(sizes) <= 4_000
    assert max(waiting) <= 4_000
    del queue_of(writer).put
    writer.close()
    assert len(all_events(stream)) == 400


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(), pa.string(), pa.large_binary(), pa.large_string(), pa.binary(3),
        pa.binary_view(), pa.string_view(), pa.dictionary(pa.int8(), pa.binary()),
        pa.dictionary(pa.int32(), pa.string()), pa.dictionary(pa.int8(), pa.binary(3)),
        pa.dictionary(pa.int8(), pa.string_view()), pa.dictionary(pa.int8(), pa.binary_view()),
    ],
    ids=str,
)  # fmt: skip
def test_every_kind_of_bytes_and_text_is_written_also_from_a_slice(kind: pa.DataType) -> None:
    stream = make_stream(runtime=SYSTEM)
    values = [b"%03d" % n for n in range(50)]
    plain = pa.array(values).cast(pa.string())
    column = pa.chunked_array([_cast(plain[:20], kind), _cast(plain[20:20], kind),
                               _cast(plain[20:], kind)])  # fmt: skip
    table = pa.table({"event": column}).slice(5, 40)
    with EventStreamWriter(stream) as writer:
        assert len(writer.write_table(table).result(WAIT)) == 40
    assert [event for _, event in all_events(stream)] == values[5:45]


def _cast(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(kind):
        encoded = values.dictionary_encode()
        words = _cast(encoded.dictionary, kind.value_type)
        return pa.DictionaryArray.from_arrays(encoded.indices.cast(kind.index_type), words)
    if kind == pa.binary(3):
        return pa.array([value.as_py().encode() for value in values], kind)
    if kind in (pa.binary_view(), pa.string_view()):
        return pa.array(values.cast(pa.binary()).to_pylist(), pa.binary_view()).view(kind)
    return values.cast(kind)


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int16(), pa.string()),
        pa.dictionary(pa.uint64(), pa.string_view()),
    ],
    ids=str,
)  # fmt: skip
def test_keys_of_every_kind_route_as_those_of_single_events(kind: pa.DataType) -> None:
    stream = make_stream(runtime=SYSTEM, segments=4)
    keys = [f"ключ {n % 9}" if n % 5 else None for n in range(60)]
    column = _cast(pa.array(keys), kind)
    table = pa.table({"routing_key": column, "event": pa.array([b"x"] * 60)}).slice(10)
    with EventStreamWriter(stream) as writer:
        pointers = writer.write_table(table).result(WAIT)
        for pointer, key in zip(pointers, keys[10:], strict=True):
            if key is not None:
                single = writer.write_event(b"y", key).result(WAIT)
                assert single.segment_id == pointer.segment_id
    nulls = [p.segment_id for p, key in zip(pointers, keys[10:], strict=True) if key is None]
    assert len(set(nulls)) == 4


def test_table_without_rows_or_without_keys() -> None:
    stream = make_stream(runtime=SYSTEM)
    with EventStreamWriter(stream) as writer:
        empty = writer.write_table(table_of([]))
        assert empty.done()
        assert list(empty.result()) == []
        assert repr(empty.result()) == "<EventPointers of 0 events>"
        table = pa.table({"event": pa.array([b"1"]), "routing_key": pa.nulls(1)})
        assert [p.offset for p in writer.write_table(table).result(WAIT)] == [0]


BAD_TEXT = pa.Array.from_buffers(
    pa.string(), 2, [None, pa.py_buffer(np.array([0, 1, 2], np.int32)), pa.py_buffer(b"a\xff")]
)
LONG_KEY = "k" * 65_537
LONG = b"x" * (MAX_EVENT_BYTES + 1)
BAD: dict[str, tuple[Callable[[], Any], type[PravegaSparkError], str]] = {
    "no table": (lambda: [b"1"], InvalidInput, "not list"),
    "other column": (
        lambda: pa.table({"event": [b"1"], "time": [1]}), InvalidInput, "got event, time",
    ),
    "no event": (lambda: pa.table({"routing_key": ["k"]}), InvalidInput, "got routing_key"),
    "two events": (
        lambda: pa.table([pa.array([b"1"])] * 2, ["event", "event"]), InvalidInput, "event, event",
    ),
    "numbers": (lambda: pa.table({"event": [1]}), InvalidInput, "not int64"),
    "number keys": (
        lambda: pa.table({"event": [b"1"], "routing_key": [1]}), InvalidInput, "not int64",
    ),
    "null": (
        lambda: pa.concat_tables([table_of([b"1", b"2"]), table_of([b"3", None, None])]),
        InvalidInput, "event of row 3 is null",
    ),
    "null in a dictionary": (
        lambda: pa.table({"event": pa.array([b"1", None]).dictionary_encode()}),
        InvalidInput, "event of row 1 is null",
    ),
    "too large": (
        lambda: pa.concat_tables([table_of([b"1", b"2"]), table_of([LONG, b"3"])]),
        EventTooLarge, "event of row 2 has 8388609 bytes",
    ),
    "long key": (
        lambda: pa.concat_tables([
            table_of([b"1"] * 3, [None, "ß" * 65_536, "k"]),
            table_of([b"1"] * 2, ["k", "k" * 65_537]),
        ]),
        InvalidInput, "routing key of row 4 is longer than 65536 characters",
    ),
    "long key in a dictionary": (
        lambda: pa.table({
            "event": [b"1"] * 3,
            "routing_key": pa.array([LONG_KEY, "a", None, LONG_KEY]).dictionary_encode()[1:],
        }),
        InvalidInput, "routing key of row 2 is longer than 65536 characters",
    ),
    "key without UTF-8": (
        lambda: pa.table({"event": [b"1"] * 3, "routing_key": pa.chunked_array(
            [pa.array(["k"]), BAD_TEXT])}),
        InvalidInput, "routing key of row 2 is not valid",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_invalid_table_is_refused_by_its_row_and_writes_nothing(name: str) -> None:
    make, kind, text = BAD[name]
    stream = make_stream(runtime=SYSTEM)
    with EventStreamWriter(stream) as writer:
        with pytest.raises(kind, match=text):
            writer.write_table(make())
        writer.write_event(b"after", "k").result(WAIT)
    assert [event for _, event in all_events(stream)] == [b"after"]


def test_rows_far_behind_in_a_large_array_are_read_there() -> None:
    far = 3 << 30  # the memory between is never touched
    data = np.zeros(far + 9, np.uint8)
    data[far:] = np.frombuffer(b"onetwo333", np.uint8)
    offsets = np.array([0, 0, far, far + 3, far + 6, far + 9], np.int64)
    column = pa.Array.from_buffers(
        pa.large_binary(), 5, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )[2:]
    rows = EventTable("s/t", pa.table({"event": column}))
    (part,) = rows.parts(1 << 20, 1, OpenTable(PendingWrites(), 3))
    assert part.table().column("event").to_pylist() == [b"one", b"two", b"333"]


def test_scale_while_a_table_is_staged_loses_and_repeats_no_row() -> None:
    store = Spy()
    stream = make_stream(store, SYSTEM)

    def scale_once(operation: str, key: str) -> None:
        if operation == "put" and "/data/" in key:
            store.hook = None
            scale(stream, [0], [(0, 0.5), (0.5, 1)])

    with EventStreamWriter(stream, "w") as writer:
        store.hook = scale_once
        pointers = writer.write_table(numbered(0, 300)).result(WAIT)
        assert writer.last_event_number == 300
    check(stream, pointers, range(300))
    assert sorted(int(event) for _, event in all_events(stream)) == list(range(300))


def test_failure_fails_the_future_of_a_table_and_later_tables() -> None:
    store = Spy()
    stream = make_stream(store, SYSTEM)
    writer = EventStreamWriter(stream)
    store.rules.add(Rule(StoreFull("disk full"), "put", "*/data/*"))
    assert isinstance(writer.write_table(numbered(0, 9)).exception(WAIT), StoreFull)
    with pytest.raises(StoreFull):
        writer.write_table(numbered(0, 9))
    with pytest.raises(StoreFull):
        writer.write_table(table_of([]))
    other = EventStreamWriter(make_stream(runtime=SYSTEM))
    other.close()
    with pytest.raises(ObjectClosed):
        other.write_table(numbered(0, 9))


def test_rows_are_not_copied_before_they_are_encoded() -> None:
    events = pa.array([b"e" * 100] * 1_000)
    before = pa.total_allocated_bytes()
    rows = EventTable("s/t", pa.table({"event": events}))
    (part,) = rows.parts(WRITER_BATCH_BYTES, 1, OpenTable(PendingWrites(), 1_000))
    assert pa.total_allocated_bytes() == before
    found = part.table().column("event").chunk(0)
    assert found.buffers()[2].address == events.buffers()[2].address
