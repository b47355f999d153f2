"""Sorts any number of changes by key in bounded memory, and keeps the newest one of each key.

What does not fit lies in sorted runs in a temporary folder of this host, until the end.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final

import pyarrow as pa

from pravega_spark.key_value.sorted_rows import merged_runs, newest
from pravega_spark.limits import FOLD_RUN_BYTES

_PART_BYTES: Final = 2 << 20
"""About the size of what is read of a run at a time."""


class ChangeSorter:
    """Takes rows in any order, and yields them sorted; a context manager."""

    def __init__(self, run_bytes: int = FOLD_RUN_BYTES) -> None:
        """Hold at most about ``run_bytes`` of changes in memory."""
        self._run_bytes = run_bytes
        self._held: list[pa.Table] = []
        self._held_bytes = 0
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._runs: list[Path] = []

    @property
    def runs(self) -> int:
        """The number of runs that were spilled."""
        return len(self._runs)

    def add(self, rows: pa.Table) -> None:
        """Add changes: rows of the engine."""
        if not rows.num_rows:
            return
        self._held.append(rows)
        self._held_bytes += rows.nbytes
        if self._held_bytes >= self._run_bytes:
            self._reduce()
            if self._held_bytes >= self._run_bytes // 2:
                self._spill()

    def sorted(self) -> Iterator[pa.Table]:
        """Yield the newest change of each key, in order, a part at a time."""
        self._reduce()
        if not self._runs:
            yield from self._held
            return
        if self._held:
            self._spill()
        yield from merged_runs([_parts(path) for path in self._runs])

    def __enter__(self) -> ChangeSorter:
        """Return the sorter."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Delete the runs."""
        if self._folder is not None:
            self._folder.cleanup()

    def _reduce(self) -> None:
        """Keep the newest change of each key of what is held."""
        if self._held:
            self._held = [newest(pa.concat_tables(self._held))]
            self._held_bytes = self._held[0].nbytes

    def _spill(self) -> None:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="pravega-fold-")
        (rows,) = self._held
        path = Path(self._folder.name) / f"{len(self._runs)}.arrow"
        most = max(1, rows.num_rows * _PART_BYTES // max(1, rows.nbytes))
        options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
        with (
            pa.OSFile(str(path), "w") as file,
            pa.ipc.new_stream(file, rows.schema, options=options) as writer,
        ):
            writer.write_table(rows, max_chunksize=most)
        self._runs.append(path)
        self._held, self._held_bytes = [], 0


def _parts(path: Path) -> Iterator[pa.Table]:
    with pa.OSFile(str(path), "r") as file, pa.ipc.open_stream(file) as reader:
        for batch in reader:
            yield pa.Table.from_batches([batch])
