"""Merges changes into the files of a folded table whose ranges they touch: copy on write.

The files lie in the order of their keys, with gaps between them. Changes are read once, in order.
A file that no change touches stays as it is, unless it is small beside something that is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from pravega_spark.key_value.folded_file import FileReader, FoldedFile
from pravega_spark.key_value.folded_writer import FoldedWriter
from pravega_spark.key_value.sorted_rows import RowCursor, present, with_changes

_SMALL = 4
"""A file is small below this fraction of the target."""


@dataclass(slots=True)
class MergePlan:
    """What a merge found: which files it replaces, and how many changes there were."""

    replaced: list[FoldedFile] = field(default_factory=list)
    changes: int = 0


class FileMerge:
    """One merge of changes into sorted files."""

    def __init__(
        self,
        reader: FileReader,
        writer: FoldedWriter,
        target_bytes: int,
        expired_us: int | None = None,
    ) -> None:
        """Take where to read and to write; entries older than a time are dropped."""
        self._reader = reader
        self._writer = writer
        self._small_bytes = target_bytes // _SMALL
        self._expired_us = expired_us
        self._held: FoldedFile | None = None
        """A small file that stays, unless its next neighbour is written."""
        self.plan = MergePlan()

    def run(
        self, files: Sequence[FoldedFile], changes: Iterable[pa.Table], expired: set[str]
    ) -> MergePlan:
        """Merge sorted changes into the files; those named in ``expired`` are rewritten, too."""
        cursor = RowCursor(self._counted(changes))
        for file in files:
            first = cursor.first()
            if first is not None and first < file.first:
                self._write(present(rows) for rows in cursor.until(file.first))
                first = cursor.first()
            is_touched = first is not None and first <= file.last
            if is_touched or file.path in expired:
                self._begin()
                self._replace(file, cursor.until(file.last, through=True))
            else:
                self._keep(file)
        self._write(present(rows) for rows in cursor.until(None))
        self._writer.finish_file()
        return self.plan

    def _counted(self, changes: Iterable[pa.Table]) -> Iterator[pa.Table]:
        for rows in changes:
            self.plan.changes += rows.num_rows
            yield rows

    def _keep(self, file: FoldedFile) -> None:
        """Leave a file as it is, or merge it with a small neighbour before it."""
        is_small = file.size < self._small_bytes
        open_bytes = self._writer.open_bytes
        if open_bytes and (is_small or open_bytes < self._small_bytes):
            self._replace(file, ())
        elif self._held is not None and is_small:
            self._begin()
            self._replace(file, ())
        else:
            self._writer.finish_file()
            self._held = file if is_small else None

    def _begin(self) -> None:
        """Write the small file before what is written next, so that both become one."""
        held, self._held = self._held, None
        if held is not None:
            self._replace(held, ())

    def _replace(self, file: FoldedFile, changes: Iterable[pa.Table]) -> None:
        self.plan.replaced.append(file)
        self._write(with_changes(self._reader.rows(file), changes))

    def _write(self, parts: Iterable[pa.Table]) -> None:
        for rows in parts:
            kept = self._unexpired(rows)
            if kept.num_rows:
                self._begin()
                self._writer.write(kept)

    def _unexpired(self, rows: pa.Table) -> pa.Table:
        if self._expired_us is None:
            return rows
        limit = pa.scalar(self._expired_us, pa.int64()).cast(pa.timestamp("us", "UTC"))
        return rows.filter(pc.greater(rows.column("timestamp"), limit))
