"""Restore of a stream or of a whole root, and the index of each scope made from what is there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from pravega_spark.backup.intact_version import IntactVersion
from pravega_spark.backup.new_life import new_life
from pravega_spark.backup.table_restore import RestoredTable, restore_table
from pravega_spark.engine.failpoints import failpoint
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.runtime import Runtime
from pravega_spark.engine.store import Store
from pravega_spark.engine.store.probe import ensure_probed
from pravega_spark.engine.store.root_marker import (
    MARKER_FORMAT,
    MARKER_KEY,
    admitted,
    encode,
    look,
    read_record,
)
from pravega_spark.engine.stream.stream_log import StreamLog, events_path
from pravega_spark.engine.tables.scopes import DELETED, GROUP, GROUPS_FOLDER, STREAM, Scope
from pravega_spark.errors import Damaged, NoSuchScope, NoSuchStream
from pravega_spark.names import MAX_SCOPE_LENGTH, is_name, split_stream


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """What a restore of a root did, table by table."""

    tables: tuple[RestoredTable, ...]
    failed: dict[str, str] = field(default_factory=dict)
    """Tables of which no version is whole, with what is missing; they are as they were."""
    missing: tuple[str, ...] = ()
    """Streams and groups that a scope lists and of which nothing is there: listed no more."""

    @property
    def streams(self) -> dict[str, RestoredTable]:
        """What was done to each stream, by name."""
        suffix = events_path("")
        found = (table for table in self.tables if table.path.endswith(suffix))
        return {table.path.removesuffix(suffix): table for table in found}


def restore_stream(store: Store, stream: str, runtime: Runtime) -> RestoredTable:
    """Open a stream's copy, and begin its next life at the newest version that is whole.

    Raises NoSuchStream if there is no copy of it, CorruptLog if no version is whole.
    """
    scope, name = split_stream(stream)
    if not _is_table(store, events_path(stream)):
        raise NoSuchStream(
            f"there is no stream {stream} under {store.url} to be restored.", stream=stream
        )
    with admitted(store):
        look(store, again=True)
        done = _restore_events(store, stream, runtime)
        index = Scope(store, scope, runtime)
        for path in (f"{stream}/metadata", index.table.log.path):
            if _is_table(store, path):
                restore_table(store, path, runtime)
        failpoint("restore.row")
        if done.life is not None:
            _index(index, [name])
    return done


def restore_root(store: Store, runtime: Runtime) -> RestoreResult:
    """Open all that is there: every stream in its next life, the index of each scope by it.

    Raises NoSuchScope if there is neither a marker nor a table: then nothing is made.
    """
    run = _Run(store, runtime)
    scopes = [name for name in store.folders("") if is_name(name, MAX_SCOPE_LENGTH)]
    if read_record(store) is None and not any(_is_scope(store, scope) for scope in scopes):
        raise NoSuchScope(f"there is nothing to be restored under {store.url}: check the root.")
    with admitted(store):
        look(store, again=True)
        for scope in scopes:
            run.scope(scope)
        failpoint("restore.marker")
        if not run.failed:
            _open_root(store, runtime)
    return RestoreResult(tuple(run.tables), run.failed, tuple(run.missing))


@dataclass(slots=True)
class _Run:
    store: Store
    runtime: Runtime
    tables: list[RestoredTable] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    def scope(self, name: str) -> None:
        """Restore what is in a scope, then its index."""
        index = Scope(self.store, name, self.runtime)
        self._table(index.table.log.path)
        for group in self.store.folders(f"{name}/{GROUPS_FOLDER}"):
            self._table(f"{name}/{GROUPS_FOLDER}/{group}")
        streams = [n for n in self.store.folders(name) if self._stream(f"{name}/{n}")]
        if index.table.log.path in self.failed:
            return
        if streams:
            _index(index, streams)
        if index.state() != DELETED:
            for kind, folder, table in ((STREAM, "", "/events"), (GROUP, f"{GROUPS_FOLDER}/", "")):
                for row, told in index.rows(kind).items():
                    if not _is_table(self.store, f"{name}/{folder}{row}{table}"):
                        index.drop_row(row, told["life"], kind)
                        self.missing.append(f"{name}/{folder}{row}")

    def _stream(self, stream: str) -> bool:
        done = self._table(events_path(stream), stream)
        self._table(f"{stream}/metadata")
        return done is not None and done.life is not None

    def _table(self, path: str, stream: str = "") -> RestoredTable | None:
        if not _is_table(self.store, path):
            return None
        try:
            if stream:
                done = _restore_events(self.store, stream, self.runtime)
            else:
                done = restore_table(self.store, path, self.runtime)
        except Damaged as error:
            self.failed[path] = f"{type(error).__name__}: {error}"
            return None
        self.tables.append(done)
        return done


def _is_scope(store: Store, name: str) -> bool:
    """Tell whether there is anything of a scope's index, groups or streams."""
    folders = store.folders(name)
    indexed = "_scope" in folders or GROUPS_FOLDER in folders
    return indexed or any(_is_table(store, events_path(f"{name}/{other}")) for other in folders)


def _is_table(store: Store, path: str) -> bool:
    """Tell whether there is anything of a table."""
    return not {"_delta_log", "_pravega", "data"}.isdisjoint(store.folders(path))


def _restore_events(store: Store, stream: str, runtime: Runtime) -> RestoredTable:
    stream_id = runtime.token()

    def change(
        whole: IntactVersion, body: Body, version: int, now_ms: int
    ) -> tuple[list[str], int | None]:
        return new_life(whole, body, version, now_ms, stream_id, store)

    return restore_table(store, events_path(stream), runtime, change)


def _index(scope: Scope, streams: Iterable[str]) -> None:
    """Have the scope list streams in their new lives; create it if it is not there."""
    log = scope.table.log
    if scope.state() == DELETED:
        scope.create()
    for name in streams:
        view = StreamLog(log.store, f"{scope.name}/{name}", log.runtime).view()
        with contextlib.suppress(NoSuchScope):  # it was being deleted when it was copied
            scope.claim(name, view.life, view.record.configuration)
            scope.retag(name, view.life, view.version, view.record.configuration)


def _open_root(store: Store, runtime: Runtime) -> None:
    """Mark the root as one that may be opened, after a probe of its storage."""
    ensure_probed(store, runtime)
    record = read_record(store)
    if record is not None and record["format"] != MARKER_FORMAT:
        store.put(MARKER_KEY, encode({**record, "format": MARKER_FORMAT}))
