"""The rows that the demo replays, in the order of time, each with a key, an hour and a number.

A dataset's table has the unchanged columns of its source, and these columns of the demo:

========== ============================ =====================================================
column     type                         meaning
========== ============================ =====================================================
_row       int64                        number of the row in the source, from 1
_key       string                       routing key
_sequence  int64                        number of the event within its key, from 1
_time      timestamp[us, UTC]           event time; the order of the replay
_hour      timestamp[us, UTC]           hour by which the table counts it
========== ============================ =====================================================
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv

OWN_COLUMNS = ("_row", "_key", "_sequence", "_time", "_hour")
TIME = pa.timestamp("us", "UTC")
EARLIEST = datetime(1970, 1, 1, 1, tzinfo=timezone.utc)
LATE_SHARE = 0.02
"""Share of the events, the last ones, that arrives after the reading query has stopped."""
MAX_FEED_FILES = 12
MIN_FEED_FILES = 8
FEED_FILE_ROWS = 2_000
"""A replay has MIN to MAX files, and more than MIN only if each has this many rows."""


class InputError(Exception):
    """The user's input is unusable; nothing was done."""


@dataclass(frozen=True)
class Dataset:
    """Rows to replay. With ``weather`` (origin, hour, rain) they are flights with delays."""

    source: str
    rows: pa.Table
    key: str
    weather: pa.Table | None = None

    @property
    def events(self) -> int:
        """How many events the replay writes."""
        return int(self.rows.num_rows)

    @property
    def keys(self) -> int:
        """How many routing keys the events have."""
        return len(self.rows["_key"].unique())

    @property
    def last_hour(self) -> datetime:
        """The last hour of any row."""
        last = pc.max(self.rows["_hour"]).as_py()
        assert isinstance(last, datetime)
        return last

    def split(self) -> tuple[Dataset, Dataset]:
        """Return the events of the replay, at least one, and the late events after them."""
        early = max(1, self.events - math.ceil(LATE_SHARE * self.events))
        rows = self.rows.slice(0, early), self.rows.slice(early)
        return replace(self, rows=rows[0]), replace(self, rows=rows[1])


def in_time_order(
    table: pa.Table,
    *,
    source: str,
    key: str,
    times: pa.ChunkedArray,
    hours: pa.ChunkedArray | None = None,
    limit: int | None = None,
    weather: pa.Table | None = None,
) -> Dataset:
    """Number the rows and sort them by time; keep the first ``limit``."""
    if hours is None:
        hours = pc.floor_temporal(times, unit="hour")
    own = {
        "_row": pa.array(np.arange(1, table.num_rows + 1)),
        "_key": table[key].cast(pa.string()),
        "_time": times.cast(TIME),
        "_hour": hours.cast(TIME),
    }
    for name, column in own.items():
        table = table.append_column(name, column)
    table = table.take(pc.sort_indices(table, [("_time", "ascending"), ("_row", "ascending")]))
    table = table.slice(0, limit).combine_chunks()
    table = table.append_column("_sequence", pa.array(sequence_numbers(table["_key"])))
    return Dataset(source, table, key, weather)


def sequence_numbers(keys: pa.ChunkedArray) -> np.ndarray:
    """Return for each row how many rows, up to and including it, have its key."""
    codes = pc.dictionary_encode(keys).combine_chunks().indices.to_numpy(zero_copy_only=False)
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    lengths = np.diff(np.append(starts, len(codes)))
    numbers = np.empty(len(codes), dtype=np.int64)
    numbers[order] = np.arange(len(codes)) - np.repeat(starts, lengths) + 1
    return numbers


def load_file(path: Path, *, key: str, time_column: str, limit: int | None = None) -> Dataset:
    """Read a CSV or Parquet file of the user's; raise InputError that names column and row."""
    table = _read(path)
    if table.num_rows == 0:
        raise InputError(f"{path} has no rows.")
    names = [name.lower() for name in table.column_names]
    if "" in names:
        raise InputError(f"{path} has a column without a name.")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"{path} has more than one column named {', '.join(map(repr, twice))}.")
    taken = [name for name in OWN_COLUMNS if name in names]
    if taken:
        raise InputError(
            f"{path} has a column {taken[0]!r}, which the demo adds itself; rename that column."
        )
    for option, name in (("--key", key), ("--time", time_column)):
        if name not in table.column_names:
            raise InputError(
                f"{path} has no column {name!r}, which {option} names; its columns are: "
                f"{', '.join(table.column_names)}."
            )
    table = pa.table({name: _for_spark(table[name]) for name in table.column_names})
    _check_keys(path, key, table[key])
    times = _times(path, time_column, table[time_column])
    early = _first(pc.less(times, pa.scalar(EARLIEST, TIME)))
    if early is not None:
        raise InputError(
            f"{path}, row {early}: {times[early - 1].as_py()} is before {EARLIEST}, where Spark's "
            "watermarks start."
        )
    return in_time_order(table, source=str(path), key=key, times=times, limit=limit)


def write_feed(dataset: Dataset, folder: Path) -> list[int]:
    """Write the rows as Parquet files for Spark's file source; return how many rows each has.

    The source reads one file in each micro-batch, the oldest first, so their times must differ.
    """
    folder.mkdir(parents=True)
    files = min(MAX_FEED_FILES, max(MIN_FEED_FILES, dataset.events // FEED_FILE_ROWS))
    bounds = np.linspace(0, dataset.events, min(files, dataset.events) + 1).astype(int)
    oldest = int(time.time()) - len(bounds)
    for number, (start, end) in enumerate(pairwise(bounds)):
        path = folder / f"{number:05d}.parquet"
        write_rows(dataset.rows.slice(start, end - start), path)
        os.utime(path, (oldest + number, oldest + number))
    return [int(size) for size in np.diff(bounds)]


def write_rows(rows: pa.Table, path: Path) -> None:
    """Write rows as one Parquet file that Spark reads in order."""
    pq.write_table(
        rows,
        path,
        row_group_size=max(1, len(rows)),
        coerce_timestamps="us",
        allow_truncated_timestamps=True,
    )


def _read(path: Path) -> pa.Table:
    if not path.exists():
        raise InputError(f"--input {path} does not exist.")
    suffixes = [suffix.lower() for suffix in path.suffixes]
    try:
        if path.is_dir() or suffixes[-1:] in ([".parquet"], [".pq"]):
            return pq.read_table(path)
        if ".csv" in suffixes[-2:]:
            # Without this option a block of a large file may start inside quotes.
            return csv.read_csv(path, parse_options=csv.ParseOptions(newlines_in_values=True))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"--input {path} cannot be read: {reason}") from error
    raise InputError(f"--input {path} is neither .csv, .csv.gz nor .parquet.")


def _for_spark(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert types that Spark does not have to text."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
    elif pa.types.is_time(kind) or pa.types.is_duration(kind) or pa.types.is_null(kind):
        column = column.cast(pa.string())
    return column


def _check_keys(path: Path, name: str, column: pa.ChunkedArray) -> None:
    try:
        keys = column.cast(pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InputError(
            f"{path}: column {name!r} is {column.type}; a key is text or a number."
        ) from error
    missing = pc.or_kleene(pc.is_null(keys), pc.equal(keys, ""))
    row = _first(missing)
    if row is not None:
        raise InputError(f"{path}, row {row}: no key in column {name!r}.")


def _times(path: Path, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    row = _first(pc.is_null(column))
    if row is not None:
        raise InputError(f"{path}, row {row}: no time in column {name!r}.")
    kind = column.type
    if pa.types.is_timestamp(kind):
        zoned = column if kind.tz else column.cast(pa.timestamp(kind.unit, "UTC"))
        return zoned.cast(TIME, safe=False)
    if pa.types.is_date(kind):
        return column.cast(pa.timestamp("us")).cast(TIME)
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise InputError(
            f"{path}: column {name!r} is {kind}, not a time; give a timestamp, a date, or text "
            "such as 2013-01-01T10:15:00Z."
        )
    return pa.chunked_array([pa.array(_parse_times(path, name, column.to_pylist()), TIME)])


def _parse_times(path: Path, name: str, texts: Sequence[str]) -> list[datetime]:
    times = []
    for row, text in enumerate(texts, start=1):
        try:
            parsed = datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
        except ValueError:
            raise InputError(
                f"{path}, row {row}: {text!r} in column {name!r} is not a time; write "
                "2013-01-01T10:15:00Z (UTC if it names no zone)."
            ) from None
        times.append(parsed if parsed.tzinfo else parsed.replace(tzinfo=timezone.utc))
    return times


def _first(found: pa.ChunkedArray) -> int | None:
    row = pc.index(found, pa.scalar(True)).as_py()
    return None if row < 0 else row + 1
