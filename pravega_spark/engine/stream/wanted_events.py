"""What a read of batches wants: some columns, and the events for which an expression is true."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import pyarrow as pa

from pravega_spark.engine.chunks.arrow_arrays import constant
from pravega_spark.engine.chunks.chunk_reader import checked_names
from pravega_spark.engine.chunks.where_reader import WhereExpression
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import InvalidInput
from pravega_spark.model import SegmentRange

_OFFSET: Final = "offset"
_SEGMENT: Final = pa.field("segment_id", pa.int64())


class WantedEvents:
    """The columns of a read, checked, and the expression that its events meet, or None."""

    def __init__(self, view: StreamView, columns: Sequence[str] | None, where: Any) -> None:
        """Take both; raise InvalidInput, which names the stream, if it has no such columns."""
        if isinstance(columns, str):
            raise InvalidInput(
                f"a read of stream {view.stream}: columns is a list of names, such as "
                f"[{columns!r}]; got {columns!r}."
            )
        try:
            self.names = checked_names(columns, view.event_format)
        except InvalidInput as error:
            raise InvalidInput(f"a read of stream {view.stream}: {error}") from None
        if where is not None:
            WhereExpression(view.stream, where, view.event_format)
        self.where = where
        self.columns = self.names if _OFFSET in self.names else (*self.names, _OFFSET)
        """The columns that are read: the position of a reader is known by the offset."""

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the wanted columns of a batch."""
        return batch if self.names == self.columns else batch.select(list(self.names))


class WantedTable:
    """The columns of a read into one table, of which ``segment_id`` may be one."""

    def __init__(self, view: StreamView, columns: Sequence[str] | None, where: Any) -> None:
        """Take all columns, or some; raise InvalidInput, which names the stream."""
        known = view.event_format.batch
        is_one = isinstance(columns, str)  # which WantedEvents refuses
        names = [_SEGMENT.name, *known.names] if columns is None or is_one else [*columns]
        own = [name for name in names if name != _SEGMENT.name]
        self.events = WantedEvents(view, columns if is_one else own or [_OFFSET], where)
        self._names = names
        self._schema = pa.schema(
            [
                _SEGMENT if name == _SEGMENT.name else known.field(name)
                for name in names or [_OFFSET]
            ]
        )

    def table(self, batches: Iterable[tuple[SegmentRange, pa.RecordBatch]]) -> pa.Table:
        """Return the batches of the wanted events as a table; one without columns has a count."""
        found = [self._row_batch(*each) for each in batches]
        return pa.Table.from_batches(found, self._schema).select(self._names)

    def _row_batch(self, rng: SegmentRange, batch: pa.RecordBatch) -> pa.RecordBatch:
        segments = constant(rng.segment_id, _SEGMENT.type, batch.num_rows)
        arrays = [
            segments if name == _SEGMENT.name else batch.column(name) for name in self._schema.names
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
