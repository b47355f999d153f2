"""Delta V1 checkpoints: the older files of a table, and the entry point of other Delta readers.

The first row group holds the state (protocol, metadata, domains). The files follow, so each part
can be read without the other. Each checkpoint has a small JSON object with its digest and the token
of its version's commit. A checkpoint that does not match such an object is torn or of another
writer, and is not used.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import xxhash

from pravega_spark.engine.log.actions import Add
from pravega_spark.engine.log.files import (
    OFFSET_COLUMN,
    SEGMENT_COLUMN,
    FileCell,
    cell_of,
    position_of,
    rows_of,
)
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.runtime.json_codec import DECODE_ERRORS, to_json

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_TEXT_MAP = pa.map_(pa.string(), pa.string())
ADD = pa.struct(
    [
        ("path", pa.string()),
        ("partitionValues", _TEXT_MAP),
        ("size", pa.int64()),
        ("modificationTime", pa.int64()),
        ("dataChange", pa.bool_()),
        ("stats", pa.string()),
        ("tags", _TEXT_MAP),
    ]
)
_SCHEMA = pa.schema(
    [
        ("txn", pa.struct([("appId", pa.string()), ("version", pa.int64()),
                           ("lastUpdated", pa.int64())])),
        ("add", ADD),
        ("remove", pa.struct([("path", pa.string()), ("deletionTimestamp", pa.int64()),
                              ("dataChange", pa.bool_())])),
        ("metaData", pa.struct([
            ("id", pa.string()), ("name", pa.string()), ("description", pa.string()),
            ("format", pa.struct([("provider", pa.string()), ("options", _TEXT_MAP)])),
            ("schemaString", pa.string()), ("partitionColumns", pa.list_(pa.string())),
            ("configuration", _TEXT_MAP), ("createdTime", pa.int64())])),
        ("protocol", pa.struct([
            ("minReaderVersion", pa.int32()), ("minWriterVersion", pa.int32()),
            ("readerFeatures", pa.list_(pa.string())),
            ("writerFeatures", pa.list_(pa.string()))])),
        ("domainMetadata", pa.struct([("domain", pa.string()), ("configuration", pa.string()),
                                      ("removed", pa.bool_())])),
    ]
)  # fmt: skip
_ROW_GROUP_ROWS = 50_000
_DECODED_ROWS = 8_192
"""Rows that become objects at once where all are wanted."""


def checkpoint_key(path: str, version: int) -> str:
    """Return the key of a version's checkpoint, as Delta defines it."""
    return f"{path}/_delta_log/{version:020d}.checkpoint.parquet"


def digest_key(path: str, version: int) -> str:
    """Return the key of the digest of a version's checkpoint."""
    return f"{path}/_pravega/checkpoint/{version:020d}.json"


_CELL_BYTES = 48
"""The memory of a file in the columns of numbers."""
_CELL_COLUMNS = [f"add.{name}" for name in ("path", "partitionValues", "size", "tags")]


class CheckpointLayer:
    """The files of a checkpoint, sorted by segment and offset.

    In memory are the columns of cells. The rest of a row group is read when one of its files is
    wanted as an object: the statistics alone are most of a checkpoint.
    """

    older = -1

    def __init__(self, file: pq.ParquetFile) -> None:
        self.removed: set[str] = set()
        self._file = file
        self._complete: dict[int, pa.StructArray] = {}
        groups = [_column(file, group, _CELL_COLUMNS) for group in range(1, file.num_row_groups)]
        self._ends = np.cumsum([len(adds) for adds in groups], dtype=np.int64)
        names = [adds.field("path") for adds in groups]
        self._paths = pa.concat_arrays(names) if names else pa.array([], pa.string())
        self._sizes = _joined([np.from_dlpack(adds.field("size")) for adds in groups])
        amounts = [_rows_and_bytes(adds.field("tags")) for adds in groups]
        self._amounts = (
            None
            if any(found is None for found in amounts)
            else tuple(_joined([found[n] for found in amounts if found]) for n in (0, 1))
        )
        # Files of other tables have no position: they stay in the order of the checkpoint.
        found = [
            _positions(adds, before=int(end) - len(adds))
            for adds, end in zip(groups, self._ends, strict=True)
        ]
        segments, bases = (_joined([pair[n] for pair in found]) for n in (0, 1))
        self._order = np.lexsort((bases, segments))
        self._segments, self._bases = segments[self._order], bases[self._order]

    @property
    def held_bytes(self) -> int:
        """About how much memory the layer takes."""
        complete = sum(adds.nbytes for adds in list(self._complete.values()))
        return sum((self._paths.nbytes, complete, _CELL_BYTES * len(self._sizes)))

    def _overlapping(self, segment_id: int, start: int, end: int) -> slice:
        """Return the rows, in order, of the files that may overlap [start, end)."""
        low, high = np.searchsorted(self._segments, [segment_id, segment_id + 1])
        bases = self._bases[low:high]
        first = low + max(0, int(np.searchsorted(bases, start, side="right")) - 1)
        last = low + int(np.searchsorted(bases, end, side="left"))
        return slice(first, max(first, last))

    def _adds(self, at: slice) -> list[Add]:
        rows = self._order[at]
        groups = np.searchsorted(self._ends, rows, side="right")
        found: list[Add] = []
        order: list[int] = []
        for group in np.unique(groups).tolist():
            chosen = np.flatnonzero(groups == group)
            before = int(self._ends[group - 1]) if group else 0
            if group not in self._complete:
                self._complete[group] = _column(self._file, group + 1, ["add"])
            found += _decode(self._complete[group].take(_indices(rows[chosen] - before)))
            order += chosen.tolist()
        return [add for _, add in sorted(zip(order, found, strict=True), key=_place)]

    def find(self, segment_id: int, start: int, end: int) -> list[Add]:
        """Return the files of the segment that overlap [start, end)."""
        found = self._adds(self._overlapping(segment_id, start, end))
        if found and position_of(found[0])[1] + rows_of(found[0]) <= start:
            del found[0]  # it ends before ``start``; the others begin after it
        return found

    def cells(self, segment_id: int, start: int, end: int) -> list[FileCell]:
        """Return what :meth:`find` does as cells, which cost much less."""
        if self._amounts is None:
            return [cell_of(add) for add in self.find(segment_id, start, end)]
        at = self._overlapping(segment_id, start, end)
        rows = self._order[at]
        amounts = (column[rows].tolist() for column in self._amounts)
        names = self._paths.take(_indices(rows)).to_pylist()
        sizes = self._sizes[rows].tolist()
        found = list(zip(self._bases[at].tolist(), *amounts, names, sizes, strict=True))
        if found and found[0][0] + found[0][1] <= start:
            del found[0]
        return found

    def all(self) -> Iterator[Add]:
        """Yield the files by segment and offset."""
        for first in range(0, len(self), _DECODED_ROWS):
            yield from self._adds(slice(first, first + _DECODED_ROWS))

    def __len__(self) -> int:
        return len(self._order)


def _column(file: pq.ParquetFile, group: int, columns: list[str]) -> pa.StructArray:
    """Return the ``add`` rows of a row group, with these of their columns."""
    table = file.read_row_group(group, columns, use_threads=False)
    return table.column("add").combine_chunks()


def _joined(parts: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _place(pair: tuple[int, Add]) -> int:
    return pair[0]


def _positions(
    adds: pa.StructArray, *, before: int
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return segment ids and base offsets; zeros and row numbers for files of other tables."""
    values = adds.field("partitionValues")
    if len(adds) == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    keys, cells = values.keys, values.items
    names = keys.slice(0, 2).to_pylist()
    if names != [SEGMENT_COLUMN, OFFSET_COLUMN]:
        return np.zeros(len(adds), np.int64), np.arange(before, before + len(adds))
    numbers = np.from_dlpack(cells.cast(pa.int64())).reshape(-1, 2)
    return numbers[:, 0], numbers[:, 1]


def _rows_and_bytes(
    tags: pa.MapArray,
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]] | None:
    """Return the tags ``rows`` and ``bytes`` of all files, or None unless each begins with them."""
    if not len(tags):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    ends = np.from_dlpack(tags.offsets)
    if tags.null_count or (np.diff(ends) < 2).any():
        return None
    found = []
    for at, name in enumerate(("rows", "bytes")):
        places = _indices(ends[:-1] + at)
        if tags.keys.take(places).unique().to_pylist() != [name]:
            return None
        found.append(np.from_dlpack(tags.items.take(places).cast(pa.int64())))
    return found[0], found[1]


def _indices(places: np.ndarray[Any, Any]) -> pa.Array:
    """Return positions for ``take``; ``pa.array`` would import pandas."""
    chosen = np.ascontiguousarray(places, np.int64)
    return pa.Array.from_buffers(pa.int64(), len(chosen), [None, pa.py_buffer(chosen)])


def _decode(adds: pa.StructArray) -> Iterator[Add]:
    names = ("path", "size", "modificationTime", "stats", "dataChange")
    paths, sizes, times, stats, changes = (adds.field(name).to_pylist() for name in names)
    partitions, tags = (_maps(adds.field(name)) for name in ("partitionValues", "tags"))
    return map(Add, paths, partitions, sizes, times, stats, tags, changes)


def _maps(column: pa.MapArray) -> Iterator[dict[str, str]]:
    """Yield the maps of a column as dictionaries; columns convert much faster than rows."""
    offsets = column.offsets.to_pylist()
    first, last = offsets[0], offsets[-1]
    keys, items = (c.slice(first, last - first).to_pylist() for c in (column.keys, column.items))
    for start, end in pairwise(offset - first for offset in offsets):
        yield dict(zip(keys[start:end], items[start:end], strict=True))


def add_rows(adds: Iterable[Add]) -> pa.StructArray:
    """Return added files as rows of a checkpoint."""
    rows = [
        {
            "path": add.path,
            "partitionValues": list(add.partition.items()),
            "size": add.size,
            "modificationTime": add.modified_ms,
            "dataChange": False,
            "stats": add.stats,
            "tags": list((add.tags or {}).items()),
        }
        for add in adds
    ]
    return pa.array(rows, ADD)


def rows_without(adds: pa.StructArray, removed: Collection[str]) -> pa.StructArray:
    """Return the ``add`` rows whose paths are not in the collection."""
    if not removed:
        return adds
    import pyarrow.compute as pc  # takes as long to import as the rest of Arrow

    is_removed = pc.is_in(adds.field("path"), pa.array(list(removed), pa.string()))
    return adds.filter(pc.invert(is_removed))


def encode_checkpoint(snapshot: Snapshot, adds: Iterable[pa.StructArray]) -> tuple[pa.Buffer, int]:
    """Return the bytes of a snapshot's checkpoint, and its number of actions.

    Holds one row group of the ``add`` rows at a time, and the compressed bytes.
    """
    metadata = dict(snapshot.metadata)
    metadata["format"] = {
        "provider": metadata["format"]["provider"],
        "options": list(metadata["format"].get("options", {}).items()),
    }
    metadata["configuration"] = list(metadata["configuration"].items())
    state: list[dict[str, Any]] = [{"protocol": snapshot.protocol}, {"metaData": metadata}]
    state += [
        {"domainMetadata": {"domain": name, "configuration": value, "removed": False}}
        for name, value in sorted(snapshot.domains.items())
    ]
    import pyarrow.parquet as pq  # late: most processes read no checkpoint

    sink = pa.BufferOutputStream()
    actions = len(state)
    with pq.ParquetWriter(sink, _SCHEMA, compression="zstd", write_statistics=False) as writer:
        writer.write_table(pa.Table.from_pylist(state, _SCHEMA))
        for rows in _row_groups(adds):
            actions += len(rows)
            columns = [rows if f.name == "add" else pa.nulls(len(rows), f.type) for f in _SCHEMA]
            writer.write_table(pa.table(columns, schema=_SCHEMA), row_group_size=_ROW_GROUP_ROWS)
    return sink.getvalue(), actions


def _row_groups(adds: Iterable[pa.StructArray]) -> Iterator[pa.StructArray]:
    """Yield the rows in parts of about a row group; the given parts may be small."""
    parts: list[pa.StructArray] = []
    count = 0
    for rows in adds:
        if len(rows):
            parts.append(rows)
            count += len(rows)
        if count >= _ROW_GROUP_ROWS:
            yield pa.concat_arrays(parts)
            parts, count = [], 0
    if parts:
        yield pa.concat_arrays(parts)


def encode_digest(snapshot: Snapshot, data: pa.Buffer, actions: int) -> bytes:
    """Return the bytes of the digest object of a checkpoint."""
    record = {
        "version": snapshot.version,
        "token": snapshot.token,
        "timestamp": snapshot.timestamp_ms,
        "files": actions - 2 - len(snapshot.domains),
        "size": data.size,
    }
    return to_json({**record, "digest": _digest(record, data)}).encode() + b"\n"


def _digest(record: Mapping[str, Any], data: bytes | pa.Buffer) -> str:
    """Return the digest over a checkpoint and its record."""
    hasher = xxhash.xxh3_128(to_json(record).encode())
    hasher.update(data)
    return hasher.hexdigest()


class DeltaCheckpoint:
    """A checkpoint whose digest matches."""

    def __init__(self, data: bytes, record: dict[str, Any]) -> None:
        import pyarrow.parquet as pq  # late: most processes read no checkpoint

        self._file = pq.ParquetFile(pa.BufferReader(data))
        self._record = record

    @property
    def token(self) -> str:
        """The token of the commit that made the version."""
        return str(self._record["token"])

    def snapshot(self) -> Snapshot:
        """Return the state rows as a snapshot."""
        columns = ["protocol", "metaData", "domainMetadata"]
        rows = self._file.read_row_group(0, columns, use_threads=False).to_pylist()
        protocol = next(row["protocol"] for row in rows if row["protocol"])
        metadata = next(row["metaData"] for row in rows if row["metaData"])
        metadata["format"]["options"] = dict(metadata["format"]["options"] or ())
        metadata["configuration"] = dict(metadata["configuration"] or ())
        domains = {
            row["domainMetadata"]["domain"]: row["domainMetadata"]["configuration"]
            for row in rows
            if row["domainMetadata"]
        }
        record = self._record
        known = {name: value for name, value in protocol.items() if value is not None}
        return Snapshot.of(
            record["version"],
            record["timestamp"],
            token=record["token"],
            protocol=known,
            metadata=metadata,
            domains=domains,
        )

    def row_groups(self) -> Iterator[pa.StructArray]:
        """Yield the file rows, one row group at a time."""
        for group in range(1, self._file.num_row_groups):
            table = self._file.read_row_group(group, ["add"], use_threads=False)
            yield table.column("add").combine_chunks()

    def layer(self) -> CheckpointLayer:
        """Return the file rows as a layer."""
        return CheckpointLayer(self._file)


def decode_checkpoint(version: int, data: bytes, digest: bytes) -> DeltaCheckpoint | None:
    """Return the checkpoint if its digest matches, else None."""
    try:
        record = json.loads(digest)
        written = record.pop("digest")
        is_intact = (
            record["version"] == version
            and record["size"] == len(data)
            and written == _digest(record, data)
        )
        return DeltaCheckpoint(data, record) if is_intact else None
    except (*DECODE_ERRORS, pa.ArrowException):
        return None
