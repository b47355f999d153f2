"""DeadLetterWriter: a writer whose rows that do not fit go to ``<stream>-dlq`` with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pravega_spark.engine.failpoints import failpoint
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.writing.split_table import split_given, too_large
from pravega_spark.engine.writing.write_futures import WriteFuture
from pravega_spark.engine.writing.write_outcomes import EventPointers
from pravega_spark.errors import EventTooLarge, IllegalState, InvalidInput, SchemaMismatch
from pravega_spark.event_writer import EventStreamWriter
from pravega_spark.model import EventPointer
from pravega_spark.process_locks import new_rlock
from pravega_spark.schemas.letter_text import letter_text
from pravega_spark.schemas.row_values import as_mapping
from pravega_spark.schemas.table_fit import BadRow

_Part = tuple[Sequence[int] | NDArray[np.int64], Callable[[], WriteFuture[Any]]]
"""Numbers of rows, and what writes them or their dead letters."""


class DeadLetterWriter(EventStreamWriter):
    """Writes the rows that fit to a typed stream, and the others as dead letters; thread-safe.

    What was written before a letter is durable before it, and a letter before what follows it. So
    with a ``writer_id`` both streams together hold a first part of all rows, whatever dies when,
    and ``last_event_number``, which counts rows and letters, is where to resume. A pointer names
    the stream that its row went to. Made by ``StreamManager.create_writer(bad_records="dlq")``.
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
        return self._letters is not None and not self._letters._queue.is_settled

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
        queues = [self._queue] if self._letters is None else [self._queue, self._letters._queue]
        if any(queue.pending.is_own_thread for queue in queues):
            raise IllegalState(
                f"the writer of stream {self._name} has dead letters, and was asked to write in a "
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
    future: WriteFuture[Any] = WriteFuture()
    future._outcomes, future._number = _Settled(result), 0  # type: ignore[assignment]
    return future


def _letter(bad: BadRow, event: Any) -> bytes:
    return letter_text(bad, as_mapping(event) or {})
