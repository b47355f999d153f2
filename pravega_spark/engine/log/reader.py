"""Read a table's log: forward from the newest state file, and back through layers of files.

Commits that a process made or read, kept for its next state file, which reads none again. Only for
object stores, where each would be a request, and for logs to which the process commits, since
others write no state file. All logs of a process share one bound; what does not fit is read from
the storage.
"""

from __future__ import annotations

import itertools
import json
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from pravega_spark.config.descriptions import FileTotals
from pravega_spark.engine.log.actions import Commit, parse_commit
from pravega_spark.engine.log.delta_checkpoint import (
    DeltaCheckpoint,
    checkpoint_key,
    decode_checkpoint,
    digest_key,
)
from pravega_spark.engine.log.files import FileChanges, FileIndex, Layer, RecentLayer
from pravega_spark.engine.log.snapshot import Snapshot, check_supported, first_snapshot
from pravega_spark.engine.log.stored_state import (
    Span,
    StateFile,
    StatePart,
    decode_part,
    decode_state,
    joined_spans,
    part_folder,
    part_key,
    part_span,
    spans_after,
    state_key,
    state_version,
    states_after,
)
from pravega_spark.engine.runtime.json_codec import DECODE_ERRORS, to_json
from pravega_spark.engine.store import Store
from pravega_spark.errors import CorruptLog
from pravega_spark.primitives.process_locks import new_lock
from pravega_spark.values.limits import FAR_COMMITS, KEPT_COMMIT_BYTES, STATE_FILE_COMMITS

_ids = itertools.count()


class _Kept:
    """The bytes of commits by log and version, the oldest first."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self.forget()

    def forget(self) -> None:
        """Forget all; in a forked child, what a thread of the parent may have changed by half."""
        self._commits: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._size = 0

    def put(self, key: tuple[int, int], data: bytes) -> None:
        with self._lock:
            self._size += len(data) - len(self._commits.pop(key, b""))
            self._commits[key] = data
            while self._size > KEPT_COMMIT_BYTES:
                self._size -= len(self._commits.popitem(last=False)[1])

    def take(self, key: tuple[int, int]) -> bytes | None:
        with self._lock:
            data = self._commits.pop(key, None)
            self._size -= len(data or b"")
            return data


_kept = _Kept()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_kept.forget)


class KeptCommits:
    """The commits of one log that this process has seen and not yet taken back."""

    def __init__(self) -> None:
        self._id = next(_ids)
        self._is_on = False

    def keep_own(self, version: int, data: bytes) -> None:
        """Keep the bytes of a version that this process has committed, and those that it reads."""
        self._is_on = True
        _kept.put((self._id, version), data)

    def keep(self, version: int, data: bytes) -> None:
        """Keep the bytes of a version that this process has read, if it commits to the log, too."""
        if self._is_on:
            _kept.put((self._id, version), data)

    def take(self, version: int) -> bytes | None:
        """Return the bytes of a version and forget them; None if they are not kept."""
        return _kept.take((self._id, version))


_PAGE = 256


class Hint(NamedTuple):
    """The versions of the newest state file, of the newest checkpoint; -1 if unknown."""

    state: int = -1
    checkpoint: int = -1
    parts: tuple[int, ...] = ()
    """The last versions of the parts that follow the state file, in order."""

    @property
    def newest(self) -> int:
        """The version up to which the state file and its parts reach."""
        return self.parts[-1] if self.parts else self.state

    @property
    def spans(self) -> list[Span]:
        """The spans of the parts."""
        return spans_after(self.state, self.parts)

    def encode(self) -> bytes:
        """Return the bytes of the hint; earlier versions ignore the parts."""
        record = {"state": self.state, "checkpoint": self.checkpoint}
        return to_json(record | ({"parts": list(self.parts)} if self.parts else {})).encode()


def parse_hint(data: bytes | None) -> Hint:
    """Return what a hint names; nothing if it is absent or torn."""
    try:
        record = json.loads(data or b"")
        parts = tuple(map(int, record.get("parts", ())))
        return Hint(int(record["state"]), int(record["checkpoint"]), parts)
    except DECODE_ERRORS:
        return Hint()


class LogReader:
    """The stored objects of one table's log, read and verified; it keeps commits of late."""

    def __init__(self, store: Store, path: str) -> None:
        """Read the log of the table at ``path`` (a key of the store)."""
        self.store = store
        self.path = path
        self.folder = f"{path}/_delta_log"
        self.where = f"{store.url.rstrip('/')}/{path}"
        self.kept = KeptCommits()

    def key(self, version: int) -> str:
        """Return the key of a version's commit."""
        return f"{self.folder}/{version:020d}.json"

    @property
    def hint_key(self) -> str:
        """The key of the hint, which names the newest state file, its parts and checkpoint."""
        return f"{self.path}/_pravega/latest.json"

    def commit(self, version: int, *, light: bool) -> Commit | None:
        """Return the commit of a version, or None if there is none."""
        data = self.commit_bytes(version)
        return None if data is None else parse_commit(version, data, self.where, light=light)

    def commit_bytes(self, version: int) -> bytes | None:
        """Return the file of a version's commit, or None if there is none."""
        try:
            found = self.store.get(self.key(version))
        except FileNotFoundError:
            return None
        self.kept.keep(version, found)
        return found

    def next_commits(self, first: int, count: int) -> list[bytes | None]:
        """Return the files of the commits from a version on, in parallel; None for absent ones."""
        versions = range(first, first + count)
        found = self.store.get_many([self.key(version) for version in versions])
        for version, data in zip(versions, found, strict=True):
            if data is not None:
                self.kept.keep(version, data)
        return found

    def forward(self, after: int, *, light: bool) -> Iterator[Commit]:
        """Yield the commits after a version; one call if there is none.

        Yields every commit that existed at the time of the call, and perhaps some later ones. So
        it ends however fast other processes commit.
        """
        version = after + 1
        while (found := self.commit(version, light=light)) is not None:
            yield found
            if not self.store.is_local:
                last = self.last_listed(version)
                near = min(last, after + FAR_COMMITS)  # the caller may go on from a stored state
                yield from self.span(version, near, light=light)
                yield from self.span(near, last, light=light)
                return
            version += 1

    def span(
        self, after: int, last: int, *, light: bool = False, kept: bool = False
    ) -> Iterator[Commit]:
        """Yield the commits of (after, last]; raise CorruptLog if one is missing.

        With ``kept`` those that this process keeps are taken from memory.
        """
        for first in range(after + 1, last + 1, _PAGE):
            versions = range(first, min(first + _PAGE, last + 1))
            own = {version: self.kept.take(version) for version in versions if kept}
            wanted = [version for version in versions if own.get(version) is None]
            read = self.store.get_many([self.key(version) for version in wanted]) if wanted else []
            found = own | dict(zip(wanted, read, strict=True))
            for version in versions:
                data = found[version]
                if data is None:
                    raise self.missing(version, last)
                if not kept:
                    self.kept.keep(version, data)
                yield parse_commit(version, data, self.where, light=light)

    def has(self, version: int) -> bool:
        """Return whether the commit of a version is stored."""
        return self.store.exists(self.key(version))

    def written_ms(self, version: int) -> int:
        """Return when the commit of a version was written; -1 if there is none."""
        found = self.store.modified_ms(self.key(version))
        return -1 if found is None else found

    def has_gap(self, version: int) -> bool:
        """Return whether commits are stored behind a gap after the version that looks newest.

        On an object store a listing shows a gap of any length, because deletion has no order there.
        """
        if self.store.is_local:
            return self.has(version + 2) and not self.has(version + 1)
        entries = self.store.list(self.folder, after=self.key(version))
        listed = sorted(v for v in (state_version(e.key) for e in entries) if v > version)
        absent = (v for v, found in enumerate(listed, version + 1) if v != found)
        first = next(absent, None)
        return first is not None and not self.has(first)

    def missing(self, version: int, last: int) -> CorruptLog:
        """Return the error of a log with a gap, or whose ``last`` version is listed and unreadable.

        The second case is not a hole: the storage hides a commit for a moment.
        """
        failure = (
            f"version {version} of the log is listed, and a read does not find it. Try again; if "
            "it stays missing, restore it from a copy"
            if version == last
            else f"version {version} of the log is missing although version {last} exists. Restore "
            "it from a copy, or go back to the version before: call restore_stream for a stream, "
            "restore() for all of the root. A power cut leaves this on a disk that keeps a later "
            "name and drops an earlier one"
        )
        return CorruptLog(
            f"{self.where}: {failure}. If an older copy was put in its place while this process "
            "used the newer one: end this process and start it again.",
            path=self.where,
            version=version,
        )

    def last_listed(self, after: int) -> int:
        """Return the newest listed version after ``after``, or ``after`` if there is none."""
        entries = self.store.list(self.folder, after=self.key(after))
        versions = [v for v in (state_version(entry.key) for entry in entries) if v > after]
        return max(versions, default=after)

    def is_followed_by_newer(self, version: int) -> bool:
        """Return whether a version and all after it are listed, without a gap and an older date.

        A version that is gone was deleted since it was written: a deletion that is repeated, say.
        """
        entries = self.store.list(self.folder, after=self.key(version - 1))
        dates = {state_version(entry.key): entry.modified_ms for entry in entries}
        later = sorted(found for found in dates if found > version)
        own_ms = dates.get(version)
        return own_ms is not None and all(
            found == expected and own_ms <= dates[found]
            for expected, found in enumerate(later, version + 1)
        )

    def hint(self) -> Hint:
        """Return what the hint names."""
        return parse_hint(self.store.get_many([self.hint_key])[0])

    def state(self, version: int) -> StateFile | None:
        """Return the state file of a version if it is intact and matches the log's commit."""
        if version < 0:
            return None
        found, commit = self.store.get_many([state_key(self.path, version), self.key(version)])
        state = None if found is None else decode_state(version, found)
        if state is None or not self._is_commit(version, commit, state.snapshot.token):
            return None
        return replace(state, snapshot=state.snapshot.at(self.where))

    def _is_commit(self, version: int, data: bytes | None, token: str) -> bool:
        """Return whether the bytes are those of a version's commit with a token."""
        if data is None:
            return False
        return parse_commit(version, data, self.where, light=True).token == token

    def checked_state(
        self, hint: Hint, found: Sequence[bytes | None], commit: bytes
    ) -> Snapshot | None:
        """Return the state of a state file and its parts that were read.

        None unless all are intact, follow one another, and match the commit of the last version.
        """
        state = None if found[0] is None else decode_state(hint.state, found[0])
        if state is None:
            return None
        parts = map(decode_part, hint.spans, found[1:])
        snapshot = states_after(state.snapshot, parts)[-1]
        if snapshot.version != hint.newest:
            return None
        is_ours = self._is_commit(snapshot.version, commit, snapshot.token)
        return snapshot.at(self.where) if is_ours else None

    def parts(self, spans: Sequence[Span]) -> list[StatePart | None]:
        """Return the parts of some spans; None for one that is torn or matches no commit."""
        keys = [part_key(self.path, span) for span in spans]
        commits = [self.key(span.version) for span in spans]
        read = self.store.get_many([*keys, *commits]) if spans else []
        found: list[StatePart | None] = []
        for span, data, commit in zip(spans, read, read[len(spans) :], strict=False):
            part = decode_part(span, data)
            is_ours = part is not None and self._is_commit(span.version, commit, part.token)
            found.append(part if is_ours else None)
        return found

    def spans(self, after: int = -1) -> list[Span]:
        """Return the spans of the stored parts that end at a version or later."""
        folder = part_folder(self.path)
        entries = self.store.list(folder, after=f"{folder}/{max(after, 0):020d}")
        return [span for span in (part_span(entry.key) for entry in entries) if span is not None]

    def _parts_at(self, version: int) -> Iterator[StatePart]:
        """Yield the intact parts that end at a version, the longest first."""
        spans = sorted(span for span in self.spans(version) if span.version == version)
        return (part for part in self.parts(spans) if part is not None)

    def joined(self, version: int, spans: Sequence[Span]) -> Snapshot | None:
        """Return the state of a state file and of the parts after it, as far as these are intact.

        None if the state file itself is not.
        """
        state = self.state(version)
        if state is None:
            return None
        return states_after(state.snapshot, self.parts(spans))[-1]

    def file_totals(self, version: int) -> FileTotals | None:
        """Return the files that are live at a version if its state file or part counted them."""
        state = self.state(version)
        if state is not None:
            return state.files
        return next((part.files for part in self._parts_at(version)), None)

    def checkpoint(self, version: int) -> DeltaCheckpoint | None:
        """Return the checkpoint of a version if it is ours, intact, and matches the commit."""
        if version < 0:
            return None
        keys = [checkpoint_key(self.path, version), digest_key(self.path, version)]
        data, digest, commit = self.store.get_many([*keys, self.key(version)])
        if data is None or digest is None or commit is None:
            return None
        checkpoint = decode_checkpoint(version, data, digest)
        if checkpoint is None:
            return None
        token = parse_commit(version, commit, self.where, light=True).token
        return checkpoint if token == checkpoint.token else None

    def open(self, below: int | None = None) -> tuple[Snapshot, int] | None:
        """Return a snapshot and the last version of its layer of files; None if there is no log.

        The snapshot may be old: continue with :meth:`forward`. With ``below`` its version is
        lower than that, or 0. The layer's version is -1 if nothing but commits was used.
        """
        hint = self.hint()
        if below is None or hint.newest < below:
            found = self.joined(hint.state, hint.spans)
            if found is not None:
                return check_supported(found), found.version
        first = self.commit(0, light=True)
        if first is None:
            self._check_empty()
            return None
        return self._open_slowly(first, below)

    def open_known(self, below: int) -> tuple[Snapshot, int]:
        """Return what :meth:`open` does for a log of which a version is known.

        Raises CorruptLog if the log was lost since.
        """
        opened = self.open(below)
        if opened is None:
            raise self.missing(0, below - 1)
        return opened

    def _check_empty(self) -> None:
        """Raise CorruptLog if commits exist although version 0 is missing."""
        versions = [state_version(entry.key) for entry in self.store.list(self.folder)]
        if max(versions, default=-1) >= 0 and not self.has(0):
            raise CorruptLog(
                f"{self.where}: version 0 of the log is missing although version {max(versions)} "
                "exists. The storage was emptied under an open writer, only a part of it was "
                "copied, or a restore was killed. Restore it from a copy, or call that restore "
                "again.",
                path=self.where,
                version=0,
            )

    def _open_slowly(self, first: Commit, below: int | None) -> tuple[Snapshot, int]:
        """Open from the newest intact state file and its parts, else checkpoint, else version 0."""
        spans = [span for span in self.spans() if below is None or span.version < below]
        for version in self.listed("state", below):
            found = self.joined(version, joined_spans(version, spans))
            if found is not None:
                return check_supported(found), found.version
        for version in self.listed("checkpoint", below):
            checkpoint = self.checkpoint(version)
            if checkpoint is not None:
                return check_supported(checkpoint.snapshot().at(self.where)), version
        snapshot = first_snapshot(first, self.where)
        # Version 1 is looked up again, because it may be written while the listing runs.
        if not self.has(1) and self.last_listed(0) > 0 and not self.has(1):
            raise CorruptLog(
                f"{self.where}: old commits of the log were deleted, and none of its state files "
                "or checkpoints is intact. Restore one from a copy.",
                path=self.where,
            )
        return snapshot, -1

    def changes(self, after: int, last: int) -> Iterator[FileChanges]:
        """Yield what the commits of (after, last] did to files; the first may begin before that.

        A state file or a part tells it of all the commits that it passed, so a long range costs two
        calls for each of these. Commits are read where none tells it: of the versions behind the
        newest one, and where release 0.1.0 wrote it. Raises CorruptLog if a commit is missing.
        """
        for state in self._telling(after, last):
            if state.since > after:
                yield from self._read_changes(after, state.since)
            yield state.changes()
            after = state.version
        yield from self._read_changes(after, last)

    def _telling(self, after: int, last: int) -> Iterator[StateFile | StatePart]:
        """Yield, in order, state files of (after, last] and then parts that tell of changes."""
        if last - after <= STATE_FILE_COMMITS:
            return
        entries = self.store.list(f"{self.path}/_pravega/state", after=state_key(self.path, after))
        for version in sorted(v for e in entries if after < (v := state_version(e.key)) <= last):
            state = self.state(version)
            if state is not None and state.passed is not None:
                yield state
                after = version
        if last - after <= STATE_FILE_COMMITS:
            return
        spans = [span for span in self.spans(after + 1) if span.version <= last]
        while following := [s for s in spans if s.since <= after < s.version]:
            (part,) = self.parts([max(following)])
            if part is None or part.passed is None:
                return
            yield part
            after = part.version

    def _read_changes(self, after: int, last: int) -> Iterator[FileChanges]:
        """Yield the changes of (after, last] by the commits themselves."""
        for first in range(after, last, _PAGE):
            changes = FileChanges(first, first)
            for commit in self.span(first, min(first + _PAGE, last)):
                changes.apply(commit)
            yield changes

    def listed(self, kind: str, below: int | None = None) -> list[int]:
        """Return the versions that have a ``state`` file or a ``checkpoint``, newest first."""
        entries = self.store.list(f"{self.path}/_pravega/{kind}")
        versions = sorted((state_version(entry.key) for entry in entries), reverse=True)
        return [v for v in versions if v >= 0 and (below is None or v < below)]

    def layer(self, version: int) -> Layer:
        """Return the layer of files that ends at a version of a state file, part or checkpoint.

        A state file whose next older layer is older than some checkpoint is not used: cleanup may
        have deleted that layer. The commits since the checkpoint give the same files.
        """
        checkpoint = self.checkpoint(version)
        if checkpoint is not None:
            return checkpoint.layer()
        state = self.state(version)
        checkpoints = self.listed("checkpoint", version)
        for found in self._parts_at(version) if state is None else [state]:
            if not any(v > found.since for v in checkpoints):
                return found.layer()
        return self.replay(
            next((v for v in checkpoints if self.checkpoint(v) is not None), -1), version
        )

    def files(
        self, recent: RecentLayer, renew: Callable[[], RecentLayer] | None = None
    ) -> FileIndex:
        """Return the index of the live files whose newest layer is ``recent``."""
        return FileIndex(recent, self.layer, renew, recorded=self.file_totals, where=self.where)

    def replay(self, base: int, version: int) -> RecentLayer:
        """Build the layer of (base, version] from its commits."""
        layer = RecentLayer(base)
        try:
            for commit in self.span(base, version):
                layer.apply(commit)
        except CorruptLog as error:
            error.locate(self.where)
            raise
        return layer


def snapshot_at(reader: LogReader, version: int) -> Snapshot:
    """Return the state of a table at a version that its log has; raise CorruptLog without it."""
    found, _ = reader.open_known(below=version + 1)
    for commit in reader.span(found.version, version, light=True):
        found = found.apply(commit)
    return found


def table_at(reader: LogReader, version: int) -> tuple[Snapshot, FileIndex]:
    """Return the table's state and its live files as of a version.

    Raises CorruptLog if the stored objects do not suffice to rebuild them.
    """
    opened = reader.open(below=version + 1)
    if opened is None:
        raise CorruptLog(f"{reader.where}: the table has no log.", path=reader.where)
    found: Snapshot | None = opened[0] if opened[1] >= 0 else None
    recent = RecentLayer(opened[1])
    for commit in reader.span(recent.older, version):
        found = first_snapshot(commit, reader.where) if found is None else found.apply(commit)
        recent.apply(commit)
    assert found is not None
    return found, reader.files(recent)


def keys_after(reader: LogReader, version: int) -> list[str]:
    """Return the keys of all commits, state files, their parts and checkpoints after a version.

    Includes objects of other Delta writers, and Delta's pointer to its last checkpoint.
    """
    found = [f"{reader.folder}/_last_checkpoint"]
    folders = (f"{reader.path}/_pravega/{kind}" for kind in ("state", "checkpoint"))
    for folder in (reader.folder, *folders):
        for entry in reader.store.list(folder):
            number = entry.key.removeprefix(f"{folder}/").partition(".")[0]
            if number.isdecimal() and int(number) > version:
                found.append(entry.key)
    parts = [span for span in reader.spans(version) if span.version > version]
    return found + [part_key(reader.path, span) for span in parts]


def is_commit_key(key: str) -> bool:
    """Return whether a key that :func:`keys_after` returned is that of a commit."""
    folder, _, name = key.rpartition("/")
    return folder.endswith("/_delta_log") and state_version(name) >= 0
