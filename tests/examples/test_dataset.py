"""The demo's input: the flights with their times and nulls, and files of the user's own."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from flights.dataset import Dataset, InputError, load_file, sequence_numbers, write_feed
from flights.delays import LATENESS, closing_event, expected_delays
from flights.nycflights import airlines, load_flights

UTC = timezone.utc
NEW_YORK = ZoneInfo("America/New_York")
FLIGHTS = 336_776
CANCELLED = 8_255
LONGEST_DELAY = timedelta(minutes=1_301)


@pytest.fixture(scope="module")
def flights() -> Dataset:
    return load_flights()


@pytest.mark.medium
def test_every_flight_is_there_in_the_order_of_time(flights: Dataset) -> None:
    assert flights.events == FLIGHTS
    assert flights.keys == 16
    assert sorted(flights.rows["_row"].to_pylist()) == list(range(1, FLIGHTS + 1))
    times = flights.rows["_time"].combine_chunks()
    assert pc.all(pc.less_equal(times[:-1], times[1:])).as_py()


def test_local_clocks_agree_with_the_instants_also_when_clocks_change(flights: Dataset) -> None:
    """Compare each scheduled hour and each departure with two sources of time zones."""
    names = ["year", "month", "day", "hour", "_hour"]
    distinct = flights.rows.group_by(names).aggregate([])
    hours = set(zip(*(distinct[name].to_pylist() for name in names), strict=True))
    for year, month, day, hour, instant in hours:
        assert datetime(year, month, day, hour, tzinfo=NEW_YORK) == instant
    assert {(m, d) for _, m, d, _, _ in hours} >= {(3, 9), (3, 10), (11, 2), (11, 3)}
    departed = flights.rows.filter(pc.is_valid(flights.rows["departure"]))
    local = pc.local_timestamp(departed["departure"].cast(pa.timestamp("us", "America/New_York")))
    clock = pc.add(pc.multiply(pc.hour(local), 100), pc.minute(local))
    expected = pc.if_else(pc.equal(departed["dep_time"], 2_400), 0, departed["dep_time"])
    assert pc.all(pc.equal(clock, expected)).as_py()


def test_cancelled_flight_has_neither_delay_nor_departure_but_a_time(flights: Dataset) -> None:
    rows = flights.rows
    cancelled = rows.filter(pc.is_null(rows["dep_delay"]))
    assert cancelled.num_rows == CANCELLED
    assert cancelled["departure"].null_count == CANCELLED
    assert cancelled["dep_time"].null_count == CANCELLED
    assert cancelled["_time"].equals(cancelled["scheduled"])
    assert "NA" not in rows["tailnum"].unique().to_pylist()


def test_no_flight_is_later_than_the_watermark_waits(flights: Dataset) -> None:
    late_us = pc.subtract(flights.rows["_time"], flights.rows["scheduled"]).cast(pa.int64())
    late = timedelta(microseconds=pc.max(late_us).as_py())
    assert late == LONGEST_DELAY
    assert late + timedelta(hours=2) < LATENESS


def test_sequence_numbers_count_within_a_key(flights: Dataset) -> None:
    ha = flights.rows.filter(pc.equal(flights.rows["_key"], "HA"))
    assert ha["_sequence"].to_pylist() == list(range(1, 343))
    keys = pa.chunked_array([["a", "b", "a"], ["c", "a", "b"]])
    assert sequence_numbers(keys).tolist() == [1, 1, 2, 1, 3, 2]


@pytest.mark.medium
def test_limit_keeps_the_first_in_time(flights: Dataset) -> None:
    few = load_flights(limit=100)
    assert few.rows.equals(flights.rows.slice(0, 100))


def test_weather_has_one_row_for_an_airport_and_hour(flights: Dataset) -> None:
    assert flights.weather is not None
    sums = flights.weather.group_by(["origin", "hour"]).aggregate([([], "count_all")])
    assert pc.max(sums["count_all"]).as_py() == 1
    assert flights.weather["rain"].null_count == 0


def test_carriers_have_names() -> None:
    assert airlines()["FL"] == "AirTran Airways"
    assert airlines()["DL"] == "Delta Air Lines"


@pytest.mark.medium
def test_expected_delays_are_those_of_a_plain_loop(flights: Dataset) -> None:
    few = replace(flights, rows=flights.rows.slice(10_000, 5_000))
    assert few.weather is not None
    rain = {(row["origin"], row["hour"]): row["rain"] for row in few.weather.to_pylist()}
    totals: dict[tuple[str, datetime], list[int]] = {}
    for row in few.rows.to_pylist():
        total = totals.setdefault((row["carrier"], row["_hour"]), [0] * 5)
        total[0] += 1
        if row["dep_delay"] is not None:
            wet = rain.get((row["origin"], row["_hour"]), False)
            for place, more in enumerate((1, row["dep_delay"], wet, wet * row["dep_delay"]), 1):
                total[place] += more
    found = {(row.pop("key"), row.pop("hour")): [*row.values()]
             for row in expected_delays(few).to_pylist()}  # fmt: skip
    assert found == totals
    assert any(total[3] for total in totals.values())


@pytest.mark.medium
def test_feed_is_in_order_by_the_times_of_its_files(flights: Dataset, tmp_path: Path) -> None:
    sizes = write_feed(flights, tmp_path / "feed")
    files = sorted((tmp_path / "feed").iterdir(), key=lambda file: file.stat().st_mtime)
    assert [file.name for file in files] == sorted(file.name for file in files)
    assert len({file.stat().st_mtime for file in files}) == len(sizes)
    parts = [pq.read_table(file) for file in files]
    assert [part.num_rows for part in parts] == sizes
    assert pa.concat_tables(parts)["_row"].equals(flights.rows["_row"])


@pytest.mark.medium
def test_late_events_are_the_last_ones_in_time(flights: Dataset) -> None:
    early, late = flights.split()
    assert late.events == 6_736
    assert pa.concat_tables([early.rows, late.rows]).equals(flights.rows)
    assert load_flights(limit=1).split()[0].events == 1
    assert [part.events for part in load_flights(limit=2).split()] == [1, 1]


def test_one_row_is_a_feed_of_one_file(tmp_path: Path) -> None:
    assert write_feed(load_flights(limit=1), tmp_path / "feed") == [1]


def test_closing_event_lets_the_watermark_pass_the_last_hour(flights: Dataset) -> None:
    assert flights.last_hour == datetime(2014, 1, 1, 4, tzinfo=UTC)
    assert closing_event(flights) == '{"_hour":"2014-01-02T05:00:00.000Z"}'


# Files of the user's own


def load(tmp_path: Path, text: str, name: str = "own.csv", **options: Any) -> Dataset:
    path = tmp_path / name
    path.write_text(text)
    given: dict[str, Any] = {"key": "id", "time_column": "when", **options}
    return load_file(path, **given)


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2013-01-01T10:15:00Z", datetime(2013, 1, 1, 10, 15, tzinfo=UTC)),
        ("2013-01-01 10:15:00", datetime(2013, 1, 1, 10, 15, tzinfo=UTC)),
        ("2013-01-01T10:15:00+02:00", datetime(2013, 1, 1, 8, 15, tzinfo=UTC)),
        ("2013-01-01T10:15:00.250001Z", datetime(2013, 1, 1, 10, 15, 0, 250_001, tzinfo=UTC)),
        ("2013-01-01", datetime(2013, 1, 1, tzinfo=UTC)),
    ],
)
def test_times_are_parsed_as_instants(tmp_path: Path, text: str, instant: datetime) -> None:
    own = load(tmp_path, f"id,when\na,{text}\n")
    assert own.rows["_time"].to_pylist() == [instant]
    assert own.rows["_hour"].to_pylist() == [instant.replace(minute=0, second=0, microsecond=0)]


def test_mixed_forms_of_time_are_sorted_as_instants(tmp_path: Path) -> None:
    own = load(
        tmp_path, "id,when\na,2013-01-02\nb,2013-01-01T10:00:00+02:00\na,2013-01-01T09:00Z\n"
    )
    assert own.rows["_row"].to_pylist() == [2, 3, 1]
    assert own.rows["_key"].to_pylist() == ["b", "a", "a"]
    assert own.rows["_sequence"].to_pylist() == [1, 1, 2]


def test_parquet_with_types_that_spark_lacks_is_accepted(tmp_path: Path) -> None:
    instant = datetime(2013, 1, 1, 10, 15)
    table = pa.table(
        {
            "id": pa.array([7, 8]),
            "when": pa.array([instant, instant], pa.timestamp("ns")),
            "at": pa.array([0, 1], pa.time32("s")),
            "kind": pa.array(["x", "x"]).dictionary_encode(),
            "nothing": pa.nulls(2),
        }
    )
    pq.write_table(table, tmp_path / "own.parquet")
    own = load_file(tmp_path / "own.parquet", key="id", time_column="when")
    assert own.rows["_key"].to_pylist() == ["7", "8"]
    assert own.rows["_time"][0].as_py() == instant.replace(tzinfo=UTC)
    assert {str(own.rows[name].type) for name in ("at", "kind", "nothing")} == {"string"}


def test_large_csv_may_have_line_breaks_inside_quotes(tmp_path: Path) -> None:
    lines = "a line\n" * 200
    rows = [f'k{n},2013-01-01,"{lines}end {n}"' for n in range(2_000)]
    own = load(tmp_path, "\n".join(["id,when,text", *rows]) + "\n")
    assert own.events == 2_000
    assert own.rows["text"][1_999].as_py().endswith("a line\nend 1999")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "cannot be read"),
        ("id,when\n", "has no rows"),
        (
            "id,when\na,2013-01-01\nb,yesterday\n",
            "row 2: 'yesterday' in column 'when' is not a time",
        ),
        ("id,when\na,2013-01-01\nb,\n", "row 2: no time in column 'when'"),
        ("id,when\na,2013-01-01\n,2013-01-01\n", "row 2: no key in column 'id'"),
        ("id,when\na,20130101\n", "column 'when' is int64, not a time"),
        ("id,at\na,2013-01-01\n", "no column 'when', which --time names; its columns are: id, at"),
        ("ID,when\na,2013-01-01\n", "no column 'id', which --key names"),
        ("id,ID,when\na,b,2013-01-01\n", "more than one column named 'id'"),
        ("id,when,\na,2013-01-01,b\n", "a column without a name"),
        ("id,when\na,2013-01-01\nb,1969-07-20T20:17:00Z\n", "row 2: 1969-07-20"),
        ("id,when,_row\na,2013-01-01,1\n", "has a column '_row', which the demo adds itself"),
        ("id,when\na,2013-01-01,more\n", "cannot be read"),
    ],
)
def test_bad_value_is_an_error_that_names_row_and_column(
    tmp_path: Path, text: str, says: str
) -> None:
    with pytest.raises(InputError, match=r"own\.csv") as caught:
        load(tmp_path, text)
    assert says in str(caught.value)


def test_missing_unknown_or_truncated_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        load_file(tmp_path / "none.csv", key="id", time_column="when")
    with pytest.raises(InputError, match="neither"):
        load(tmp_path, "id,when\n", name="own.xlsx")
    with pytest.raises(InputError, match="cannot be read"):
        load(tmp_path, "PAR1", name="own.parquet")
