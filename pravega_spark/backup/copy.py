"""Copies one table: its data files first, then its log; and brings a finished copy up to date.

A table's copy gets one commit, which holds all that differs from the copied version of the source
and has its number; commits without any change lead up to it. The commits of all tables wait until
the files of all are there. So the copy stays as it was until then, and each table changes at once.
They are applied in the reverse order of copying: streams before groups before indexes, so that a
killed update leaves no group ahead of its stream and no index that lists what is not there.

The commit that ends the copy of a table: what it is a copy of, and what the copy cannot keep. It
aborts open transactions, since their chunks are not copied. It also removes the records of reader
groups that the copy lacks: no such group could ever release its data there.

Copies one table: its data files first, then its log, and the log's version 0 last. Every open
refuses a log without version 0, so the copy becomes a table in one step, when all objects that its
newest version names are there. It ends with a closing commit.

A commit of a copy is created, and never replaced or deleted: on an object store a request to do
that may land long after the process that sent it has ended. So a run after a killed one goes on
with what that one has left: commits of the source are as good, and a table that has its closing
commit is brought up to date.

Copies a key-value table: its change log and its folded table, as of versions that fit. The folded
table is pinned first, so it reflects no later version of the change log than the one that is
copied. If a fold and a truncation came in between, the two versions do not fit, and both are copied
again; that costs little, since most files are there already.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial

from pravega_spark.engine.attached_objects import attached_object
from pravega_spark.engine.kinds import GROUP, STREAM, TABLE
from pravega_spark.engine.log.actions import REQUEST, Add, Body, Commit, Remove
from pravega_spark.engine.log.checkpoint import maintain
from pravega_spark.engine.log.commit import Log, create_object
from pravega_spark.engine.log.delta_checkpoint import checkpoint_key, digest_key
from pravega_spark.engine.log.files import FileIndex
from pravega_spark.engine.log.reader import Hint, LogReader, snapshot_at, table_at
from pravega_spark.engine.log.retained import Pin, pin, pins, release
from pravega_spark.engine.log.snapshot import OPEN_PREFIX, Snapshot
from pravega_spark.engine.log.stored_state import joined_spans, part_key, state_key, state_version
from pravega_spark.engine.log.sweep import delete_old_commits
from pravega_spark.engine.runtime.failpoints import failpoint
from pravega_spark.engine.runtime.json_codec import DECODE_ERRORS
from pravega_spark.engine.runtime.system import Runtime
from pravega_spark.engine.state.scopes import DELETED, Scope
from pravega_spark.engine.state.settings_table import SETTINGS_TABLE
from pravega_spark.engine.store import Store
from pravega_spark.engine.store.root_marker import scope_folders
from pravega_spark.engine.stream import archived_records
from pravega_spark.engine.stream.records import (
    OUTCOME_PREFIX,
    STREAM_DOMAIN,
    SUBSCRIBER_PREFIX,
    StreamState,
    TransactionOutcome,
    decode_open,
    decode_stream,
    decode_subscriber,
)
from pravega_spark.engine.stream.stream_log import events_path
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import CorruptLog, DataLoss, IllegalState, TooBusy
from pravega_spark.key_value.folded_record import FoldedRecord, completes, has_folds
from pravega_spark.values.limits import COPY_PAGE_BYTES, COPY_PAGE_FILES, LARGE_EVENT_BLOCK_BYTES
from pravega_spark.values.names import GROUPS_FOLDER, folded_path, is_group, table_log


def copy_files(
    log: Log, copy: LogReader, adds: Iterable[Add], sizes: Mapping[str, int]
) -> tuple[int, int]:
    """Copy the files that the copy lacks; return the number and the bytes of all files.

    ``sizes`` are those that it has. Raises DataLoss if a file of the source is missing or has the
    wrong size.
    """
    count = size_bytes = 0
    for page in _pages(adds):
        missing = [add for add in page if not _is_copied(add, log.path, sizes)]
        log.runtime.each(partial(_copy_file, log, copy), missing)
        count, size_bytes = count + len(page), size_bytes + sum(add.stored_bytes for add in page)
    return count, size_bytes


def _pages(adds: Iterable[Add]) -> Iterator[list[Add]]:
    page: list[Add] = []
    size_bytes = 0
    for add in adds:
        page.append(add)
        size_bytes += add.stored_bytes
        if len(page) >= COPY_PAGE_FILES or size_bytes >= COPY_PAGE_BYTES:
            yield page
            page, size_bytes = [], 0
    yield page


def _is_copied(add: Add, path: str, sizes: Mapping[str, int]) -> bool:
    attached = attached_object(add.path)
    if attached is not None and sizes.get(f"{path}/{attached[0]}") != attached[1]:
        return False
    return sizes.get(f"{path}/{add.path}") == add.size


def _copy_file(log: Log, copy: LogReader, add: Add) -> None:
    """Copy a data file, and before it the object of a large event, piece by piece."""
    attached = attached_object(add.path)
    if attached is not None:
        _copy_attached(log, copy, *attached)
    key = f"{log.path}/{add.path}"
    try:
        data = log.store.get(key)
    except FileNotFoundError:
        raise DataLoss(
            f"{log.reader.where}: file {add.path} does not exist, so the table cannot be backed "
            "up; restore the file from a copy.",
            path=f"{log.reader.where}/{add.path}",
        ) from None
    if len(data) != add.size:
        raise DataLoss(
            f"{log.reader.where}: file {add.path} has {len(data)} bytes instead of {add.size}, so "
            "the table cannot be backed up; restore the file from a copy.",
            path=f"{log.reader.where}/{add.path}",
        )
    failpoint("backup.file")
    copy.store.put(key, data)


def _copy_attached(log: Log, copy: LogReader, path: str, size: int) -> None:
    key, where = f"{log.path}/{path}", f"{log.reader.where}/{path}"
    try:
        with log.store.open(key) as source:
            found = source.size()
            if found == size:
                with copy.store.writer(key) as target:
                    while data := source.read(LARGE_EVENT_BLOCK_BYTES):
                        target.write(data)
    except FileNotFoundError:
        found = None
    if found != size:
        has = "does not exist" if found is None else f"has {found} bytes instead of {size}"
        raise DataLoss(
            f"{log.reader.where}: the object of a large event, {path}, {has}, so the table cannot "
            "be backed up; restore the object from a copy.",
            path=where,
        )
    failpoint("backup.object")


def copy_log(log: Log, copy: LogReader, snapshot: Snapshot, *, is_begun: bool) -> int | None:
    """Copy the log's objects up to the version of ``snapshot``, except for version 0.

    ``is_begun`` says that the copy may have some already. Returns a version of which the copy has
    another commit, None if all is copied. A concurrent cleanup may delete objects below the
    commit-deletion mark: the copy does not need them. Raises CorruptLog if the source lacks a
    commit from that mark on: the copy has the same mark, and processes rely on all commits from it
    on.
    """
    source, last = log.reader, snapshot.version
    # The commits come first: what is derived from them is true of no others.
    strange = _copy_commits(
        *(log.runtime, source, copy, max(1, snapshot.commit_deletion_mark), last), is_begun=is_begun
    )
    if strange is not None:
        return strange
    for version in source.listed("checkpoint", last + 1):
        keys = [checkpoint_key(source.path, version), digest_key(source.path, version)]
        _copy_objects(log.runtime, source, copy, keys)
    for version in source.listed("state", last + 1):
        _copy_objects(log.runtime, source, copy, [state_key(source.path, version)])
    for span in source.spans():
        if span.version <= last:
            _copy_objects(log.runtime, source, copy, [part_key(source.path, span)])
    wanted, stored = archived_keys(log, copy, last)
    copy.store.delete(stored.difference(wanted))
    for page in archived_pages(log, wanted):
        log.runtime.each(lambda item: copy.store.put(*item), page)
    return None


def archived_keys(log: Log, copy: LogReader, last: int) -> tuple[list[str], set[str]]:
    """Return the keys of the archived records up to a version, and those that a copy has.

    A later record would say that a writer has events which the copy has not.
    """
    archive = archived_records.archive_folder(log.path)
    wanted = [e.key for e in log.store.list(archive) if state_version(e.key) <= last]
    return wanted, {entry.key for entry in copy.store.list(archive)}


def archived_pages(log: Log, keys: Sequence[str]) -> Iterator[list[tuple[str, bytes]]]:
    """Yield the archived records of writers among the keys, some at a time."""
    for first in range(0, len(keys), COPY_PAGE_FILES):
        page = keys[first : first + COPY_PAGE_FILES]
        found = zip(page, log.store.get_many(page), strict=True)
        records = ((key, data) for key, data in found if data is not None)
        yield [item for item in records if archived_records.is_writer_archive(item[1])]


def _copy_commits(
    runtime: Runtime,
    source: LogReader,
    copy: LogReader,
    oldest_needed: int,
    last: int,
    *,
    is_begun: bool,
) -> int | None:
    """Copy all stored commits from version 1 to ``last``; each needed one must be there.

    Returns a version of which the copy has another commit, None without one.
    """
    stored = [state_version(entry.key) for entry in source.store.list(source.folder)]
    versions = [version for version in sorted(stored) if 0 < version <= last]
    needed = range(oldest_needed, last + 1)
    missing = set(needed) - set(versions)
    pages = [
        versions[first : first + COPY_PAGE_FILES]
        for first in range(0, len(versions), COPY_PAGE_FILES)
    ]
    if is_begun:
        # The closing commit of a killed run may land yet, after all commits that were copied then:
        # nothing is copied behind that place before it is known what is there.
        held = {entry.key for entry in copy.store.list(copy.folder)}
        pages.insert(0, [v for v in versions if copy.key(v) not in held][:1])
    for page in pages:
        found = source.store.get_many([source.key(version) for version in page])
        read = dict(zip(page, found, strict=True))
        missing |= {v for v, data in read.items() if data is None and v in needed}
        have = [(v, data) for v, data in read.items() if data is not None]

        def is_copied(one: tuple[int, bytes]) -> bool:
            return create_object(copy.store, runtime, copy.key(one[0]), one[1])

        for (version, _), is_ours in zip(have, runtime.each(is_copied, have), strict=True):
            if not is_ours:
                return version
    if missing:
        raise CorruptLog(
            f"{source.where}: version {min(missing)} of the log is missing. Restore it from "
            "a copy.",
            path=source.where,
            version=min(missing),
        )
    return None


def _copy_objects(
    runtime: Runtime, source: LogReader, copy: LogReader, keys: Sequence[str]
) -> None:
    """Copy those of some objects that the source has."""
    found = zip(keys, source.store.get_many(keys), strict=True)
    wanted = [(key, data) for key, data in found if data is not None]
    runtime.each(lambda item: copy.store.put(*item), wanted)


def write_pointer(copy: LogReader) -> None:
    """Write the pointer to the copy's newest state file, the parts after it, and checkpoint."""
    state, checkpoint = (max(copy.listed(kind), default=-1) for kind in ("state", "checkpoint"))
    parts = tuple(span.version for span in joined_spans(state, copy.spans()))
    copy.store.put(copy.hint_key, Hint(state, checkpoint, parts).encode())


BACKUP = "BACKUP"
"""Operation of the last commit of a table's copy, and of those that lead up to a newer one."""
REASON = "it was open when the stream was backed up, and its events are not in the copy"


@dataclass(frozen=True, slots=True)
class CopyRecord:
    """What the last commit of a table's copy says of the copy."""

    of: str
    """The source."""
    version: int
    """The version of the source that the copy holds, and the token of that version's commit."""
    token: str
    id: str
    """The id of the backup."""
    files: int
    bytes: int
    aborted: tuple[str, ...] = ()
    """Transactions that were open."""
    released: tuple[str, ...] = ()
    """Groups that hold data of the stream and are not copied."""

    def body(self) -> Body:
        """Return the body of a commit that says so."""
        return Body(BACKUP, asdict(self))

    @classmethod
    def of_commit(cls, commit: Commit | None) -> CopyRecord | None:
        """Return the record in a commit; None if it has none, as those of earlier releases."""
        if commit is None or commit.operation != BACKUP:
            return None
        try:
            stored = commit.info["operationParameters"]
            record = {name: json.loads(text) for name, text in stored.items()}
            lists = {name: tuple(record[name]) for name in ("aborted", "released")}
            return cls(**{**record, **lists})
        except (TypeError, *DECODE_ERRORS):
            return None


def closing_changes(
    snapshot: Snapshot, version: int, now_ms: int, has_group: Callable[[str], bool]
) -> tuple[dict[str, str | None], tuple[str, ...], tuple[str, ...]]:
    """Return what a table's copy drops of a snapshot, in the commit of ``version``.

    That is the changes of domains, the ids of the transactions that it aborts, and the subscribers
    that it releases. Other tables than streams have pins alone.
    """
    body = Body(BACKUP, domains={pin.domain: None for pin in pins(snapshot)})
    if STREAM_DOMAIN not in snapshot.domains or is_deleted(snapshot):
        return dict(body.domains), (), ()
    domains, released = _uncopied_groups(snapshot, has_group)
    body.domains = {**body.domains, **dict.fromkeys(domains)}
    aborted = abort_open_transactions(snapshot, body, version, now_ms, REASON)
    return dict(body.domains), tuple(aborted), tuple(released)


def is_deleted(snapshot: Snapshot) -> bool:
    """Return whether a table is the log of a deleted stream."""
    text = snapshot.domains.get(STREAM_DOMAIN)
    return text is not None and decode_stream(text).state is StreamState.DELETED


def abort_open_transactions(
    snapshot: Snapshot, body: Body, version: int, now_ms: int, reason: str
) -> list[str]:
    """Add to the commit of a version the abort of all open transactions; return their ids."""
    domains = dict(body.domains)
    for name, text in snapshot.open.items():
        opened = decode_open(name, text)
        outcome = TransactionOutcome(
            transaction_id=name,
            committed=False,
            created_ms=opened.created_ms,
            ended_ms=now_ms,
            version=version,
            decision="",
            writer_id=opened.writer_id,
            reason=reason,
        )
        domains[f"{OPEN_PREFIX}{name}"] = None
        domains[f"{OUTCOME_PREFIX}{name}"] = outcome.encode()
    body.domains = domains
    return sorted(snapshot.open)


def _uncopied_groups(
    snapshot: Snapshot, has_group: Callable[[str], bool]
) -> tuple[list[str], list[str]]:
    """Return the domains of groups that are not copied, and those of the groups that hold data.

    Includes removed groups: in the copy a group of that name starts at generation 0 again. Plain
    subscribers belong to the stream and are copied with it.
    """
    domains, holding = [], []
    for domain in snapshot.names(SUBSCRIBER_PREFIX):
        name = domain.removeprefix(SUBSCRIBER_PREFIX)
        if is_group(name) and not has_group(name):
            domains.append(domain)
            if not decode_subscriber(name, snapshot.domains[domain]).removed:
                holding.append(name)
    return domains, sorted(holding)


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
        return cls(
            CopyRecord(of=where, version=0, token=first.token, id=backup_id, files=0, bytes=0), 0
        )

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


_LOG = "/_delta_log/"


def _is_data(key: str) -> bool:
    return "/data/" in key and key.endswith((".parquet", ".event"))


class UnfinishedCopy:
    """The copy that a run makes or brings up to date: what it held before, and what waits.

    Each table's change is noted by :meth:`prepare` or :meth:`later` while tables are copied one
    after the other. Only :meth:`apply` makes the changes, when all are ready.
    """

    def __init__(
        self,
        source: Store,
        target: Store,
        backup_id: str,
        name: str,
        runtime: Runtime,
        check: Callable[[], None],
        *,
        is_open: bool,
        is_continued: bool,
    ) -> None:
        """Read what the copy of ``name`` holds, if it ``is_open``, that is finished.

        ``is_continued`` says that a killed run may have left tables which nothing lists. If it is
        neither, it is empty. ``check`` raises the error of another run that copies at the same
        time. Raises IllegalState if a table was written to since, or copied by an
        earlier release.
        """
        self._source = source
        self._target = target
        self._runtime = runtime
        self._backup_id = backup_id
        self._name = name
        self.check = check
        self.is_open = is_open
        self._is_continued = is_continued
        paths = list(self._paths()) if is_open else []
        found = runtime.each(self._table_copy, paths)
        self._copies = {
            path: copy for path, copy in zip(paths, found, strict=True) if copy is not None
        }
        self._begun = set[str]()
        self._waiting: dict[str, Callable[[], None]] = {}
        self._unneeded: list[str] = []

    def _paths(self) -> Iterator[str]:
        """Yield the paths of the tables that the copy may have."""
        yield SETTINGS_TABLE
        if "/" in self._name:
            yield from (events_path(self._name), f"{self._name}/metadata")
            return
        for folder in scope_folders(self._target):
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

    def begin(self, path: str) -> None:
        """Note that this run begins to copy a table."""
        self._begun.add(path)

    def may_hold(self, path: str) -> bool:
        """Return whether the copy may have something of a table."""
        return self.is_open or self._is_continued or path in self._begun

    def copy_of(self, log: Log) -> TableCopy | None:
        """Return what the copy has of a table; None without it, or with a part of its log alone."""
        path = log.path
        if path not in self._copies and self.may_hold(path) and self._is_whole(log):
            found = self._table_copy(path)
            if found is not None:
                self._copies[path] = found
        return self._copies.get(path)

    def _is_whole(self, log: Log) -> bool:
        """Return whether the copy has a table's whole log; create version 0 if that alone lacks.

        Raises IllegalState for the copy of another table.
        """
        copy = LogReader(self._target, log.path)
        newest = copy.last_listed(-1)
        if newest < 0 or copy.has(0):
            return newest >= 0
        record = CopyRecord.of_commit(copy.commit(newest, light=True))
        if record is None or record.id != self._backup_id:
            return False
        copied = log.reader.commit(record.version, light=True)
        if copied is not None and copied.token != record.token:
            raise _other_table(log)
        if not create_object(self._target, self._runtime, copy.key(0), _first_commit(log)):
            raise _other_table(log)
        write_pointer(copy)
        return True

    def gone(self, kept: Collection[str]) -> list[str]:
        """Return the paths of the tables that the copy has besides those that are kept.

        Files that a killed run has left of other tables are deleted at the end.
        """
        found = set(self._copies)
        if self._is_continued:
            left = [e.key for name in scope_folders(self._target) for e in self._target.list(name)]
            found.update(key.partition(_LOG)[0] for key in left if _LOG in key)
            known = tuple(f"{path}/" for path in found.union(kept))
            self._unneeded.extend(k for k in left if _is_data(k) and not k.startswith(known))
        return sorted(found.difference(kept))

    def check_whole(self, paths: Iterable[str]) -> None:
        """Raise IllegalState if the copy has no more than a part of one of these tables."""
        for path in paths:
            copy = LogReader(self._target, path)
            if not copy.has(0):
                raise IllegalState(
                    f"{copy.where} holds a part of a table that the source has lost since it was "
                    "copied, so the backup cannot be completed. Make a new one in another folder."
                )

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
        while path == SETTINGS_TABLE and _clears_settings(last):  # the backup itself did
            assert last is not None
            last = log.reader.commit(last.version - 1, light=True)
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
        last: int,
    ) -> None:
        """Prepare commit ``last``, which brings a table's copy up to a version of the source.

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
        now_ms = max(self._runtime.now_ms(), old.timestamp_ms + last - since)
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
            for version in range(since + 1, last):
                token, time_ms = f"{before.record.token}.{version}", old.timestamp_ms + version
                leading = before.record.body().encode(token, time_ms - since)
                self._create(copy, version, leading, is_known=True)
                failpoint("backup.leading")

        def apply() -> None:
            self._runtime.each(lambda item: self._target.put(*item), new)
            if is_new:
                self._create(copy, 0, _first_commit(log))
                lead_up()
            self._create(copy, last, data)
            failpoint("backup.applied")
            maintain(copy, last)
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
            commit = copy.commit(version, light=False)
            found = CopyRecord.of_commit(commit)
            is_ours = found is not None and found.id == self._backup_id
            if commit is not None and (is_ours or _clears_settings(commit)):
                if is_known and is_ours and not (commit.adds or commit.removes or commit.domains):
                    return
                self.check()
                raise TooBusy(
                    f"{copy.where}: another run, or one that was killed just now, has changed the "
                    "copy. Wait until it has ended, and repeat the backup."
                )
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


def _first_commit(log: Log) -> bytes:
    return log.store.get(log.reader.key(0))


def _clears_settings(commit: Commit | None) -> bool:
    if commit is None or commit.operation != "SET SETTINGS":
        return False
    return not json.loads(commit.info["operationParameters"]["set"])


def _keys(table: str, path: str) -> list[str]:
    attached = attached_object(path)
    keys = [f"{table}/{path}"]
    return keys if attached is None else [*keys, f"{table}/{attached[0]}"]


@dataclass(frozen=True, slots=True)
class CopiedTable:
    """A table that was copied: its version in the source, and what the copy holds."""

    path: str
    version: int
    files: int
    size_bytes: int
    transactions: tuple[str, ...] = ()
    """Transactions that were open; they are aborted in the copy."""
    subscribers: tuple[str, ...] = ()
    """Groups that hold data of the stream and are not copied; in the copy they hold nothing."""
    is_deleted: bool = False
    """Whether the stream was deleted before it could be copied; it is deleted in the copy, too."""


def _copied(path: str, record: CopyRecord, snapshot: Snapshot) -> CopiedTable:
    given = record.version, record.files, record.bytes, record.aborted, record.released
    return CopiedTable(path, *given, is_deleted(snapshot))


@dataclass(frozen=True, slots=True)
class TableCopier:
    """How the tables of one backup are copied."""

    target: Store
    backup_id: str
    keep_ms: int
    """How long a version stays pinned at most."""
    has_group: Callable[[str], bool]
    """Whether the copy has a reader group."""
    update: UnfinishedCopy

    def pin(self, log: Log) -> Pin:
        """Pin a version above all that the copy has: its commit there gets the same number."""
        held, before = pin(log, self.backup_id, keep_ms=self.keep_ms), self.update.copy_of(log)
        while before is not None and held.version <= before.newest:
            held = pin(log, self.backup_id, keep_ms=self.keep_ms)
        return held

    def unchanged(self, log: Log) -> CopiedTable | None:
        """Return what the copy holds of a table that has not changed in the source since."""
        before = self.update.copy_of(log)
        snapshot = log.refresh(durable=True)
        if before is None or snapshot is None or not before.is_current(log, snapshot):
            return None
        if not self.update.is_open:  # the files that a killed run has left are looked at again
            return None
        return _copied(log.path, before.record, snapshot)

    def copy(
        self,
        log: Log,
        held: Pin | None = None,
        *,
        seen: Callable[[Snapshot], object] = bool,
        is_index: bool = False,
    ) -> CopiedTable:
        """Copy a table to the same path, as of its newest or a ``held`` version.

        The version is pinned until its files are copied. The deletion of the stream also deletes
        pinned files; the copy then starts again with the stream's present state. ``seen`` is called
        with the version's snapshot while it is pinned. Safe to kill and to repeat. In an update, a
        table that is in the copy, and an index, changes when the update is applied, and one that
        has not changed in the source costs no commit there. Raises CorruptLog and DataLoss for
        damage, IllegalState if the pin expired too early or the source has another table there.
        """
        copy = LogReader(self.target, log.path)
        while True:
            snapshot = log.refresh(durable=True)
            assert snapshot is not None, f"{log.reader.where} has no log to copy"
            before = self.update.copy_of(log)
            is_known = before is not None and held is None
            if is_known and (kept := self.unchanged(log)) is not None:
                seen(snapshot)
                return kept
            if is_deleted(snapshot):  # it has no files, so it needs no pin
                held, version = None, snapshot.version
            else:
                held = held or self.pin(log)
                version = held.version
                failpoint("backup.pinned")
            try:
                done = self._copy_version(log, copy, version, before, seen, is_index=is_index)
                if done is not None:
                    return done
            except (CorruptLog, DataLoss, FileNotFoundError):
                self.update.check()
                if not _was_deleted_since(log, snapshot, version):
                    _check_pinned(log, held)
                    raise
            finally:
                if held is not None:
                    release(log, held)
                    held = None

    def _copy_version(
        self,
        log: Log,
        copy: LogReader,
        version: int,
        before: TableCopy | None,
        seen: Callable[[Snapshot], object],
        *,
        is_index: bool,
    ) -> CopiedTable | None:
        """Copy a version, or prepare the commit that brings a copy up to it.

        Returns None if a run before this one has written to the copy's log meanwhile.
        """
        update = self.update
        snapshot, files = table_at(log.reader, version)
        seen(snapshot)
        is_begun = update.may_hold(copy.path)
        listed = copy.store.list(f"{copy.path}/data") if is_begun else []
        update.begin(copy.path)
        sizes = {entry.key: entry.size for entry in listed}
        count, size_bytes = copy_files(log, copy, files.all(), sizes)
        failpoint("backup.files")
        now_ms = max(log.runtime.now_ms(), snapshot.timestamp_ms + 1)
        is_prepared = before is not None or (is_index and update.is_open)
        last = version if is_prepared else version + 1
        if before is not None:  # a stream that was deleted may have no version that is higher
            last = max(last, before.newest + 1)
        domains, aborted, released = closing_changes(snapshot, last, now_ms, self.has_group)
        record = CopyRecord(
            *(log.reader.where, version, snapshot.token, self.backup_id),
            *(count, size_bytes, aborted, released),
        )
        done = _copied(log.path, record, snapshot)
        if is_prepared:
            update.prepare(
                *(log, before, snapshot, files),
                closing=domains,
                record=record,
                last=last,
            )
            return done
        body = record.body()
        body.domains = domains
        closing = body.encode(log.runtime.token(), now_ms)
        strange = copy_log(log, copy, snapshot, is_begun=is_begun)
        if strange is None and not self._create(log, copy.key(last), closing):
            strange = last
        if strange is not None:
            update.check()
            if update.copy_of(log) is None and not _is_same_commit(log.reader, copy, strange):
                raise _other_table(log)
            return None
        failpoint("backup.log")
        update.check()
        if not self._create(log, copy.key(0), _first_commit(log)):
            raise _other_table(log)
        found, copied = table_at(copy, last)
        if found.version != last or sum(1 for _ in copied.all()) != count:
            raise CorruptLog(
                f"{copy.where}: the copy differs from its source {log.reader.where}. Delete the "
                "copy, and make a new one in another folder.",
                path=copy.where,
            )
        failpoint("backup.table")
        write_pointer(copy)
        return done

    def _create(self, log: Log, key: str, data: bytes) -> bool:
        return create_object(self.target, log.runtime, key, data)


def _is_same_commit(source: LogReader, copy: LogReader, version: int) -> bool:
    """Return whether a commit of the copy is the source's, from a run that is ahead of this one."""
    found = source.commit(version, light=True), copy.commit(version, light=True)
    return found[0] is not None and found[1] is not None and found[0].token == found[1].token


def _was_deleted_since(log: Log, before: Snapshot, version: int) -> bool:
    """Return whether a life of the stream ended, or its log was cut, after a version."""
    now = log.refresh(durable=True)
    assert now is not None
    return now.version > version and (is_deleted(now) or _life(now) != _life(before))


def _check_pinned(log: Log, held: Pin | None) -> None:
    """Raise IllegalState if the pin has expired: the source is then not damaged."""
    assert log.snapshot is not None
    if held is not None and held not in pins(log.snapshot):
        raise IllegalState(
            f"{log.reader.where}: the pin of version {held.version} expired after "
            f"{held.keep_ms / 1000:g} s, and a sweep deleted pinned files before they were copied. "
            "Run the backup again with `keep` longer than the time to copy one table."
        )


def _life(snapshot: Snapshot) -> int:
    """Return the life of a stream, 0 for any other table."""
    text = snapshot.domains.get(STREAM_DOMAIN)
    return 0 if text is None else decode_stream(text).life


_ATTEMPTS = 16
"""How often a copy begins again because the change log was truncated between the two pins."""


def copy_key_value_table(copier: TableCopier, log: Log, folded: Log) -> tuple[CopiedTable, ...]:
    """Copy a change log and its folded table, if it has one, as ``copier`` copies one.

    The copy is exact at the version of the change log. Raises TooBusy if each time the change log
    was truncated in a moment, and what the copier raises.
    """
    seen = list[Snapshot]()
    for _ in range(_ATTEMPTS):
        kept = held = None
        if folded.refresh(durable=True) is not None:
            kept = copier.unchanged(folded)
            held = None if kept else copier.pin(folded)
        try:
            failpoint("backup.folded")
            done = copier.copy(log, seen=seen.append)
            at = kept or held
            version = None if at is None else at.version
            if not done.is_deleted and not _fit(seen[-1], folded, version):
                continue
            if version is None:
                return (done,)
            return done, kept or copier.copy(folded, held)
        finally:
            if held is not None:
                release(folded, held)
    raise TooBusy(
        f"{log.reader.where}: a fold truncated the change log between two commits of the backup, "
        f"{_ATTEMPTS} times in a row. Run the backup again."
    )


def _fit(changes: Snapshot, folded: Log, version: int | None) -> bool:
    """Return whether the folded table holds at a version what the copied change log lacks."""
    view = StreamView(changes)
    if version is None:
        return not has_folds(view)
    return completes(FoldedRecord.of(snapshot_at(folded.reader, version)), view)
