"""The column that names the stream of each row, for frames that are written into several."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.types import StringType, StructType

from pravega_spark.arguments import shown
from pravega_spark.engine.chunks.arrow_arrays import mask, numbers
from pravega_spark.errors import InvalidInput, InvalidName, InvalidOption
from pravega_spark.names import split_stream
from pravega_spark.spark.settings import WriteSettings
from pravega_spark.spark.write.input_columns import InputColumns, find_column, kept_rows

_NAMES = ("stream", "topic")


@dataclass(frozen=True, slots=True)
class StreamColumn:
    """The frame's column with the streams' names, and where the scope of a bare name is."""

    column: str
    scope_column: str | None
    scope: str | None

    @classmethod
    def of(cls, schema: StructType, settings: WriteSettings) -> StreamColumn:
        """Find the columns in a frame's schema; raise InvalidOption if there is none."""
        types = {f.name: f.dataType for f in schema.fields}
        names = reversed(_NAMES) if settings.column_names == "kafka" else _NAMES
        column = next(filter(None, (find_column(types, name) for name in names)), None)
        if column is None:
            raise InvalidOption(
                "no stream is named: call .save('scope/stream') or .start('scope/stream'), set the "
                "option stream, or add a column stream (or topic) with the stream of each row; the "
                f"frame's columns are {', '.join(types)}."
            )
        scope_column = find_column(types, "scope")
        for name in filter(None, (column, scope_column)):
            if not isinstance(types[name], StringType):
                raise InvalidOption(
                    f"column {name} must be a string that names a stream, but is "
                    f"{types[name].simpleString()}; cast it, or name one stream for all rows."
                )
        return cls(column, scope_column, settings.scope)

    def without_names(self, frame: StructType) -> StructType:
        """Return a frame's columns but those that name the streams."""
        names = (self.column, self.scope_column)
        return StructType([field for field in frame.fields if field.name not in names])

    def split(
        self, batch: pa.RecordBatch, columns: InputColumns | None
    ) -> Iterator[tuple[str, pa.RecordBatch, NDArray[np.int64]]]:
        """Yield each stream of a batch with its rows, in their order, and their numbers.

        ``columns`` are those of events of bytes, if the frame has them. Raises InvalidInput for a
        row without a stream, or with a name that is none.
        """
        kept = None if columns is None else kept_rows(batch, columns)
        at = np.arange(batch.num_rows)
        if kept is not None:
            batch, at = batch.filter(kept), np.flatnonzero(numbers(kept.cast(pa.int8())))
        names = self._names(batch)
        coded = names.dictionary_encode()
        if coded.null_count:
            row = int(np.flatnonzero(numbers(coded.is_null().cast(pa.int8())))[0])
            raise InvalidInput(
                f"column {self.column} is null in {coded.null_count} of {batch.num_rows} rows, the "
                f"first of which is row {row}; it names the stream of each row: fill it, or filter "
                "the rows."
            )
        codes = numbers(coded.indices)
        for code, name in enumerate(coded.dictionary.to_pylist()):
            is_its = codes == code
            self._check(name, int(np.flatnonzero(is_its)[0]))
            yield name, batch if is_its.all() else batch.filter(mask(is_its)), at[is_its]

    def _names(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the full names of the rows' streams."""
        coded = batch.column(self.column).cast(pa.string()).dictionary_encode()
        if self.scope_column is None:
            full = [self._full(name, self.scope) for name in coded.dictionary.to_pylist()]
            return pa.array(full, pa.string()).take(coded.indices)
        scopes = batch.column(self.scope_column).to_pylist()
        names = batch.column(self.column).to_pylist()
        return pa.array(
            [None if n is None else self._full(n, s) for n, s in zip(names, scopes, strict=True)],
            pa.string(),
        )

    def _full(self, name: str, scope: str | None) -> str:
        return name if scope is None or "/" in name else f"{scope}/{name}"

    def _check(self, name: str, row: int) -> None:
        try:
            split_stream(name)
        except InvalidName as error:
            raise InvalidInput(
                f"column {self.column} has {shown(name)} in row {row}, which names no stream: "
                f"{error} A name without a scope takes that of the option scope."
            ) from None
