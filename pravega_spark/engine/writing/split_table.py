"""A table for a typed stream, split into the rows that fit and the dead letters of the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pravega_spark.arguments import MAX_TIME_US, MIN_TIME_US
from pravega_spark.engine.chunks.arrow_arrays import mask, ready
from pravega_spark.engine.chunks.chunk import EVENT_SCHEMA, TIMESTAMP
from pravega_spark.engine.chunks.event_format import SYSTEM_NAMES, EventFormat
from pravega_spark.engine.writing.typed_table import key_texts
from pravega_spark.errors import SchemaMismatch
from pravega_spark.limits import MAX_EVENT_BYTES, MAX_ROUTING_KEY_LENGTH
from pravega_spark.schemas.column_casts import without_views
from pravega_spark.schemas.letter_text import letter_of_row
from pravega_spark.schemas.schema_forms import to_table
from pravega_spark.schemas.table_fit import BadRow

_KEY, _TIME = SYSTEM_NAMES


@dataclass(frozen=True, slots=True)
class SplitTable:
    """The rows of a table that fit, as they were given, and letters of the others, in order."""

    fitting: pa.Table
    letters: pa.Table
    """Events of a raw stream, with the routing keys and the times of their rows."""
    is_letter: NDArray[np.bool_]
    """Of each row of the table."""

    def parts(self, *, in_order: bool) -> list[tuple[NDArray[np.int64], pa.Table, bool]]:
        """Return row numbers, their table, and whether it is of letters.

        ``in_order`` keeps the order of all rows; otherwise those that fit are first.
        """
        if not in_order:
            kinds = (np.flatnonzero(~self.is_letter), np.flatnonzero(self.is_letter))
            return [
                (rows, part, part is self.letters)
                for rows, part in zip(kinds, (self.fitting, self.letters), strict=True)
                if len(rows)
            ]
        edges = np.flatnonzero(np.diff(self.is_letter)) + 1
        before = np.cumsum(self.is_letter)
        found = []
        for rows in np.split(np.arange(len(self.is_letter)), edges):
            first, is_letter = int(rows[0]), bool(self.is_letter[rows[0]])
            letters = int(before[first]) - is_letter
            part = self.letters if is_letter else self.fitting
            at = letters if is_letter else first - letters
            found.append((rows, part.slice(at, len(rows)), is_letter))
        return found


def split_given(
    stream: str,
    table: object,
    event_format: EventFormat,
    *,
    routing_key: str | None,
    event_time: str | None,
    now_us: int,
    newest: Callable[[], EventFormat],
) -> SplitTable:
    """Split a table as ``TypedTable`` takes it; ``now_us`` is the time of letters without one.

    A row does not fit if a value does not, its time is null, its key too long, or it too large.
    Rows that do not fit are split again by a newer schema, if ``newest`` finds one. Raises
    SchemaMismatch if no row can fit, because of the columns or their types.
    """
    ready()
    where = f"write_table on stream {stream}"
    assert event_format.schema is not None
    given = to_table(table, where, event_format.schema.arrow)
    try:
        bad = _bad_rows(given, event_format, where)
    except SchemaMismatch:
        present, event_format = event_format, newest()
        if event_format is present:
            raise
        bad = _bad_rows(given, event_format, where)
    else:
        if bad and (found := newest()) is not event_format:
            bad = _bad_rows(given, found, where)
    time = _column(given, event_time or _TIME)
    key = _column(given, routing_key or _KEY)
    for one in _bad_envelopes(stream, key, routing_key or _KEY, time, event_time or _TIME):
        bad.setdefault(one.row, one)
    is_letter = np.zeros(given.num_rows, np.bool_)
    is_letter[list(bad)] = True
    if not bad:
        return SplitTable(given, EVENT_SCHEMA.empty_table(), is_letter)
    plain = pa.table([without_views(one) for one in given.columns], given.column_names)
    rows = plain.filter(mask(is_letter))
    reasons = [bad[row] for row in sorted(bad)]
    letters = [letter_of_row(rows.slice(at, 1), one) for at, one in enumerate(reasons)]
    keys = _letter_keys(stream, _column(rows, routing_key or _KEY), routing_key or _KEY, len(bad))
    times = _letter_times(_column(rows, event_time or _TIME), now_us, len(bad))
    events = pa.Table.from_arrays(
        [keys, times, pa.array(letters, pa.binary())], schema=EVENT_SCHEMA
    )
    return SplitTable(plain.filter(mask(~is_letter)), events, is_letter)


def _bad_rows(given: pa.Table, event_format: EventFormat, where: str) -> dict[int, BadRow]:
    schema = event_format.schema
    assert schema is not None
    own = [at for at, name in enumerate(given.column_names) if name not in SYSTEM_NAMES]
    fitting, misfits = schema.split(given.select(own), where)
    bad = {one.row: one for one in misfits}
    sizes = schema.event_sizes(fitting)
    numbers = np.setdiff1d(np.arange(given.num_rows), list(bad))
    for at in np.flatnonzero(sizes > MAX_EVENT_BYTES):
        bad[int(numbers[at])] = too_large(int(numbers[at]), schema.names[0], int(sizes[at]))
    return bad


def too_large(row: int, column: str, size: int) -> BadRow:
    """Return why a row of so many bytes is a dead letter."""
    reason = f"an event has at most {MAX_EVENT_BYTES} bytes (8 MiB)"
    return BadRow(row, column, f"a row of {size} bytes", reason)


def _bad_envelopes(
    stream: str,
    keys: pa.ChunkedArray | None,
    key_name: str,
    times: pa.ChunkedArray | None,
    time_name: str,
) -> list[BadRow]:
    bad = []
    if times is not None and times.null_count:
        nulls = np.flatnonzero(np.asarray(times.is_null()))
        reason = "null, and an event needs a time"
        bad += [BadRow(int(row), time_name, "None", reason) for row in nulls]
    if keys is not None:
        texts = _texts(stream, keys, key_name)
        lengths = np.asarray(pc.utf8_length(texts).fill_null(0))
        invalid = np.flatnonzero(np.asarray(pc.and_(texts.is_null(), keys.is_valid())))
        text, why = "a text that is not UTF-8", "a routing key that is not UTF-8"
        bad += [BadRow(int(row), key_name, text, why) for row in invalid]
        reason = f"a routing key of more than {MAX_ROUTING_KEY_LENGTH} characters"
        bad += [
            BadRow(int(row), key_name, f"a text of {lengths[row]} characters", reason)
            for row in np.flatnonzero(lengths > MAX_ROUTING_KEY_LENGTH)
        ]
    return bad


def _texts(stream: str, keys: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """Return keys as texts; null for those that are not UTF-8."""
    kind = keys.type
    if pa.types.is_dictionary(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind):
        keys = keys.cast(pa.string())
    texts = key_texts(stream, name, keys)
    try:
        for chunk in texts.chunks:
            chunk.validate(full=True)
    except pa.ArrowInvalid:
        return pa.chunked_array([pa.array([_text_or_none(one) for one in texts], pa.string())])
    return texts


def _text_or_none(value: pa.Scalar) -> str | None:
    try:
        found: str | None = value.as_py()
    except UnicodeDecodeError:
        return None
    return found


def _letter_keys(
    stream: str, keys: pa.ChunkedArray | None, name: str, count: int
) -> pa.Array | pa.ChunkedArray:
    if keys is None:
        return pa.nulls(count, pa.string())
    texts = _texts(stream, keys, name)
    is_short = pc.less_equal(pc.utf8_length(texts).fill_null(0), MAX_ROUTING_KEY_LENGTH)
    return pc.if_else(is_short, texts, pa.scalar(None, pa.string()))


def _letter_times(
    times: pa.ChunkedArray | None, now_us: int, count: int
) -> pa.Array | pa.ChunkedArray:
    now = pa.scalar(now_us, pa.int64()).cast(TIMESTAMP)
    if times is None or not pa.types.is_timestamp(times.type) or times.type.tz is None:
        return pa.array([now_us] * count, pa.int64()).cast(TIMESTAMP)
    found = times.cast(TIMESTAMP, safe=False).fill_null(now)
    low, high = (pa.scalar(at, pa.int64()).cast(TIMESTAMP) for at in (MIN_TIME_US, MAX_TIME_US))
    is_time = pc.and_(pc.greater_equal(found, low), pc.less_equal(found, high))
    return pc.if_else(is_time, found, now)


def _column(given: pa.Table, name: str) -> pa.ChunkedArray | None:
    if given.column_names.count(name) != 1:
        return None
    return without_views(given.column(name))
