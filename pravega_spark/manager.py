"""StreamManager: scopes and streams under one root, and the way to their writers and readers."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pravega_spark.engine.failpoints import failpoint
from pravega_spark.engine.layout import cuts, epochs
from pravega_spark.engine.log import clock_record
from pravega_spark.engine.log.commit_log import Log
from pravega_spark.engine.log.sweep import SweepResult, add_results, sweep_table
from pravega_spark.engine.runtime import SYSTEM, Runtime
from pravega_spark.engine.store import open_store
from pravega_spark.engine.store.probe import ensure_probed
from pravega_spark.engine.store.root_marker import hold, token_of
from pravega_spark.engine.stream import lifecycle, stream_sweep, subscribers, truncation
from pravega_spark.engine.stream.records import SegmentRecord, StreamState
from pravega_spark.engine.stream.stream_log import StreamLog, open_stream
from pravega_spark.engine.stream.truncation import TruncationResult
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.tables.row_files import Row
from pravega_spark.engine.tables.scopes import (
    ACTIVE,
    DELETED,
    DELETING,
    GROUP,
    GROUPS_FOLDER,
    Scope,
    row_configuration,
    row_name,
)
from pravega_spark.engine.writing.event_encoder import Serializer
from pravega_spark.errors import (
    InvalidConfiguration,
    InvalidInput,
    NoSuchScope,
    NoSuchStream,
    PravegaSparkError,
    StaleIdentity,
)
from pravega_spark.event_reader import EventReader
from pravega_spark.event_writer import EventStreamWriter
from pravega_spark.limits import KEEP_COMPLETED, KEEP_PIN, PREPARED_LIMIT
from pravega_spark.model import (
    Epoch,
    Event,
    EventPointer,
    KeyRange,
    Segment,
    SegmentRange,
    StreamCut,
    StreamInfo,
    SubscriberInfo,
    TransactionInfo,
)
from pravega_spark.names import MAX_SCOPE_LENGTH, check_list, check_scope, is_name, split_stream
from pravega_spark.policies import StreamConfiguration
from pravega_spark.reader_groups.changing_groups import ChangingGroups
from pravega_spark.reader_groups.group_configuration import (
    CHECKPOINT_INTERVAL,
    MAX_OUTSTANDING_CHECKPOINTS,
    REFRESH,
    GroupRetention,
    ReaderGroupConfiguration,
)
from pravega_spark.reader_groups.reader_group import ReaderGroup
from pravega_spark.scaling import manual_scaling
from pravega_spark.transactions import queries, sweeper
from pravega_spark.transactions.sweeper import TransactionSweepResult
from pravega_spark.transactions.transaction import Transaction
from pravega_spark.transactions.transactional_writer import TransactionalWriter
from pravega_spark.units import parse_duration_ms

if TYPE_CHECKING:
    from pravega_spark.backup.root_backup import BackupResult
    from pravega_spark.backup.root_restore import RestoreResult
    from pravega_spark.backup.table_restore import RestoredTable
    from pravega_spark.retention.stream_retention import StreamRetention

logger = logging.getLogger(__name__)

Deserializer = Callable[[bytes], Any]


_KNOWN_SCOPES = 64
"""A manager remembers the rows of so many scopes."""


class StreamManager:
    """Scopes and streams under one root: a folder, or a URL such as ``s3://bucket/streams``.

    Cheap to create, thread-safe and picklable. A stream is named by one text, ``scope/stream``. A
    manager works on the first root that it opens; where that is gone, or another one was set up in
    its place, every call raises RootChanged, and a new manager opens what is there.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        storage_options: dict[str, Any] | None = None,
        runtime: Runtime = SYSTEM,
    ) -> None:
        """Name the root; nothing is read or written yet."""
        if not isinstance(root, (str, os.PathLike)):
            raise InvalidInput(f"a root is a path or a URL, got {root!r}.")
        self._options = storage_options or {}
        self._store = open_store(root, **self._options)
        self._runtime = runtime
        self._known_scopes: dict[tuple[int, str], Scope] = {}
        """By process, since a forked child must open its own, and by name."""

    @property
    def root(self) -> str:
        """The root as a URL."""
        return self._store.url

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by root and options, and by the name of the root that was opened here."""
        return _manager, (self.root, self._options, token_of(self._store))

    def confirm_clock(self, *, limit: str | float | None = None) -> int:
        """Believe the clock that dates the root's objects from now on; return its time in ms.

        For an operator, after a warning that it jumped and nothing explains that: until then what
        is deleted by age is late by as much. ``limit`` changes how far the clock may go on unseen,
        across a restart of the machine, before it is not followed: at first 7 days. It is of use
        on a local disk; a storage with a clock of its own is believed anyway.
        """
        ensure_probed(self._store, self._runtime)
        return clock_record.confirm_clock(self._store, self._runtime, limit)

    # Scopes

    def create_scope(self, scope: str) -> bool:
        """Create a scope; False if it exists. The first one on a new root probes the storage.

        Raises InvalidName, and StoreRefused for storage that cannot hold streams.
        """
        check_scope(scope)
        ensure_probed(self._store, self._runtime)
        clock_record.begin_record(self._store, self._runtime)
        return self._scope(scope).create()

    def scope_exists(self, scope: str) -> bool:
        """Tell whether the scope exists."""
        return self._scope(scope).state() != DELETED

    def list_scopes(self) -> list[str]:
        """Return the names of the scopes, sorted."""
        return self._scopes(ACTIVE)

    def _scopes(self, *states: str) -> list[str]:
        folders = [name for name in self._store.folders("") if is_name(name, MAX_SCOPE_LENGTH)]
        return [name for name in folders if self._scope(name).state() in states]

    def delete_scope(self, scope: str, *, recursive: bool = False) -> bool:
        """Delete an empty scope; False if there is none. ``recursive`` deletes what is in it first.

        Raises ScopeNotEmpty. A recursive deletion first refuses new streams and reader groups,
        then deletes every group, and seals and deletes every stream; a repeated call finishes one
        that was interrupted.
        """
        found = self._scope(scope)
        life = found.life()
        if life is None:
            return False
        if recursive:
            for row in sorted(found.fence(life), key=lambda row: str(row["kind"])):  # groups first
                self._end(f"{scope}/{row_name(row)}", row)
        return found.delete(life)

    def _end(self, name: str, row: Row) -> None:
        """Delete the life of a stream or reader group that a row of its scope names."""
        if row["kind"] == GROUP:
            self._group(name).delete(row["life"])
            return
        with contextlib.suppress(NoSuchStream, NoSuchScope, StaleIdentity):  # it ended meanwhile
            self._view(name)
            lifecycle.seal(self._stream(name), sweeper.end_all_transactions, life=row["life"])
        self._delete(name, row["life"])

    # Streams

    def create_stream(self, stream: str, configuration: StreamConfiguration | None = None) -> bool:
        """Create a stream; False if it exists. Concurrent creators converge on one stream.

        True for one of them, with its configuration. Raises InvalidName, NoSuchScope.
        """
        scope, name = split_stream(stream)
        configuration = _checked(StreamConfiguration() if configuration is None else configuration)
        opened = self._stream(stream)
        life = lifecycle.next_life(opened)
        if life is None:
            if self._scope(scope).state() == DELETED:
                raise NoSuchScope(f"scope {scope} does not exist; create it first.", scope=scope)
            return False
        claimed, configuration = self._scope(scope).claim(name, life, configuration)
        failpoint("create.row")
        if lifecycle.create(opened, life, configuration) or self._is_in(opened, life):
            return claimed
        self._scope(scope).drop_row(name, life)  # it may have been noted after the life's end
        return False

    @staticmethod
    def _is_in(stream: StreamLog, life: int) -> bool:
        """Tell whether the stream exists in this life."""
        with contextlib.suppress(NoSuchStream, StaleIdentity):
            return stream.view(life=life) is not None
        return False

    def stream_exists(self, stream: str) -> bool:
        """Tell whether the stream exists (sealed ones do)."""
        try:
            self._view(stream)
        except (NoSuchStream, NoSuchScope):
            return False
        return True

    def list_streams(self, scope: str, *, tag: str | None = None) -> list[str]:
        """Return the names ``scope/stream`` of a scope's streams, sorted; with a tag, those."""
        rows = self._scope(scope).rows()
        return [
            f"{scope}/{name}"
            for name, row in sorted(rows.items())
            if tag is None or tag in row["tags"]
        ]

    def update_stream(self, stream: str, configuration: StreamConfiguration) -> bool:
        """Replace the stream's configuration and tags; False if they are so already.

        A fixed number of segments other than the present one, or a higher minimum, scales the
        stream at once, with equal ranges. On a sealed stream retention and tags can change.
        Raises NoSuchStream, StreamSealed if a sealed stream's scaling would change, IllegalState
        while the stream is being sealed.
        """
        scope, name = split_stream(stream)
        _checked(configuration)
        life, opened = self._view(stream).life, self._stream(stream)
        changed = lifecycle.update(opened, configuration, life=life)
        failpoint("update.row")
        view = lifecycle.current_view(opened)
        if view is not None and view.life == life:
            self._scope(scope).retag(name, life, view.version, view.record.configuration)
        return changed

    def seal_stream(self, stream: str) -> bool:
        """Stop all writes to the stream for ever; False if it is sealed already.

        Transactions that are decided are carried out first, open ones aborted. Raises
        IllegalState if one is prepared: the stream stays SEALING until it is decided.
        """
        life = self._view(stream).life
        return lifecycle.seal(self._stream(stream), sweeper.end_all_transactions, life=life)

    def delete_stream(self, stream: str) -> bool:
        """Delete a sealed stream with its data; False if there is none. Raises StreamNotSealed."""
        view = lifecycle.current_view(self._stream(stream))
        with contextlib.suppress(NoSuchScope):
            view = self._mended(stream, view)
        return view is not None and self._delete(stream, view.life)

    def _delete(self, stream: str, life: int) -> bool:
        """Delete a life of a stream that is sealed; False if it has ended already."""
        scope, name = split_stream(stream)
        deleted = lifecycle.delete(self._stream(stream), life=life)
        failpoint("delete.row")
        if deleted:
            self._scope(scope).drop_row(name, life)
        return deleted

    def stream_info(self, stream: str) -> StreamInfo:
        """Return the stream's configuration, layout, head and tail, at its newest version."""
        view = self._view(stream)
        record = view.record
        opened = self._stream(stream)
        size = cuts.distance_bytes(
            view, view.head, view.tail, lambda segment, at: opened.bytes_at(segment, at, view)
        )
        return StreamInfo(
            stream,
            view.life,
            record.state.value,
            view.version,
            record.configuration,
            record.active_epoch,
            view.active.segments,
            view.head,
            view.tail,
            cuts.distance_events(view, view.head, view.tail),
            size,
            record.created_ms,
        )

    def truncate_stream(
        self, stream: str, cut: StreamCut | str, *, past_subscribers: bool = False
    ) -> TruncationResult:
        """Drop all events before a cut, for good: one commit; the same cut again does nothing.

        Files are deleted later, by ``sweep_stream``. Readers below the new head get TruncatedData
        once and go on at it. Raises InvalidStreamCut for a cut that is no place of this stream or
        behind the head anywhere, HeldBySubscriber for one that a subscriber still needs unless
        ``past_subscribers``, which the stream's history tells; IllegalState while the stream is
        being sealed, NoSuchStream. A sealed stream can be truncated up to its end.
        """
        life = self._view(stream).life
        return truncation.truncate(
            self._stream(stream), cut, past_subscribers=past_subscribers, life=life
        )

    def retention(self, stream: str) -> StreamRetention:
        """Return the stream's retention: to ``explain`` what would go and who holds it, to ``run``.

        A run first finishes the changes of reader groups that somebody left half made. Raises
        NoSuchStream.
        """
        from pravega_spark.retention.stream_retention import StreamRetention

        life = self._view(stream).life
        return StreamRetention(self._stream(stream), life, self._tend_changing)

    def list_subscribers(self, stream: str) -> list[SubscriberInfo]:
        """Return the groups that the stream's retention waits for, by name."""
        return subscribers.listed(self._view(stream))

    def sweep_stream(
        self,
        stream: str,
        *,
        grace: str | float = "1 day",
        retain: str | float = "30 days",
        keep_completed: str | float = KEEP_COMPLETED,
        keep_records: str | float | None = None,
    ) -> SweepResult:
        """Delete what the stream needs no more; for a scheduled job, safe to repeat and to kill.

        Goes: files staged longer than ``grace`` ago that no retained version holds, the log
        entries of versions older than ``retain``, the records of writers without an id of their
        own, and the outcomes of transactions that ended longer than ``keep_completed`` ago.
        ``grace`` must be longer than any job that writes to the stream. Abandoned transactions
        are aborted first, and the stream's ``metadata/`` table is swept too. With ``keep_records``
        the records of writers with ids of their own, and of removed subscribers, that nobody
        changed for so long (at most ``retain``) leave the log's state; whoever returns goes on from
        them all the same, or has to open a new writer. Raises NoSuchStream, InvalidConfiguration.
        """
        ages_ms = {
            "grace_ms": parse_duration_ms("grace", grace),
            "retain_ms": parse_duration_ms("retain", retain),
            "completed_ms": parse_duration_ms("keep_completed", keep_completed),
        }
        if keep_records is not None:
            ages_ms["records_ms"] = parse_duration_ms("keep_records", keep_records)
            if ages_ms["records_ms"] > ages_ms["retain_ms"]:
                raise InvalidConfiguration(
                    f"keep_records {keep_records!r} is longer than retain {retain!r}: the log does "
                    "not tell the age of a record whose version is not retained."
                )
        life = self._view(stream).life
        sweeper.sweep_transactions(self._stream(stream), life=life)
        return stream_sweep.sweep_stream(self._stream(stream), **ages_ms, life=life)

    def sweep_scope(
        self, scope: str, *, grace: str | float = "1 day", retain: str | float = "30 days"
    ) -> SweepResult:
        """Delete what the scope's own tables need no more, by the rules of :meth:`sweep_stream`.

        These are its index of streams, its reader groups, deleted ones too, and what deleted
        streams have left, except what the next creation of the name needs; the counts are of all,
        the marks of the index. Its streams are swept each by itself. Raises NoSuchScope.
        """
        found = self._scope(scope)
        found.check_exists()
        grace_ms = parse_duration_ms("grace", grace)
        retain_ms = parse_duration_ms("retain", retain)
        now = clock_record.read_now(self._store, self._runtime)

        def sweep(log: Log) -> SweepResult:
            return sweep_table(log, grace_ms=grace_ms, retain_ms=retain_ms, now=now)

        result = sweep(found.table.log)
        self._store.discard_unfinished("", grace_ms, deep=False)  # of the root's own objects
        for name in self._store.folders(f"{scope}/{GROUPS_FOLDER}"):
            result = add_results(result, sweep(self._group(f"{scope}/{name}").log))
        left = {name for name in self._store.folders(scope) if is_name(name)}
        for name in sorted(left.difference(found.rows())):
            rest = stream_sweep.sweep_deleted_stream(
                self._stream(f"{scope}/{name}"), grace_ms=grace_ms, retain_ms=retain_ms, now=now
            )
            result = add_results(result, rest)
        return result

    def tags(self, stream: str) -> frozenset[str]:
        """Return the stream's tags."""
        return self._view(stream).record.configuration.tags

    def head(self, stream: str) -> StreamCut:
        """Return the cut of the first events that can be read."""
        return self._view(stream).head

    def head_filter(self, stream: str) -> str:
        """Return SQL by which other Delta readers leave out what was truncated and is still there.

        A chunk that the head cuts through stays in the table whole: its first events are below the
        head, and only this package's readers know that. For a WHERE over the stream's table, in
        Spark SQL, DuckDB and delta-rs; TRUE where nothing is to be left out. It holds for the
        table as it is now.
        """
        below = (
            f"NOT (segment_id = {segment_id} AND base_offset + offset_delta < {offset})"
            for segment_id, offset in self.head(stream)
            if offset > 0
        )
        return " AND ".join(below) or "TRUE"

    def tail(self, stream: str) -> StreamCut:
        """Return the cut after the last events."""
        return self._view(stream).tail

    def segments(
        self, stream: str, *, time_ms: int | None = None, epoch: int | None = None
    ) -> tuple[Segment, ...]:
        """Return the segments that are active now, were at a time (ms since 1970), or in an epoch.

        Time 0 means the head.
        """
        view = self._view(stream)
        if epoch is not None:
            return view.epoch(epoch).segments
        return view.active.segments if time_ms is None else epochs.segments_at(view, time_ms)

    def segment(self, stream: str, segment_id: int) -> SegmentRecord:
        """Return a segment's length in events and bytes, and the epoch that sealed it."""
        return self._view(stream).segment(segment_id)

    def successors(
        self, stream: str, segment_id: int
    ) -> tuple[tuple[Segment, tuple[Segment, ...]], ...]:
        """Return a sealed segment's successors, each with all its predecessors; none if open."""
        return epochs.successors(self._view(stream), segment_id)

    def segments_between(
        self, stream: str, start: StreamCut | str, end: StreamCut | str
    ) -> list[Segment]:
        """Return the segments that have a part between two cuts, predecessors first.

        Raises InvalidStreamCut, and TruncatedData if ``start`` lies below the head.
        """
        view = self._view(stream)
        first, last = cuts.resolve(view, start), cuts.resolve(view, end)
        cuts.from_head(view.lineage, first)
        return cuts.segments_between(view, first, last)

    def distance(
        self, stream: str, start: StreamCut | str, end: StreamCut | str
    ) -> tuple[int, int]:
        """Return (events, bytes) between two cuts, exactly.

        Raises InvalidStreamCut, and TruncatedData if ``start`` lies below the head.
        """
        return self.create_reader(stream).distance(start, end)

    # Scaling

    def scale_stream(
        self,
        stream: str,
        seal: Iterable[int | str],
        key_ranges: Iterable[KeyRange | tuple[float, float]],
    ) -> Epoch:
        """Seal segments and open others of the given ranges, in one commit; return the new epoch.

        ``seal`` names segments by id, by text (``"3#1"``), or by the number of an active one;
        ``key_ranges`` are (low, high) that together cover the same keys, once. Any number of
        disjoint splits and merges. The same request again finds its own epoch. Raises
        InvalidConfiguration, NoSuchSegment, ScaleConflict, StreamSealed.
        """
        view = self._view(stream)
        names = check_list("the segments to seal", seal)
        doomed = [manual_scaling.segment_named(view, name) for name in names]
        ranges = [manual_scaling.key_range(given) for given in check_list("key ranges", key_ranges)]
        return manual_scaling.scale_stream(self._stream(stream), doomed, ranges, life=view.life)

    def check_scale(self, stream: str, epoch: int) -> bool:
        """Tell whether a scale of that epoch has been done (Pravega's checkScale)."""
        return manual_scaling.check_scale(self._view(stream), epoch)

    # Transactions

    def create_transactional_writer(
        self, stream: str, writer_id: str | None = None, *, serializer: Serializer | None = None
    ) -> TransactionalWriter:
        """Open a writer of transactions; one with an id of your own fences its older self.

        Raises NoSuchStream, StreamSealed, InvalidName.
        """
        life = self._view(stream).life
        return TransactionalWriter(
            self._stream(stream), writer_id, serializer=serializer, life=life
        )

    def transaction(
        self, stream: str, transaction_id: str, *, serializer: Serializer | None = None
    ) -> Transaction:
        """Take up a transaction by its id: to look, write, commit or abort.

        Its lease is not extended by itself: call ``ping``, or take it up by a writer's
        ``get_transaction``. Raises NoSuchTransaction.
        """
        life = self._view(stream).life
        return Transaction(self._stream(stream), transaction_id, serializer=serializer, life=life)

    def list_transactions(self, stream: str) -> list[TransactionInfo]:
        """Return the transactions without an outcome, the oldest first, with their status."""
        return queries.open_transactions(self._stream(stream), self._view(stream))

    def list_completed_transactions(self, stream: str) -> list[TransactionInfo]:
        """Return the committed and aborted ones that are kept (24 hours), the newest first."""
        return queries.completed_transactions(self._view(stream))

    def sweep_transactions(
        self, stream: str, *, prepared_limit: str | float = PREPARED_LIMIT
    ) -> TransactionSweepResult:
        """Abort abandoned transactions, carry out decided ones, remove what ended ones left.

        For a scheduled job; writers do it now and then. Safe to repeat, and to run twice at once.
        """
        limit_ms = parse_duration_ms("the limit of prepared transactions", prepared_limit)
        life = self._view(stream).life
        return sweeper.sweep_transactions(
            self._stream(stream), prepared_limit_ms=limit_ms, life=life
        )

    # Reader groups

    def create_reader_group(
        self,
        group: str,
        streams: Iterable[str] | Mapping[str, Any],
        *,
        retention: GroupRetention | str = GroupRetention.NONE,
        refresh: str | float = REFRESH,
        checkpoint_interval: str | float | None = CHECKPOINT_INTERVAL,
        max_outstanding_checkpoints: int = MAX_OUTSTANDING_CHECKPOINTS,
    ) -> ReaderGroup:
        """Create a reader group ``scope/group``; one that exists with this configuration is kept.

        ``streams`` are names, or a mapping from each to its start cut or (start, end); they may
        be of any scopes. ``retention`` "automatic" or "manual" makes the streams keep what the
        group has not read, up to the maximum of their policy. Raises ConfigMismatch if it exists
        with another configuration, NoSuchScope, NoSuchStream, InvalidName, InvalidStreamCut.
        """
        found = self._group(group)
        found.create(
            ReaderGroupConfiguration(
                streams,
                retention=retention,
                refresh=refresh,
                checkpoint_interval=checkpoint_interval,
                max_outstanding_checkpoints=max_outstanding_checkpoints,
            )
        )
        return found

    def reader_group(self, group: str) -> ReaderGroup:
        """Return a reader group that exists. Raises NoSuchReaderGroup."""
        found = self._group(group)
        found.state()
        return found

    def list_reader_groups(self, scope: str) -> list[str]:
        """Return the names ``scope/group`` of a scope's reader groups, sorted."""
        return [f"{scope}/{name}" for name in sorted(self._scope(scope).rows(GROUP))]

    def delete_reader_group(self, group: str) -> bool:
        """Delete a reader group, which then holds no data; False if there is none."""
        return self._group(group).delete()

    def repair_reader_groups(self) -> dict[str, str]:
        """Finish what was left half made of reader groups, in all scopes, by who died on the way.

        So streams keep what a group is to read, and let go what a deleted one held. For the
        retention job; safe to repeat, and to run twice at once. Return the groups that cannot be
        finished, each with its error.
        """
        groups = [
            group for scope in self._scopes(ACTIVE, DELETING) for group in self._listed(scope)
        ]
        errors = self._runtime.each(self._tend_group, groups)
        return {group: error for group, error in zip(groups, errors, strict=True) if error}

    def _tend_changing(self) -> None:
        ChangingGroups(self._store, self._runtime).tend(self._tend_group)

    def _tend_group(self, group: str) -> str | None:
        try:
            self._group(group).settle()
        except PravegaSparkError as error:
            logger.warning("reader group %s cannot be finished", group, exc_info=True)
            return f"{type(error).__name__}: {error}"
        return None

    def _listed(self, scope: str) -> list[str]:
        with contextlib.suppress(NoSuchScope):  # deleted meanwhile
            return self.list_reader_groups(scope)
        return []

    # Backup

    def backup(
        self,
        target: str | os.PathLike[str],
        name: str = "",
        *,
        storage_options: dict[str, Any] | None = None,
        keep: str | float = KEEP_PIN,
    ) -> BackupResult:
        """Copy the root, or one scope or stream by its ``name``, to an empty folder or URL.

        Writers, scales and sweeps go on: each table is copied as of a version that it is pinned at
        until it is copied, or for ``keep`` if this process dies. The copy is a root of its own,
        which opens when it is whole; the same call again finishes one that was killed. Open
        transactions are aborted in the copy, and groups that are not copied hold nothing there.
        Raises NoSuchScope, NoSuchStream, InvalidInput,
        IllegalState if the target holds anything else, StoreRefused.
        """
        from pravega_spark.backup.root_backup import Backup

        if not isinstance(name, str):
            raise InvalidInput(f"a backup is of a scope, 'scope/stream' or '' (all), got {name!r}.")
        if "/" in name:
            split_stream(name)
        elif name:
            check_scope(name)
        keep_ms = parse_duration_ms("keep", keep)
        copy = open_store(target, **(storage_options or {}))
        return Backup(self._store, copy, self._runtime, name, keep_ms).run()

    def restore(self) -> RestoreResult:
        """Open a root that is a copy, whole or not; nobody else may use it meanwhile.

        Each table goes back to its newest version of which all commits and files are there, and
        each stream goes on in its next life there: what belongs to the life before is refused.
        Returns what was dropped, and the tables of which nothing is whole. Raises NoSuchScope if
        nothing is there to be restored.
        """
        from pravega_spark.backup.root_restore import restore_root

        return restore_root(self._store, self._runtime)

    def restore_stream(self, stream: str) -> RestoredTable:
        """Do what :meth:`restore` does, with one stream. Raises NoSuchStream, CorruptLog."""
        from pravega_spark.backup.root_restore import restore_stream

        return restore_stream(self._store, stream, self._runtime)

    # Writing and reading

    def create_writer(
        self, stream: str, writer_id: str | None = None, *, serializer: Serializer | None = None
    ) -> EventStreamWriter:
        """Open a writer; with an id of your own it continues exactly where that id stopped.

        Raises NoSuchStream, StreamSealed, InvalidName.
        """
        life = self._view(stream).life
        return EventStreamWriter(self._stream(stream), writer_id, serializer=serializer, life=life)

    def create_reader(
        self, stream: str, *, deserializer: Deserializer | None = None
    ) -> EventReader:
        """Return a reader of the stream without a group: ranges, batches, tail following."""
        self._view(stream)
        return EventReader(self._stream(stream), deserializer=deserializer)

    def read(
        self,
        stream: str,
        start: StreamCut | str = StreamCut.EARLIEST,
        end: StreamCut | str = StreamCut.LATEST,
        *,
        deserializer: Deserializer | None = None,
    ) -> Iterator[Event]:
        """Yield the events between two cuts, each segment in order, predecessors first."""
        return self.create_reader(stream, deserializer=deserializer).events(start, end)

    def follow(
        self,
        stream: str,
        start: StreamCut | str = StreamCut.LATEST,
        *,
        deserializer: Deserializer | None = None,
        timeout: float | None = None,
    ) -> Iterator[Event]:
        """Yield events from a cut on for ever, or until none came for ``timeout`` seconds."""
        return self.create_reader(stream, deserializer=deserializer).follow(start, timeout=timeout)

    def fetch_event(
        self, pointer: EventPointer | str, *, deserializer: Deserializer | None = None
    ) -> Event:
        """Return the event of a pointer, or of its text.

        Raises NoSuchEvent, StaleIdentity, and TruncatedData for an event below the head.
        """
        pointer = EventPointer.of(pointer)
        return self.create_reader(pointer.stream, deserializer=deserializer).fetch(pointer)

    def segment_ranges(
        self,
        stream: str,
        start: StreamCut | str = StreamCut.EARLIEST,
        end: StreamCut | str = StreamCut.LATEST,
    ) -> list[SegmentRange]:
        """Return the ranges of every segment between two cuts: work for any number of processes.

        Raises InvalidStreamCut, and TruncatedData if ``start`` lies below the head.
        """
        return self.create_reader(stream).ranges(start, end)

    def _group(self, group: str) -> ReaderGroup:
        return ReaderGroup(self._store, group, self._stream, self._runtime)

    def _scope(self, scope: str) -> Scope:
        """Return a scope, of which this manager remembers the rows that it has read."""
        key = (os.getpid(), check_scope(scope))
        known = self._known_scopes.get(key)
        if known is None:
            if len(self._known_scopes) >= _KNOWN_SCOPES:
                self._known_scopes.clear()
            known = self._known_scopes[key] = Scope(self._store, scope, self._runtime)
        return known

    def _stream(self, stream: str) -> StreamLog:
        split_stream(stream)
        if self._runtime is not SYSTEM:
            return StreamLog(self._store, stream, self._runtime)
        return open_stream(self._store, stream)

    def _view(self, stream: str) -> StreamView:
        """Return the newest view: its life is the one that the call is made for.

        A creation or deletion that was left half made is finished first.
        """
        opened = self._stream(stream)
        view = self._mended(stream, lifecycle.current_view(opened))
        if view is None:
            raise opened.absent()
        view.check_exists()
        return view

    def _mended(self, stream: str, view: StreamView | None) -> StreamView | None:
        """Finish what is half made of a stream that does not exist; return the view afterwards."""
        opened = self._stream(stream)
        if view is not None and view.record.state is not StreamState.DELETED:
            return view
        scope, name = split_stream(stream)
        ended = 0 if view is None else view.life
        row = self._scope(scope).rows().get(name)
        if row is None or row["life"] > ended + 1:
            return view
        if row["life"] <= ended:
            self._scope(scope).drop_row(name, ended)
            return view
        lifecycle.create(opened, row["life"], row_configuration(row))
        begun = lifecycle.current_view(opened)
        return begun if begun is not None and begun.life == row["life"] else view


def _checked(configuration: object) -> StreamConfiguration:
    if not isinstance(configuration, StreamConfiguration):
        raise InvalidConfiguration(f"a StreamConfiguration is needed, got {configuration!r}.")
    return configuration


def _manager(root: str, options: dict[str, Any], token: str | None = None) -> StreamManager:
    manager = StreamManager(root, storage_options=options)
    if token is not None:
        hold(manager._store, token)
    return manager
