"""Dead letters: rows that do not fit their stream go to ``<stream>-dlq`` with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.engine.chunks.arrow_arrays import mask, ready
from pravega_spark.engine.chunks.chunk import EVENT_SCHEMA, TIMESTAMP
from pravega_spark.engine.chunks.format import SYSTEM_NAMES, EventFormat
from pravega_spark.engine.runtime.failpoints import failpoint
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.writing.encode import key_texts
from pravega_spark.engine.writing.futures import WriteFuture, future_of
from pravega_spark.engine.writing.outcomes import EventPointers
from pravega_spark.errors import EventTooLarge, IllegalState, InvalidInput, SchemaMismatch
from pravega_spark.event_writer import EventStreamWriter, queue_of
from pravega_spark.primitives.process_locks import new_rlock
from pravega_spark.schemas.column_views import without_views
from pravega_spark.schemas.dead_letters import letter_of_row, letter_text
from pravega_spark.schemas.fit import BadRow, as_mapping
from pravega_spark.schemas.forms import to_table
from pravega_spark.values.checks import MAX_TIME_US, MIN_TIME_US
from pravega_spark.values.limits import MAX_EVENT_BYTES, MAX_ROUTING_KEY_LENGTH
from pravega_spark.values.segments import EventPointer

SUFFIX: Final = "-dlq"
"""The suffix of the name of a stream of dead letters."""


def letter_configuration(written: StreamView) -> StreamConfiguration:
    """Return that of a new stream of letters: as many segments, and as secret as the stream."""
    segments = ScalingPolicy.fixed(len(written.active.segment_ids))
    return StreamConfiguration(scaling=segments, encryption=written.record.configuration.encryption)


def letter_problem(written: StreamView, letters: StreamView) -> str | None:
    """Return why dead letters cannot go to a stream, with what to do; None if they can."""
    stream, name = written.record.stream, letters.record.stream
    if not letters.event_format.is_raw:
        return f"stream {name} is typed, and dead letters are bytes. Delete it"
    encryption = written.record.configuration.encryption
    if encryption is not None and letters.record.configuration.encryption is None:
        return f"stream {stream} is encrypted, and stream {name} is not. Create that one so"
    return None


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
    """Return why a row of ``size`` bytes is a dead letter."""
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


_Part = tuple[Sequence[int] | NDArray[np.int64], Callable[[], WriteFuture[Any]]]
"""Numbers of rows, and what writes them or their dead letters."""


class DeadLetterWriter(EventStreamWriter):
    """Writes the rows that fit to a typed stream, and the others as dead letters; thread-safe.

    Rows before a letter are durable before it, and a letter before the rows after it. So with a
    ``writer_id``, after a crash at any point, both streams together hold a prefix of the rows;
    ``last_event_number``, which counts rows and letters, is where to resume. A pointer names the
    stream that its row went to. Made by ``StreamManager.create_writer(bad_records="dlq")``.
    """

    def __init__(
        self,
        stream: StreamLog,
        writer_id: str | None = None,
        *,
        open_letters: Callable[[], EventStreamWriter],
        **options: Any,
    ) -> None:
        """Open the writer; ``open_letters`` opens that of the letters, creating their stream.

        It is called when the first letter is written, or now for a writer id, so that an older
        process of that id is fenced in both streams.
        """
        self._letters: EventStreamWriter | None = None
        super().__init__(stream, writer_id, **options)
        if self._encoder.event_format.is_raw:
            raise InvalidInput(
                f"stream {stream.name} has no schema that a row could fail to fit: leave "
                "bad_records out, or create the stream with a schema."
            )
        self._open_letters = open_letters
        self._is_numbered = writer_id is not None
        self._turn = new_rlock()
        if self._is_numbered:
            self._letters = open_letters()

    @property
    def last_event_number(self) -> int:
        """The number of rows and dead letters of this writer id that are durable."""
        letters = 0 if self._letters is None else self._letters.last_event_number
        return super().last_event_number + letters

    def write_event(
        self, event: Any, routing_key: str | None = None, *, expected: Any = None
    ) -> WriteFuture[EventPointer]:
        """Write one row, or its dead letter if it does not fit; the result is its pointer."""
        self._refuse(expected)
        with self._own_turn():
            bad = self._bad(event) if self._has_open_letters else None
            if bad is None:
                self._settle_letters()
                try:
                    return super().write_event(event, routing_key)
                except (SchemaMismatch, EventTooLarge) as error:
                    bad = self._bad_row(error)
            self._encoder.check_key(routing_key)
            super().flush()
            return self._letter_writer().write_event(_letter(bad, event), routing_key)

    def write_events(
        self, events: Iterable[Any], routing_key: str | None = None, *, expected: Any = None
    ) -> WriteFuture[tuple[EventPointer, ...]]:
        """Write rows together in one segment, and dead letters of those that do not fit.

        With letters the call returns when all is durable; with a writer id only neighbours are
        written together then.
        """
        self._refuse(expected)
        with self._own_turn():
            single = isinstance(events, (str, bytes, bytearray, memoryview, Mapping))
            if single or not isinstance(events, Iterable):
                return super().write_events(events, routing_key)  # which refuses it
            rows = list(events)
            bad = {n: found for n, row in enumerate(rows) if (found := self._bad(row, n))}
            if not bad:
                self._settle_letters()
                return super().write_events(rows, routing_key)
            self._encoder.check_key(routing_key)
            parts = list(self._parts(rows, bad, routing_key))
            pointers = self._write_parts(len(rows), parts)
            return _settled(tuple(pointers))

    def write_table(
        self,
        table: Any,
        *,
        routing_key: str | None = None,
        event_time: str | None = None,
        expected: Any = None,
    ) -> WriteFuture[EventPointers]:
        """Write the rows that fit, and dead letters of the others; the result has all pointers.

        With letters the call returns when all is durable. Raises SchemaMismatch, and writes
        nothing, if no row can fit, because of the columns or their types.
        """
        self._refuse(expected)
        with self._own_turn():
            if event_time is None and self._encoder.times is not None:
                event_time = self._encoder.times.column
            named: dict[str, Any] = {"routing_key": routing_key, "event_time": event_time}
            split = split_given(
                self._name, table, self._encoder.event_format, **named,
                now_us=self._now_ns() // 1_000, newest=self._newest_format,
            )  # fmt: skip
            if not split.letters.num_rows:
                self._settle_letters()
                return super().write_table(table, **named)
            self._encoder.table(split.fitting, **named)  # wrong options raise before any write
            write = partial(super().write_table, **named)
            parts = [
                (rows, partial(self._write_letters if is_letter else write, part))
                for rows, part, is_letter in split.parts(in_order=self._is_numbered)
            ]
            return _settled(self._write_parts(len(split.is_letter), parts))

    def flush(self, note: str | None = None, timeout: float | None = None) -> None:
        """Block until every row and letter is durable; raise the error of a failed write.

        A ``note`` would be of one of two streams, and is refused: ``last_event_number`` says how
        many rows are durable.
        """
        if note is not None:
            raise InvalidInput(
                f"flush(note=...) on stream {self._name}: a writer with dead letters keeps no "
                "note, since rows go to two streams; resume after last_event_number rows."
            )
        super().flush(timeout=timeout)
        if self._letters is not None:
            self._letters.flush(timeout=timeout)

    def close(self) -> None:
        """Flush both streams and stop; a second call does nothing."""
        try:
            super().close()
        finally:
            if self._letters is not None:
                self._letters.close()

    # ---- rows

    def _bad(self, event: Any, number: int = 0) -> BadRow | None:
        try:
            self._encoder.event(event, number)
        except (SchemaMismatch, EventTooLarge) as error:
            return self._bad_row(error, number)
        return None

    def _bad_row(self, error: SchemaMismatch | EventTooLarge, number: int = 0) -> BadRow:
        """Return why a row does not fit; raise an error that is of no row."""
        if isinstance(error, EventTooLarge):
            schema = self._encoder.event_format.schema
            assert schema is not None
            return too_large(number, schema.names[0], error.size_bytes or 0)
        if error.reason is None or error.column is None:
            raise error
        return BadRow(number, error.column, error.value or "None", error.reason)

    def _newest_format(self) -> Any:
        newest = self._encoder.newest()
        if newest is not self._encoder.event_format:
            self._encoder.event_format = newest
        return newest

    def _parts(self, rows: list[Any], bad: dict[int, BadRow], key: str | None) -> Iterator[_Part]:
        write = super().write_events
        if not self._is_numbered:
            good = [n for n in range(len(rows)) if n not in bad]
            if good:
                yield good, partial(write, [rows[n] for n in good], key)
            yield [*bad], partial(self._write_letter_list, [*bad.items()], rows, key)
            return
        numbers = np.arange(len(rows))
        is_bad = np.isin(numbers, [*bad])
        for run in np.split(numbers, np.flatnonzero(np.diff(is_bad)) + 1):
            if is_bad[run[0]]:
                letters = [(int(n), bad[int(n)]) for n in run]
                yield run, partial(self._write_letter_list, letters, rows, key)
            else:
                yield run, partial(write, [rows[n] for n in run], key)

    # ---- the two streams

    @property
    def _has_open_letters(self) -> bool:
        return self._letters is not None and not queue_of(self._letters).is_settled

    def _settle_letters(self) -> None:
        if self._letters is not None:
            self._letters.flush()

    def _letter_writer(self) -> EventStreamWriter:
        if self._letters is None:
            self._check_usable()
            self._letters = self._open_letters()
        return self._letters

    def _write_letters(self, letters: Any) -> WriteFuture[EventPointers]:
        return self._letter_writer().write_table(letters)

    def _write_letter_list(
        self, bad: list[tuple[int, BadRow]], rows: list[Any], key: str | None
    ) -> WriteFuture[EventPointers]:
        events = [_letter(found, rows[number]) for number, found in bad]
        keys = pa.array([key] * len(events), pa.string())
        return self._write_letters(
            pa.table({"event": pa.array(events, pa.binary()), "routing_key": keys})
        )

    def _write_parts(self, count: int, parts: Sequence[_Part]) -> EventPointers:
        """Write one part after the other, each when the one before is durable."""
        self._settle_letters()
        super().flush()
        durable = []
        for rows, write in parts:
            failpoint("dead_letters.next")
            durable.append((rows, write().result()))
        return _RowPointers(count, durable)

    @contextmanager
    def _own_turn(self) -> Iterator[None]:
        """Hold the order of rows; raise IllegalState in a callback, where it could not wait."""
        writers = [self] if self._letters is None else [self, self._letters]
        if any(queue_of(writer).pending.is_own_thread for writer in writers):
            raise IllegalState(
                f"the writer of stream {self._name} has dead letters, so it cannot write in a "
                "callback of one of its futures, where it could wait for itself; write on another "
                "thread."
            )
        with self._turn:
            self._check_usable()
            yield

    def _refuse(self, expected: Any) -> None:
        if expected is not None:
            raise InvalidInput(
                f"a conditional write to stream {self._name} needs a writer without bad_records: "
                "a dead letter is at no position of the stream."
            )


class _RowPointers(EventPointers):
    """The pointers of rows that went to two streams."""

    __slots__ = ("_at", "_of", "_pointers")

    def __init__(self, count: int, parts: Sequence[tuple[Any, Sequence[EventPointer]]]) -> None:
        """Take the numbers of the rows of each part, and their pointers."""
        super().__init__(())
        self._pointers = [pointers for _, pointers in parts]
        self._of, self._at = np.empty(count, np.int32), np.empty(count, np.int64)
        for number, (rows, _) in enumerate(parts):
            self._of[rows], self._at[rows] = number, np.arange(len(rows))

    def __len__(self) -> int:
        return len(self._of)

    def _pointer(self, row: int) -> EventPointer:
        found: EventPointer = self._pointers[self._of[row]][int(self._at[row])]
        return found


class _Settled:
    """The outcome of a write that is durable: its result."""

    def __init__(self, result: Any) -> None:
        self._result = result

    def find(self, number: int) -> _Settled:
        return self

    def failure(self) -> None:
        return None

    def result(self, number: int) -> Any:
        return self._result


def _settled(result: Any) -> WriteFuture[Any]:
    return future_of(_Settled(result))  # type: ignore[arg-type]


def _letter(bad: BadRow, event: Any) -> bytes:
    return letter_text(bad, as_mapping(event) or {})
