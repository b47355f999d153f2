"""Conditional updates of a table: whether each may be done, and one commit for all that wait.

Whoever gets the lock decides for all: each update is checked on the newest version that this
process knows, with those before it in the same commit, and the commit wins only on exactly that
version. After a lost race all are decided again, on the winner's version. A refusal counts once its
version was the newest at some moment of the call.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from pravega_spark.engine.chunk_paths import version_folder
from pravega_spark.engine.chunks.chunk import StagedChunk, encode_events
from pravega_spark.engine.chunks.routing import Router
from pravega_spark.engine.chunks.tiny import LoneEvent
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.commit import Committed, Proposal
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.runtime.failpoints import failpoint
from pravega_spark.engine.stream.commit_builder import CommitBuilder
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.writing.append import APPEND, check_open, ranges_of
from pravega_spark.engine.writing.group_commit import group_of
from pravega_spark.engine.writing.stage import RoutedEvents, stage_routed
from pravega_spark.errors import (
    BadKeyVersion,
    CommitUnknown,
    InvalidInput,
    NoSuchKey,
    PravegaSparkError,
    TooBusy,
)
from pravega_spark.key_value.changes import Change, encode_change
from pravega_spark.key_value.entry import KeyVersion
from pravega_spark.key_value.index import TableIndex
from pravega_spark.key_value.keys import Key, KeyCodec, TableKey
from pravega_spark.primitives.process_locks import new_lock
from pravega_spark.values.checks import check_list, shown
from pravega_spark.values.limits import (
    COMMIT_ATTEMPTS,
    MAX_ATOMIC_WRITE_BYTES,
    MAX_TABLE_UPDATE_KEYS,
    REQUEST_AFTER,
    RESTAGE_VERSIONS,
    TABLE_COMMIT_BYTES,
    TABLE_COMMIT_KEYS,
)


@dataclass(frozen=True, slots=True)
class TableInsert:
    """Set the value of a key that must not exist."""

    key: Key
    value: bytes | str
    secondary_key: bytes | str = b""


@dataclass(frozen=True, slots=True)
class TablePut:
    """Set the value of a key; with a version only if the key has that one."""

    key: Key
    value: bytes | str
    version: KeyVersion | str = KeyVersion.NO_VERSION
    secondary_key: bytes | str = b""


@dataclass(frozen=True, slots=True)
class TableRemove:
    """Remove a key; with a version only if the key has that one."""

    key: Key
    version: KeyVersion | str = KeyVersion.NO_VERSION
    secondary_key: bytes | str = b""


TableModification = TableInsert | TablePut | TableRemove
"""One part of an update."""


class Step(NamedTuple):
    """A part of an update as it is decided: the key must have the version, then gets the value."""

    key: TableKey
    value: bytes | None
    version: KeyVersion


class UpdateEncoder:
    """Checks and encodes the updates of one table."""

    __slots__ = ("_codec", "_value_limit")

    def __init__(self, codec: KeyCodec, value_limit: int) -> None:
        self._codec = codec
        self._value_limit = value_limit

    def steps(self, modifications: Sequence[TableModification]) -> tuple[Step, ...]:
        """Return an update as steps; raise InvalidInput for one that is not allowed."""
        table = self._codec.table
        given = check_list("an update", modifications)
        if len(given) > MAX_TABLE_UPDATE_KEYS:
            raise InvalidInput(
                f"an update of table {table} has {len(given)} keys; at most "
                f"{MAX_TABLE_UPDATE_KEYS} are allowed. Divide it over several updates, or put keys "
                "without a condition."
            )
        steps = tuple(map(self._step, given))
        counts = Counter(step.key for step in steps)
        if len(counts) < len(steps):
            twice = self._codec.decode(counts.most_common(1)[0][0].primary)
            raise InvalidInput(
                f"an update of table {table} names the key {shown(twice)} twice; give its last "
                "change alone."
            )
        size = sum(len(s.key.primary) + len(s.key.secondary) + len(s.value or b"") for s in steps)
        if size > MAX_ATOMIC_WRITE_BYTES:
            raise InvalidInput(
                f"an update of table {table} has {size} bytes; at most {MAX_ATOMIC_WRITE_BYTES} "
                "are allowed. Divide it over several updates."
            )
        return steps

    def _step(self, one: object) -> Step:
        if isinstance(one, TableInsert):
            version, value = KeyVersion.NOT_EXISTS, self.value(one.value)
        elif isinstance(one, TablePut):
            version, value = self._version(one.version), self.value(one.value)
        elif isinstance(one, TableRemove):
            version = self._version(one.version)
            key = self._codec.encode(one.key, one.secondary_key)
            if version == KeyVersion.NOT_EXISTS:
                raise InvalidInput(
                    f"a removal of table {self._codec.table} names the version of a key that does "
                    "not exist; there is nothing to remove."
                )
            return Step(key, None, version)
        else:
            raise InvalidInput(
                f"an update of table {self._codec.table} consists of TableInsert, TablePut and "
                f"TableRemove, got {shown(one)}."
            )
        return Step(self._codec.encode(one.key, one.secondary_key), value, version)

    def value(self, value: object) -> bytes:
        """Return a value as bytes; raise InvalidInput for one that the table does not take."""
        if isinstance(value, str):
            try:
                value = value.encode()
            except UnicodeEncodeError:
                raise InvalidInput(
                    f"the value {shown(value)} for table {self._codec.table} has no UTF-8 form: "
                    "replace the lone surrogates in it."
                ) from None
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise InvalidInput(
                f"a value of table {self._codec.table} must be bytes or str, not "
                f"{type(value).__name__}: {shown(value)}."
            )
        data = bytes(value)
        if len(data) > self._value_limit:
            raise InvalidInput(
                f"a value of {len(data)} bytes for table {self._codec.table} is larger than "
                f"{self._value_limit} bytes, its max_value_bytes; store it elsewhere and put a "
                "reference."
            )
        return data

    def _version(self, version: object) -> KeyVersion:
        if isinstance(version, str):
            return KeyVersion.parse(version)
        if not isinstance(version, KeyVersion):
            raise InvalidInput(
                f"a version of a key must be a KeyVersion or its text, got {shown(version)}."
            )
        return version


class UpdateCheck:
    """Decides updates one after the other on one version of a table."""

    def __init__(self, codec: KeyCodec, life: int, found: Mapping[TableKey, Change]) -> None:
        """Take the entries of all keys that the updates name, as far as they exist."""
        self._codec = codec
        self._life = life
        self._found = found
        self._written: dict[TableKey, bytes | None] = {}
        """What updates before this one write in the same commit."""

    def accept(self, steps: Sequence[Step]) -> None:
        """Take an update as part of the commit; raise BadKeyVersion or NoSuchKey if it fails."""
        for step in steps:
            if step.version != KeyVersion.NO_VERSION:
                self._check(step)
        self._written.update((step.key, step.value) for step in steps)

    def _check(self, step: Step) -> None:
        key, wanted = step.key, step.version
        current: KeyVersion | None
        if key in self._written:  # its version is decided by the commit, so no caller can name it
            current = None if self._written[key] is not None else KeyVersion.NOT_EXISTS
        else:
            change = self._found.get(key)
            current = KeyVersion.NOT_EXISTS
            if change is not None:
                current = KeyVersion(self._life, change.segment_id, change.offset)
        if current == wanted:
            return
        known = self._codec.decode(key.primary)
        fields: dict[str, object] = {
            "table": self._codec.table,
            "key": known,
            "version": None if current is None else str(current),
        }
        if current == KeyVersion.NOT_EXISTS:
            raise NoSuchKey(
                f"table {self._codec.table}: key {shown(known)} does not exist, and the update "
                f"names its version {wanted}. Get it again and decide again.",
                **fields,  # type: ignore[arg-type]
            )
        has = "another version" if current is None else f"the version {current}"
        needs = "must not exist" if wanted == KeyVersion.NOT_EXISTS else f"must have {wanted}"
        raise BadKeyVersion(
            f"table {self._codec.table}: key {shown(known)} has {has}, and for the update it "
            f"{needs}. Get it again and decide again.",
            **fields,  # type: ignore[arg-type]
        )


class OpenUpdate:
    """An update whose caller waits."""

    __slots__ = ("error", "size_bytes", "steps", "versions")

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = steps
        self.size_bytes = sum(len(s.key.primary) + len(s.value or b"") for s in steps)
        self.versions: tuple[KeyVersion, ...] | None = None
        self.error: BaseException | None = None

    @property
    def is_done(self) -> bool:
        """Whether the outcome is known."""
        return self.versions is not None or self.error is not None


@dataclass(slots=True)
class _Plan:
    """What one version of the table makes of the updates that wait."""

    view: StreamView
    accepted: list[OpenUpdate] = field(default_factory=list)
    refused: dict[OpenUpdate, PravegaSparkError] = field(default_factory=dict)
    builder: CommitBuilder | None = None
    body: Body | None = None
    routed: RoutedEvents | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Staged:
    """The chunks of accepted updates, which a later plan may use again."""

    updates: tuple[OpenUpdate, ...]
    epoch: int
    version: int
    """The version in whose folder they are."""
    chunks: Sequence[StagedChunk]
    routed: RoutedEvents
    times_us: int


class UpdateCombiner:
    """The conditional updates of one life of a table in this process; thread-safe."""

    def __init__(self, stream: StreamLog, index: TableIndex, codec: KeyCodec) -> None:
        self._stream = stream
        self._index = index
        self._codec = codec
        self._waiting: list[OpenUpdate] = []
        self._waiting_lock = new_lock()
        self._staging_version: int | None = None
        self._staged: _Staged | None = None

    def update(self, steps: Sequence[Step]) -> tuple[KeyVersion, ...]:
        """Commit an update with all or none of its steps; return the new versions.

        Raises BadKeyVersion, NoSuchKey, StreamSealed, NoSuchStream, StaleIdentity, TooBusy,
        CommitUnknown and StoreError, and ForkedProcess in a forked child.
        """
        self._index.guard.check()
        own = OpenUpdate(steps)
        with self._waiting_lock:
            self._waiting.append(own)
        with self._index.lock:  # its holder commits for all
            while not own.is_done:
                self._serve(self._next())
        if own.error is not None:
            raise own.error
        assert own.versions is not None
        return own.versions

    def _next(self) -> list[OpenUpdate]:
        """Take updates for one commit, in the order in which they came."""
        taken = keys = size = 0
        with self._waiting_lock:
            for one in self._waiting:
                keys, size = keys + len(one.steps), size + one.size_bytes
                if taken and (keys > TABLE_COMMIT_KEYS or size > TABLE_COMMIT_BYTES):
                    break
                taken += 1
            found, self._waiting = self._waiting[:taken], self._waiting[taken:]
        return found

    def _serve(self, updates: list[OpenUpdate]) -> None:
        """Bring updates to their outcomes; an error of the storage is that of all."""
        try:
            self._commit(updates)
        except BaseException as error:
            for one in updates:
                if not one.is_done:
                    one.error = _error_of(error, self._stream.name)
            if not isinstance(error, PravegaSparkError):
                raise

    def _commit(self, updates: list[OpenUpdate]) -> None:
        log, runtime = self._stream.log, self._stream.runtime
        request: str | None = None
        for lost in range(COMMIT_ATTEMPTS):
            if lost and lost % REQUEST_AFTER == 0:
                request = log.request()
            elif lost > REQUEST_AFTER:
                runtime.sleep(runtime.random() * min(0.001 * lost, 0.05))
            plan: _Plan | None = self._plan(self._known_view(), updates)
            if plan is not None and plan.body is None:
                plan = self._refusals(plan, updates)
                if plan is None:
                    continue
                self._refuse(plan)
                return
            failpoint("table.decided")
            committed = self._attempt(updates, plan, request)
            if committed is not None:
                self._finish(committed.snapshot, committed.value)
                return
        raise TooBusy(
            f"table {self._codec.table}: {COMMIT_ATTEMPTS} races for the next version of its log "
            "were lost. Nothing was updated. Try again."
        )

    def _known_view(self) -> StreamView:
        return self._stream.view(refresh=False, life=self._index.life)

    def _refusals(self, plan: _Plan, updates: list[OpenUpdate]) -> _Plan | None:
        """Return the plan if its version was the newest in this call, else None."""
        newest = self._stream.view(life=self._index.life)
        return plan if newest.snapshot is plan.view.snapshot else None

    def _attempt(
        self, updates: list[OpenUpdate], early: _Plan | None, request: str | None
    ) -> Committed[_Plan] | None:
        """Try one commit; return None if another one was first, or if none is left to commit."""

        def decide(snapshot: Snapshot | None) -> Proposal[_Plan | None]:
            if snapshot is None:
                raise self._stream.absent()
            plan = early
            if plan is None or plan.view.snapshot is not snapshot:
                view = self._stream.view_of(snapshot)
                view.check_life(self._index.life)
                plan = self._plan(view, updates)
            if plan is None or plan.body is None:
                return None, None
            return plan.body, plan

        done = self._stream.log.attempt(decide, request=request, needs_newest=False)
        if done is None or done.value is None:
            return None
        return Committed(done.snapshot, done.value)

    def _plan(self, view: StreamView, updates: list[OpenUpdate]) -> _Plan | None:
        """Decide all updates on a version; None if the index is at a newer one already."""
        index, life = self._index, self._index.life
        check_open(view, view.version)
        index.move_to(view)
        if index.snapshot is not view.snapshot:
            return None
        found = index.find(dict.fromkeys(step.key for one in updates for step in one.steps))
        if index.snapshot is not view.snapshot:  # a file was gone, so the index moved on
            return None
        check = UpdateCheck(self._codec, life, found)
        plan = _Plan(view)
        for one in updates:
            try:
                check.accept(one.steps)
            except PravegaSparkError as error:
                plan.refused[one] = error
            else:
                plan.accepted.append(one)
        if plan.accepted:
            staged = self._stage(view, tuple(plan.accepted))
            plan.routed = staged.routed
            plan.builder = CommitBuilder(view, self._stream.now_ms())
            plan.builder.append_chunks(staged.chunks)
            plan.body = plan.builder.body(APPEND, {"updates": len(plan.accepted)})
        return plan

    def _stage(self, view: StreamView, updates: tuple[OpenUpdate, ...]) -> _Staged:
        """Store the changes of updates; what was stored before is used if it still fits."""
        known, epoch = self._staged, view.record.active_epoch
        if (
            known is not None
            and known.updates == updates
            and known.epoch == epoch
            and known.version >= view.snapshot.horizon
        ):
            return known
        oldest = max(view.snapshot.horizon, view.version - RESTAGE_VERSIONS)
        if self._staging_version is None or self._staging_version < oldest:
            self._staging_version = view.version
        version = self._staging_version
        stream, codec = self._stream, self._codec
        time_us = stream.now_ms() * 1_000
        steps = [step for one in updates for step in one.steps]
        keys = [codec.routing_key(step.key.primary) for step in steps]
        payloads = [encode_change(step.key, step.value) for step in steps]
        router = Router(view.active.segments)
        folder, alone = version_folder(version), not group_of(stream).is_committing
        lone = LoneEvent.of(keys[0], time_us, payloads[0]) if len(steps) == 1 else None
        if lone is not None:
            routed = RoutedEvents((router.segment_of(keys[0]),), np.zeros(1, np.uint8))
            chunks = stage_routed(stream, folder, lone, routed, before_commit=alone)
        else:
            events = encode_events(keys, [time_us] * len(steps), payloads)
            indexes = router.segment_indexes(events.column("routing_key"))
            routed = RoutedEvents(router.segment_ids, indexes)
            chunks = stage_routed(stream, folder, events, routed, before_commit=alone)
        self._staged = _Staged(
            updates=updates,
            epoch=epoch,
            version=version,
            chunks=chunks,
            routed=routed,
            times_us=time_us,
        )
        return self._staged

    def _refuse(self, plan: _Plan) -> None:
        for one, error in plan.refused.items():
            one.error = error

    def _finish(self, snapshot: Snapshot, plan: _Plan) -> None:
        """Give each update its outcome, and the index the changes, which are known here."""
        staged, builder = self._staged, plan.builder
        self._staged = None
        assert staged is not None
        assert builder is not None
        has_ttl = self._index.ttl_ms is not None
        time_us = builder.added_ms * 1_000 if has_ttl else staged.times_us
        offsets: dict[int, int] = {}
        for segment_id, base, *_ in ranges_of(builder):
            offsets.setdefault(segment_id, base)
        segment_ids = [staged.routed.segment_ids[int(i)] for i in staged.routed.indexes]
        changes: dict[TableKey, Change] = {}
        row = 0
        for one in plan.accepted:
            versions = []
            for step in one.steps:
                segment_id = segment_ids[row]
                offset = offsets[segment_id]
                offsets[segment_id], row = offset + 1, row + 1
                changes[step.key] = Change(
                    segment_id=segment_id, offset=offset, timestamp_us=time_us, value=step.value
                )
                versions.append(KeyVersion(self._index.life, segment_id, offset))
            one.versions = tuple(versions)
        self._index.add(changes, self._stream.view_of(snapshot))
        self._refuse(plan)


def _error_of(error: BaseException, name: str) -> BaseException:
    """Return the error of one of several updates that failed together."""
    if isinstance(error, PravegaSparkError):
        return copy.copy(error)
    unknown = CommitUnknown(
        f"{name}: an update was interrupted, and it is unknown whether it was committed: get the "
        "keys again."
    )
    unknown.__cause__ = error
    return unknown
