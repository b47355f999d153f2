"""StreamManager: the scopes, streams and reader groups under one root."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

from pravega_spark.config.descriptions import (
    MaintenanceInfo,
    MaintenanceKind,
)
from pravega_spark.config.root_settings import (
    AUTO,
    MAINTAIN,
    NOTHING_GIVEN,
    OFF,
    EffectiveSettings,
    decide_settings,
    parse_changes,
    parse_flags,
)
from pravega_spark.engine.kinds import GROUP, STREAM, TABLE
from pravega_spark.engine.log import clock
from pravega_spark.engine.log.sweep import SweepResult, add_results
from pravega_spark.engine.root import Root
from pravega_spark.engine.runtime.failpoints import failpoint
from pravega_spark.engine.runtime.system import SYSTEM, Runtime
from pravega_spark.engine.state.maintenance_table import describe, intervals_ms, open_maintenance
from pravega_spark.engine.state.scopes import ACTIVE, DELETED, DELETING, row_name
from pravega_spark.engine.state.settings_table import open_settings
from pravega_spark.engine.store import Store, open_store
from pravega_spark.engine.store.probe import ensure_probed
from pravega_spark.engine.store.root_marker import (
    bind_root,
    read_root,
    some_scopes,
    token_of,
)
from pravega_spark.engine.store.root_url import FileSystem, RootUrl
from pravega_spark.engine.stream.overdue_maintenance import tell_if_unmaintained
from pravega_spark.errors import InvalidConfiguration, InvalidInput
from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from pravega_spark.maintenance import auto
from pravega_spark.reader_groups.configuration import (
    GroupAcknowledgement,
    GroupRetention,
    ReaderGroupConfiguration,
)
from pravega_spark.stream import Stream, end_life
from pravega_spark.values.checks import check_flag, check_list, check_options, check_text, shown
from pravega_spark.values.events import Deserializer, Event
from pravega_spark.values.handles import ClosedByBlock
from pravega_spark.values.limits import (
    CHECKPOINT_INTERVAL,
    GROUP_REFRESH,
    KEEP_PIN,
    MAINTAIN_THREADS,
    MAX_OUTSTANDING_CHECKPOINTS,
    STREAM_TIMEOUT,
)
from pravega_spark.values.names import (
    check_scope,
    split_stream,
)
from pravega_spark.values.segments import (
    EventPointer,
)
from pravega_spark.values.units import parse_duration_ms

if TYPE_CHECKING:  # each verb imports the layer that does it, so that others need not wait
    from pravega_spark.backup.root_backup import BackupResult
    from pravega_spark.backup.root_restore import RestoreResult
    from pravega_spark.engine.writing.encode import Serializer
    from pravega_spark.key_value.key_value_table import KeyValueTable
    from pravega_spark.key_value.lifecycle import TableLifecycle
    from pravega_spark.maintenance.result import MaintenanceResult
    from pravega_spark.reader_groups.lifecycle import GroupLifecycle
    from pravega_spark.reader_groups.reader_group import ReaderGroup
    from pravega_spark.txn.joint import JointTransaction, JointWriter


_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


def _verb(
    verb: Callable[Concatenate[Stream, _Given], _Result],
) -> Callable[Concatenate[StreamManager, str, _Given], _Result]:
    """Return a verb of ``Stream`` as one of the manager, which takes the stream's name first.

    Its help and its signature are those of the verb. Type checkers know the name by its place.
    """

    def call(
        self: StreamManager, stream: str, *given: _Given.args, **named: _Given.kwargs
    ) -> _Result:
        result: _Result = getattr(self.stream(stream), verb.__name__)(*given, **named)
        return result

    update_wrapper(call, verb)
    found = inspect.signature(verb)
    own, *others = found.parameters.values()
    name = own.replace(name="stream", annotation="str")
    call.__signature__ = found.replace(parameters=[own, name, *others])  # type: ignore[attr-defined]
    return cast("Callable[Concatenate[StreamManager, str, _Given], _Result]", call)


class StreamManager(ClosedByBlock):
    """Scopes, streams and groups under one root: a folder, or a URL such as ``s3://bucket/streams``.

    Cheap to create, thread-safe and picklable. A stream is named by one text, ``scope/stream``;
    :meth:`stream` returns it as an object with its verbs. A manager is bound to the first root
    that it, or another manager of this process with the same URL, opens: after that root was
    removed or replaced, every call raises RootChanged, and a new manager opens the present root.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        storage_options: dict[str, Any] | None = None,
        filesystem: FileSystem | None = None,
        maintain: str | None = None,
        runtime: Runtime = SYSTEM,
    ) -> None:
        """Name the root; nothing is read or written yet.

        ``filesystem`` is a file system of fsspec in which the root is, such as an
        ``s3fs.S3FileSystem`` with a session of its own; each process makes one of its class and
        arguments. Its owner vouches for it: its create must be exclusive, which the first write
        probes, and what it costs is in docs/storage.md. Raises StoreRefused for one without an
        exclusive create of its own, or with a cache, and InvalidOption for storage options that
        have no effect.

        With ``maintain="auto"`` this process does a part of the root's maintenance in the
        background, until the manager, and every writer and reader made with it, is closed or
        collected. With "off" it does not, and by default the root's setting decides, unless the
        variable PRAVEGA_SPARK_MAINTAIN is "off". ``runtime`` is for tests.
        """
        if not isinstance(root, (str, os.PathLike)):
            raise InvalidInput(f"a root is a path or a URL, got {shown(root)}.")
        self._options = check_options("storage_options", storage_options)
        if filesystem is not None:
            root = RootUrl(os.fspath(root), filesystem=filesystem)
        self._root = Root(open_store(root, **self._options), runtime)
        if maintain is not None:
            MAINTAIN.parse("maintain", maintain)
        self._maintain = auto.wanted(maintain)
        self._is_closed = False
        if maintain == AUTO:
            self._begin_maintenance(self, _is_closed)

    def close(self) -> None:
        """End the background maintenance for which this manager was opened.

        There is nothing else to close: all verbs continue to work.
        """
        self._is_closed = True

    def _begin_maintenance(self, user: object, is_closed: auto.IsClosed) -> None:
        """Maintain the root while this user is open, if the manager or the root says so.

        By the root's setting, the manager counts as open, too, once it has opened something.
        """
        if self._maintain == AUTO or self._root.runtime is SYSTEM:
            store, maintain = self._root.store, self._maintain
            auto.maintain_while_open(store, user, is_closed, maintain=maintain)
            if user is not self:
                auto.maintain_while_open(store, self, _is_closed, maintain=maintain)

    @property
    def root(self) -> str:
        """The root as a URL."""
        return self._root.store.url

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by root and options, and by the token of the root that was opened here."""
        return _manager, (self.root, self._options, token_of(self._root.store))

    def confirm_clock(self, *, limit: str | float | None = None) -> int:
        """Trust the clock that dates the root's objects from now on; return its time in ms.

        For an operator, after a warning that the clock jumped for no known reason: until this
        call, deletion by age is late by the size of the jump. ``limit`` sets how far the clock may
        advance unobserved across a restart of the machine and still be trusted; the default is 7
        days. It matters on a local disk only; a storage with its own clock is always trusted.
        """
        ensure_probed(*self._root)
        return clock.confirm_clock(*self._root, limit)

    def _set_up(self) -> None:
        """Probe the storage; a root that never had a scope or a setting gets ``maintain="auto"``.

        That comes before the first scope, so a root whose set-up was killed gets it by the next.
        """
        ensure_probed(*self._root)
        clock.begin_record(*self._root)
        if auto.wanted(None) == OFF:
            return
        settings = open_settings(*self._root)
        if not settings.exists() and not some_scopes(self._root.store):
            failpoint("root.set_up")
            settings.set_up("maintain", AUTO)

    # Settings

    def settings(self) -> EffectiveSettings:
        """Return the settings of the root: those that were set, and the defaults of the others.

        A root on which nothing was set has all defaults. Raises CorruptLog, CorruptChunk.
        """
        return decide_settings(open_settings(*self._root).read())

    def update_settings(self, **changes: str | float | None) -> EffectiveSettings:
        """Change some settings of the root in one commit, and return all; the others stay.

        A duration is a text such as ``"2 hours"`` or a number of seconds; ``expire`` may be
        ``"never"``. None returns a setting to its default. Jobs and writers follow with their next
        run or check. Raises InvalidConfiguration.
        """
        parsed = parse_changes(changes)
        self._set_up()
        return decide_settings(open_settings(*self._root).update(parsed))

    def maintenance(self) -> list[MaintenanceInfo]:
        """Return the last finished run of each kind of maintenance, and who is at work now.

        A kind without a run has an entry, too. Runs over single scopes follow those over all
        scopes. A run over single streams is not recorded, nor is one by hand.
        """
        table = open_maintenance(*self._root)
        marker = read_root(self._root.store)
        return describe(
            table.entries(),
            intervals_ms(self.settings()),
            table.about_now_ms(),
            since_ms=0 if marker is None else marker.began_ms,
        )

    def maintain(
        self,
        *,
        kinds: Iterable[MaintenanceKind | str] | None = None,
        scopes: Iterable[str] = (),
        streams: Iterable[str] = (),
        dry_run: bool = False,
        full: bool = False,
        parallelism: int = MAINTAIN_THREADS,
        limit: str | float = STREAM_TIMEOUT,
    ) -> MaintenanceResult:
        """Do one round of maintenance in threads of this process, over all streams by default.

        ``kinds`` are some of "transactions", "watermarks", "scaling", "folding", "retention",
        "compaction" and "sweeping".
        A stream without news costs one storage call, unless its due hint says that it is due or
        ``full`` ignores the hints. ``parallelism`` is the number of streams at the same time; one
        that takes longer than ``limit`` fails and stops no other. A kind that another job has
        claimed is left out. ``dry_run`` changes nothing and returns what would be done. Safe to
        kill and to repeat. Raises InvalidInput, NoSuchScope, NoSuchStream, RootChanged, and
        CorruptLog for settings that cannot be read.
        """
        from pravega_spark.maintenance.round import (
            check_parallelism,
            maintain_root,
            parse_request,
        )

        request = parse_request(kinds, scopes, streams, dry_run=dry_run, full=full, limit=limit)
        threads = check_parallelism(parallelism)
        return maintain_root(self._root.store, request, threads, runtime=self._root.runtime)

    # Scopes

    def create_scope(self, scope: str) -> bool:
        """Create a scope; False if it exists. The first one on a new root probes the storage.

        Raises InvalidName, and StoreRefused for storage that cannot hold streams.
        """
        check_scope(scope)
        self._set_up()
        made = self._root.scope(scope)
        made.check_has_index()
        return made.create()

    def scope_exists(self, scope: str) -> bool:
        """Return True if the scope exists."""
        return self._root.scope(scope).state() != DELETED

    def list_scopes(self) -> list[str]:
        """Return the names of the scopes, sorted."""
        return self._root.scopes()

    def delete_scope(self, scope: str, *, recursive: bool = False) -> bool:
        """Delete an empty scope; False if there is none. ``recursive`` deletes its content first.

        Raises ScopeNotEmpty. A recursive deletion first refuses new streams and reader groups,
        then deletes every group, and seals and deletes all streams and tables; a repeated call
        finishes one that was interrupted.
        """
        check_flag("recursive", recursive)
        found = self._root.scope(scope)
        life = found.life()
        if life is None:
            return False
        if recursive:
            for row in sorted(found.fence(life), key=lambda row: str(row["kind"])):  # groups first
                name = f"{scope}/{row_name(row)}"
                if row["kind"] == GROUP:
                    self._group_lifecycle(name).delete(row["life"])
                elif row["kind"] == TABLE:
                    self._table(name).end_life(row["life"])
                else:
                    end_life(self.stream(name), row["life"])
        return found.delete(life)

    def sweep_scope(
        self,
        scope: str,
        *,
        grace: str | float | None = None,
        retain: str | float | None = None,
    ) -> SweepResult:
        """Delete what the scope's own tables no longer need, by the rules of :meth:`Stream.sweep`.

        These tables are the index of streams, the reader groups, deleted ones included, and the
        remains of deleted streams, except what the next creation of the name needs; and the
        settings of the root. The counts are the sums over all tables, the versions those of the
        index. Streams that exist are swept one by one, with :meth:`Stream.sweep`. None stands for
        the root's setting. Raises NoSuchScope.
        """
        from pravega_spark.maintenance.work import scope_sweeps, sweep_root

        flags = parse_flags({"grace": grace, "retain": retain})
        found = self._root.scope(scope)
        found.check_exists()
        table = open_settings(*self._root)
        given = NOTHING_GIVEN if {"grace", "retain"} <= set(flags) else table.read()
        settings = decide_settings(given, flags=flags)
        now = clock.read_clock(*self._root)
        store, runtime = self._root
        index, *others = scope_sweeps(store, found, settings, now, runtime).values()
        result = index.run()
        for other in others:
            result = add_results(result, other.run())
        return add_results(result, sweep_root(store, table, settings, now))

    # Streams

    def stream(self, name: str) -> Stream:
        """Return the stream ``scope/stream`` as an object with its verbs; no storage is asked.

        Raises InvalidName.
        """
        return Stream(
            self._root.store,
            name,
            storage_options=self._options,
            runtime=self._root.runtime,
            on_open=self._begin_maintenance,
        )

    def list_streams(self, scope: str, *, tag: str | None = None) -> list[str]:
        """Return the names ``scope/stream`` of a scope's streams, or of those with a tag."""
        return self._listed_by_tag(scope, STREAM, tag)

    def _listed_by_tag(self, scope: str, kind: str, tag: str | None) -> list[str]:
        if tag is not None:
            check_text("a tag", tag)
        rows = self._root.scope(scope).rows(kind)
        return [
            f"{scope}/{name}"
            for name, row in sorted(rows.items())
            if tag is None or tag in row["tags"]
        ]

    # Reader groups

    def create_reader_group(
        self,
        group: str,
        streams: Iterable[str] | Mapping[str, Any],
        *,
        retention: GroupRetention | str = GroupRetention.NONE,
        refresh: str | float = GROUP_REFRESH,
        checkpoint_interval: str | float | None = CHECKPOINT_INTERVAL,
        max_outstanding_checkpoints: int = MAX_OUTSTANDING_CHECKPOINTS,
        acknowledge: GroupAcknowledgement | str = GroupAcknowledgement.NEXT,
    ) -> ReaderGroup:
        """Create a reader group ``scope/group``; an equal one that exists is returned as it is.

        ``streams`` are names, or a mapping from each to its start cut or (start, end); they may
        be of any scopes. With ``retention`` "automatic" or "manual", streams with a policy by
        consumption keep what the group has not read, up to the policy's maximum. With
        ``acknowledge="checkpoint"`` an event counts as processed only when its reader answers a
        checkpoint or is closed, with "transaction" only when a joint transaction of the reader
        commits; by default when the application asks for the next one. Raises
        ConfigMismatch if the group exists with another configuration; NoSuchScope, NoSuchStream,
        InvalidName, InvalidStreamCut.
        """
        from pravega_spark.reader_groups.reader_group import ReaderGroup

        lifecycle = self._group_lifecycle(group)
        configuration = ReaderGroupConfiguration(
            streams,
            retention=retention,
            refresh=refresh,
            checkpoint_interval=checkpoint_interval,
            max_outstanding_checkpoints=max_outstanding_checkpoints,
            acknowledge=acknowledge,
        )
        lifecycle.create(configuration)
        if configuration.retention is not GroupRetention.NONE:
            what = f"the retention of reader group {group}"
            tell_if_unmaintained(*self._root, what, [MaintenanceKind.RETENTION])
        return ReaderGroup(lifecycle, self._begin_maintenance)

    def reader_group(self, group: str) -> ReaderGroup:
        """Return a reader group that exists. Raises NoSuchReaderGroup."""
        from pravega_spark.reader_groups.reader_group import ReaderGroup

        lifecycle = self._group_lifecycle(group)
        lifecycle.state()
        return ReaderGroup(lifecycle, self._begin_maintenance)

    def list_reader_groups(self, scope: str) -> list[str]:
        """Return the names ``scope/group`` of a scope's reader groups, sorted."""
        return [f"{scope}/{name}" for name in sorted(self._root.scope(scope).rows(GROUP))]

    def delete_reader_group(self, group: str) -> bool:
        """Delete a reader group, and release the data it held; False if there is none."""
        return self._group_lifecycle(group).delete()

    def repair_reader_groups(self) -> dict[str, str]:
        """Finish the changes of reader groups, in all scopes, that killed processes left half made.

        Afterwards streams keep what each group has to read, and release what a deleted one held.
        In groups with retention 'automatic' dead readers expire, and what was read is released.
        For the retention job; safe to repeat, and to run twice at the same time. Return the groups
        that cannot be repaired, each with its error.
        """
        scopes = self._root.scopes(ACTIVE, DELETING)
        groups = self._root.in_scopes(self.list_reader_groups, scopes, must_exist=False)
        errors = self._root.runtime.each(self._repair_group, groups)
        return {group: error for group, error in zip(groups, errors, strict=True) if error}

    def _repair_group(self, group: str) -> str | None:
        from pravega_spark.reader_groups.repair import repair_group

        store, runtime = self._root
        return repair_group(store, group, self._root.stream, runtime)

    # Key-value tables

    def create_key_value_table(
        self, table: str, configuration: KeyValueTableConfiguration | None = None
    ) -> bool:
        """Create a key-value table ``scope/table``; False if it exists, with any configuration.

        Raises NoSuchScope, InvalidName, InvalidConfiguration.
        """
        wanted = KeyValueTableConfiguration() if configuration is None else configuration
        if not isinstance(wanted, KeyValueTableConfiguration):
            raise InvalidConfiguration(
                f"a KeyValueTableConfiguration is needed, got {shown(configuration)}."
            )
        return self._table(table).create(wanted)

    def key_value_table(self, table: str) -> KeyValueTable:
        """Open a key-value table that exists. Raises NoSuchTable, InvalidName."""
        from pravega_spark.key_value.key_value_table import KeyValueTable

        log, view = self._table(table).existing()
        return KeyValueTable(log, table, view, on_open=self._begin_maintenance)

    def list_key_value_tables(self, scope: str, *, tag: str | None = None) -> list[str]:
        """Return the names ``scope/table`` of a scope's tables, or of those with a tag."""
        return self._listed_by_tag(scope, TABLE, tag)

    def update_key_value_table(
        self,
        table: str,
        *,
        add_tags: Iterable[str] | None = None,
        remove_tags: Iterable[str] | None = None,
    ) -> bool:
        """Add and remove tags of a table, as :meth:`update_stream` does; False if none differs.

        The rest of a table's configuration never changes. A tag to add may be present, and one to
        remove absent. Raises NoSuchTable, InvalidConfiguration.
        """
        return self._table(table).update(add_tags, remove_tags)

    def key_value_table_tags(self, table: str) -> frozenset[str]:
        """Return the tags of a table. Raises NoSuchTable."""
        return self._table(table).tags()

    def seal_key_value_table(self, table: str) -> bool:
        """Stop all changes of a table forever; False if it is sealed. Raises NoSuchTable."""
        return self._table(table).seal()

    def delete_key_value_table(self, table: str) -> bool:
        """Delete a table with its data, as Pravega does without a seal before; False without one.

        Objects of the table raise NoSuchTable from then on.
        """
        return self._table(table).delete()

    def _table(self, table: str) -> TableLifecycle:
        from pravega_spark.key_value.lifecycle import TableLifecycle

        return TableLifecycle(self._root, table)

    # Backup

    def backup(
        self,
        target: str | os.PathLike[str],
        name: str = "",
        *,
        storage_options: dict[str, Any] | None = None,
        keep: str | float = KEEP_PIN,
        update: bool = False,
    ) -> BackupResult:
        """Copy the root, or one scope or stream by its ``name``, to an empty folder or URL.

        Writers, scales and sweeps continue: each table is copied as of one version, which stays
        pinned until it is copied, or for ``keep`` if this process dies. The copy is a separate
        root, which can be opened once it is complete; the same call again finishes a copy that was
        killed. In the copy, open transactions are aborted, and groups that are not copied hold
        nothing. ``update`` brings a finished copy of the same root and name up to date: it takes
        what has changed, and the copy can be opened all the time. Raises NoSuchScope, NoSuchStream,
        InvalidInput, IllegalState if the target holds anything else or was written to or restored
        since, StoreRefused.
        """
        from pravega_spark.backup.root_backup import back_up

        if not isinstance(name, str):
            raise InvalidInput(
                f"a backup is of a scope, 'scope/stream' or '' (all), got {shown(name)}."
            )
        if "/" in name:
            split_stream(name)
        elif name:
            check_scope(name)
        keep_ms = parse_duration_ms("keep", keep)
        copy = open_store(target, **check_options("storage_options", storage_options))
        store, runtime = self._root
        return back_up(store, copy, runtime, name, keep_ms, updates=update)

    def restore(self) -> RestoreResult:
        """Open a root that is a copy, complete or not; nothing else may use it at the same time.

        Each table returns to its newest intact version, whose commits and files all exist, and
        each stream begins its next life there: objects of the life before are refused. Returns
        what was dropped, and the tables without an intact version. Raises NoSuchScope if there is
        nothing to restore.
        """
        from pravega_spark.backup.root_restore import restore_root

        return restore_root(*self._root)

    # The verbs of one stream, whose name comes first: a line says which of Stream's it is

    create_stream = _verb(Stream.create)
    restore_stream = _verb(Stream.restore)
    scaling = _verb(Stream.scaling)
    event_time = _verb(Stream.event_time)
    stream_exists = _verb(Stream.exists)
    stream_info = _verb(Stream.info)
    stream_storage = _verb(Stream.storage)
    update_stream = _verb(Stream.update)
    seal_stream = _verb(Stream.seal)
    delete_stream = _verb(Stream.delete)
    truncate_stream = _verb(Stream.truncate)
    retention = _verb(Stream.retention)
    list_subscribers = _verb(Stream.subscribers)
    subscribe = _verb(Stream.subscribe)
    unsubscribe = _verb(Stream.unsubscribe)
    publish = _verb(Stream.publish)
    sweep_stream = _verb(Stream.sweep)
    compact_stream = _verb(Stream.compact)
    stream_settings = _verb(Stream.settings)
    schemas = _verb(Stream.schemas)
    tags = _verb(Stream.tags)
    head = _verb(Stream.head)
    head_filter = _verb(Stream.head_filter)
    tail = _verb(Stream.tail)
    cut_at = _verb(Stream.cut_at)
    save_cut = _verb(Stream.save_cut)
    list_saved_cuts = _verb(Stream.saved_cuts)
    saved_cut = _verb(Stream.saved_cut)
    delete_cut = _verb(Stream.delete_cut)
    segments = _verb(Stream.segments)
    segment = _verb(Stream.segment)
    successors = _verb(Stream.successors)
    predecessors = _verb(Stream.predecessors)
    epochs = _verb(Stream.epochs)
    segments_between = _verb(Stream.segments_between)
    distance = _verb(Stream.distance)
    segment_ranges = _verb(Stream.segment_ranges)
    scale_stream = _verb(Stream.scale)
    check_scale = _verb(Stream.check_scale)
    create_transactional_writer = _verb(Stream.create_transactional_writer)
    transaction = _verb(Stream.transaction)
    list_transactions = _verb(Stream.transactions)
    list_completed_transactions = _verb(Stream.completed_transactions)
    sweep_transactions = _verb(Stream.sweep_transactions)
    fence = _verb(Stream.fence)
    fencing_token = _verb(Stream.fencing_token)
    create_writer = _verb(Stream.create_writer)
    revisioned_stream = _verb(Stream.revisioned_stream)
    state_synchronizer = _verb(Stream.state_synchronizer)
    create_reader = _verb(Stream.create_reader)
    create_byte_writer = _verb(Stream.create_byte_writer)
    create_byte_reader = _verb(Stream.create_byte_reader)
    read = _verb(Stream.read)
    read_table = _verb(Stream.read_table)
    follow = _verb(Stream.follow)

    def create_joint_writer(
        self,
        streams: Iterable[str],
        writer_id: str | None = None,
        *,
        serializer: Serializer | None = None,
        large_events: bool = False,
    ) -> JointWriter:
        """Open a writer of transactions over several streams, which commit together or not at all.

        ``writer_id`` opens a session of that id in each stream, as
        :meth:`create_transactional_writer` does: an older joint writer of it is fenced, and what it
        left in these streams is carried out if its commit was decided, else aborted, before this
        returns. The timestamps of commits are noted under the id. ``large_events`` as in
        :meth:`create_writer`.
        Raises InvalidInput for no stream, InvalidName, NoSuchStream, StreamSealed.
        """
        from pravega_spark.reader_groups.settlement import GroupPositions
        from pravega_spark.txn.decision_log import open_decisions
        from pravega_spark.txn.joint import open_joint_writer

        opened = {
            stream.name: stream for stream in map(self.stream, check_list("streams", streams))
        }
        if not opened:
            raise InvalidInput("a joint writer needs the names of its streams, got none.")
        writers = {
            name: opened[name].create_transactional_writer(
                writer_id, serializer=serializer, large_events=large_events
            )
            for name in sorted(opened)
        }
        decisions = open_decisions(*self._root)
        return open_joint_writer(decisions, writers, GroupPositions(*self._root))

    def joint_transaction(
        self, transaction_id: str, *, serializer: Serializer | None = None
    ) -> JointTransaction:
        """Open a transaction over several streams by its id: to write, commit or abort.

        Nothing extends its leases: call ``ping``. Raises NoSuchTransaction, also when it ended.
        """
        from pravega_spark.reader_groups.settlement import GroupPositions
        from pravega_spark.txn.decision_log import open_decisions
        from pravega_spark.txn.joint import find_joint_record, open_joint_transaction

        decisions = open_decisions(*self._root)
        record = find_joint_record(decisions, transaction_id)
        streams = [self._root.stream(name) for name, _ in record.participants]
        positions = GroupPositions(*self._root)
        return open_joint_transaction(decisions, record, streams, positions, serializer=serializer)

    def fetch_event(
        self, pointer: EventPointer | str, *, deserializer: Deserializer | None = None
    ) -> Event:
        """See :meth:`Stream.fetch_event`."""
        pointer = EventPointer.of(pointer)
        return self.stream(pointer.stream).fetch_event(pointer, deserializer=deserializer)

    def _group_lifecycle(self, group: str) -> GroupLifecycle:
        from pravega_spark.reader_groups.lifecycle import GroupLifecycle

        store, runtime = self._root
        return GroupLifecycle(store, group, self._root.stream, runtime)


def root_of(manager: StreamManager) -> Root:
    """Return what a manager works on, for the rooms above it that do more than its verbs."""
    return manager._root


def manager_over(store: Store, runtime: Runtime = SYSTEM) -> StreamManager:
    """Return a manager of a store that was opened before, such as one that counts its calls.

    It is for this process: pickled, it is a manager of the store's URL.
    """
    manager = StreamManager(store.url, maintain=OFF, runtime=runtime)
    manager._root = Root(store, runtime)
    return manager


def _is_closed(manager: StreamManager) -> bool:
    return manager._is_closed


def _manager(root: str, options: dict[str, Any], token: str | None = None) -> StreamManager:
    manager = StreamManager(root, storage_options=options)
    if token is not None:
        bind_root(manager._root.store, token)
    return manager
