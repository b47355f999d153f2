"""Brings a finished copy up to date: what its tables hold, and the commits that wait.

A table's copy gets one commit, which holds all that differs from the copied version of the source
and has its number; commits without any change lead up to it. The commits of all tables wait until
the files of all are there. So the copy stays as it was until then, and each table changes at once.
They are applied in the reverse order of copying: streams before groups before indexes, so that a
killed update leaves no group ahead of its stream and no index that lists what is not there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from pravega_spark.backup.final_commit import CopyRecord
from pravega_spark.backup.object_copy import archived_keys, archived_pages
from pravega_spark.engine.attached_objects import attached_object
from pravega_spark.engine.failpoints import failpoint
from pravega_spark.engine.log.actions import REQUEST, Commit, Remove
from pravega_spark.engine.log.checkpointing import maintain
from pravega_spark.engine.log.commit_log import Log
from pravega_spark.engine.log.create_once import create_object
from pravega_spark.engine.log.file_index import FileIndex
from pravega_spark.engine.log.log_cleanup import delete_old_commits
from pravega_spark.engine.log.log_reader import LogReader
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.log.table_at_version import table_at
from pravega_spark.engine.runtime import Runtime
from pravega_spark.engine.store import Store
from pravega_spark.engine.store.root_marker import PROBE_FOLDER
from pravega_spark.engine.stream.stream_log import events_path
from pravega_spark.engine.tables.scopes import DELETED, GROUP, GROUPS_FOLDER, STREAM, TABLE, Scope
from pravega_spark.engine.tables.settings_table import SETTINGS_TABLE
from pravega_spark.errors import CorruptLog, IllegalState
from pravega_spark.names import MAX_SCOPE_LENGTH, folded_path, is_name, table_log

_NO_CHANGES = frozenset({"PIN", "UNPIN", REQUEST})
"""Operations of commits that leave a table as it is."""
_LOOKED_AT = 32
"""A source that has more commits since than these has changed."""


@dataclass(frozen=True, slots=True)
class TableCopy:
    """The copy of one table before an update: what it holds, and the newest version of its log."""

    record: CopyRecord
    newest: int

    @classmethod
    def begun(cls, where: str, first: Snapshot, backup_id: str) -> TableCopy:
        """Return the copy of a table that has version 0 alone."""
        return cls(CopyRecord(where, 0, first.token, backup_id, 0, 0), 0)

    def is_current(self, log: Log, snapshot: Snapshot) -> bool:
        """Return whether the source has not changed since; raise IllegalState for another log."""
        held, reader = self.record.version, log.reader
        if snapshot.version < held:
            raise _other_table(log)
        if snapshot.version > held + _LOOKED_AT:
            return False
        try:
            commits = list(reader.span(held - 1, snapshot.version, light=True, kept=True))
        except CorruptLog:  # cleaned up since; a log that is damaged is noticed when it is copied
            return False
        if commits[0].token != self.record.token:
            raise _other_table(log)
        return all(commit.operation in _NO_CHANGES for commit in commits[1:])


def _written(where: str) -> IllegalState:
    return IllegalState(
        f"{where}: the copy was written to since it was made, or made by an earlier release, so it "
        "cannot be brought up to date. Nothing was changed; make a new backup in another folder."
    )


def _other_table(log: Log) -> IllegalState:
    return IllegalState(
        f"{log.reader.where} is another table than the one that was copied: its log was replaced. "
        "Nothing was changed in the copy; make a new backup in another folder."
    )


class CopyUpdate:
    """One update of a finished copy."""

    def __init__(
        self, source: Store, target: Store, backup_id: str, name: str, runtime: Runtime
    ) -> None:
        """Read what the copy of ``name`` holds.

        Raises IllegalState if a table was written to since, or copied by an earlier release.
        """
        self._source = source
        self._target = target
        self._runtime = runtime
        self._backup_id = backup_id
        self._name = name
        paths = list(self._paths())
        found = runtime.each(self._table_copy, paths)
        self.copies: Mapping[str, TableCopy] = {
            path: copy for path, copy in zip(paths, found, strict=True) if copy is not None
        }
        self._waiting: dict[str, Callable[[], None]] = {}
        self._unneeded: list[str] = []

    def _paths(self) -> Iterator[str]:
        """Yield the paths of the tables that the copy may have."""
        yield SETTINGS_TABLE
        if "/" in self._name:
            yield from (events_path(self._name), f"{self._name}/metadata")
            return
        for folder in self._target.folders(""):
            if folder == PROBE_FOLDER or not is_name(folder, MAX_SCOPE_LENGTH):
                continue
            scope = Scope(self._target, folder, self._runtime)
            yield scope.table.log.path
            if scope.state() == DELETED:  # or not begun by a killed update
                continue
            for name in scope.rows(GROUP):
                yield f"{folder}/{GROUPS_FOLDER}/{name}"
            for name in scope.rows(STREAM):
                yield events_path(f"{folder}/{name}")
                yield f"{folder}/{name}/metadata"
            for name in scope.rows(TABLE):
                stream = table_log(folder, name)
                yield from (events_path(stream), folded_path(stream), f"{stream}/metadata")

    def _table_copy(self, path: str) -> TableCopy | None:
        log = Log(self._target, path, self._runtime)
        snapshot = log.refresh(durable=True)
        if snapshot is None:
            return None
        newest = snapshot.version
        if newest == 0:  # begun by a killed update, with the commit of the source
            first = LogReader(self._source, path).commit(0, light=True)
            if first is None or first.token != snapshot.token:
                raise _written(log.reader.where)
            return TableCopy.begun(log.reader.where, snapshot, self._backup_id)
        last = log.reader.commit(newest, light=True)
        if path == SETTINGS_TABLE and _clears_settings(last):  # the backup itself did
            last = log.reader.commit(newest - 1, light=True)
        while last is not None and last.operation.startswith("DROP "):
            # Who reads a stream that was deleted while it was copied takes it out of the index.
            last = log.reader.commit(last.version - 1, light=True)
        record = CopyRecord.of_commit(last)
        if record is None or record.id != self._backup_id:
            raise _written(log.reader.where)
        return TableCopy(record, newest)

    def prepare(
        self,
        log: Log,
        before: TableCopy | None,
        snapshot: Snapshot,
        files: FileIndex,
        closing: Mapping[str, str | None],
        record: CopyRecord,
    ) -> None:
        """Prepare the commit that brings a table's copy up to a version of the source.

        The commits that lead up to it are put at once, since they change nothing. Without
        ``before`` the copy has no such table yet: then the table begins with its version 0 when the
        update is applied, because a log without that version cannot be opened.
        """
        copy = LogReader(self._target, log.path)
        is_new, since = before is None, 0 if before is None else before.newest
        old, old_files = table_at(log.reader if before is None else copy, since)
        if before is None:
            before = TableCopy.begun(log.reader.where, old, self._backup_id)
        elif old.metadata["id"] != snapshot.metadata["id"]:
            raise _other_table(log)
        held = {add.path for add in old_files.all()}
        live = set[str]()
        body = record.body()
        added = []
        for add in files.all():
            live.add(add.path)
            if add.path not in held:
                added.append(add)
        now_ms = max(self._runtime.now_ms(), old.timestamp_ms + record.version - since)
        body.adds = added
        body.removes = [Remove.of(a, now_ms) for a in old_files.all() if a.path not in live]
        wanted = {**snapshot.domains, **closing}
        domains = {name: wanted.get(name) for name in {*wanted, *old.domains}}
        body.domains = {n: v for n, v in sorted(domains.items()) if v != old.domains.get(n)}
        body.protocol = None if old.protocol == snapshot.protocol else snapshot.protocol
        body.metadata = None if old.metadata == snapshot.metadata else snapshot.metadata
        data = body.encode(self._runtime.token(), now_ms)
        archived, stored = archived_keys(log, copy, record.version)
        missing = [key for key in archived if key not in stored]
        new = [item for page in archived_pages(log, missing) for item in page]
        # A restore may have to go back to the version before, unless the table has ended.
        needed = {key for path in (live | held if live else ()) for key in _keys(log.path, path)}

        def lead_up() -> None:
            """Put commits, one after the other: a log with a hole cannot be read.

            Those of a killed update are as good.
            """
            for version in range(since + 1, record.version):
                token, time_ms = f"{before.record.token}.{version}", old.timestamp_ms + version
                leading = before.record.body().encode(token, time_ms - since)
                self._create(copy, version, leading, is_known=True)
                failpoint("backup.leading")

        def apply() -> None:
            self._runtime.each(lambda item: self._target.put(*item), new)
            if is_new:
                self._create(copy, 0, log.store.get(log.reader.key(0)))
                lead_up()
            self._create(copy, record.version, data)
            failpoint("backup.applied")
            maintain(copy, record.version)
            delete_old_commits(Log(self._target, log.path, self._runtime))
            found = (entry.key for entry in self._target.list(f"{log.path}/data"))
            self._unneeded.extend(key for key in found if key not in needed)
            self._unneeded.extend(stored.difference(archived))

        if not is_new:
            lead_up()
            failpoint("backup.led-up")
        self.later(log.path, apply)

    def _create(
        self, copy: LogReader, version: int, data: bytes, *, is_known: bool = False
    ) -> None:
        """Create a commit; one of a killed update is as good if ``is_known``."""
        if not create_object(self._target, self._runtime, copy.key(version), data):
            found = CopyRecord.of_commit(copy.commit(version, light=True))
            if is_known and found is not None and found.id == self._backup_id:
                return
            raise IllegalState(
                f"{copy.where}: somebody wrote version {version} of the copy while it was brought "
                "up to date. Make a new backup in another folder."
            )

    def later(self, path: str, action: Callable[[], None]) -> None:
        """Change a table when all others are ready, after those that are copied later."""
        self._waiting[path] = action

    def apply(self, gone: Collection[str]) -> None:
        """Change all tables, those that the source no longer lists last; delete unneeded files."""
        failpoint("backup.prepared")
        listed = [path for path in reversed(self._waiting) if path not in gone]
        for path in [*listed, *(path for path in gone if path in self._waiting)]:
            self._waiting[path]()
        failpoint("backup.changed")
        self._target.delete(self._unneeded)


def _clears_settings(commit: Commit | None) -> bool:
    if commit is None or commit.operation != "SET SETTINGS":
        return False
    return not json.loads(commit.info["operationParameters"]["set"])


def _keys(table: str, path: str) -> list[str]:
    attached = attached_object(path)
    keys = [f"{table}/{path}"]
    return keys if attached is None else [*keys, f"{table}/{attached[0]}"]
