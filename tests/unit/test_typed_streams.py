"""Typed streams: rows of columns are written, read, merged and cut again as events are."""

from __future__ import annotations

import dataclasses
import json
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pydantic import BaseModel

from pravega_spark import (
    ScalingPolicy,
    StreamConfiguration,
    StreamManager,
    StreamSchema,
    json_deserializer,
    json_serializer,
)
from pravega_spark.engine.chunks.format import format_of
from pravega_spark.engine.chunks.reader import WhereExpression
from pravega_spark.errors import (
    EventTooLarge,
    IllegalState,
    InvalidConfiguration,
    InvalidInput,
    InvalidSchema,
    SchemaChangeRefused,
    SchemaMismatch,
)
from pravega_spark.manager import root_of
from pravega_spark.schemas.column_types import canonical_field
from tests.harness.fake_runtime import FakeRuntime, manager_of

S = "nyc/flights"
NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
COLUMNS = pa.schema(
    [
        pa.field("carrier", pa.string(), False, {"comment": "two letters"}),
        pa.field("delay", pa.int32()),
        pa.field("left", pa.timestamp("us", "UTC")),
        pa.field("price", pa.decimal128(8, 2)),
        pa.field("stops", pa.list_(pa.struct([("airport", pa.string())]))),
        pa.field("seats", pa.map_(pa.string(), pa.int16())),
    ]
)
MORE = COLUMNS.append(pa.field("tail", pa.string()))


def row(carrier: str = "UA", **values: Any) -> dict[str, Any]:
    """Return a row as it is read, of ``COLUMNS``."""
    return {**dict.fromkeys(COLUMNS.names), "carrier": carrier, **values}


FULL = row(
    delay=-3,
    left=NOON,
    price=Decimal("19.90"),
    stops=[{"airport": "ORD"}, {"airport": None}],
    seats={"first": 8},
)


@pytest.fixture
def manager() -> StreamManager:
    return opened()


def opened(
    segments: int = 2, columns: pa.Schema = COLUMNS, runtime: FakeRuntime | None = None
) -> StreamManager:
    manager = manager_of(runtime or FakeRuntime())
    manager.create_scope("nyc")
    configuration = StreamConfiguration(ScalingPolicy.fixed(segments), schema=columns)
    assert manager.create_stream(S, configuration)
    return manager


def again(manager: StreamManager) -> StreamManager:
    """Open the root as another process would."""
    return StreamManager(manager.root, runtime=FakeRuntime())


def data(manager: StreamManager) -> list[dict[str, Any]]:
    return [event.data for event in manager.read(S)]


def by_carrier(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for one in rows:
        found.setdefault(one["carrier"], []).append(one["delay"])
    return found


def grow(manager: StreamManager) -> bool:
    return manager.update_stream(S, schema=MORE)


def test_a_row_is_read_as_it_was_written(manager: StreamManager) -> None:
    with manager.create_writer(S) as writer:
        pointer = writer.write_event(FULL, routing_key="UA").result()
    (event,) = manager.read(S)
    assert (event.data, event.routing_key, event.pointer) == (FULL, "UA", pointer)
    assert manager.fetch_event(pointer).data == FULL
    # carrier 2, delay 4, left 8, price 16, ORD 3, first 5 and its 2
    assert event.size_bytes == 40
    assert manager.stream_info(S).size_bytes == 40


def test_the_configuration_shows_the_schema_to_every_process(manager: StreamManager) -> None:
    schema = again(manager).stream_info(S).configuration.schema
    assert schema == StreamSchema.of(COLUMNS)
    assert schema is not None
    assert (schema.arrow.field("carrier").nullable, schema.arrow.field("delay").nullable) == (
        False,
        True,
    )


@dataclasses.dataclass
class Flight:
    carrier: str
    delay: int | None = None


class Model(BaseModel):
    carrier: str
    delay: int | None = None


@pytest.mark.parametrize("made", [dict, Flight, Model])
def test_dicts_dataclasses_and_models_are_rows(manager: StreamManager, made: Any) -> None:
    with manager.create_writer(S) as writer:
        writer.write_event(made(carrier="UA", delay=1))
        writer.write_events([made(carrier="AA", delay=2), made(carrier="AA", delay=3)], "k")
    assert by_carrier(data(manager)) == {"UA": [1], "AA": [2, 3]}


def arrow() -> pa.Table:
    return pa.table({"carrier": ["UA", "AA", "UA", "DL"], "delay": pa.array([1, 2, 3, None])})


@pytest.mark.parametrize(
    "table",
    [
        arrow(),
        arrow().to_batches()[0],
        pl.from_arrow(arrow()),
        pd.DataFrame({"carrier": ["UA", "AA", "UA", "DL"], "delay": [1, 2, 3, None]}).astype(
            {"delay": "Int32"}
        ),
    ],
    ids=["table", "batch", "polars", "pandas"],
)
def test_tables_are_written_by_key_and_time(manager: StreamManager, table: Any) -> None:
    with manager.create_writer(S) as writer:
        pointers = writer.write_table(table, routing_key="carrier").result()
    events = list(manager.read(S))
    assert len(pointers) == 4
    assert {(event.routing_key, event.data["delay"]) for event in events} == {
        ("UA", 1), ("AA", 2), ("UA", 3), ("DL", None)
    }  # fmt: skip
    assert [e.data["delay"] for e in events if e.routing_key == "UA"] == [1, 3]
    assert manager.fetch_event(pointers[2]).data["delay"] == 3


def test_keys_of_other_columns_are_texts_and_times_are_those_of_a_column() -> None:
    manager = opened(
        columns=pa.schema(
            [
                ("number", pa.int64()),
                ("day", pa.date32()),
                ("fee", pa.decimal128(5, 2)),
                ("ok", pa.bool_()),
                ("at", pa.timestamp("us", "UTC")),
            ]
        )
    )
    table = pa.Table.from_pylist(
        [{"number": 7, "day": date(2026, 1, 2), "fee": Decimal("1.50"), "ok": True, "at": NOON}],
        pa.schema([("number", pa.int64()), ("day", pa.date32()), ("fee", pa.decimal128(5, 2)),
                   ("ok", pa.bool_()), ("at", pa.timestamp("ms", "Europe/Berlin"))]),
    )  # fmt: skip
    with manager.create_writer(S) as writer:
        for name in ("number", "day", "fee", "ok"):
            writer.write_table(table, routing_key=name, event_time="at").result()
    events = list(manager.read(S))
    assert {event.routing_key for event in events} == {"7", "2026-01-02", "1.50", "true"}
    assert {event.timestamp for event in events} == {NOON}


def test_a_writer_notes_the_times_of_a_column() -> None:
    manager = opened(1)
    with manager.create_writer(S, event_time="left") as writer:
        writer.write_event(row(left=NOON)).result()
        later = pa.array([NOON.replace(hour=13)] * 4, pa.timestamp("us", "UTC"))
        writer.write_table(arrow().append_column("left", later))
        writer.flush()
        (mark,) = manager.event_time(S).marks()
    assert mark.time_us == int(NOON.replace(hour=13).timestamp()) * 1_000_000
    assert [event.timestamp for event in manager.read(S)][1:] == [NOON.replace(hour=13)] * 4


def test_misfits_name_stream_column_and_value_and_nothing_is_written(
    manager: StreamManager,
) -> None:
    writer = manager.create_writer(S)
    with pytest.raises(SchemaMismatch, match=r"nyc/flights.*delay.*'late'") as found:
        writer.write_event({"carrier": "UA", "delay": "late"})
    assert (found.value.column, found.value.value) == ("delay", "'late'")
    with pytest.raises(SchemaMismatch, match="carrier"):
        writer.write_events([row(), {"delay": 1}])
    bad = pa.table({"carrier": ["UA", None], "delay": pa.array([1, 2], pa.int32())})
    with pytest.raises(SchemaMismatch, match=r"write_table on stream nyc/flights.*row 1") as found:
        writer.write_table(bad)
    assert (found.value.row, found.value.column) == (1, "carrier")
    with pytest.raises(SchemaMismatch, match="no column 'fare'"):
        writer.write_event({"carrier": "UA", "fare": 1})
    with pytest.raises(SchemaMismatch, match="bytes"):
        writer.write_event(b"raw")
    writer.write_event(row(delay=9)).result()
    writer.close()
    assert data(manager) == [row(delay=9)]


def test_a_table_with_wrong_keys_or_times_is_refused(manager: StreamManager) -> None:
    with manager.create_writer(S) as writer:
        table = arrow()
        with pytest.raises(InvalidInput, match=r"routing_key names the column 'airline'.*carrier"):
            writer.write_table(table, routing_key="airline")
        with pytest.raises(InvalidInput, match=r"column stops.*no text form.*name a column"):
            writer.write_table(table, routing_key="stops")
        with pytest.raises(InvalidInput, match=r"column delay must be a timestamp"):
            writer.write_table(table, event_time="delay")
        with pytest.raises(InvalidInput, match=r"the left of row 0 is null"):
            writer.write_table(table, event_time="left")
        keyed = table.append_column("routing_key", pa.array(["k"] * 4))
        with pytest.raises(InvalidInput, match="give one of the two"):
            writer.write_table(keyed, routing_key="carrier")
        with pytest.raises(InvalidInput, match="frame of pandas or Polars is needed, got a list"):
            writer.write_table([1])
        long = pa.table({"carrier": ["UA", "x" * (9 << 20)]})
        with pytest.raises(EventTooLarge, match="row 1"):
            writer.write_table(long)
    assert data(manager) == []


def test_what_only_raw_streams_take_is_refused(manager: StreamManager) -> None:
    with pytest.raises(InvalidInput, match=r"nyc/flights is typed.*without a serializer"):
        manager.create_writer(S, serializer=json_serializer)
    with pytest.raises(InvalidInput, match=r"nyc/flights is typed.*large_events"):
        manager.create_writer(S, large_events=True)
    with pytest.raises(InvalidInput, match=r"nyc/flights is typed.*without a deserializer"):
        manager.read(S, deserializer=json_deserializer)
    with pytest.raises(InvalidInput, match=r"no column 'delay' of type timestamp"):
        manager.create_writer(S, event_time="delay")
    typed = opened(1)
    for open_other in (
        typed.stream(S).create_byte_writer,
        typed.stream(S).create_byte_reader,
        typed.stream(S).revisioned_stream,
        lambda: typed.stream(S).state_synchronizer(lambda state, update: state),
    ):
        with pytest.raises(IllegalState, match=r"nyc/flights is typed.*without a schema"):
            open_other()
    (event,) = written(typed, [FULL])
    with pytest.raises(IllegalState, match="has columns, not bytes"):
        event.open()


def written(manager: StreamManager, rows: list[dict[str, Any]]) -> list[Any]:
    with manager.create_writer(S) as writer:
        for one in rows:
            writer.write_event(one, one["carrier"])
    return list(manager.read(S))


def test_rows_for_a_raw_stream_are_refused_with_the_way_on(manager: StreamManager) -> None:
    manager.create_stream("nyc/raw")
    with manager.create_writer("nyc/raw") as writer:
        with pytest.raises(InvalidInput, match=r"nyc/raw.*dict.*with a schema"):
            writer.write_event({"carrier": "UA"})
        with pytest.raises(InvalidInput, match="names a column of a typed stream"):
            writer.write_table(pa.table({"event": [b"a"]}), routing_key="event")
        with pytest.raises(InvalidInput, match=r"nyc/raw is raw.*column 'at'"):
            manager.create_writer("nyc/raw", event_time="at")


def test_columns_and_rows_are_chosen(manager: StreamManager) -> None:
    with manager.create_writer(S) as writer:
        writer.write_table(arrow(), routing_key="carrier")
    late = manager.read_table(S, columns=["delay", "carrier"], where=pc.field("delay") > 1)
    assert late.schema.names == ["delay", "carrier"]
    assert sorted(late.to_pylist(), key=lambda r: r["delay"]) == [
        {"delay": 2, "carrier": "AA"},
        {"delay": 3, "carrier": "UA"},
    ]
    whole = manager.read_table(S)
    assert whole.num_rows == 4
    assert whole.schema.names[:4] == ["segment_id", "offset", "routing_key", "timestamp"]
    assert pl.from_arrow(whole).shape == whole.to_pandas().shape == (4, 10)
    batches = manager.stream(S).create_reader().batches(columns=["carrier"])
    assert {tuple(batch.schema.names) for _, batch in batches} == {("carrier",)}


def test_a_column_or_an_expression_that_is_none_is_refused(manager: StreamManager) -> None:
    with pytest.raises(InvalidInput, match=r"nyc/flights.*'fare'.*carrier"):
        manager.read_table(S, columns=["fare"])
    with pytest.raises(InvalidInput, match=r"nyc/flights.*fare.*The columns are.*carrier"):
        manager.read_table(S, where=pc.field("fare") > 1)
    with pytest.raises(InvalidInput, match=r"nyc/flights.*cannot be computed"):
        manager.read_table(S, where=pc.field("carrier") > 1)
    with pytest.raises(InvalidInput, match=r"expression of pyarrow.compute"):
        manager.read_table(S, where="delay > 1")


def test_columns_are_a_list_which_may_be_empty(manager: StreamManager) -> None:
    written(manager, [row(delay=n) for n in range(9)])
    counted = manager.read_table(S, columns=[], where=pc.field("delay") > 4)
    assert (counted.num_rows, counted.num_columns) == (4, 0)
    with pytest.raises(InvalidInput, match=r"nyc/flights: columns is a list.*\['delay'\]"):
        manager.read_table(S, columns="delay")
    with pytest.raises(InvalidInput, match=r"nyc/flights: columns is a list"):
        manager.stream(S).create_reader().batches(columns="delay")


def test_an_expression_that_overflows_is_refused_and_blames_no_file(manager: StreamManager) -> None:
    written(manager, [row(delay=2**31 - 1)])
    one = pa.scalar(1, pa.int32())
    for where in (
        pc.field("delay").cast(pa.int8()) > 1,
        pc.add_checked(pc.field("delay"), one) > 1,
    ):
        with pytest.raises(InvalidInput, match=r"nyc/flights.*cannot be computed.*wider type"):
            manager.read_table(S, where=where)


def test_frames_of_pandas_have_maps_as_dicts_or_pairs(manager: StreamManager) -> None:
    seats = [{"first": 8}, [("first", 8)], None]
    frame = pd.DataFrame({"carrier": ["UA"] * 3, "seats": seats, "delay": [1, 2, 3]})
    with manager.create_writer(S) as writer:
        writer.write_table(frame).result()
        writer.write_table(manager.read_table(S, columns=["carrier", "seats"]).to_pandas()).result()
        frame.at[1, "seats"] = [("first", "x")]
        with pytest.raises(SchemaMismatch, match=r"row 1, column seats.value"):
            writer.write_table(frame)
        for event in manager.read_table(S, columns=["carrier", "seats"]).to_pylist():
            writer.write_event(event)
    found = manager.read_table(S, columns=["seats"]).to_pylist()
    assert sorted(str(one["seats"]) for one in found) == ["None"] * 4 + ["[('first', 8)]"] * 8


def test_an_expression_needs_the_columns_that_it_names_in_wide_streams_too() -> None:
    names = [f"c{number}" for number in range(50)]
    columns = format_of(StreamSchema.of(pa.schema([(name, pa.int32()) for name in names])))
    wanted = (pc.field("c7") > pc.field("c8")) | (pc.field("c49") == 1) | (pc.field("offset") > 1)
    assert WhereExpression(S, wanted, columns).needed == ("offset", "c7", "c8", "c49")
    assert WhereExpression(S, pc.scalar(True), columns).needed == ()


def test_the_row_that_does_not_fit_is_the_one_that_is_named(manager: StreamManager) -> None:
    rows = [row(), row(), row(delay="x")]
    with manager.create_writer(S) as writer, manager.create_transactional_writer(S) as transactions:
        timed = manager.create_writer(S, event_time=lambda event: NOON)
        transaction = transactions.begin_transaction()
        for write in (writer.write_events, transaction.write_events, timed.write_events):
            with pytest.raises(SchemaMismatch, match="row 2, column delay") as found:
                write(rows)
            assert found.value.row == 2
        timed.close()
        transaction.abort()
    assert data(manager) == []


def test_an_event_that_is_too_large_has_a_way_on_that_typed_streams_take(
    manager: StreamManager,
) -> None:
    large = row(carrier="x" * (9 << 20))
    with manager.create_writer(S) as writer, pytest.raises(EventTooLarge) as found:
        writer.write_event(large)
    assert "large_events" not in str(found.value)
    assert "write a reference" in str(found.value)


def test_a_filtered_read_ends_where_the_reader_is(manager: StreamManager) -> None:
    written(manager, [row(delay=n) for n in range(9)])
    reader = manager.stream(S).create_reader()
    found = list(reader.batches(where=pc.field("delay") == 4, columns=["delay"]))
    assert [batch.to_pylist() for _, batch in found] == [[{"delay": 4}]]


def test_added_columns_are_null_in_older_events_and_older_writers_go_on(
    manager: StreamManager,
) -> None:
    older = manager.create_writer(S)
    older.write_event(row(delay=1), "UA").result()
    assert grow(manager)
    assert not grow(manager)
    with manager.create_writer(S) as newer:
        newer.write_event({**row(delay=2), "tail": "N1"}, "UA").result()
    older.write_event(row(delay=3), "UA").result()
    older.write_table(arrow().slice(0, 1), routing_key="carrier").result()
    older.close()
    assert [(r["delay"], r["tail"]) for r in data(manager)] == [
        (1, None), (2, "N1"), (3, None), (1, None)
    ]  # fmt: skip
    where = manager.read_table(S, columns=["delay"], where=pc.field("tail") == "N1")
    assert where.to_pylist() == [{"delay": 2}]


def test_a_writer_takes_up_the_newer_schema_when_a_row_needs_it(manager: StreamManager) -> None:
    elsewhere = again(manager)
    writer = elsewhere.create_writer(S)
    writer.write_event(row(delay=1), "k")
    grow(manager)
    writer.write_event({**row(delay=2), "tail": "N2"}, "k").result()
    tails = arrow().append_column("tail", pa.array(["a", "b", "c", "d"]))
    writer.write_table(tails).result()
    writer.close()
    assert sorted(r["tail"] or "" for r in data(manager)) == ["", "N2", "a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("change", "column"),
    [
        (COLUMNS.remove(1), "delay"),
        (COLUMNS.set(1, pa.field("delay", pa.int64())), "delay"),
        (COLUMNS.set(1, pa.field("delay", pa.int16())), "delay"),
        (COLUMNS.set(1, pa.field("late", pa.int32())), "delay"),
        (COLUMNS.set(1, pa.field("delay", pa.int32(), False)), "delay"),
        (COLUMNS.append(pa.field("tail", pa.string(), False)), "tail"),
    ],
)
def test_other_changes_are_refused_and_the_schema_stays(
    manager: StreamManager, change: pa.Schema, column: str
) -> None:
    version = manager.stream_info(S).version
    with pytest.raises(SchemaChangeRefused, match=rf"nyc/flights.*{column}") as found:
        manager.update_stream(S, schema=change)
    assert found.value.column == column
    info = manager.stream_info(S)
    assert (info.version, info.configuration.schema) == (version, StreamSchema.of(COLUMNS))


def test_a_stream_stays_typed_or_raw_for_its_life(manager: StreamManager) -> None:
    manager.create_stream("nyc/raw")
    with pytest.raises(InvalidConfiguration, match=r"nyc/raw is raw.*no schema"):
        manager.update_stream("nyc/raw", schema=COLUMNS)
    with pytest.raises(InvalidConfiguration, match=r"nyc/flights is typed.*its schema"):
        manager.update_stream(S, StreamConfiguration())
    whole = StreamConfiguration(ScalingPolicy.fixed(2), tags={"a"}, schema=MORE)
    assert manager.update_stream(S, whole)
    assert manager.stream_info(S).configuration.schema == StreamSchema.of(MORE)


def test_the_stream_remembers_each_schema_of_its_life(manager: StreamManager) -> None:
    manager.update_stream(S, add_tags=["a"])
    grow(manager)
    versions = manager.schemas(S)
    assert [each.schema for each in versions] == [StreamSchema.of(COLUMNS), StreamSchema.of(MORE)]
    assert [each.version for each in versions] == [0, 2]
    manager.create_stream("nyc/raw")
    assert manager.schemas("nyc/raw") == []
    manager.seal_stream(S)
    manager.delete_stream(S)
    manager.create_stream(S, StreamConfiguration(schema=MORE))
    assert [each.schema for each in manager.schemas(S)] == [StreamSchema.of(MORE)]


def test_versions_that_know_no_columns_refuse_the_stream_and_raw_ones_stay_as_they_were(
    manager: StreamManager,
) -> None:
    manager.create_stream("nyc/raw")
    features = {}
    for name in (S, "nyc/raw"):
        snapshot = root_of(manager).stream(name).log.refresh()
        assert snapshot is not None
        features[name] = set(snapshot.protocol["writerFeatures"])
    assert features[S] - features["nyc/raw"] == {"pravega-columns"}


def stats_of(manager: StreamManager) -> list[dict[str, Any]]:
    """Return Delta's statistics of the live files, in the order of their offsets."""
    log = root_of(manager).stream(S).log
    log.refresh()
    with log.files() as files:
        return [json.loads(add.stats or "") for add in files.all()]


def test_the_log_has_bounds_of_the_first_schema_s_columns_whoever_stages_a_chunk(
    manager: StreamManager,
) -> None:
    stream = root_of(manager).stream(S)

    def declared() -> str:
        snapshot = stream.log.refresh()
        assert snapshot is not None
        return str(snapshot.metadata["configuration"]["delta.dataSkippingStatsColumns"])

    assert declared() == "timestamp,carrier,delay,left,price"
    written(manager, [row("UA", delay=5, price=Decimal("1.50"))])
    with manager.create_transactional_writer(S) as several, several.begin_transaction() as txn:
        txn.write_event(row("UA", delay=6), "UA")
    grow(manager)
    assert declared() == "timestamp,carrier,delay,left,price"
    with manager.create_writer(S) as writer:
        writer.write_event({**row("UA", delay=7), "tail": "N"}, "UA").result()
    found = stats_of(manager)
    assert [one["minValues"]["delay"] for one in found] == [5, 6, 7]
    assert [one["maxValues"].get("tail") for one in found] == [None, None, "N"]
    assert [one["nullCount"]["price"] for one in found] == [0, 1, 1]
    manager.seal_stream(S)
    manager.delete_stream(S)
    manager.create_stream(S)
    assert declared() == "timestamp"
    with manager.create_writer(S) as writer:
        writer.write_event(b"bytes").result()
    assert [*stats_of(manager)[0]["minValues"]] == ["timestamp"]


def test_an_update_checks_each_column_once(
    manager: StreamManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a thousand updates that add a column each cost what their columns cost."""
    wide = pa.schema([*COLUMNS, *((f"c{n}", pa.int32()) for n in range(50))])
    manager.update_stream(S, schema=wide)
    checked: list[str] = []

    def count(field: pa.Field, path: str) -> pa.Field:
        checked.append(path)
        return canonical_field(field, path)

    monkeypatch.setattr("pravega_spark.schemas.column_types.canonical_field", count)
    grown = wide.append(pa.field("last", pa.int32()))
    assert manager.update_stream(S, schema=grown)
    top = [path for path in checked if "." not in path]
    assert sorted(top) == sorted(grown.names)
    assert manager.schemas(S)[-1].schema.names == tuple(grown.names)


def test_comments_change_in_one_commit(manager: StreamManager) -> None:
    version = manager.stream_info(S).version
    carrier = pa.field("carrier", pa.string(), False, {"comment": "IATA code"})
    assert manager.update_stream(S, schema=COLUMNS.set(0, carrier))
    assert manager.stream_info(S).version == version + 1
    schema = manager.stream_info(S).configuration.schema
    assert schema is not None
    assert schema.arrow.field("carrier").metadata == {b"comment": b"IATA code"}


def test_the_next_life_may_be_raw_and_the_one_after_it_typed_again(
    manager: StreamManager,
) -> None:
    written(manager, [FULL])
    for columns, event in ((None, b"bytes"), (MORE, {**FULL, "tail": None}), (COLUMNS, FULL)):
        manager.seal_stream(S)
        manager.delete_stream(S)
        manager.create_stream(S, StreamConfiguration(schema=columns))
        with manager.create_writer(S) as writer:
            writer.write_event(event)
        assert [found.data for found in again(manager).read(S)] == [event]


def test_a_transaction_over_a_change_of_schema_commits_all_of_its_rows(
    manager: StreamManager,
) -> None:
    with manager.create_transactional_writer(S) as writer:
        transaction = writer.begin_transaction()
        transaction.write_event(row(delay=1), "UA")
        transaction.flush()
        transaction.write_events([row(delay=2)], "UA")
        grow(manager)
        manager.scale_stream(S, ["0#0", "1#0"], [(0.0, 0.3), (0.3, 1.0)])
        transaction.write_events([row(delay=3), {**row(delay=4), "tail": "N4"}], "UA")
        with pytest.raises(SchemaMismatch, match="fare"):
            transaction.write_events([row(delay=5), {"fare": 1}], "UA")
        transaction.commit()
    assert [(r["delay"], r["tail"]) for r in data(manager)] == [
        (1, None), (2, None), (3, None), (4, "N4")
    ]  # fmt: skip


def test_a_large_transaction_spills_rows_of_both_schemas(
    manager: StreamManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pravega_spark.txn.transaction.TRANSACTION_BATCH_EVENTS", 4)
    with manager.create_transactional_writer(S) as writer, writer.begin_transaction() as one:
        one.write_events([row(delay=n) for n in range(9)], "UA")
        grow(manager)
        one.write_events([{**row(delay=n), "tail": "N"} for n in range(9, 18)], "UA")
    rows = data(manager)
    assert [r["delay"] for r in rows] == [*range(18)]
    assert [r["tail"] for r in rows] == [None] * 9 + ["N"] * 9


def test_a_joint_transaction_writes_rows_and_bytes(manager: StreamManager) -> None:
    manager.create_stream("nyc/raw")
    joint = manager.create_joint_writer([S, "nyc/raw"])
    with joint as writer, writer.begin_transaction() as both:
        both.write_event(S, FULL, "UA")
        both.write_event("nyc/raw", b"bytes", "UA")
    assert data(manager) == [FULL]
    assert [event.data for event in manager.read("nyc/raw")] == [b"bytes"]


def test_a_group_reads_on_over_a_scale_and_a_change_of_schema(manager: StreamManager) -> None:
    group = manager.create_reader_group("nyc/g", [S])
    written(manager, [row("UA", delay=1), row("AA", delay=2)])
    reader = group.create_reader("r")
    found = [event for _ in range(2) if (event := reader.read_next_event(0).event)]
    manager.scale_stream(S, ["0#0", "1#0"], [(0.0, 0.3), (0.3, 1.0)])
    grow(manager)
    with manager.create_writer(S) as writer:
        writer.write_event({**row("UA", delay=3), "tail": "N"}, "UA")
    manager.seal_stream(S)
    found += list(reader)
    assert [event.data["delay"] for event in found if event.data["carrier"] == "UA"] == [1, 3]
    assert found[-1].data["tail"] == "N"
    reader.close()


def test_a_group_reads_batches_of_columns(manager: StreamManager) -> None:
    group = manager.create_reader_group("nyc/g", [S])
    written(manager, [FULL])
    with group.create_reader("r") as reader:
        batch = reader.read_events(timeout=0).events
        nothing = reader.read_events(timeout=0).events
    assert (nothing.num_rows, nothing.schema) == (0, batch.schema)
    assert batch.select(["stream", "carrier", "delay"]).to_pylist() == [
        {"stream": S, "carrier": "UA", "delay": -3}
    ]


def test_a_reader_without_segments_has_the_columns_of_its_typed_streams(
    manager: StreamManager,
) -> None:
    group = manager.create_reader_group("nyc/g", [S])
    readers = [group.create_reader(f"r{number}") for number in range(3)]
    found = [reader.read_events(timeout=0).events for reader in readers]
    assert [batch.schema.names[-len(COLUMNS) :] for batch in found] == [COLUMNS.names] * 3
    assert not all(reader.position.offsets for reader in readers), "one has no segment"
    for reader in readers:
        reader.close()


def test_a_merge_of_columns_with_nan_finds_them_by_a_condition() -> None:
    runtime = FakeRuntime()
    columns = pa.schema([("speed", pa.float64()), ("ratio", pa.float32())])
    manager = opened(1, columns, runtime)
    with manager.create_writer(S) as writer:
        for speed in (1.0, float("nan"), 3.0):
            writer.write_event({"speed": speed, "ratio": 0.5}).result()
    manager.seal_stream(S)
    runtime.sleep(3_600)
    assert manager.stream(S).compact().ranges == 1
    assert (
        str(manager.read_table(S, columns=["speed"]).column("speed").to_pylist())
        == "[1.0, nan, 3.0]"
    )
    above = manager.read_table(S, columns=["offset"], where=~(pc.field("speed") <= 500))
    assert above.column("offset").to_pylist() == [1]


def test_a_merge_over_a_change_of_schema_keeps_every_value() -> None:
    runtime = FakeRuntime()
    manager = opened(1, runtime=runtime)
    written(manager, [row(delay=n) for n in range(3)])
    grow(manager)
    with manager.create_writer(S) as writer:
        for n in range(3, 6):
            writer.write_event({**FULL, "delay": n, "tail": f"N{n}"}, "UA").result()
    before = [(event.pointer, event.data, event.size_bytes) for event in manager.read(S)]
    manager.seal_stream(S)
    runtime.sleep(3_600)
    assert manager.stream(S).compact(dry_run=True).ranges == 1
    assert manager.stream(S).compact().ranges == 1
    assert [(e.pointer, e.data, e.size_bytes) for e in manager.read(S)] == before
    assert manager.read_table(S, where=pc.field("tail") == "N4").column("delay").to_pylist() == [4]


def test_nested_column_with_a_dot_in_its_name_is_filtered_as_any(manager: StreamManager) -> None:
    columns = pa.schema(
        [
            ("a.b", pa.list_(pa.int64())),
            ("c.d", pa.struct([("e", pa.int64())])),
            ("x.y", pa.int64()),
        ]
    )
    manager.create_stream("nyc/dots", StreamConfiguration(schema=columns))
    rows = [{"a.b": [n], "c.d": {"e": n}, "x.y": n} for n in range(20)]
    with manager.create_writer("nyc/dots") as writer:
        writer.write_table(pa.Table.from_pylist(rows, columns)).result()
    for where, wanted in (
        (pc.list_value_length(pc.field("a.b")) == 1, 20),
        (pc.field("a.b").is_valid(), 20),
        (pc.field("a.b").is_null(), 0),
        (pc.struct_field(pc.field("c.d"), "e") > 9, 10),
        (pc.field("x.y") > 9, 10),
        ((pc.field("x.y") > 9) & pc.field("c.d").is_valid(), 10),
    ):
        assert manager.read_table("nyc/dots", where=where).num_rows == wanted, where


@pytest.mark.parametrize(
    ("columns", "path"),
    [
        ([("a.b", pa.string()), ("a", pa.struct([("b", pa.int64())]))], "a.b"),
        ([("a", pa.list_(pa.int64())), ("a.list.element", pa.string())], "a.list.element"),
        ([("m", pa.map_(pa.string(), pa.int64())), ("m.key_value.key", pa.int8())], "m.key_value"),
        ([("a", pa.struct([("b.c", pa.int8()), ("b", pa.struct([("c", pa.string())]))]))], "a.b.c"),
    ],
)
def test_columns_that_share_a_path_in_parquet_are_refused_at_creation(
    manager: StreamManager, columns: list[Any], path: str
) -> None:
    given = StreamConfiguration(schema=pa.schema(columns))
    with pytest.raises(InvalidSchema, match=f"two columns have the path {path}"):
        manager.create_stream("nyc/clash", given)
    assert not manager.stream_exists("nyc/clash")
    if len(columns) > 1:
        manager.create_stream("nyc/clash", StreamConfiguration(schema=pa.schema(columns[:1])))
        with pytest.raises(InvalidSchema, match=f"two columns have the path {path}"):
            manager.update_stream("nyc/clash", schema=pa.schema(columns))


NAN = float("nan")


@pytest.mark.parametrize("width", [pa.float32(), pa.float64()])
@pytest.mark.parametrize("way", ["rows", "table"])
def test_keys_of_a_map_that_spark_takes_for_one_are_refused_however_they_come(
    manager: StreamManager, width: pa.DataType, way: str
) -> None:
    nested = pa.struct([("f", width)])
    columns = pa.schema([("m", pa.map_(width, pa.int64())), ("n", pa.map_(nested, pa.int64()))])
    manager.create_stream("nyc/maps", StreamConfiguration(schema=columns))

    def write(keys: list[float], is_nested: bool) -> None:
        pairs = [({"f": key} if is_nested else key, n) for n, key in enumerate(keys)]
        one = {"n" if is_nested else "m": pairs}
        with manager.create_writer("nyc/maps") as writer:
            if way == "rows":
                writer.write_event(one).result()
            else:
                writer.write_table(pa.Table.from_pylist([one], columns)).result()

    same = [(0.0, -0.0), (NAN, -NAN)] + ([(0.1, 0.1 + 1e-12)] if width == pa.float32() else [])
    for keys in same:
        for is_nested in (False, True):
            with pytest.raises(SchemaMismatch, match="twice"):
                write([1.5, *keys], is_nested)
            write([1.5, keys[0]], is_nested)
    assert manager.stream_info("nyc/maps").events == 2 * len(same)
