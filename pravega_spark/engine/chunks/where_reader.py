"""Reads the events for which an expression is true; row groups without such an event are skipped.

The expression is one of ``pyarrow.compute`` over the columns of the events, also over those that
are not read for the result.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from pravega_spark.arguments import shown
from pravega_spark.engine.chunks.chunk import ChunkRef
from pravega_spark.engine.chunks.chunk_file import open_chunk
from pravega_spark.engine.chunks.chunk_reader import checked_names, fetched, parts_of, read_rows
from pravega_spark.engine.chunks.event_format import EventFormat
from pravega_spark.engine.runtime import Runtime
from pravega_spark.engine.store.base import Store
from pravega_spark.errors import InvalidInput
from pravega_spark.limits import READ_AHEAD_PARTS, READ_BATCH_EVENTS
from pravega_spark.model import SegmentRange


class WhereExpression:
    """An expression over the columns of a stream, and the columns that it needs."""

    def __init__(self, stream: str, where: Any, event_format: EventFormat) -> None:
        """Check the expression; raise InvalidInput for one that these columns do not have."""
        import pyarrow.compute as pc  # late: slow to import

        if not isinstance(where, pc.Expression):
            raise InvalidInput(
                f"where of a read of stream {stream} is an expression of pyarrow.compute, such as "
                f"pc.field('delay') > 15; got {shown(where)}."
            )
        self._stream = stream
        self.where = where
        self.event_format = event_format
        names = ", ".join(event_format.batch_names)
        try:
            event_format.batch.empty_table().filter(where)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise InvalidInput(
                f"where of a read of stream {stream}, {where}, cannot be computed: "
                f"{_cause(error)}. The columns are {names}."
            ) from error
        self.needed = self._needed_of(event_format.batch_names)
        """The names of the columns that the expression names."""
        self.columns = pa.schema([event_format.batch.field(name) for name in self.needed])
        """These columns."""

    def _needed_of(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return those of the columns that the expression names: a few of many, found by halving.

        Without them it cannot be computed.
        """
        without = frozenset(names)
        rest = pa.schema([field for field in self.event_format.batch if field.name not in without])
        try:
            rest.empty_table().filter(self.where)
        except (pa.ArrowException, TypeError, ValueError):
            half = len(names) // 2
            return (
                names if not half else self._needed_of(names[:half]) + self._needed_of(names[half:])
            )
        return ()

    def of(self, batch: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
        """Return the rows of a batch for which the expression is true, with these columns.

        Raises InvalidInput if arithmetic or a cast in it overflows for a row.
        """
        try:
            found = pa.Table.from_batches([batch]).filter(self.where).select(list(names))
        except pa.ArrowInvalid as error:
            raise InvalidInput(
                f"where of a read of stream {self._stream}, {self.where}, cannot be computed for "
                f"some event: {_cause(error)}; use a wider type in it."
            ) from error
        parts = found.combine_chunks().to_batches()
        return parts[0] if parts else batch.slice(0, 0).select(list(names))


def _cause(error: Exception) -> str:
    """Return Arrow's text without the list of columns."""
    return str(error).partition("\n")[0].partition(" in offset:")[0].rstrip(".")


Part = tuple[int, pa.RecordBatch | None]
"""The offset of the end of a part of a range, and its events; None for what need not be read."""


def read_filtered(
    store: Store,
    table_path: str,
    refs: Iterable[ChunkRef],
    rng: SegmentRange,
    wanted: WhereExpression,
    *,
    columns: Sequence[str] | None = None,
    ahead: Runtime | None = None,
) -> Iterator[Part]:
    """Yield the parts of a range, with the events that its row groups have before the filter.

    They have the columns that the filter needs, too. With ``ahead`` later parts are read in its
    background, as by ``chunk_reader.read_ahead``. Raises what ``chunk_reader.read`` does.
    """
    names = {*checked_names(columns, wanted.event_format), *wanted.needed}
    needed = tuple(name for name in wanted.event_format.batch_names if name in names)
    held = [ref for ref in refs if ref.end > rng.start and ref.base_offset < rng.end]
    if ahead is None:
        return _read(store, table_path, held, rng, wanted, needed)
    parts = (_read(store, table_path, part, rng, wanted, needed) for part in parts_of(held))
    return ahead.read_ahead(parts, READ_AHEAD_PARTS)


def _read(
    store: Store,
    table_path: str,
    refs: Iterable[ChunkRef],
    rng: SegmentRange,
    wanted: WhereExpression,
    needed: tuple[str, ...],
) -> Generator[Part, None, None]:
    # From a local disk a footer is cheap. From any other store small files come many at a time.
    files = ((ref, None) for ref in refs) if store.is_local else fetched(store, table_path, refs)
    for ref, data in files:
        start, end = max(ref.base_offset, rng.start), min(ref.end, rng.end)
        with open_chunk(store, table_path, ref, data) as chunk:
            groups = chunk.groups_with(wanted.where, wanted.columns)
            for at, batch in read_rows(
                chunk, ref, start, end, needed, READ_BATCH_EVENTS, wanted.event_format, groups
            ):
                yield at + batch.num_rows, batch
        yield end, None
