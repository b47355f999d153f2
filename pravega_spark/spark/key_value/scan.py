"""The batch source of a table's entries: the folded files under the changes that follow them.

The driver pins one version. A task takes a range of keys: some folded files, and the changes of
their keys, which lie over them. Few changes are read by the driver and travel with the tasks; many
are read by each task, which keeps those of its range.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.errors import InvalidOption
from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from pravega_spark.key_value.entry import translated
from pravega_spark.key_value.fold import dated_entries
from pravega_spark.key_value.folded_files import FoldedFile
from pravega_spark.key_value.folded_table import folded_table, rows_between
from pravega_spark.key_value.keys import Key, KeyCodec, KeyType, bounds
from pravega_spark.key_value.rows import ChangeSorter, SortKey, with_changes
from pravega_spark.key_value.shared_table import key_codec
from pravega_spark.key_value.snapshot import TableSnapshot, table_snapshot
from pravega_spark.spark.kept_plans import FramePlan, warn_if_kept
from pravega_spark.spark.key_value.columns import TableProjection
from pravega_spark.spark.key_value.settings import TableReadSettings
from pravega_spark.spark.versions import DataSourceReader, InputPartition
from pravega_spark.values.limits import FOLDED_FILE_BYTES, SCAN_CHANGE_READS, SCAN_CHANGED_BYTES
from pravega_spark.values.segments import SegmentRange


@dataclass(frozen=True, slots=True)
class PinnedVersion:
    """What all tasks of a scan have in common."""

    life: int
    expired_us: int | None
    plan: FramePlan | None = None
    """Of a read of the newest version: the plan that it is a part of."""


class KeyRangePartition(InputPartition):
    """The entries of the keys of [low, high): rows of folded files, and changes over them."""

    def __init__(
        self,
        pinned: PinnedVersion,
        low: SortKey | None,
        high: SortKey | None,
        files: Sequence[FoldedFile],
        changes: bytes | None,
        ranges: Sequence[SegmentRange],
    ) -> None:
        """Take the changes as sorted rows, or the ranges of the log that hold them."""
        super().__init__(None)
        self.pinned = pinned
        self.low = low
        self.high = high
        self.files = tuple(files)
        self.changes = changes
        self.ranges = tuple(ranges)


class KeyValueTableReader(DataSourceReader):
    """Plans a read of a table's entries on the driver, and reads ranges of keys in tasks.

    The entries of a partition are in the order of their keys, and so are the partitions.
    """

    def __init__(
        self,
        settings: TableReadSettings,
        configuration: KeyValueTableConfiguration,
        schema: StructType,
    ) -> None:
        """Take the settings and the schema that Spark requests."""
        self.settings = settings
        self._schema = schema
        self._configuration = configuration
        self._range = key_range(key_codec(settings.table, configuration), settings)

    def partitions(self) -> list[InputPartition]:
        """Pin a version of the table, and return its ranges of keys."""
        settings = self.settings
        found = table_snapshot(open_stream(settings.root, settings.log), settings.version)
        plan = (
            FramePlan(FramePlan.new_token(), found.view.version)
            if settings.version is None
            else None
        )
        pinned = PinnedVersion(found.view.life, found.expired_us, plan)
        layout = found.table.layout
        low, high = (None if key is None else layout.sort_key(key) for key in self._range)
        files = () if found.folded is None else found.folded.files
        files = [file for file in files if _overlaps(file, low, high)]
        is_small = found.changed_bytes <= SCAN_CHANGED_BYTES
        with translated():
            changes = changed_rows(found, low, high) if is_small else None
        groups = _groups(files, 0 if is_small else SCAN_CHANGE_READS)
        firsts: list[SortKey | None] = [low, *(group[0].first for group in groups[1:]), high]
        planned: list[InputPartition] = []
        for group, (first, end) in zip(groups, pairwise(firsts), strict=True):
            if changes is None:
                planned.append(
                    KeyRangePartition(
                        pinned=pinned,
                        low=first,
                        high=end,
                        files=group,
                        changes=None,
                        ranges=found.ranges,
                    )
                )
                continue
            part = rows_between(changes, first, end)
            if group or part.num_rows:
                data = _to_bytes(part) if part.num_rows else None
                planned.append(
                    KeyRangePartition(
                        pinned=pinned, low=first, high=end, files=group, changes=data, ranges=()
                    )
                )
        return planned

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the entries of a range of keys; runs in a task."""
        if not isinstance(partition, KeyRangePartition):
            return
        pinned = partition.pinned
        stream = open_stream(self.settings.root, self.settings.log)
        warn_if_kept(pinned.plan, f"table {self.settings.table}", stream)
        table = folded_table(stream, self._configuration)
        project = TableProjection(table.layout, pinned.life, self._schema)
        needed = project.stored_columns
        if pinned.expired_us is not None:
            needed.add("timestamp")
        low, high = partition.low, partition.high

        def folded() -> Iterator[pa.Table]:
            with table.reader.missing_files():
                for file in partition.files:
                    for rows in table.reader.rows(file, low, high, columns=sorted(needed)):
                        yield rows_between(rows, low, high)

        with ChangeSorter() as sorter, translated():
            if partition.changes is not None:
                changes: Iterator[pa.Table] = iter([_from_bytes(partition.changes)])
            else:
                for rng in partition.ranges:
                    has_ttl = pinned.expired_us is not None
                    for entries in dated_entries(stream, rng, has_ttl=has_ttl):
                        sorter.add(_inside(table.layout.rows_of_entries(entries), low, high))
                changes = sorter.sorted()
            for rows in with_changes(folded(), changes):
                alive = _alive(rows, pinned.expired_us)
                if alive.num_rows:
                    yield project(alive)


def key_range(codec: KeyCodec, settings: TableReadSettings) -> tuple[Any, Any]:
    """Return the stored keys of [low, high) that the options choose; raise InvalidOption."""
    given = {}
    for option, text in settings.keys.items():
        given[option] = _key(codec, option, text)
    found = bounds(codec, **given)
    return found.low, found.high


def _key(codec: KeyCodec, option: str, text: str) -> Key:
    try:
        if codec.key_type is KeyType.LONG:
            return int(text)
        return bytes.fromhex(text) if codec.key_type is KeyType.BYTES else text
    except ValueError:
        wanted = "a whole number" if codec.key_type is KeyType.LONG else "hexadecimal digits"
        raise InvalidOption(
            f"option {option} of table {codec.table} must be {wanted}, got {text!r}."
        ) from None


def changed_rows(
    found: TableSnapshot, low: SortKey | None = None, high: SortKey | None = None
) -> pa.Table:
    """Return the newest change of each key of [low, high), sorted, as rows of the engine."""
    layout = found.table.layout
    with ChangeSorter() as sorter:
        for entries in found.entries():
            sorter.add(layout.rows_of_entries(entries))
        parts = [rows_between(rows, low, high) for rows in sorter.sorted()]
    return pa.concat_tables(parts).combine_chunks() if parts else layout.empty()


def _overlaps(file: FoldedFile, low: SortKey | None, high: SortKey | None) -> bool:
    return (low is None or file.last >= low) and (high is None or file.first < high)


def _groups(files: Sequence[FoldedFile], most: int) -> list[list[FoldedFile]]:
    """Return neighbouring files for the tasks: at least one group, at most ``most`` unless 0."""
    total = sum(file.size for file in files)
    wanted = -(-total // FOLDED_FILE_BYTES)
    count = max(1, min(wanted, most) if most else wanted)
    groups: list[list[FoldedFile]] = [[] for _ in range(count)]
    before = 0
    for file in files:
        groups[before * count // total].append(file)
        before += file.size
    return [group for group in groups if group] or [[]]


def _inside(rows: pa.Table, low: SortKey | None, high: SortKey | None) -> pa.Table:
    """Return those of unsorted rows whose keys are in [low, high)."""
    keys = rows.column("k")
    if low is not None:
        rows = rows.filter(pc.greater_equal(keys, pa.scalar(low, keys.type)))
        keys = rows.column("k")
    return rows if high is None else rows.filter(pc.less(keys, pa.scalar(high, keys.type)))


def _alive(rows: pa.Table, expired_us: int | None) -> pa.Table:
    if expired_us is None or not rows.num_rows:
        return rows
    limit = pa.scalar(expired_us, pa.timestamp("us", "UTC"))
    return rows.filter(pc.greater(rows.column("timestamp"), limit))


def _to_bytes(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())


def _from_bytes(data: bytes) -> pa.Table:
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all().combine_chunks()
