"""Read a table's log: forward from the newest state file, and back through layers of files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace

from pravega_spark.engine.json_codec import DECODE_ERRORS
from pravega_spark.engine.log.actions import Commit, parse_commit
from pravega_spark.engine.log.delta_checkpoint import (
    DeltaCheckpoint,
    checkpoint_key,
    decode_checkpoint,
    digest_key,
)
from pravega_spark.engine.log.file_index import FileIndex, Layer, RecentLayer
from pravega_spark.engine.log.kept_commits import KeptCommits
from pravega_spark.engine.log.snapshot import Snapshot, check_supported, first_snapshot
from pravega_spark.engine.log.state_file import StateFile, decode_state, state_key, state_version
from pravega_spark.engine.store import Store
from pravega_spark.errors import CorruptLog
from pravega_spark.model import FileTotals

_PAGE = 256


def parse_hint(data: bytes | None) -> tuple[int, int]:
    """Return the versions of the newest state file and checkpoint by a hint; -1 if unknown."""
    try:
        record = json.loads(data or b"")
        return int(record["state"]), int(record["checkpoint"])
    except DECODE_ERRORS:
        return -1, -1


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
        """The key of the hint: the versions of the newest state file and checkpoint."""
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
                yield from self.span(version, self.last_listed(version), light=light)
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

        The second one is no hole: the storage hides a commit for a moment.
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
        """Return whether the listed commits after a version have no gap and no older date."""
        entries = self.store.list(self.folder, after=self.key(version - 1))
        dates = {state_version(entry.key): entry.modified_ms for entry in entries}
        later = sorted(found for found in dates if found > version)
        own_ms = dates.get(version, 0)
        return all(
            found == expected and own_ms <= dates[found]
            for expected, found in enumerate(later, version + 1)
        )

    def hint(self) -> tuple[int, int]:
        """Return the versions of the newest state file and checkpoint; -1 if unknown."""
        return parse_hint(self.store.get_many([self.hint_key])[0])

    def state(self, version: int) -> StateFile | None:
        """Return the state file of a version if it is intact and matches the log's commit."""
        if version < 0:
            return None
        found, commit = self.store.get_many([state_key(self.path, version), self.key(version)])
        return (
            None if found is None or commit is None else self.checked_state(version, found, commit)
        )

    def checked_state(self, version: int, found: bytes, commit: bytes) -> StateFile | None:
        """Return a state file that was read if it is intact and matches the log's commit."""
        state = decode_state(version, found)
        if state is None:
            return None
        token = parse_commit(version, commit, self.where, light=True).token
        if token != state.snapshot.token:
            return None
        return replace(state, snapshot=state.snapshot.at(self.where))

    def file_totals(self, version: int) -> FileTotals | None:
        """Return the files that are live at a version if its state file has counted them."""
        state = self.state(version)
        return None if state is None else state.files

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
        lower than that, or 0. The layer's version is -1 if no state file or checkpoint was used.
        """
        hinted = self.hint()[0]
        state = None if below is not None and hinted >= below else self.state(hinted)
        if state is not None:
            return check_supported(state.snapshot), state.snapshot.version
        first = self.commit(0, light=True)
        if first is None:
            self._check_empty()
            return None
        return self._open_slowly(first, below)

    def _check_empty(self) -> None:
        """Raise CorruptLog if commits exist although version 0 is missing."""
        versions = [state_version(entry.key) for entry in self.store.list(self.folder)]
        if max(versions, default=-1) >= 0 and not self.has(0):
            raise CorruptLog(
                f"{self.where}: version 0 of the log is missing although version {max(versions)} "
                "exists. The storage was emptied under an open writer, or only a part of it was "
                "copied. Restore it from a copy.",
                path=self.where,
                version=0,
            )

    def _open_slowly(self, first: Commit, below: int | None) -> tuple[Snapshot, int]:
        """Open from the newest intact state file, else checkpoint, else version 0."""
        for version in self.listed("state", below):
            state = self.state(version)
            if state is not None:
                return check_supported(state.snapshot), version
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

    def listed(self, kind: str, below: int | None = None) -> list[int]:
        """Return the versions that have a ``state`` file or a ``checkpoint``, newest first."""
        entries = self.store.list(f"{self.path}/_pravega/{kind}")
        versions = sorted((state_version(entry.key) for entry in entries), reverse=True)
        return [v for v in versions if v >= 0 and (below is None or v < below)]

    def layer(self, version: int) -> Layer:
        """Return the layer of files that ends at a version with a state file or a checkpoint.

        A state file whose next older layer is older than some checkpoint is not used: cleanup may
        have deleted that layer. The commits since the checkpoint give the same files.
        """
        checkpoint = self.checkpoint(version)
        if checkpoint is not None:
            return checkpoint.layer()
        state = self.state(version)
        checkpoints = self.listed("checkpoint", version)
        if state is not None and not any(v > state.since for v in checkpoints):
            return state.layer()
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
    opened = reader.open(below=version + 1)
    if opened is None:
        raise reader.missing(0, version)
    found = opened[0]
    for commit in reader.span(found.version, version, light=True):
        found = found.apply(commit)
    return found
