"""Restores a stream or a whole root, and rebuilds the index of each scope from the tables found."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from pravega_spark.backup.restore import (
    IntactVersion,
    RestoredTable,
    begin_new_life,
    continued_lives,
    restore_folded,
    restore_table,
)
from pravega_spark.config.root_settings import OFF, SettingChanges
from pravega_spark.engine.kinds import GROUP, KINDS, STREAM, TABLE
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.commit import Log
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.runtime.failpoints import failpoint
from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.runtime.system import Runtime
from pravega_spark.engine.state.due_hints import drop_hints
from pravega_spark.engine.state.maintenance_table import MAINTENANCE_TABLE
from pravega_spark.engine.state.scopes import DELETED, Scope
from pravega_spark.engine.state.settings_table import SETTINGS_TABLE, SettingsTable
from pravega_spark.engine.store import Store
from pravega_spark.engine.store.probe import ensure_probed
from pravega_spark.engine.store.root_marker import (
    MARKER_FORMAT,
    MARKER_KEY,
    RESTORED,
    allow_incomplete,
    encode,
    read_record,
    read_root,
    scope_folders,
)
from pravega_spark.engine.stream.layout_rows import note_layout
from pravega_spark.engine.stream.records import StreamState
from pravega_spark.engine.stream.stream_log import StreamLog, events_path
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import (
    Damaged,
    NoSuchScope,
    NoSuchStream,
    PravegaSparkError,
    without_credentials,
)
from pravega_spark.key_value.folded_record import FoldedRecord, check_present
from pravega_spark.reader_groups.settlement import GroupPositions
from pravega_spark.txn.decision_log import DECISIONS_TABLE, JointRecord, open_decisions
from pravega_spark.txn.joint_sweep import carry_out_decided
from pravega_spark.txn.settlement import ended_part
from pravega_spark.values.names import (
    GROUPS_FOLDER,
    TABLES_FOLDER,
    folded_path,
    split_log,
    split_stream,
    table_of_log,
)

logger = own_logger(__name__)


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """What a restore of a root did, table by table."""

    tables: tuple[RestoredTable, ...]
    failed: dict[str, str] = field(default_factory=dict)
    """Tables without an intact version, with the reason; they are unchanged."""
    missing: tuple[str, ...] = ()
    """Streams, tables and groups that a scope listed without any objects, and lists no longer."""

    @property
    def streams(self) -> dict[str, RestoredTable]:
        """The result for each stream, by name."""
        return {name: one for name, one in self._logs.items() if table_of_log(name) is None}

    @property
    def key_value_tables(self) -> dict[str, RestoredTable]:
        """The result for the change log of each key-value table, by name."""
        found = {table_of_log(name): one for name, one in self._logs.items()}
        return {name: one for name, one in found.items() if name is not None}

    @property
    def _logs(self) -> dict[str, RestoredTable]:
        suffix = events_path("")
        found = (table for table in self.tables if table.path.endswith(suffix))
        return {table.path.removesuffix(suffix): table for table in found}


def restore_stream(store: Store, stream: str, runtime: Runtime) -> RestoredTable:
    """Take a stream's copy back to its newest intact version, and begin its next life there.

    Raises NoSuchStream if there is no copy of it, CorruptLog if no version is intact.
    """
    scope, name = split_stream(stream)
    if not _has_table(store, events_path(stream)):
        raise NoSuchStream(
            f"there is no copy of stream {stream} to restore under {store.url}; name a stream of "
            "the copy.",
            stream=stream,
        )
    with allow_incomplete(store):
        read_root(store, refresh=True)
        drop_hints(store)
        _carry_out_decided(store, runtime)
        done = _restore_events(store, stream, runtime)
        _turn_off(store, runtime)
        index = Scope(store, scope, runtime)
        for path in (f"{stream}/metadata", index.table.log.path):
            if _has_table(store, path):
                restore_table(store, path, runtime)
        _take_over_layout(store, stream, runtime, done)
        failpoint("restore.row")
        _list_streams(index, {name: done}, {})
        _mark(store, runtime, is_whole=False)
    return done


def restore_root(store: Store, runtime: Runtime) -> RestoreResult:
    """Restore all tables of a root, with each stream in its next life, and the scopes' indexes.

    The root may be opened again unless a table failed. Raises NoSuchScope if the root has neither
    a marker nor a table; then nothing is created.
    """
    run = _RootRestore(store, runtime)
    scopes = scope_folders(store)
    if read_record(store) is None and not any(_has_scope(store, scope) for scope in scopes):
        raise NoSuchScope(f"there is nothing to restore under {store.url}; check the root's URL.")
    with allow_incomplete(store):
        read_root(store, refresh=True)
        drop_hints(store)
        run.restore_tables_of_root()
        _turn_off(store, runtime)
        _carry_out_decided(store, runtime)
        for scope in scopes:
            run.restore_scope(scope)
        failpoint("restore.marker")
        _mark(store, runtime, is_whole=not run.failed)
    return RestoreResult(tuple(run.tables), run.failed, tuple(run.missing))


@dataclass(slots=True)
class _RootRestore:
    store: Store
    runtime: Runtime
    tables: list[RestoredTable] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    def restore_tables_of_root(self) -> None:
        """Restore the root's settings, decisions and record of maintenance, if it had any.

        Without them it is not opened.
        """
        for path in (SETTINGS_TABLE, DECISIONS_TABLE, MAINTENANCE_TABLE):
            self._restore_table(path)

    def restore_scope(self, name: str) -> None:
        """Restore the tables of a scope, then make its index list the streams that are there."""
        index = Scope(self.store, name, self.runtime)
        self._restore_table(index.table.log.path)
        for group in self.store.folders(f"{name}/{GROUPS_FOLDER}"):
            self._restore_table(f"{name}/{GROUPS_FOLDER}/{group}")
        streams = {n: self._restore_stream(f"{name}/{n}") for n in self.store.folders(name)}
        folder = f"{name}/{TABLES_FOLDER}"
        tables = {n: self._restore_key_value(f"{folder}/{n}") for n in self.store.folders(folder)}
        if index.table.log.path in self.failed:
            return
        _list_streams(index, streams, tables)
        if index.state() != DELETED:
            self._drop_missing(index)

    def _drop_missing(self, index: Scope) -> None:
        """Remove the streams, tables and groups from a scope's index that have no objects."""
        kinds = (
            (STREAM, "", "/events"),
            (GROUP, f"{GROUPS_FOLDER}/", ""),
            (TABLE, f"{TABLES_FOLDER}/", "/events"),
        )
        for kind, folder, table in kinds:
            for name, row in index.rows(kind).items():
                if not _has_table(self.store, f"{index.name}/{folder}{name}{table}"):
                    index.drop_row(name, row["life"], kind)
                    self.missing.append(f"{index.name}/{folder}{name}")

    def _restore_stream(self, stream: str) -> RestoredTable | None:
        """Restore the tables of a stream; return what was done to its events."""
        done = self._restore_table(events_path(stream), stream)
        history = f"{stream}/metadata"
        self._restore_table(history)
        if done is not None and history not in self.failed:
            _take_over_layout(self.store, stream, self.runtime, done)
        return done

    def _restore_key_value(self, log_name: str) -> RestoredTable | None:
        """Restore a table's change log, then its folded table; return what was done to the log."""
        done = self._restore_stream(log_name)
        if done is None:
            return None
        path = folded_path(log_name)
        if _has_table(self.store, path):
            self._try(path, lambda: restore_folded(self.store, log_name, self.runtime, done))
        elif done.life is not None:
            view = StreamLog(self.store, log_name, self.runtime).view()
            self._try(path, lambda: check_present(view, path))
        return done

    def _restore_table(self, path: str, stream: str = "") -> RestoredTable | None:
        if not _has_table(self.store, path):
            return None
        if stream:
            return self._try(path, lambda: _restore_events(self.store, stream, self.runtime))
        return self._try(path, lambda: restore_table(self.store, path, self.runtime))

    def _try(self, path: str, restore: Callable[[], RestoredTable | None]) -> RestoredTable | None:
        try:
            done = restore()
        except Damaged as error:
            self.failed[path] = f"{type(error).__name__}: {error}"
            return None
        if done is not None:
            self.tables.append(done)
        return done


def _take_over_layout(store: Store, stream: str, runtime: Runtime, done: RestoredTable) -> None:
    """Take the rows of a stream's layout into its new life, without those that the log lacks."""
    if done.life is not None and _has_table(store, f"{stream}/metadata"):
        log = StreamLog(store, stream, runtime)
        note_layout(log, log.view())


def _turn_off(store: Store, runtime: Runtime) -> None:
    """Keep applications from maintaining the root, and say so: policies would delete the restored.

    Damaged settings do not let them, either.
    """
    with contextlib.suppress(Damaged):
        SettingsTable(store, runtime).update(SettingChanges({"maintain": OFF}))
    logger.warning(
        "%s was restored, so the applications that use it do not maintain it: its setting maintain "
        "is off, and no policy takes effect. Look at what was restored, then let them, by "
        "update_settings(maintain='auto').",
        without_credentials(store.url),
        extra=log_fields("restore", root=without_credentials(store.url)),
    )


def _has_scope(store: Store, name: str) -> bool:
    """Return whether any object of a scope's index, groups, tables or streams is stored."""
    folders = store.folders(name)
    has_index = not {"_scope", GROUPS_FOLDER, TABLES_FOLDER}.isdisjoint(folders)
    return has_index or any(_has_table(store, events_path(f"{name}/{n}")) for n in folders)


def _has_table(store: Store, path: str) -> bool:
    """Return whether any object of a table is stored."""
    return not {"_delta_log", "_pravega", "data"}.isdisjoint(store.folders(path))


def _carry_out_decided(store: Store, runtime: Runtime) -> None:
    """Carry out the joint transactions that the copy holds as decided, as far as it is whole.

    A restore aborts what is still open, so a stream that is whole must get its part before.
    """

    def failed(record: JointRecord | None, error: PravegaSparkError) -> None:
        logger.warning(
            "joint transaction %s could not be carried out before the restore: %s",
            "of an unknown id" if record is None else record.token,
            error,
            extra=log_fields("restore"),
        )

    positions = GroupPositions(store, runtime)
    try:
        opened = partial(StreamLog, store, runtime=runtime)
        carry_out_decided(open_decisions(store, runtime), opened, positions, failed)
    except PravegaSparkError as error:  # of the decisions
        failed(None, error)


def _torn(stream: StreamLog) -> tuple[str, ...]:
    """Return the decided joint transactions of which a restored stream should have a part.

    These are all since the stream was created, also those of a life that the copy does not reach.
    """
    view, torn = stream.view(), list[str]()
    first_life = min(continued_lives(stream, view))
    decisions = open_decisions(stream.store, stream.runtime)
    decisions.read()
    for record in decisions.decided():
        life = record.life_of(stream.name)
        if life is not None and life >= first_life:
            part = ended_part(view, record.token)
            outcome = None if part is None else view.outcome(part)
            if outcome is None or not outcome.committed:
                torn.append(record.token)
    return tuple(torn)


def _restore_events(store: Store, stream: str, runtime: Runtime) -> RestoredTable:
    """Restore a stream's events in a new life, each time: this may be a copy of a copy."""
    listed = _listed_life(store, stream, runtime)

    def complete(
        intact: IntactVersion, body: Body, version: int, now_ms: int
    ) -> tuple[list[str], int | None]:
        return begin_new_life(
            intact,
            body,
            version=version,
            now_ms=now_ms,
            store=store,
            runtime=runtime,
            listed=listed,
        )

    def is_done(snapshot: Snapshot) -> bool:
        record = StreamView(snapshot).record
        return record.state is StreamState.DELETED and not record.is_drawn

    done = restore_table(store, events_path(stream), runtime, complete, is_done=is_done)
    if done.life is None:
        return done
    return replace(done, torn=_torn(StreamLog(store, stream, runtime)))


def _listed_life(store: Store, stream: str, runtime: Runtime) -> int:
    """Return the highest life that tables beside a stream name, as far as they can be read."""
    lives = [0]
    scope, path = split_log(stream)
    with contextlib.suppress(Damaged, NoSuchScope):
        row = Scope(store, scope, runtime).log_row(path)
        lives.append(0 if row is None else row["life"])
    if table_of_log(stream) is not None:
        with contextlib.suppress(Damaged):
            snapshot = Log(store, folded_path(stream), runtime).refresh()
            record = None if snapshot is None else FoldedRecord.of(snapshot)
            lives.append(0 if record is None else record.life)
    return max(lives)


_Restored = Mapping[str, RestoredTable | None]
"""What was done to the events of streams or of change logs, by the name in the scope."""


def _list_streams(scope: Scope, streams: _Restored, tables: _Restored) -> None:
    """Make a scope list what was restored in its new life, and nothing that was deleted.

    The scope is created if it does not exist and something does. Failed objects stay listed.
    """
    found = [(STREAM, name, done) for name, done in streams.items() if done is not None]
    found += [(TABLE, name, done) for name, done in tables.items() if done is not None]
    if scope.state() == DELETED:
        if not any(done.life for _, _, done in found):
            return
        scope.create()
    for kind, name, done in found:
        row = scope.rows(kind).get(name)
        if row is not None and (done.life is None or row["life"] > done.life):
            scope.drop_row(name, row["life"], kind)
        if done.life is not None:
            with contextlib.suppress(NoSuchScope):  # its deletion had begun before the copy
                _claim(scope, kind, name)


def _claim(scope: Scope, kind: str, name: str) -> None:
    log, path, domain = scope.table.log, f"{KINDS[kind].folder}{name}", KINDS[kind].domain
    view = StreamLog(log.store, f"{scope.name}/{path}", log.runtime).view()
    configuration = view.record.configuration
    value = None if domain is None else json.loads(view.snapshot.domains[domain])
    scope.claim(name, view.life, configuration, kind, value)
    scope.retag(path, view.life, view.version, configuration)


def _mark(store: Store, runtime: Runtime, *, is_whole: bool) -> None:
    """Say in the marker that the root is a copy, where all lives are drawn.

    A whole one is probed, and may be opened from now on.
    """
    if is_whole:
        ensure_probed(store, runtime)
    record = read_record(store)
    if record is not None:
        opened = {"format": MARKER_FORMAT} if is_whole else {}
        store.put(MARKER_KEY, encode({**record, **opened, RESTORED: runtime.now_ms()}))
