"""A backup of a stream, a scope or a root: which tables are copied, in what order, and the marker.

A table is copied as of a version of its own. What names is copied before what it names: the
indexes of all scopes before the groups, and all groups before the streams, so that no position of
a group lies ahead of the stream's copy. The target's marker says that it is not whole until
everything is there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pravega_spark.backup.table_copy import CopiedTable, copy_table
from pravega_spark.engine.failpoints import failpoint
from pravega_spark.engine.log.commit_log import Log
from pravega_spark.engine.runtime import Runtime
from pravega_spark.engine.store import Put, Store
from pravega_spark.engine.store.probe import ensure_probed
from pravega_spark.engine.store.root_marker import (
    COPY_FORMAT,
    MARKER_FORMAT,
    MARKER_KEY,
    PROBE_FOLDER,
    admitted,
    encode,
    look,
    read_record,
)
from pravega_spark.engine.stream.stream_log import events_path
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.tables.scopes import DELETED, GROUP, GROUPS_FOLDER, Scope
from pravega_spark.errors import IllegalState, InvalidInput, NoSuchScope, NoSuchStream
from pravega_spark.names import MAX_SCOPE_LENGTH, is_name, split_stream


@dataclass(frozen=True, slots=True)
class BackupResult:
    """What a backup copied: each table with its version in the source."""

    target: str
    backup_id: str
    tables: tuple[CopiedTable, ...]

    @property
    def versions(self) -> dict[str, int]:
        """The version of each stream's copy in the source, by name."""
        found = {t.path: t.version for t in self.tables if not t.is_deleted}
        suffix = events_path("")
        return {p.removesuffix(suffix): v for p, v in found.items() if p.endswith(suffix)}

    @property
    def transactions(self) -> dict[str, tuple[str, ...]]:
        """The transactions that were open, and are aborted in the copy, by stream."""
        suffix = events_path("")
        return {t.path.removesuffix(suffix): t.transactions for t in self.tables if t.transactions}

    @property
    def subscribers(self) -> dict[str, tuple[str, ...]]:
        """The groups that hold data of a stream and are not copied, by stream.

        The copy of the stream does not wait for them.
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


@dataclass(slots=True)
class Backup:
    """One run: from a store to another, which may hold what an earlier run left."""

    source: Store
    target: Store
    runtime: Runtime
    name: str
    """A scope, ``scope/stream``, or "" for the whole root."""
    keep_ms: int
    _told: dict[str, object] = field(default_factory=dict)
    _groups: set[str] = field(default_factory=set)
    """The reader groups that the copies of the scopes list."""

    def run(self) -> BackupResult:
        """Copy everything; safe to kill and to repeat with the same target, one run at a time.

        Raises NoSuchScope, NoSuchStream, InvalidInput for a target that lies in the source or the
        other way round, IllegalState for one that holds anything else, StoreRefused for one that
        cannot hold streams, DataLoss and CorruptLog for a source that is damaged.
        """
        _check_apart(self.source, self.target)
        self._check_source()
        with admitted(self.target):
            self._begin()
            copied = [self._copy(log) for log in self._tables()]
            self._check()
            failpoint("backup.marker")
            done = self.runtime.now_ms()
            self._mark(MARKER_FORMAT, {**self._told, "finished_ms": done})
        return BackupResult(self.target.url, str(self._told["id"]), tuple(copied))

    def _check_source(self) -> None:
        """Raise NoSuchScope if there is nothing to be copied: no empty copy passes for a backup."""
        has_marker = look(self.source, again=True) is not None
        if not has_marker or not (self.name or any(self._scopes())):
            what = "holds no scope" if has_marker else "has no marker, so it is no root"
            raise NoSuchScope(
                f"{self.source.url} {what}: nothing was copied. Name another root, or bring this "
                "one back if it was moved or unmounted."
            )

    def _scopes(self) -> Iterator[Scope]:
        """Yield the scopes to copy."""
        for name in [self.name] if self.name else self.source.folders(""):
            if is_name(name, MAX_SCOPE_LENGTH):
                scope = Scope(self.source, name, self.runtime)
                if scope.state() != DELETED:
                    yield scope
                elif self.name:
                    raise NoSuchScope(
                        f"scope {name} does not exist under {self.source.url}.", scope=name
                    )

    def _begin(self) -> None:
        """Take the target: an empty one, or one that this very backup was begun on."""
        before = read_record(self.target)
        told = {"of": self.source.url, "name": self.name}
        run, now_ms = self.runtime.token(), self.runtime.now_ms()
        if before is None:
            folders = [name for name in self.target.folders("") if name != PROBE_FOLDER]
            if folders or self.target.list(""):
                raise IllegalState(
                    f"{self.target.url} is not empty, so it cannot take a backup: name a folder "
                    "that is empty or does not exist."
                )
            self._told = {**told, "id": self.runtime.token(), "began_ms": now_ms, "run": run}
            record = {"format": COPY_FORMAT, "probed_ms": now_ms, "root": self.runtime.token()}
            marker = encode({**record, "backup": self._told})
            if self.target.put_if_absent(MARKER_KEY, marker) is Put.EXISTS:
                before = read_record(self.target)
        if before is not None:
            known = before.get("backup", {})
            is_ours = {key: known.get(key) for key in told} == told
            if before["format"] != COPY_FORMAT or not is_ours:
                what = "a root, or a backup that is whole"
                if before["format"] == COPY_FORMAT:
                    what = f"a backup of {known.get('of')} {known.get('name')} that is not whole"
                raise IllegalState(
                    f"{self.target.url} holds {what}, so it cannot take this backup: name a folder "
                    "that is empty or does not exist."
                )
            self._told = {**known, "run": run}
            self._mark(COPY_FORMAT, self._told)
        ensure_probed(self.target, self.runtime)

    def _mark(self, form: int, told: dict[str, object]) -> None:
        record = read_record(self.target) or {}
        self.target.put(MARKER_KEY, encode({**record, "format": form, "backup": told}))

    def _check(self) -> None:
        """Raise IllegalState if another run has taken the target meanwhile."""
        found = read_record(self.target) or {}
        if found.get("backup", {}).get("run") != self._told["run"]:
            raise IllegalState(
                f"another run has taken up the backup to {self.target.url}; leave it to that one, "
                "or repeat this one when it has ended."
            )

    def _copy(self, log: Log) -> CopiedTable:
        pin_id = str(self._told["id"])
        return copy_table(
            log,
            self.target,
            pin_id,
            keep_ms=self.keep_ms,
            check=self._check,
            has_group=self._groups.__contains__,
        )

    def _log(self, path: str) -> Log | None:
        log = Log(self.source, path, self.runtime)
        return None if log.refresh(durable=True) is None else log

    def _tables(self) -> Iterator[Log]:
        """Yield the tables to copy, each when those before it were copied."""
        if "/" in self.name:
            yield from self._lone_stream()
            return
        copies: list[Scope] = []
        for scope in self._scopes():
            yield scope.table.log
            copies.append(Scope(self.target, scope.name, self.runtime))

        yield from filter(None, map(self._log, self._paths(copies)))

    def _paths(self, copies: Sequence[Scope]) -> Iterator[str]:
        """Yield the tables that copied scopes list: all groups, which read streams of any scope."""
        for copy in copies:
            for name in sorted(copy.rows(GROUP)):
                self._groups.add(f"{copy.name}/{name}")
                yield f"{copy.name}/{GROUPS_FOLDER}/{name}"
        for copy in copies:
            for name in sorted(copy.rows()):
                yield events_path(f"{copy.name}/{name}")
                yield f"{copy.name}/{name}/metadata"

    def _lone_stream(self) -> Iterator[Log]:
        """Yield the tables of one stream; its copy gets a scope of its own."""
        scope, name = split_stream(self.name)
        log = self._log(events_path(self.name))
        if log is None or log.snapshot is None:
            raise NoSuchStream(
                f"stream {self.name} does not exist under {self.source.url}.", stream=self.name
            )
        view = StreamView(log.snapshot)
        view.check_exists()
        copy = Scope(self.target, scope, self.runtime)
        copy.create()
        copy.claim(name, view.life, view.record.configuration)
        yield log
        yield from filter(None, [self._log(f"{self.name}/metadata")])


def _check_apart(source: Store, target: Store) -> None:
    """Raise InvalidInput if one of the stores lies in the other."""
    a, b = (_address(store) for store in (source, target))
    if a.startswith(b) or b.startswith(a):
        raise InvalidInput(
            f"{target.url} and {source.url} lie in each other: name a target outside the root."
        )


def _address(store: Store) -> str:
    scheme, _, path = store.url.partition("://")
    if scheme == "file":
        path = os.path.realpath(path)
    return f"{scheme}://{path.rstrip('/')}/"
