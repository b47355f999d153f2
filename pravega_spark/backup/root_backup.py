"""Backs up a stream, a scope or a root into a target that says what it is.

Each table is copied as of one of its versions. A table that refers to others is copied before
them: first the indexes of all scopes, then all groups, then the streams, so that no position of a
group lies ahead of its stream's copy. The root's settings come before all of them. The target
opens only when all tables are complete.

The target of a backup: its root marker says which backup it takes, and whether it is complete. The
marker holds the backup's source and name, its id, and the run that works on it. So a run continues
an earlier one on the same target, and notices when another run takes the target over.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from pravega_spark.backup.copy import CopiedTable, TableCopier, UnfinishedCopy, copy_key_value_table
from pravega_spark.engine.kinds import GROUP, STREAM, TABLE
from pravega_spark.engine.log.commit import Log, check_not_lost, create_object
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.runtime.failpoints import failpoint
from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.runtime.system import Runtime
from pravega_spark.engine.state.scopes import DELETED, Scope, row_name
from pravega_spark.engine.state.settings_table import SETTINGS_TABLE, SettingsTable
from pravega_spark.engine.state.state_table import Rows
from pravega_spark.engine.store import Store
from pravega_spark.engine.store.probe import ensure_probed
from pravega_spark.engine.store.root_marker import (
    COPY_FORMAT,
    MARKER_FORMAT,
    MARKER_KEY,
    PROBE_FOLDER,
    RESTORED,
    allow_incomplete,
    encode,
    read_record,
    read_root,
)
from pravega_spark.engine.stream.records import StreamState
from pravega_spark.engine.stream.stream_log import events_path, open_stream
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import (
    Damaged,
    IllegalState,
    InvalidInput,
    NoSuchScope,
    NoSuchStream,
    TooBusy,
)
from pravega_spark.reader_groups.settlement import GroupPositions
from pravega_spark.txn.decision_log import open_decisions
from pravega_spark.txn.joint_sweep import carry_out_decided
from pravega_spark.values.limits import COPY_PAGE_FILES
from pravega_spark.values.names import (
    GROUPS_FOLDER,
    MAX_SCOPE_LENGTH,
    folded_path,
    is_name,
    split_stream,
    table_log,
    table_of_log,
)


class BackupTarget:
    """A store that one run of a backup has claimed."""

    def __init__(
        self, store: Store, source: Store, name: str, runtime: Runtime, *, updates: bool = False
    ) -> None:
        """Claim an empty store, or one that an earlier run of the same backup has claimed.

        With ``updates`` also the same backup that is complete. Raises IllegalState for a store that
        holds anything else.
        """
        self._store = store
        now_ms = runtime.now_ms()
        identity = {"of": source.url, "name": name}
        run = runtime.token()
        before = read_record(store)
        self.is_continued = False
        """Whether a killed run may have left something."""
        self.is_finished = False
        """Whether the target is a complete copy, which can be opened."""
        if before is None:
            self._check_empty()
            self._backup = {**identity, "id": runtime.token(), "began_ms": now_ms, "run": run}
            record = {"format": COPY_FORMAT, "probed_ms": now_ms, "root": runtime.token()}
            marker = encode({**record, "backup": self._backup})
            if not create_object(store, runtime, MARKER_KEY, marker):
                before = read_record(store)
        if before is not None:
            known = before.get("backup", {})
            is_same = {key: known.get(key) for key in identity} == identity
            self.is_finished = before["format"] != COPY_FORMAT
            can_update = updates and "finished_ms" in known and RESTORED not in before
            if not is_same or (self.is_finished and not can_update):
                raise self._refused(before, is_same=is_same)
            self.is_continued = not self.is_finished or "updating_ms" in known
            self._backup = {**known, "run": run}
            if not self.is_finished:
                self._write_marker(COPY_FORMAT)
        ensure_probed(store, runtime)

    def _refused(self, before: Mapping[str, Any], *, is_same: bool) -> IllegalState:
        known, ending = before.get("backup", {}), ""
        what = f"a backup of {known.get('of')} {known.get('name')}".rstrip()
        if before["format"] == COPY_FORMAT:
            what = f"an incomplete {what[2:]}"
        elif not known:
            what = "a root"
        elif RESTORED in before:
            what += " that was restored since"
        elif is_same:
            what, ending = "a complete backup", " To bring this one up to date, pass update=True."
        return IllegalState(
            f"{self._store.url} holds {what}, so it cannot take this backup; use a folder that is "
            f"empty or does not exist.{ending}"
        )

    def begin_update(self, now_ms: int) -> None:
        """Say that this run brings the finished copy up to date; it stays open to all."""
        self._backup = {**self._backup, "updating_ms": now_ms}
        self._write_marker(MARKER_FORMAT)

    @property
    def backup_id(self) -> str:
        """The id of the backup, the same in all runs."""
        return str(self._backup["id"])

    def check_claimed(self) -> None:
        """Raise TooBusy if another run has claimed the target since this one did."""
        found = read_record(self._store) or {}
        if found.get("backup", {}).get("run") != self._backup["run"]:
            raise TooBusy(
                f"another run has taken over the backup to {self._store.url}; wait until that run "
                "has ended, or repeat this one then."
            )

    def finish(self, now_ms: int) -> None:
        """Mark the target as a root that may be opened."""
        self._backup = {**self._backup, "finished_ms": now_ms}
        self._backup.pop("updating_ms", None)
        self._write_marker(MARKER_FORMAT)

    def _check_empty(self) -> None:
        folders = [name for name in self._store.folders("") if name != PROBE_FOLDER]
        if folders or self._store.list(""):
            raise IllegalState(
                f"{self._store.url} is not empty, so it cannot take a backup; use a folder that is "
                "empty or does not exist."
            )

    def _write_marker(self, marker_format: int) -> None:
        record = read_record(self._store) or {}
        marker = encode({**record, "format": marker_format, "backup": self._backup})
        self._store.put(MARKER_KEY, marker)


def check_apart(source: Store, target: Store) -> None:
    """Raise InvalidInput if one of the stores is inside the other."""
    a, b = (_address(store) for store in (source, target))
    if a.startswith(b) or b.startswith(a):
        raise InvalidInput(
            f"{target.url} and {source.url} overlap; use a target outside of the root."
        )


def _address(store: Store) -> str:
    scheme, _, path = store.url.partition("://")
    if scheme == "file":
        path = os.path.realpath(path)
    return f"{scheme}://{path.rstrip('/')}/"


logger = own_logger(__name__)

MAINTAIN: Final = "maintain"
"""The setting that a copy does not take from its source."""


@dataclass(frozen=True, slots=True)
class BackupResult:
    """What a backup copied: each table with its version in the source."""

    target: str
    backup_id: str
    tables: tuple[CopiedTable, ...]
    missing: tuple[str, ...] = ()
    """Paths of the streams, tables and groups that a scope lists and that have no object at all.

    Their creation was killed, or everything of them is lost; ``fsck`` may know which.
    """

    @property
    def versions(self) -> dict[str, int]:
        """The version of each stream's copy in the source, by name."""
        return {name: v for name, v in self._logs.items() if table_of_log(name) is None}

    @property
    def key_value_tables(self) -> dict[str, int]:
        """The version of the change log of each key-value table's copy in the source, by name."""
        found = {table_of_log(name): v for name, v in self._logs.items()}
        return {name: v for name, v in found.items() if name is not None}

    @property
    def _logs(self) -> dict[str, int]:
        found = {t.path: t.version for t in self.tables if not t.is_deleted}
        suffix = events_path("")
        return {p.removesuffix(suffix): v for p, v in found.items() if p.endswith(suffix)}

    @property
    def transactions(self) -> dict[str, tuple[str, ...]]:
        """The transactions that were open, by stream; they are aborted in the copy."""
        suffix = events_path("")
        return {t.path.removesuffix(suffix): t.transactions for t in self.tables if t.transactions}

    @property
    def subscribers(self) -> dict[str, tuple[str, ...]]:
        """The groups that hold data of a stream and are not copied, by stream.

        In the copy they hold nothing.
        """
        suffix = events_path("")
        return {t.path.removesuffix(suffix): t.subscribers for t in self.tables if t.subscribers}

    @property
    def files(self) -> int:
        """The number of data files in the copy."""
        return sum(table.files for table in self.tables)

    @property
    def size_bytes(self) -> int:
        """The bytes of data files in the copy."""
        return sum(table.size_bytes for table in self.tables)


def back_up(
    source: Store,
    target: Store,
    runtime: Runtime,
    name: str,
    keep_ms: int,
    *,
    updates: bool = False,
) -> BackupResult:
    """Copy a scope, a stream (``scope/stream``), or with "" all scopes, to another store.

    Safe to kill; the same call finishes a killed run. One run at a time. ``keep_ms`` bounds how
    long the version of a table stays pinned. ``updates`` takes a finished copy, too, and brings it
    up to date. Joint transactions that are decided are first carried out in the source: later the
    copies of two streams could not agree on them. Raises NoSuchScope, NoSuchStream, InvalidInput if
    one store is inside the other, IllegalState if the target holds anything else, StoreRefused if
    it cannot hold streams, DataLoss and CorruptLog for a damaged source, and StoreReadOnly if a
    decision is to be carried out in one that cannot be written.
    """
    check_apart(source, target)
    tables = _SourceTables(source, target, runtime, name)
    tables.check_not_empty()
    carry_out_decided(
        open_decisions(source, runtime),
        partial(open_stream, source, runtime=runtime),
        GroupPositions(source, runtime),
    )
    with allow_incomplete(target):
        claimed = BackupTarget(target, source, name, runtime, updates=updates)
        update = UnfinishedCopy(
            *(source, target, claimed.backup_id, name, runtime, claimed.check_claimed),
            is_open=claimed.is_finished,
            is_continued=claimed.is_continued,
        )
        if claimed.is_finished:
            claimed.begin_update(runtime.now_ms())
        copier = TableCopier(
            *(target, claimed.backup_id, keep_ms),
            *(tables.groups.__contains__, update),
        )
        copied = list[CopiedTable]()
        for log, folded in tables.logs(update):
            if folded is not None:
                copied += copy_key_value_table(copier, log, folded)
            else:
                copied.append(tables.copy(copier, log))
        kept = {*(table.path for table in copied), *tables.made}
        # They end in the copy as in the source, so that a process that has them open learns of it.
        gone = update.gone(kept)
        for log in tables.ended_logs(gone):
            copier.copy(log)
        update.check_whole(gone)
        claimed.check_claimed()
        update.apply(gone)
        if any(table.path == SETTINGS_TABLE for table in copied):
            # Nothing may truncate a copy only because somebody opens it. Damaged settings do not.
            with contextlib.suppress(Damaged):
                SettingsTable(target, runtime).clear(MAINTAIN)
        claimed.check_claimed()
        failpoint("backup.marker")
        claimed.finish(runtime.now_ms())
    return BackupResult(target.url, claimed.backup_id, tuple(copied), tuple(sorted(tables.missing)))


class _SourceTables:
    """The tables of a source that a backup copies."""

    def __init__(self, source: Store, target: Store, runtime: Runtime, name: str) -> None:
        self._source = source
        self._target = target
        self._runtime = runtime
        self._name = name
        self.groups: set[str] = set()
        """The reader groups that the copied scopes list."""
        self.made = set[str]()
        """The tables that the copy has although they are not copied: the scope of one stream."""
        self.missing: list[str] = []
        self._indexes: dict[str, Scope] = {}
        self._rows: dict[str, Rows] = {}
        """The rows of each copied scope."""

    def check_not_empty(self) -> None:
        """Raise NoSuchScope or NoSuchStream if there is nothing to copy."""
        has_marker = read_root(self._source, refresh=True) is not None
        if has_marker and "/" in self._name:
            self._single_log()
        elif not has_marker or not any(self._scopes()):
            what = "holds no scope" if has_marker else "has no root marker, so it is not a root"
            raise NoSuchScope(
                f"{self._source.url} {what}: nothing was copied. Name another root, or restore "
                "this one if it was moved or unmounted."
            )

    def copy(self, copier: TableCopier, log: Log) -> CopiedTable:
        """Copy a table; of an index, keep the rows of the copied version."""
        scope = self._indexes.get(log.path)
        if scope is None:
            return copier.copy(log)

        def keep_rows(snapshot: Snapshot) -> None:
            self._rows[scope.name] = scope.table.at(snapshot).rows

        return copier.copy(log, seen=keep_rows, is_index=True)

    def ended_logs(self, paths: Sequence[str]) -> Iterator[Log]:
        """Yield those logs of tables which no scope lists any more."""
        yield from self._opened([("", path) for path in paths])

    def logs(self, update: UnfinishedCopy) -> Iterator[tuple[Log, Log | None]]:
        """Yield the log of each table, after the caller has copied those before it.

        A key-value table's change log comes with the log of its folded table.

        The settings of the root come first, also for a part of it: the copy is a separate root,
        and its sweeps must not be quicker than those of the source.
        """
        for log in self._single_logs(update):
            yield log, None
        for scope in self._rows:
            for name in self._names(scope, TABLE):
                stream = table_log(scope, name)
                change_log = self._listed_log(stream, events_path(stream))
                if change_log is not None:
                    yield change_log, Log(self._source, folded_path(stream), self._runtime)
                history = self._log(f"{stream}/metadata")
                if history is not None:
                    yield history, None

    def _single_logs(self, update: UnfinishedCopy) -> Iterator[Log]:
        yield from filter(None, [self._log(SETTINGS_TABLE)])
        if "/" in self._name:
            yield from self._single_stream(update)
            return
        for scope in self._scopes():
            self._indexes[scope.table.log.path] = scope
            yield scope.table.log
        yield from self._listed_logs()

    def _names(self, scope: str, kind: str) -> list[str]:
        rows = self._rows[scope].values()
        return sorted(row_name(row) for row in rows if row["kind"] == kind)

    def _scopes(self) -> Iterator[Scope]:
        for name in [self._name] if self._name else self._source.folders(""):
            if is_name(name, MAX_SCOPE_LENGTH):
                scope = Scope(self._source, name, self._runtime)
                if scope.state() != DELETED:
                    yield scope
                    continue
                scope.check_has_index()
                if self._name:
                    raise NoSuchScope(
                        f"scope {name} does not exist under {self._source.url}; name another "
                        "scope.",
                        scope=name,
                    )

    def _listed_logs(self) -> Iterator[Log]:
        """Yield the logs of the groups and streams that the copied scopes list.

        All groups come first, since a group can read streams of any scope.
        """
        groups = list[tuple[str, str]]()
        streams = list[tuple[str, str]]()
        for scope in self._rows:
            for name in self._names(scope, GROUP):
                self.groups.add(f"{scope}/{name}")
                path = f"{scope}/{GROUPS_FOLDER}/{name}"
                groups.append((path, path))
            for name in self._names(scope, STREAM):
                stream = f"{scope}/{name}"
                streams += [(stream, events_path(stream)), ("", f"{stream}/metadata")]
        yield from self._opened(groups)
        yield from self._opened(streams)

    def _opened(self, logs: Sequence[tuple[str, str]]) -> Iterator[Log]:
        """Open some logs at a time, and yield those that exist."""
        for first in range(0, len(logs), COPY_PAGE_FILES):
            page = logs[first : first + COPY_PAGE_FILES]
            yield from filter(None, self._runtime.each(lambda one: self._listed_log(*one), page))

    def _listed_log(self, folder: str, path: str) -> Log | None:
        """Return a log, or None if the folder is empty; an object may lack other logs than its own.

        Raises CorruptLog if something is left of an object that has lost its own log.
        """
        log = Log(self._source, path, self._runtime)
        if log.refresh(durable=True) is not None:
            return log
        if folder:
            advice = "Put it back, or delete the rest of it; the backup is not complete."
            check_not_lost(log, folder, folder, advice)
            self.missing.append(folder)
            logger.warning(
                "%s is listed but has no object, so it is not in the backup: its creation was "
                "killed, or it was lost. `pravega-spark fsck` may tell which.",
                f"{self._source.url}/{folder}",
                extra=log_fields("backup"),
            )
        return None

    def _single_stream(self, update: UnfinishedCopy) -> Iterator[Log]:
        """Yield the tables of one stream; the copy gets a new scope that lists it."""
        scope, name = split_stream(self._name)
        log, view = self._single_log()
        copy = Scope(self._target, scope, self._runtime)
        self.made.add(copy.table.log.path)

        def list_stream() -> None:
            copy.create()
            copy.claim(name, view.life, view.record.configuration)

        if update.is_open:
            update.later(copy.table.log.path, list_stream)
        else:
            list_stream()
        yield log
        yield from filter(None, [self._log(f"{self._name}/metadata")])

    def _single_log(self) -> tuple[Log, StreamView]:
        """Return the log of the one stream; raise NoSuchStream if there is none."""
        log = self._listed_log(self._name, events_path(self._name))
        view = None if log is None or log.snapshot is None else StreamView(log.snapshot)
        if log is not None and view is not None and view.record.state is not StreamState.DELETED:
            return log, view
        scope, name = split_stream(self._name)
        why = f"stream {self._name} does not exist under {self._source.url}; nothing was copied."
        listed = Scope(self._source, scope, self._runtime)
        if listed.state() != DELETED and name in listed.rows(TABLE):
            why += (
                f" There is a key-value table of this name, and a table is backed up with its "
                f"scope: back up {scope!r}."
            )
        raise NoSuchStream(why, stream=self._name)

    def _log(self, path: str) -> Log | None:
        log = Log(self._source, path, self._runtime)
        return None if log.refresh(durable=True) is None else log
