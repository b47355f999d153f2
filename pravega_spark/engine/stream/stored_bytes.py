"""What a stream stores, by the reason why it is stored; the answer to "why is my disk full?".

Nothing is written. The objects are listed first and the newest version is read afterwards, so a
file that is committed or removed in between is counted by the newer state.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pravega_spark.config.descriptions import FileTotals
from pravega_spark.config.root_settings import EffectiveSettings
from pravega_spark.engine.attached_objects import attached_object, attached_to, with_attached
from pravega_spark.engine.chunk_paths import staged_version, transaction_of
from pravega_spark.engine.log.retained import UNDATED, VersionAges, pin_text, pins
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.log.sweep_record import read_swept, removed_since_retention_mark
from pravega_spark.engine.store.base import Entry
from pravega_spark.engine.stream.history import history_log
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.values.times import utc_text
from pravega_spark.values.units import duration_text


class StorageKind(enum.Enum):
    """Why an object of a stream is stored."""

    LIVE = "live"
    """Chunks of the newest version."""
    RETAINED = "retained"
    """Chunks that were truncated or compacted, and that a retained version still names."""
    STAGED = "staged"
    """Chunks without a commit that can still be committed."""
    OPEN_TRANSACTIONS = "open transactions"
    """Chunks of open transactions."""
    PENDING = "pending"
    """Chunks that no retained version and no later commit can name: the next sweep deletes them."""
    COMMITS = "commits"
    """The commits of the stream's log."""
    CHECKPOINTS = "checkpoints"
    """Delta checkpoints of the log, with their digests."""
    STATE = "state"
    """State files, hints and records beside the log."""
    TRANSACTIONS = "transactions"
    """Manifests and leases of transactions."""
    HISTORY = "history"
    """The stream's table ``metadata/``."""
    OTHER = "other"
    """Files that are not of this package."""
    SWEPT = "swept"
    """Chunks that sweeps of the stream have deleted so far; no part of the total."""


@dataclass(frozen=True, slots=True)
class StoragePart:
    """The files of one kind: their number, their bytes, and why they are stored."""

    kind: StorageKind
    files: int
    size_bytes: int
    reason: str = ""
    deletable_ms: int | None = None
    """When a sweep may delete the first of them, in ms since 1970; None if no time decides that."""
    large_events: int = 0
    """How many of the files hold a large event; each is stored as a separate object."""
    large_bytes: int = 0
    """The bytes of those objects, which ``size_bytes`` includes."""


@dataclass(frozen=True, slots=True)
class StorageInfo:
    """The objects of a stream by kind, as listed; ``live`` as of ``version``."""

    stream: str
    version: int
    parts: tuple[StoragePart, ...]
    """One part for each kind, in the order of :class:`StorageKind`."""

    def part(self, kind: StorageKind) -> StoragePart:
        """Return the part of a kind."""
        return next(part for part in self.parts if part.kind is kind)

    @property
    def total(self) -> FileTotals:
        """All objects that are stored."""
        stored = [part for part in self.parts if part.kind is not StorageKind.SWEPT]
        return FileTotals(sum(p.files for p in stored), sum(p.size_bytes for p in stored))

    def __str__(self) -> str:
        lines = [f"{self.stream} at version {self.version}: {self.total}"]
        for part in self.parts:
            if part.files:
                files = FileTotals(part.files, part.size_bytes)
                lines.append(f"  {part.kind.value}: {files}. {part.reason}".rstrip())
        return "\n".join(lines)


def stored_bytes(
    stream: StreamLog, settings: EffectiveSettings, *, life: int | None = None
) -> StorageInfo:
    """List the objects of a stream and return them by kind. Raises NoSuchStream, StaleIdentity."""
    log, store = stream.log, stream.store
    entries = store.list(log.path)
    manifests = store.list(f"{stream.name}/transactions")
    history = store.list(history_log(stream).path)
    log.expect_files()
    view = stream.view(life=life)
    with log.files() as files:
        snapshot = log.snapshot
        assert snapshot is not None
        live = set(with_attached(add.path for add in files.all()))
        totals = files.totals()
    found = _Chunks(snapshot, live, removed_since_retention_mark(log, snapshot))
    groups: dict[StorageKind, FileTotals] = dict.fromkeys(StorageKind, FileTotals())
    large: dict[StorageKind, FileTotals] = dict.fromkeys(StorageKind, FileTotals())
    paths = [entry.key.removeprefix(f"{log.path}/") for entry in entries]
    attached = attached_to(paths)  # counts as one file with its chunk
    for path, entry in zip(paths, entries, strict=True):
        kind, is_attached = found.kind_of(path), path in attached
        groups[kind] += FileTotals(not is_attached, entry.size)
        large[kind] += FileTotals(is_attached, entry.size if is_attached else 0)
    groups[StorageKind.LIVE] = totals
    groups[StorageKind.TRANSACTIONS] = _total(manifests)
    groups[StorageKind.HISTORY] = _total(history)
    groups[StorageKind.SWEPT] = read_swept(log)
    reasons = dict(_reasons(view, found, VersionAges.read(log, keep=False), settings))
    parts = []
    for kind, total in groups.items():
        reason, from_ms = reasons.get(kind, _NO_REASON) if total.files else _NO_REASON
        parts.append(
            StoragePart(
                kind,
                files=total.files,
                size_bytes=total.size_bytes,
                reason=reason,
                deletable_ms=from_ms,
                large_events=large[kind].files,
                large_bytes=large[kind].size_bytes,
            )
        )
    return StorageInfo(stream.name, snapshot.version, tuple(parts))


class _Chunks:
    """Decides the kind of each object below the events table; remembers the oldest of some."""

    def __init__(self, snapshot: Snapshot, live: set[str], removed: Mapping[str, int]) -> None:
        self.snapshot = snapshot
        self._live = live
        self._removed = dict(removed)
        for path, version in removed.items():
            attached = attached_object(path)
            if attached is not None:
                self._removed[attached[0]] = version
        self.first_removed: int | None = None
        """The oldest version that removed a retained chunk."""
        self.first_staged: int | None = None
        """The oldest version at which a chunk without a commit was staged."""

    def kind_of(self, path: str) -> StorageKind:
        folder, _, rest = path.partition("/")
        if folder == "data":
            return self._kind_of_chunk(path)
        if folder == "_delta_log":
            is_commit = rest.endswith(".json")
            return StorageKind.COMMITS if is_commit else StorageKind.CHECKPOINTS
        if folder == "_pravega":
            is_digest = rest.startswith("checkpoint/")
            return StorageKind.CHECKPOINTS if is_digest else StorageKind.STATE
        return StorageKind.OTHER

    def _kind_of_chunk(self, path: str) -> StorageKind:
        if path in self._live:
            return StorageKind.LIVE
        removed = self._removed.get(path)
        if removed is not None:
            self.first_removed = _least(self.first_removed, removed)
            return StorageKind.RETAINED
        staged, transaction = staged_version(path), transaction_of(path)
        if transaction is not None:
            is_open = transaction in self.snapshot.open
            return StorageKind.OPEN_TRANSACTIONS if is_open else StorageKind.PENDING
        if staged is None:
            return StorageKind.OTHER
        if staged < self.snapshot.horizon:
            return StorageKind.PENDING
        self.first_staged = _least(self.first_staged, staged)
        return StorageKind.STAGED


_Reason = tuple[str, int | None]
_NO_REASON: Final[_Reason] = ("", None)


def _reasons(
    view: StreamView, found: _Chunks, ages: VersionAges, settings: EffectiveSettings
) -> Iterator[tuple[StorageKind, _Reason]]:
    """Yield why the files of a kind are stored, and from when a sweep may delete them."""
    yield StorageKind.LIVE, (_live_reason(view), None)
    yield StorageKind.PENDING, ("The next sweep deletes them.", ages.now_ms)
    yield StorageKind.OPEN_TRANSACTIONS, ("Their transactions are open.", None)
    yield StorageKind.COMMITS, (_commits_reason(found.snapshot), None)
    if found.first_removed is not None:
        yield StorageKind.RETAINED, _retained_reason(found.first_removed, found, ages, settings)
    if found.first_staged is not None:
        yield StorageKind.STAGED, _staged_reason(found.first_staged, found, ages, settings)


def _live_reason(view: StreamView) -> str:
    if view.record.configuration.retention is None:
        return "The stream has no retention policy, so only a truncation removes them."
    return "The retention policy keeps them, or has not run since."


def _commits_reason(snapshot: Snapshot) -> str:
    readable = f"Versions from {snapshot.retention_mark} on can be read"
    if snapshot.commit_deletion_mark == 0:
        return f"{readable}; no sweep has let commits be deleted yet."
    return (
        f"{readable}; sweeps delete commits below {snapshot.commit_deletion_mark} an hour after "
        f"version {snapshot.commit_deletion_set_version} allowed it."
    )


def _retained_reason(
    removed: int, found: _Chunks, ages: VersionAges, settings: EffectiveSettings
) -> _Reason:
    held = list(pins(found.snapshot))
    if held:
        return " ".join(pin_text(pin, ages) for pin in held), None
    keep_ms = max(settings.retain_ms, settings.grace_ms)
    name = "retain" if settings.retain_ms >= settings.grace_ms else "grace"
    kept = f"Time travel: versions younger than {duration_text(keep_ms)} ({name}) name them."
    return _with_date(kept, removed, keep_ms, ages)


def _staged_reason(
    staged: int, found: _Chunks, ages: VersionAges, settings: EffectiveSettings
) -> _Reason:
    grace = f"Writers may still commit them until they are {duration_text(settings.grace_ms)} old"
    if staged >= found.snapshot.version:
        return f"{grace} (grace), counted from the next commit.", None
    return _with_date(f"{grace} (grace).", staged + 1, settings.grace_ms, ages)


def _with_date(kept: str, version: int, keep_ms: int, ages: VersionAges) -> _Reason:
    """Return a reason with the time at which a version is old enough, and that time."""
    if ages.dated_version(version) is None:
        return f"{kept} Versions from {version} on count as new. {UNDATED}", None
    from_ms = ages.written_ms(version) + keep_ms
    if from_ms <= ages.now_ms:
        return f"{kept} A sweep now deletes the first of them: none has run since.", from_ms
    when = utc_text(from_ms, "minutes")
    return (
        f"{kept} By the settings a sweep deletes the first of them from {when} on; one that is "
        "given shorter times, earlier."
    ), from_ms


def _least(one: int | None, other: int) -> int:
    return other if one is None else min(one, other)


def _total(entries: Iterable[Entry]) -> FileTotals:
    sizes = [entry.size for entry in entries]
    return FileTotals(len(sizes), sum(sizes))
