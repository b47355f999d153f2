"""Writes sorted rows as the files of a folded table, of about the target size each."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from types import TracebackType
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pravega_spark.engine.chunks.arrow_arrays import byte_ends, numbers
from pravega_spark.engine.chunks.chunk_encoder import cuts
from pravega_spark.engine.chunks.footer import FooterSink, digest_of
from pravega_spark.engine.json_codec import to_json
from pravega_spark.engine.runtime import Runtime
from pravega_spark.engine.store.base import Store
from pravega_spark.key_value.folded_file import FIRST_KEYS, FoldedFile
from pravega_spark.key_value.folded_rows import RowLayout, SortKey, first_key, last_key
from pravega_spark.limits import FOLDED_GROUP_BYTES, FOLDED_GROUP_ROWS

_WRITER_OPTIONS: Final[dict[str, Any]] = {
    "version": "2.6",
    "compression": "zstd",
    "compression_level": 1,
    "use_dictionary": ["segment_id"],
    "column_encoding": {"offset": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"},
    "write_statistics": ["key"],
    "write_page_checksum": True,
    "store_schema": False,  # Parquet's own types are enough
}


class FoldedWriter:
    """Writes rows that arrive in the order of their keys into files of ``target_bytes``.

    Rows of one row group wait for the rest of it, and one part is encoded in the background. A
    context manager: after an error the file that was begun is discarded; earlier ones stay in the
    store, and a sweep deletes them unless a commit names them.
    """

    def __init__(
        self,
        store: Store,
        table_path: str,
        folder: str,
        layout: RowLayout,
        target_bytes: int,
        runtime: Runtime,
    ) -> None:
        """Take the folder ``<table_path>/data/<folder>/``; nothing is written yet."""
        self._store = store
        self._table_path = table_path
        self._folder = folder
        self._layout = layout
        self._target_bytes = target_bytes
        self._runtime = runtime
        self._name = runtime.token()
        self._held: list[pa.Table] = []
        self._held_rows = 0
        self._file: _OpenFile | None = None
        self.files: list[FoldedFile] = []
        """The files that are complete."""

    def write(self, rows: pa.Table) -> None:
        """Append rows; raise StoreError."""
        if not rows.num_rows:
            return
        self._held.append(rows)
        self._held_rows += rows.num_rows
        if self._held_rows >= FOLDED_GROUP_ROWS:
            self._flush(complete=False)

    @property
    def open_bytes(self) -> int:
        """About the bytes of the file that was begun; 0 between two files."""
        held = sum(part.nbytes for part in self._held)
        return int(held + (0 if self._file is None else self._file.size))

    def finish_file(self) -> None:
        """Complete the file that was begun: what follows is not its neighbour, or it is full."""
        self._flush(complete=True)
        if self._file is not None:
            self.files.append(self._file.close())
            self._file = None

    def __enter__(self) -> FoldedWriter:
        """Return the writer."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Discard a file that is not complete."""
        if self._file is not None:
            self._file.discard(error or RuntimeError("not finished"))
            self._file = None

    def _flush(self, *, complete: bool) -> None:
        """Write the full row groups of what is held; with ``complete`` also the rest."""
        if not self._held:
            return
        rows = pa.concat_tables(self._held).combine_chunks()
        self._held, self._held_rows = [], 0
        sizes = _row_bytes(rows, self._layout)
        for first, last, size in cuts(sizes, FOLDED_GROUP_ROWS, FOLDED_GROUP_BYTES):
            part = rows.slice(first, last - first)
            is_full = last - first == FOLDED_GROUP_ROWS or last < rows.num_rows
            if not (is_full or complete):
                self._held, self._held_rows = [part], part.num_rows
                return
            if self._file is not None and self._file.size + size // 2 > self._target_bytes:
                self.files.append(self._file.close())
                self._file = None
            if self._file is None:
                number = len(self.files)
                path = f"data/{self._folder}/{self._name}-{number}.parquet"
                self._file = _OpenFile(
                    self._store, self._table_path, path, self._layout, self._runtime
                )
            self._file.write(part)


class _OpenFile:
    """A file that is being written."""

    def __init__(
        self, store: Store, table_path: str, path: str, layout: RowLayout, runtime: Runtime
    ) -> None:
        self._layout = layout
        self._runtime = runtime
        self._path = path
        self._first_keys: list[SortKey] = []
        self._last: SortKey = b""
        self._rows = 0
        self._least_us = self._greatest_us = 0
        self._encoded: Future[None] | None = None
        self._object = store.writer(f"{table_path}/{path}")
        self._sink = FooterSink(self._object.__enter__())
        file = pa.PythonFile(self._sink, mode="w")
        self._writer = pq.ParquetWriter(file, layout.file_schema, **_WRITER_OPTIONS)

    @property
    def size(self) -> int:
        """The bytes that were written; a part may still be on its way."""
        return self._sink.size

    def write(self, rows: pa.Table) -> None:
        """Write one row group in the background, after the one before."""
        self._wait()
        times = numbers(rows.column("timestamp").combine_chunks().view(pa.int64()))
        low, high = int(times.min()), int(times.max())
        self._least_us = min(self._least_us, low) if self._rows else low
        self._greatest_us = max(self._greatest_us, high) if self._rows else high
        self._first_keys.append(first_key(rows))
        self._last = last_key(rows)
        self._rows += rows.num_rows
        self._encoded = self._runtime.start(partial(self._encode, rows))

    def _encode(self, rows: pa.Table) -> None:
        self._writer.write_table(
            self._layout.columns_of_rows(rows.combine_chunks()), row_group_size=rows.num_rows
        )

    def close(self) -> FoldedFile:
        """Make the file durable and return it."""
        self._wait()
        texts = [self._layout.to_text(key) for key in self._first_keys]
        self._writer.add_key_value_metadata({FIRST_KEYS: to_json(texts).encode()})
        self._sink.keep()
        self._writer.close()
        size, footer = self._sink.size, digest_of(pa.py_buffer(self._sink.kept))
        self._object.__exit__(None, None, None)
        return FoldedFile(
            self._path,
            size,
            self._rows,
            self._first_keys[0],
            self._last,
            self._least_us,
            self._greatest_us,
            footer,
        )

    def discard(self, error: BaseException) -> None:
        """Leave nothing in the store."""
        if self._encoded is not None:
            wait([self._encoded])
        self._writer.is_open = False  # so that its finalizer writes no footer
        leave: Callable[..., object] = self._object.__exit__
        try:
            leave(type(error), error, error.__traceback__)
        except BaseException as raised:
            if raised is not error:
                raise

    def _wait(self) -> None:
        """Wait for the row group in the background, and raise its error."""
        if self._encoded is not None:
            self._encoded.result()


def _row_bytes(rows: pa.Table, layout: RowLayout) -> Any:
    """Return the cumulative bytes of keys and values after each row."""
    ends = byte_ends(rows.column("value"))
    if not layout.is_number:
        ends = ends + np.cumsum(numbers(pc.binary_length(rows.column("k"))), dtype=np.int64)
    return ends
