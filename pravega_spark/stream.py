"""Stream: the verbs of one stream, for a caller that works with it more than once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pravega_spark.config.descriptions import (
    FileTotals,
    StreamInfo,
    SubscriberInfo,
    TransactionInfo,
)
from pravega_spark.config.encryption import EncryptionPolicy
from pravega_spark.config.policies import (
    UNCHANGED,
    RetentionPolicy,
    ScalingPolicy,
    StreamConfiguration,
    Unchanged,
    check_configuration,
)
from pravega_spark.config.root_settings import EffectiveSettings, decide_settings, parse_flags
from pravega_spark.engine.chunks.encoder import UNCOMPRESSED
from pravega_spark.engine.layout.located_cut import locate
from pravega_spark.engine.log.sweep import SweepResult
from pravega_spark.engine.root import Root
from pravega_spark.engine.runtime.failpoints import failpoint
from pravega_spark.engine.runtime.system import SYSTEM, Runtime
from pravega_spark.engine.state.scopes import Scope, row_configuration
from pravega_spark.engine.store import Store, open_store
from pravega_spark.engine.store.root_marker import bind_root, token_of
from pravega_spark.engine.stream import (
    epoch_history,
    fencing,
    lifecycle,
    past_cuts,
    repair,
    saved_cuts,
    segment_history,
    stream_sweep,
    subscribers,
    truncation,
)
from pravega_spark.engine.stream.configuration import (
    check_version,
    checked_update,
    log_flags,
    stream_settings,
)
from pravega_spark.engine.stream.lifecycle import claim_life, forestall, has_begun
from pravega_spark.engine.stream.overdue_maintenance import needed_kinds, tell_if_unmaintained
from pravega_spark.engine.stream.records import StreamState
from pravega_spark.engine.stream.saved_cuts import SavedCut
from pravega_spark.engine.stream.stored_bytes import StorageInfo, stored_bytes
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.table_schema import SchemaVersion, schema_versions
from pravega_spark.engine.stream.truncation import TruncationResult
from pravega_spark.engine.stream.view import StreamView, ViewCheck
from pravega_spark.engine.stream.watermarks import known_watermarks
from pravega_spark.engine.writing.encode import EventTime, EventTimes
from pravega_spark.errors import (
    InvalidInput,
    NoSuchScope,
    NoSuchStream,
    StaleIdentity,
)
from pravega_spark.scaling import commit
from pravega_spark.values.checks import check_flag, check_list, check_options, check_whole, shown
from pravega_spark.values.events import Deserializer, Event
from pravega_spark.values.names import check_plain_subscriber, split_stream
from pravega_spark.values.segments import (
    Epoch,
    EventPointer,
    KeyRange,
    Segment,
    SegmentInfo,
    SegmentRange,
    StreamCut,
)

if TYPE_CHECKING:  # each verb imports the layer that does it, so that others need not wait
    import pyarrow as pa

    from pravega_spark.backup.restore import RestoredTable
    from pravega_spark.byte_streams.reader import ByteStreamReader
    from pravega_spark.byte_streams.writer import ByteStreamWriter
    from pravega_spark.compaction.result import CompactionResult
    from pravega_spark.engine.writing.encode import Serializer
    from pravega_spark.event_reader import EventReader
    from pravega_spark.event_time.stream_time import StreamTime
    from pravega_spark.event_writer import EventStreamWriter
    from pravega_spark.retention.stream_retention import StreamRetention
    from pravega_spark.scaling.auto import StreamScaling
    from pravega_spark.shared_state.revisioned_stream import RevisionedStream
    from pravega_spark.shared_state.state_synchronizer import StateSynchronizer
    from pravega_spark.txn.sweeper import TransactionSweepResult
    from pravega_spark.txn.transaction import Transaction
    from pravega_spark.txn.writer import TransactionalWriter


class Stream:
    """One stream by its name ``scope/stream``; made by ``StreamManager.stream``.

    Cheap to create (no storage is asked), thread-safe and picklable. The stream need not exist yet:
    :meth:`create` creates it. Every other call works on the life that the stream has when the call
    begins, and raises NoSuchStream if the stream does not exist,
    and RootChanged if its root was replaced. A creation or deletion that a killed process left half
    made is completed first. A call that only reads or maintains a stream creates nothing: it raises
    CorruptLog for a stream that is listed but has no object, since it may have been lost.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        *,
        storage_options: dict[str, Any] | None = None,
        runtime: Runtime = SYSTEM,
        on_open: Callable[[object, Callable[[Any], bool]], None] = lambda user, is_closed: None,
    ) -> None:
        """Name the stream.

        ``on_open`` takes each writer and reader that is made, and the way to ask if it is closed.
        """
        self._scope_name, self._short_name = split_stream(name)
        self._name = name
        self._root = Root(store, runtime)
        self._options = check_options("storage_options", storage_options)
        self._on_open = on_open

    @property
    def name(self) -> str:
        """The name, ``scope/stream``."""
        return self._name

    @property
    def root(self) -> str:
        """The URL or the path of the root."""
        return self._root.store.url

    def __repr__(self) -> str:
        return f"Stream({self._name!r}, root={self.root!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by root, options and name, and by the token of the root that was opened here."""
        store = self._root.store
        return _stream, (store.url, self._options, self._name, token_of(store))

    # Life

    def create(self, configuration: StreamConfiguration | None = None) -> bool:
        """Create the stream; False if it exists. Concurrent creators converge on one stream.

        One of them gets True, and the stream has its configuration. Logs a warning if it has a
        policy that nobody carries out. Raises NoSuchScope, InvalidSchema for columns that Parquet
        cannot write, and CorruptLog if the stream exists and has lost its log.
        """
        wanted = StreamConfiguration() if configuration is None else configuration
        configuration = check_configuration(wanted)
        if configuration.schema is not None:
            from pravega_spark.schemas.column_types import check_paths  # late: it needs Arrow

            check_paths(configuration.schema.arrow)
        log, scope, name = self._log(), self._scope(), self._short_name
        found = claim_life(log, scope, lambda life: scope.claim(name, life, configuration))
        if found is None:
            scope.check_exists()
            return False
        claimed, row = found
        life = row["life"]
        needed = needed_kinds(configuration)
        if claimed and needed:
            tell_if_unmaintained(*self._root, f"the policy of stream {self._name}", needed)
        if lifecycle.create(log, life, row_configuration(row)):
            return claimed
        return repair.repair(log, scope) and claimed and has_begun(log, life)

    def restore(self) -> RestoredTable:
        """Do what ``StreamManager.restore`` does, for one stream.

        Raises NoSuchStream, CorruptLog.
        """
        from pravega_spark.backup.root_restore import restore_stream

        return restore_stream(self._root.store, self._name, self._root.runtime)

    def exists(self) -> bool:
        """Return True if the stream exists; sealed ones do."""
        try:
            self._view()
        except (NoSuchStream, NoSuchScope):
            return False
        return True

    def info(self) -> StreamInfo:
        """Return the configuration, layout, head and tail of the newest version."""
        log = self._log()
        log.log.expect_files()
        newest = self._view()

        def size_of(view: StreamView) -> tuple[StreamView, int, FileTotals]:
            size = log.readable_bytes(view)
            with log.log.files() as files:
                return view, size, files.totals()

        view, size, files = log.on_newest(size_of, view=newest)
        record, head, tail = view.record, view.located_head, view.located_tail
        return StreamInfo(
            stream=self._name,
            life=view.life,
            state=record.state.value,
            version=view.version,
            configuration=record.configuration,
            epoch=record.active_epoch,
            segments=view.active.segments,
            head=view.head,
            tail=view.tail,
            events=head.events_to(tail),
            size_bytes=size,
            created_ms=record.created_ms,
            configuration_version=record.configuration_version,
            files=files,
            watermark=next(reversed(known_watermarks(view)), None),
        )

    def storage(self) -> StorageInfo:
        """Return what the stream stores: files and bytes by kind, and why they are not deleted.

        Lists all objects of the stream; :meth:`info` has the number and size of its live files
        without that. Changes nothing.
        """
        log, view = self._log(), self._view()
        return stored_bytes(log, stream_settings(log, view), life=view.life)

    def update(
        self,
        configuration: StreamConfiguration | None = None,
        *,
        scaling: ScalingPolicy | Unchanged = UNCHANGED,
        retention: RetentionPolicy | Unchanged | None = UNCHANGED,
        add_tags: Iterable[str] | None = None,
        remove_tags: Iterable[str] | None = None,
        settings: Mapping[str, str | float | None] | None = None,
        encryption: EncryptionPolicy | Unchanged = UNCHANGED,
        schema: Any = UNCHANGED,
        expected_version: int | None = None,
    ) -> bool:
        """Update the configuration; False if it is the same already.

        Give a whole configuration, tags included, or only the fields to change: the others stay
        as the commit finds them, so concurrent updates of different fields lose nothing.
        ``retention=None`` removes the policy. A tag to add may be present, and one to remove
        absent. ``settings={"grace": "2 hours"}`` overrides settings of the root; None as a value
        ends that. ``encryption`` names another key for chunks from now on; an encrypted stream
        stays encrypted, and any other one plain. ``schema`` is the whole new schema of a typed
        stream, which may have more nullable columns at its end and other comments; events that are
        stored already are null there. With ``expected_version``, a
        ``StreamInfo.configuration_version``, the update raises ConfigurationConflict if another one
        changed the configuration first; False if it already is as wanted, so that a repeated call
        succeeds.

        A fixed number of segments other than the present one, or a higher minimum, scales the
        stream in the same commit, with equal ranges. On a sealed stream all but the scaling can
        change. Raises StreamSealed if a sealed stream's scaling would change, IllegalState while
        the stream is being sealed, InvalidConfiguration, InvalidSchema, and SchemaChangeRefused for
        any other change of the schema.
        """
        name = self._name
        change = checked_update(
            name,
            configuration,
            scaling=scaling,
            retention=retention,
            add_tags=add_tags,
            remove_tags=remove_tags,
            settings=settings,
            encryption=encryption,
            schema=schema,
        )
        check_version(name, expected_version)
        life, log = self._view_to_use().life, self._log()
        changed = lifecycle.update(log, change, expected_version=expected_version, life=life)
        failpoint("update.row")
        view = log.current_view()
        if view is not None and view.life == life:
            row = self._short_name, life, view.version, view.record.configuration
            self._scope().retag(*row)
        return changed

    def settings(self) -> EffectiveSettings:
        """Return the settings that hold for the stream: its own, the root's, and the defaults."""
        return stream_settings(self._log(), self._view())

    def schemas(self) -> list[SchemaVersion]:
        """Return the schemas that the stream has had in its life, the newest last; none if raw.

        Each has the version of the log that set it, and when, in ms since 1970.
        """
        return schema_versions(self._view().snapshot)

    def tags(self) -> frozenset[str]:
        """Return the tags of the stream's configuration; an empty set if it has none."""
        return self._view().record.configuration.tags

    def seal(self) -> bool:
        """Stop all writes forever; False if the stream is sealed already.

        Commits decided transactions and aborts open ones first. Raises IllegalState if one is
        prepared: the stream stays SEALING until that one is decided.
        """
        life = self._view_to_use().life
        return lifecycle.seal(self._log(), _end_all_transactions, life=life)

    def delete(self) -> bool:
        """Delete a sealed stream with its data; False if there is none. Raises StreamNotSealed."""
        log = self._log()
        view = log.current_view()
        if view is None or view.record.state is StreamState.DELETED:
            with contextlib.suppress(NoSuchScope):
                repair.repair(log, self._scope())
                view = log.current_view()
        return view is not None and self._delete_life(view.life)

    def _delete_life(self, life: int) -> bool:
        """Delete one life of a sealed stream; False if it has ended already."""
        deleted = lifecycle.delete(self._log(), life=life)
        failpoint("delete.row")
        if deleted:
            self._scope().drop_row(self._short_name, life)
        return deleted

    # Retention

    def truncate(self, cut: StreamCut | str, *, past_subscribers: bool = False) -> TruncationResult:
        """Delete all events before a cut, in one commit; the same cut again does nothing.

        ``sweep`` deletes the files later. Readers below the new head get TruncatedData once, and
        continue at the head. Raises InvalidStreamCut for a cut that is not one of this stream or
        is below the head anywhere; HeldBySubscriber for one that a subscriber still needs, unless
        ``past_subscribers``, which the stream's history records; IllegalState while the stream is
        being sealed. A sealed stream can be truncated up to its end.
        """
        check_flag("past_subscribers", past_subscribers)
        life = self._view_to_use().life
        return truncation.truncate(self._log(), cut, past_subscribers=past_subscribers, life=life)

    def retention(self) -> StreamRetention:
        """Return the retention: ``explain`` what a run would delete and keep, or ``run``.

        A run first finishes the changes of reader groups that killed processes left half made,
        unsubscribes groups that the root no longer has, and releases what groups with retention
        'automatic' have read: their dead readers expire.
        """
        from pravega_spark.retention.stream_retention import StreamRetention

        life = self._view().life
        return StreamRetention(self._log(), life, self._repair_groups)

    def _repair_groups(self) -> None:
        from pravega_spark.reader_groups import repair

        store, runtime = self._root
        repair.repair_changing_groups(store, self._root.stream, runtime)
        repair.release_absent_groups(self._log(), self._root.stream)
        repair.release_read(self._log(), self._root.stream)

    def subscribers(self) -> list[SubscriberInfo]:
        """Return the subscribers, reader groups and plain ones, by name."""
        return subscribers.listed(self._view())

    def subscribe(
        self,
        subscriber: str,
        start: StreamCut | str | None = None,
        *,
        generation: int | None = None,
    ) -> int:
        """Make a retention policy by consumption keep the events that a plain subscriber needs.

        A plain subscriber is not a reader group: its name has no slash and belongs to this stream.
        It holds all events from ``start``, or from the head of this very commit, until it
        publishes. Returns its generation. If it subscribes already, nothing changes; if it was
        removed or expired, it begins again in the next generation. A given ``generation`` does
        nothing unless it is newer; a newer one keeps the published cut, or begins at ``start`` if
        that is given. Several processes of one subscriber pass the same generation to all calls.
        Raises InvalidName, InvalidInput, InvalidStreamCut for a cut of another stream or life, and
        TruncatedData if it would begin at a ``start`` below the head.
        """
        name, wanted = check_plain_subscriber(subscriber), _check_generation(generation)
        life, log = self._view_to_use().life, self._log()
        return subscribers.subscribe(log, name, wanted, protect=True, start=start, life=life)

    def unsubscribe(self, subscriber: str, *, generation: int | None = None) -> bool:
        """Remove a plain subscriber, which then holds nothing; False if nothing was to be done.

        Give the ``generation`` that ``subscribe`` returned: an older one than the subscriber's does
        nothing. It is remembered: a late ``subscribe`` of the same or an older one does nothing.
        """
        name, wanted = check_plain_subscriber(subscriber), _check_generation(generation)
        life, log = self._view_to_use().life, self._log()
        return subscribers.unsubscribe(log, name, wanted, life=life)

    def publish(
        self, subscriber: str, cut: StreamCut | str, *, generation: int | None = None
    ) -> bool:
        """Record that a plain subscriber needs no event before a cut; False if that is recorded.

        Publishing truncates nothing; the next run of retention does. Raises NoSuchSubscriber if it
        never subscribed, was removed or expired; GenerationMismatch if ``generation`` is given and
        is not the subscriber's; InvalidStreamCut for a cut behind the last one at any key.
        """
        name, wanted = check_plain_subscriber(subscriber), _check_generation(generation)
        life, log = self._view_to_use().life, self._log()
        return subscribers.publish(log, name, wanted, cut, life=life)

    def sweep(
        self,
        *,
        grace: str | float | None = None,
        retain: str | float | None = None,
        keep_completed: str | float | None = None,
        keep_records: str | float | None = None,
        dry_run: bool = False,
    ) -> SweepResult:
        """Delete what the stream no longer needs; for a scheduled job. Safe to repeat and to kill.

        Deletes files staged longer than ``grace`` ago that no retained version references, log
        entries of versions older than ``retain``, records of writers without a ``writer_id``,
        and outcomes of transactions that ended longer than ``keep_completed`` ago. None stands for
        the setting of the stream or the root. ``grace`` must be longer than any job that writes to
        the stream. Abandoned transactions are aborted first, and the stream's ``metadata/`` table
        is swept, too. ``keep_records`` (at most ``retain``; ``never`` unless it is set) moves
        records that did not change for that long out of the log's state: those of writers with a
        ``writer_id``, and of removed subscribers. A writer that returns continues from its record,
        or has to be opened again. With ``dry_run`` nothing is changed: the result says which
        removed files a sweep would delete and which ones wait. Only a sweep itself finds staged
        files, old records and commits. Raises InvalidConfiguration.
        """
        from pravega_spark.txn.sweeper import sweep_transactions

        check_flag("dry_run", dry_run)
        given = {"grace": grace, "retain": retain, "keep_completed": keep_completed}
        flags = parse_flags({**given, "keep_records": keep_records})
        log, view = self._log(), self._view()
        every = len(flags) == len(given) + 1
        settings = decide_settings({}, flags=flags) if every else stream_settings(log, view, flags)
        records_ms = settings.records_ms()
        if dry_run:
            ages = settings.grace_ms, settings.retain_ms
            return stream_sweep.preview_stream_sweep(log, *ages, life=view.life)
        log_flags("sweep", log, settings)
        # With all flags, the root's settings are read only if a transaction is open.
        limit_ms = None if every else settings.prepared_limit_ms
        sweep_transactions(log, prepared_limit_ms=limit_ms, life=view.life)
        return stream_sweep.sweep_stream(
            log,
            grace_ms=settings.grace_ms,
            retain_ms=settings.retain_ms,
            completed_ms=settings.keep_completed_ms,
            records_ms=records_ms,
            life=view.life,
        )

    def compact(
        self,
        *,
        target: str | int | None = None,
        head_after: str | float | None = None,
        include_newest: bool = False,
        dry_run: bool = False,
    ) -> CompactionResult:
        """Merge small files into ones of about ``target``; for a scheduled job. Safe to kill.

        No event, offset, cut or pointer changes, and readers notice nothing. Chunks of the last
        minute stay as they are, unless you say ``include_newest``: readers at the tail may have
        to look these up again. Files of at least half the target stay, too. The chunk in which the
        head lies is rewritten without its truncated events once these are half of it, or the head
        has not moved for ``head_after``. None stands for the setting of the stream or the root. The
        replaced files stay for time travel until a sweep deletes them. With ``dry_run`` nothing
        changes, and the result is what a run would do. A damaged or lost chunk stays as it is and
        the result names it; its neighbours are merged without it. Raises InvalidConfiguration.
        """
        from pravega_spark.compaction.plan import CompactionOptions
        from pravega_spark.compaction.run import run_compaction

        check_flag("dry_run", dry_run)
        options = CompactionOptions.parse(
            compact_target=target,
            compact_head_after=head_after,
            include_newest=check_flag("include_newest", include_newest),
        )
        life = self._view().life
        return run_compaction(self._log(), options, dry_run=dry_run, life=life)

    # Cuts and segments

    def head(self) -> StreamCut:
        """Return the cut of the first readable events."""
        return self._view().head

    def head_filter(self) -> str:
        """Return SQL that excludes truncated events for other Delta readers.

        A chunk that contains the head stays in the table with its truncated events, and only this
        package's readers know the head. Use the text in a WHERE over the stream's table, in Spark
        SQL, DuckDB or delta-rs; it is TRUE if there is nothing to exclude. It holds for the table
        at its present version.
        """
        below = (
            f"NOT (segment_id = {segment_id} AND base_offset + offset_delta < {offset})"
            for segment_id, offset in self.head()
            if offset > 0
        )
        return " AND ".join(below) or "TRUE"

    def tail(self) -> StreamCut:
        """Return the cut after the last events."""
        return self._view().tail

    def cut_at(self, version: int) -> StreamCut:
        """Return the cut after the events of a version of the Delta table, and of all before it.

        A job that has read the table up to a version goes on with the stream from there. Raises
        InvalidInput for a version that does not exist yet, TruncatedData for one that the log has
        no longer, and for one of an earlier life of the stream.
        """
        return past_cuts.cut_at(self._log(), self._view(), version)

    def save_cut(
        self, name: str, cut: StreamCut | str = StreamCut.LATEST, *, replace: bool = False
    ) -> SavedCut:
        """Save a cut under a name, which readers may use instead of its text; return it.

        By default it is the tail of this very commit. The same cut again does nothing. A saved cut
        holds no data, see :meth:`subscribe`; it is deleted with the stream. Raises ConfigMismatch
        if the name has another cut, unless ``replace``; InvalidName, InvalidStreamCut,
        TruncatedData; IllegalState beyond 1,000 saved cuts.
        """
        check_flag("replace", replace)
        life = self._view_to_use().life
        return saved_cuts.save_cut(self._log(), name, cut, replace=replace, life=life)

    def saved_cuts(self) -> list[SavedCut]:
        """Return the saved cuts, by name."""
        return saved_cuts.saved_cuts(self._view())

    def saved_cut(self, name: str) -> SavedCut:
        """Return a saved cut. Raises NoSuchCut, InvalidName."""
        return saved_cuts.saved_cut(self._view(), name)

    def delete_cut(self, name: str) -> bool:
        """Delete a saved cut; False if there is none of this name."""
        life = self._view_to_use().life
        return saved_cuts.delete_cut(self._log(), name, life=life)

    def segments(
        self, *, time_ms: int | None = None, epoch: int | None = None
    ) -> tuple[Segment, ...]:
        """Return the active segments, or those of a time (ms since 1970) or of an epoch.

        Time 0 means the head, and a time before the creation of the stream its first epoch. Raises
        InvalidInput for both, and for an epoch that this life never had; TruncatedData where even
        the stream's history has lost the epoch.
        """
        if time_ms is not None and epoch is not None:
            raise InvalidInput(
                f"segments of stream {self._name} are asked for by time_ms {shown(time_ms)} and by "
                f"epoch {shown(epoch)}: give one of the two."
            )
        if epoch is not None:
            check_whole("epoch", epoch)
        if time_ms is not None:
            check_whole("time_ms", time_ms)
        log, view = self._log(), self._view()
        if epoch is not None:
            return epoch_history.segments_of(log, view, epoch)
        if time_ms is not None:
            return epoch_history.segments_at(log, view, time_ms)
        return view.active.segments

    def segment(self, segment_id: Segment | int | str) -> SegmentInfo:
        """Return a segment's length, keys, times and load, also of one below the head.

        A segment is given as a Segment, its id, text (``"3#1"``), or the number of an active one.
        Raises InvalidInput for anything else, and NoSuchSegment, also where the stream's history
        has lost it.
        """
        log, view = self._log(), self._view()
        info = segment_history.segment_info(log, view, commit.resolve_segment_id(view, segment_id))
        if info.is_sealed:
            return info
        from pravega_spark.scaling.rates import known_load, last_rates

        load = known_load(log, view, last_rates(log, view), info.segment_id)
        return info if load is None else replace(info, hot=load.hot, cold=load.cold)

    def successors(
        self, segment_id: Segment | int | str
    ) -> tuple[tuple[Segment, tuple[Segment, ...]], ...]:
        """Return a sealed segment's successors, each with all its predecessors; none if open.

        The segment is named as in :meth:`segment`, and may lie below the head.
        """
        log, view = self._log(), self._view()
        resolved = commit.resolve_segment_id(view, segment_id)
        return segment_history.successors(log, view, resolved)

    def predecessors(
        self, segment_id: Segment | int | str
    ) -> tuple[tuple[Segment, tuple[Segment, ...]], ...]:
        """Return a segment's predecessors, each with all its successors.

        None if the segment is of the first epoch of the stream's life. The segment is named as in
        :meth:`segment`; it and its predecessors may lie below the head.
        """
        log, view = self._log(), self._view()
        resolved = commit.resolve_segment_id(view, segment_id)
        return segment_history.predecessors(log, view, resolved)

    def epochs(
        self,
        start: int | None = None,
        end: int | None = None,
        *,
        start_ms: int | None = None,
        end_ms: int | None = None,
    ) -> tuple[Epoch, ...]:
        """Return the epochs of this life, oldest first, truncated ones included.

        Each has its segments with key ranges, its time, and how many segments it split and
        merged. ``start`` and ``end`` are numbers of epochs. ``start_ms`` and ``end_ms`` are times
        (ms since 1970): from the epoch that was active at the first to that at the last, both
        included, as in Pravega's scale metadata. A side that is not given is open. Raises
        InvalidInput.
        """
        by_time = epoch_history.is_by_time(start, end, start_ms, end_ms)
        view, log = self._view(), self._log()
        if by_time:
            return epoch_history.epochs_during(log, view, start_ms, end_ms)
        return epoch_history.epochs_between(log, view, start, end)

    def segments_between(self, start: StreamCut | str, end: StreamCut | str) -> list[Segment]:
        """Return the segments that have events between two cuts, predecessors first.

        Raises InvalidStreamCut, and TruncatedData if ``start`` lies below the head.
        """
        view = self._view()
        first, last = locate(view, start), locate(view, end)
        first.readable()
        return first.segments_to(last)

    def distance(self, start: StreamCut | str, end: StreamCut | str) -> tuple[int, int]:
        """Return the exact (events, bytes) between two cuts.

        Raises InvalidStreamCut, and TruncatedData if ``start`` lies below the head.
        """
        return self.create_reader().distance(start, end)

    def segment_ranges(
        self,
        start: StreamCut | str = StreamCut.EARLIEST,
        end: StreamCut | str = StreamCut.LATEST,
    ) -> list[SegmentRange]:
        """Return every segment's range between two cuts: units of work for any processes.

        Raises InvalidStreamCut, and TruncatedData if ``start`` lies below the head.
        """
        return self.create_reader().ranges(start, end)

    # Scaling

    def scale(
        self,
        seal: Iterable[Segment | int | str],
        key_ranges: Iterable[KeyRange | tuple[float, float]],
    ) -> Epoch:
        """Seal segments and open others with these ranges, in one commit; return the new epoch.

        ``seal`` has segments as :meth:`segment` takes them; ``key_ranges`` are (low, high) and
        together cover the same keys once. Any number of disjoint splits and merges. The same
        request again returns its own epoch. Raises InvalidConfiguration, NoSuchSegment,
        ScaleConflict, StreamSealed.
        """
        view = self._view_to_use()
        names = check_list("the segments to seal", seal)
        sealed = [commit.resolve_segment_id(view, name) for name in names]
        ranges = [commit.to_key_range(given) for given in check_list("key ranges", key_ranges)]
        return commit.scale_stream(self._log(), sealed, ranges, life=view.life)

    def check_scale(self, epoch: int) -> bool:
        """Return True if the scale of that epoch is done (Pravega's checkScale)."""
        return commit.check_scale(self._view(), epoch)

    def scaling(self) -> StreamScaling:
        """Return the automatic scaling: ``explain`` what a run would do, or ``run``."""
        from pravega_spark.scaling.auto import StreamScaling

        return StreamScaling(self._log(), self._view().life)

    # Time

    def event_time(self) -> StreamTime:
        """Return what the stream's writers say about the time of their events: watermarks."""
        from pravega_spark.event_time.stream_time import StreamTime

        return StreamTime(self._log(), self._view().life)

    # Transactions

    def create_transactional_writer(
        self,
        writer_id: str | None = None,
        *,
        serializer: Serializer | None = None,
        large_events: bool = False,
        event_time: EventTime | str | None = None,
        event_time_delay: str | float | None = None,
    ) -> TransactionalWriter:
        """Open a writer of transactions; with a ``writer_id`` it fences its older session.

        ``large_events`` as in :meth:`create_writer`, and so are ``event_time`` and
        ``event_time_delay``: a commit without a timestamp notes the time of the events that were
        written through its handle. Raises StreamSealed, InvalidName.
        """
        from pravega_spark.txn.writer import TransactionalWriter

        life = self._view_to_use().life
        writer = TransactionalWriter(
            self._log(),
            writer_id,
            serializer=serializer,
            large_events=large_events,
            life=life,
            times=EventTimes.of(event_time, event_time_delay),
        )
        self._on_open(writer, lambda opened: opened.is_closed)
        return writer

    def transaction(
        self,
        transaction_id: str,
        *,
        serializer: Serializer | None = None,
        large_events: bool = False,
    ) -> Transaction:
        """Open a transaction by its id: to ask its status, write, commit or abort.

        Nothing extends its lease: call ``ping``, or open it with a writer's ``get_transaction``.
        Raises NoSuchTransaction.
        """
        from pravega_spark.txn.transaction import Transaction

        life = self._view().life
        return Transaction(
            self._log(), transaction_id, serializer=serializer, large_events=large_events, life=life
        )

    def transactions(self) -> list[TransactionInfo]:
        """Return the transactions without an outcome with their status, the oldest first."""
        from pravega_spark.txn import lifecycle as txn_lifecycle

        return txn_lifecycle.open_transactions(self._log(), self._view())

    def completed_transactions(self) -> list[TransactionInfo]:
        """Return the committed and aborted transactions that are kept, newest first."""
        from pravega_spark.txn import lifecycle as txn_lifecycle

        return txn_lifecycle.completed_transactions(self._view())

    def sweep_transactions(
        self, *, prepared_limit: str | float | None = None
    ) -> TransactionSweepResult:
        """Abort abandoned transactions, commit decided ones, delete what ended ones left behind.

        For a scheduled job; writers do it from time to time. Safe to repeat and to run twice at
        the same time. A prepared transaction is aborted if it is undecided for ``prepared_limit``;
        None stands for the stream's setting, or the root's.
        """
        from pravega_spark.txn.sweeper import sweep_transactions

        flags = parse_flags({"prepared_limit": prepared_limit})
        log, view = self._log(), self._view()
        settings = stream_settings(log, view, flags)
        log_flags("sweep of transactions", log, settings)
        limit_ms = settings.prepared_limit_ms
        return sweep_transactions(log, prepared_limit_ms=limit_ms, life=view.life)

    # Writing and reading

    def fence(self, token: str, *, expected: str | None = None) -> bool:
        """Set the fencing token, in one commit; False if it is the newest already.

        From then on, writers that were opened with another token are refused, and stop with
        FencingTokenMismatch. Writers without a token are not: they do not take part. An empty text
        clears the token. With ``expected``, nothing is changed unless that is the newest token
        (an empty text: none is set). Raises ConditionFailed, StreamSealed, InvalidInput.
        """
        fencing.check_fencing_token("token", token)
        if expected is not None:
            fencing.check_fencing_token("expected", expected)
        return fencing.fence(self._log(), self._view_to_use().life, token, expected)

    def fencing_token(self) -> str:
        """Return the newest fencing token; an empty text if none is set."""
        return self._view().fence.token

    def create_writer(
        self,
        writer_id: str | None = None,
        *,
        serializer: Serializer | None = None,
        fencing_token: str | None = None,
        automatically_note_time: bool = False,
        event_time: EventTime | str | None = None,
        event_time_delay: str | float | None = None,
        large_events: bool = False,
        bad_records: str = "fail",
    ) -> EventStreamWriter:
        """Open a writer; with a ``writer_id`` it continues exactly where that id stopped.

        With a fencing token, the stream refuses every write once its newest token is another one,
        and the writer stops; see :meth:`fence`. With ``automatically_note_time`` it notes the time
        of its clock every 5 s, for watermarks. ``event_time`` is a function that returns the time
        of an event (as it was given to the writer) in ms since 1970 or as a datetime, or the name
        of a column of a typed stream. With it the writer notes the latest of these times less
        ``event_time_delay``, about once a second and at each flush and close. An event may be
        earlier by that delay than one written before it. ``large_events`` lets an event have up to
        1 GiB instead of 8 MiB, as bytes, a file or an iterable of bytes. With ``bad_records="dlq"``
        rows that do not fit a typed stream go to the stream ``<stream>-dlq``, as JSON with the
        reason; see ``DeadLetterWriter``. Raises StreamSealed, InvalidName, FencingTokenMismatch.
        """
        from pravega_spark.event_writer import EventStreamWriter, queue_of

        view = self._view_to_use()
        options: dict[str, Any] = {
            "serializer": serializer,
            "fencing_token": fencing_token,
            "life": view.life,
            "automatically_note_time": automatically_note_time,
            "times": EventTimes.of(event_time, event_time_delay),
            "large_events": large_events,
        }
        if bad_records == "fail":
            writer = EventStreamWriter(self._log(), writer_id, **options)
        else:
            writer = self._dead_letter_writer(bad_records, view, writer_id, options)
        self._on_open(queue_of(writer), lambda queue: queue.is_closed)
        return writer

    def _dead_letter_writer(
        self, bad_records: object, view: StreamView, writer_id: str | None, options: dict[str, Any]
    ) -> EventStreamWriter:
        from pravega_spark.dead_letters import (
            SUFFIX,
            DeadLetterWriter,
            letter_configuration,
            letter_problem,
        )

        if bad_records != "dlq":
            raise InvalidInput(
                f"bad_records of a writer is 'fail' or 'dlq', not {shown(bad_records)}."
            )
        letters = Stream(
            self._root.store,
            self._name + SUFFIX,
            storage_options=self._options,
            runtime=self._root.runtime,
            on_open=self._on_open,
        )

        def open_letters() -> EventStreamWriter:
            letters.create(letter_configuration(view))
            problem = letter_problem(view, letters._view_to_use())
            if problem is not None:
                raise InvalidInput(f"bad_records='dlq': {problem}, or leave bad_records out.")
            return letters.create_writer(writer_id)

        return DeadLetterWriter(self._log(), writer_id, open_letters=open_letters, **options)

    def revisioned_stream(
        self, *, serializer: Serializer | None = None, deserializer: Deserializer | None = None
    ) -> RevisionedStream:
        """Open the stream, which has one segment, as a log that is written at a known revision.

        Values are bytes or str (read as bytes), unless functions are given. Raises StreamSealed,
        and IllegalState for a stream of several segments.
        """
        from pravega_spark.shared_state.revisioned_stream import RevisionedStream

        life = self._view_to_use().life
        opened = RevisionedStream(
            self._log(), serializer=serializer, deserializer=deserializer, life=life
        )
        self._on_open(opened, lambda stream: stream.is_closed)
        return opened

    def state_synchronizer(
        self,
        apply: Callable[[Any, Any], Any],
        *,
        serializer: Serializer | None = None,
        deserializer: Deserializer | None = None,
    ) -> StateSynchronizer:
        """Open the stream, which has one segment, as a state that many processes change.

        ``apply(state, update)`` returns the next state. States and updates are JSON, unless
        functions are given. Raises StreamSealed, and IllegalState for a stream of several segments.
        """
        from pravega_spark.shared_state.state_synchronizer import StateSynchronizer

        life = self._view_to_use().life
        opened = StateSynchronizer(
            self._log(), apply, serializer=serializer, deserializer=deserializer, life=life
        )
        self._on_open(opened, lambda state: state.is_closed)
        return opened

    def create_reader(self, *, deserializer: Deserializer | None = None) -> EventReader:
        """Return a reader without a group: of ranges, of batches, or following the tail.

        It reads the life that the stream has now, and no later one. ``deserializer`` is for the
        bytes of a raw stream. Raises InvalidInput for one on a typed stream.
        """
        from pravega_spark.event_reader import EventReader

        view = self._view()
        if deserializer is not None and not view.event_format.is_raw:
            raise InvalidInput(
                f"stream {self._name} is typed, and the data of its events is a dict of columns: "
                "read it without a deserializer."
            )
        reader = EventReader(self._log(), deserializer=deserializer, life=view.life)
        self._on_open(reader, lambda opened: False)
        return reader

    def create_byte_writer(
        self,
        writer_id: str | None = None,
        *,
        compression: str = UNCOMPRESSED,
        fencing_token: str | None = None,
    ) -> ByteStreamWriter:
        """Open a writer of bytes; with a ``writer_id`` it continues where that id stopped.

        ``compression`` of the bytes is none, snappy or zstd. With a fencing token, the stream
        refuses every block once its newest token is another one, and the writer stops; see
        :meth:`fence`. Raises IllegalState unless the stream has one segment, StreamSealed,
        InvalidName, FencingTokenMismatch.
        """
        from pravega_spark.byte_streams.writer import ByteStreamWriter

        def seal(log: StreamLog, life: int, check: ViewCheck) -> bool:
            return lifecycle.seal(log, _end_all_transactions, life=life, check=check)

        life = self._view_to_use().life
        writer = ByteStreamWriter(
            self._log(),
            writer_id,
            seal=seal,
            compression=compression,
            fencing_token=fencing_token,
            life=life,
        )
        self._on_open(writer, lambda opened: opened.closed)
        return writer

    def create_byte_reader(
        self, *, timeout: float | None = None, follow: bool = True
    ) -> ByteStreamReader:
        """Open a reader of bytes at the head. At the tail it waits, forever or ``timeout`` s.

        With ``timeout=0`` it does not wait, and without ``follow`` the present tail is the end.
        Raises IllegalState unless the stream has one segment.
        """
        from pravega_spark.byte_streams.reader import ByteStreamReader

        life = self._view().life
        reader = ByteStreamReader(self._log(), timeout=timeout, follow=follow, life=life)
        self._on_open(reader, lambda opened: opened.closed)
        return reader

    def read(
        self,
        start: StreamCut | str = StreamCut.EARLIEST,
        end: StreamCut | str = StreamCut.LATEST,
        *,
        deserializer: Deserializer | None = None,
    ) -> Iterator[Event]:
        """Yield the events between two cuts: each segment in order, predecessors first."""
        return self.create_reader(deserializer=deserializer).events(start, end)

    def read_table(
        self,
        start: StreamCut | str = StreamCut.EARLIEST,
        end: StreamCut | str = StreamCut.LATEST,
        *,
        columns: Sequence[str] | None = None,
        where: Any = None,
    ) -> pa.Table:
        """Return the events between two cuts as an Arrow table, in the order of :meth:`read`.

        ``to_pandas()`` and ``polars.from_arrow`` make frames of it. Columns: ``segment_id``,
        ``offset``, ``routing_key``, ``timestamp``, and ``event`` or those of the schema. Only those
        in ``columns`` are read, and with ``where``, an expression of ``pyarrow.compute`` such as
        ``pc.field("delay") > 15``, only the row groups that may have such a row. The table is in
        memory as a whole: read larger streams with ``create_reader().batches``. Raises InvalidInput
        for a column that is not there, and what :meth:`read` raises.
        """
        return self.create_reader().table(start, end, columns=columns, where=where)

    def follow(
        self,
        start: StreamCut | str = StreamCut.LATEST,
        *,
        deserializer: Deserializer | None = None,
        timeout: float | None = None,
    ) -> Iterator[Event]:
        """Yield events from a cut on forever, or until none came for ``timeout`` seconds."""
        return self.create_reader(deserializer=deserializer).follow(start, timeout=timeout)

    def fetch_event(
        self, pointer: EventPointer | str, *, deserializer: Deserializer | None = None
    ) -> Event:
        """Return the event of a pointer, or of its text.

        Raises NoSuchEvent, StaleIdentity, and TruncatedData for an event below the head.
        """
        return self.create_reader(deserializer=deserializer).fetch(pointer)

    def _scope(self) -> Scope:
        return self._root.scope(self._scope_name)

    def _log(self) -> StreamLog:
        return self._root.stream(self._name)

    def _view(self) -> StreamView:
        """Return the newest view, for a call that only looks: its life is that of the call.

        Raises CorruptLog if the stream is listed and has no object, and begins nothing.
        """
        try:
            return self._log().view()
        except NoSuchStream:
            repair.check_begun(self._log())
            return self._view_to_use()

    def _view_to_use(self) -> StreamView:
        """Return the newest view, for a call that uses the stream: it begins one that is listed."""
        log = self._log()
        try:
            return log.view()
        except NoSuchStream:
            repair.repair(log, self._scope())
            return log.view()


def end_life(stream: Stream, life: int) -> None:
    """Seal and delete one life of a stream, unless it has ended already or never began."""
    log = stream._log()
    if forestall(log, life):
        stream._scope().drop_row(stream._short_name, life)
        return
    with contextlib.suppress(NoSuchStream, NoSuchScope, StaleIdentity):
        stream._view_to_use()
        lifecycle.seal(log, _end_all_transactions, life=life)
    stream._delete_life(life)


def _check_generation(generation: int | None) -> int | None:
    return None if generation is None else check_whole("generation", generation)


def _end_all_transactions(log: StreamLog, life: int) -> None:
    """End every transaction of a stream that is being sealed."""
    from pravega_spark.txn.sweeper import end_all_transactions

    end_all_transactions(log, life)


def _stream(url: str, options: dict[str, Any], name: str, token: str | None) -> Stream:
    store = open_store(url, **options)
    if token is not None:
        bind_root(store, token)
    return Stream(store, name, storage_options=options)
