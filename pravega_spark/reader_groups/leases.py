"""Leases of readers: each reader overwrites a small object, its heartbeat, with its offsets.

Where only checkpoints or transactions acknowledge events, a heartbeat has no offsets.

The storage's own clock dates heartbeats, as it does the leases of transactions. A reader that is
expired too early loses its segments and learns so at its next refresh. Other readers continue from
its last heartbeat, so an early expiry repeats events and never loses one.

A lease does not run out over an outage of the storage (ADR 35): the process that judges it has seen
the storage answer for a whole lease, or it or another judge found the same old heartbeat a lease
ago (``silent_readers``).
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from pravega_spark.engine.log.reader import LogReader
from pravega_spark.engine.runtime import processes
from pravega_spark.engine.runtime.json_codec import to_json
from pravega_spark.engine.runtime.processes import has_ended
from pravega_spark.engine.runtime.system import SYSTEM, Runtime
from pravega_spark.engine.state.synchronizer import Synchronizer
from pravega_spark.engine.store import Store
from pravega_spark.engine.store.lease_watch import watch_of
from pravega_spark.errors import InvalidConfiguration, ObjectClosed, StoreError
from pravega_spark.primitives.process_locks import new_lock
from pravega_spark.reader_groups import transitions
from pravega_spark.reader_groups.settlement import update_settled
from pravega_spark.reader_groups.silent_readers import SILENT, Silence, SilentReaders
from pravega_spark.reader_groups.state import GroupState, Phase, ReaderEntry, SegmentKey
from pravega_spark.reader_groups.transitions import HeldSegments
from pravega_spark.values.checks import shown
from pravega_spark.values.limits import (
    MAX_POLL_INTERVAL,
    MAX_READER_LEASE_MS,
    MIN_READER_LEASE_MS,
)
from pravega_spark.values.segments import parse_segment, segment_text
from pravega_spark.values.units import parse_duration_ms

OLD_CLOCK = "_clock.json"
"""Older versions of this package wrote this object to learn the time; no reader's is named so."""
_COARSE_MS, _FINE_MS = 1_000, 20
"""Tolerance where a storage reports whole seconds, or clock ticks; no reader expires too early."""
_SHORTEST_PAUSE_SECONDS = 0.05
_LOOKS_PER_LEASE = 3
"""A judge that asks the storage more rarely than twice in a lease has not watched it."""
_CHANGE_PAUSE_SECONDS = 1.0
"""Pause between two looks at all leases, while readers come and go."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A reader's last report: the number of its joining, its segments, and its process."""

    number: int
    held: HeldSegments
    process: str = ""

    def encode(self) -> bytes:
        """Return the object's bytes."""
        cells = [
            [key.stream, segment_text(key.segment_id), number, offset]
            for key, (number, offset) in self.held.items()
        ]
        record = {"number": self.number, "held": cells, "process": self.process}
        return to_json(record).encode()


Heartbeats = Mapping[str, "Heartbeat | None"]
"""Heartbeats by reader."""


def decode_heartbeat(data: bytes) -> Heartbeat | None:
    """Decode the result of ``Heartbeat.encode``; return None for a torn object."""
    try:
        record = json.loads(data)
        held = {
            SegmentKey(stream, parse_segment(segment)): (number, offset)
            for stream, segment, number, offset in record["held"]
        }
        return Heartbeat(record["number"], held, record["process"])
    except (ValueError, KeyError, TypeError):
        return None


def parse_reader_lease_ms(lease: str | float | None) -> int | None:
    """Return a lease in milliseconds; raise InvalidConfiguration if it is out of its limits."""
    if lease is None:
        return None
    lease_ms = parse_duration_ms("the lease", lease)
    if not MIN_READER_LEASE_MS <= lease_ms <= MAX_READER_LEASE_MS:
        raise InvalidConfiguration(
            f"a reader's lease is {MIN_READER_LEASE_MS // 1000} s to "
            f"{MAX_READER_LEASE_MS // 1000} s, or None, got {shown(lease)}."
        )
    return lease_ms


def parse_max_poll_interval_ms(interval: str | float | None, lease_ms: int | None) -> int | None:
    """Return a ``max_poll_interval`` in milliseconds; raise InvalidConfiguration if it is invalid.

    It is longer than the lease, which a reader's calls extend that long anyway. The default counts
    as the lease where that is longer, and as none where there is none.
    """
    if interval is None or (interval == MAX_POLL_INTERVAL and lease_ms is None):
        return None
    interval_ms = parse_duration_ms("max_poll_interval", interval)
    if lease_ms is not None and interval == MAX_POLL_INTERVAL:
        return max(interval_ms, lease_ms)
    if lease_ms is None:
        raise InvalidConfiguration(
            f"a reader without a lease never expires, so max_poll_interval {shown(interval)} would "
            "have no effect. Give the reader a lease, or omit max_poll_interval."
        )
    if not lease_ms < interval_ms <= MAX_READER_LEASE_MS:
        raise InvalidConfiguration(
            f"max_poll_interval is longer than the reader's lease, {lease_ms / 1000:g} s, and at "
            f"most {MAX_READER_LEASE_MS // 1000} s, or None, got {shown(interval)}. Use a longer "
            "interval, or a shorter lease."
        )
    return interval_ms


def _file(reader: str) -> str:
    """Return the name of a reader's object; no store accepts a name with a leading dot."""
    return f"_{reader}" if reader.startswith(".") else f"{reader}.json"


def _reader(file: str) -> str:
    return file.removeprefix("_") if file.startswith("_") else file.removesuffix(".json")


class ReaderLeases:
    """The heartbeats of a group's readers."""

    def __init__(self, store: Store, group_path: str, runtime: Runtime = SYSTEM) -> None:
        """Name the group's folder; reads nothing yet."""
        self._store, self._runtime = store, runtime
        self._watch = watch_of(store)
        self._folder = f"{group_path}/_leases"
        self._first_commit = LogReader(store, group_path).key(0)
        self._next_expiry_ms = 0
        """Time from the last call of :meth:`expired` to the earliest next expiry."""
        self._judging = new_lock()
        self._judged: Mapping[str, ReaderEntry] = {}
        self._judged_at = -math.inf
        self.expiry_due = 0.0
        """When the next lease may have ended, as far as this process knows."""
        self._look_seconds = math.inf
        self._recorded = frozenset[str]()
        """The silent readers that this process has recorded."""

    def _key(self, reader: str) -> str:
        return f"{self._folder}/{_file(reader)}"

    def extend(self, reader: str, heartbeat: Heartbeat) -> None:
        """Restart the reader's lease.

        Raises StoreError if the group's folder is missing, which a heartbeat must not create.
        """
        with self._watch.call(self._runtime):
            self._extend(reader, heartbeat)

    def _extend(self, reader: str, heartbeat: Heartbeat) -> None:
        if self._store.change_token(self._first_commit) is None:
            raise StoreError(
                f"{self._store.url}/{self._first_commit} does not exist: the group's folder was "
                "removed, moved or unmounted. Restore it.",
                url=f"{self._store.url}/{self._first_commit}",
            )
        self._store.put(self._key(reader), heartbeat.encode(), durable=False)

    @property
    def look_due(self) -> float:
        """When the process must ask the storage again, to have watched it for the shortest lease.

        Else it could judge that lease only after a second one (ADR 35).
        """
        return self._watch.answered_at + self._look_seconds

    def observed(self) -> AbstractContextManager[None]:
        """Observe other calls to the group's storage: whether they failed or took long."""
        return self._watch.call(self._runtime)

    def remove(self, reader: str) -> None:
        """Delete the heartbeat of a reader that has left."""
        self._store.delete([self._key(reader)])

    def remove_expired(self, readers: Collection[str]) -> None:
        """Delete the heartbeats of expired readers, and the record if it names no others."""
        keys = [self._key(reader) for reader in readers]
        if self._recorded and self._recorded <= set(readers):
            keys.append(f"{self._folder}/{SILENT}")
        self._store.delete(keys)

    def remove_all(self) -> None:
        """Delete the heartbeats of a deleted group."""
        self._store.delete([entry.key for entry in self._store.list(self._folder)])
        self._watch.silent.pop(self._folder, None)

    def expired(
        self, state: GroupState, *, ask_processes: bool = False, records: bool = False
    ) -> dict[str, Heartbeat]:
        """Return the readers whose leases have expired, with their last heartbeats.

        A reader without any heartbeat gets its lease now, from the first process that finds it.
        After an outage, and for a judge that has not watched the storage for a whole lease, an old
        lease has to stay old for another lease. ``ask_processes`` adds readers whose processes ran
        on this machine and have ended. ``records`` is for a judge that may end before: it records
        old leases for the next one, and goes by such a record.
        """
        if not state.readers:
            return {}
        now_ms, listed = self._dates()
        is_coarse = all(time_ms % 1_000 == 0 for time_ms in (now_ms, *listed.values()))
        tolerance_ms = _COARSE_MS if is_coarse else _FINE_MS
        found, remaining, silent = {}, [MAX_READER_LEASE_MS], {}
        record = self._record(listed) if records else None
        for reader, entry in state.readers.items():
            modified_ms, lease_ms = listed.get(self._key(reader)), entry.lease_ms
            if lease_ms is None:
                continue
            left_ms = (modified_ms or 0) + lease_ms + tolerance_ms - now_ms + 1
            if modified_ms is not None and left_ms <= 0:
                silence = Silence(entry.number, modified_ms, now_ms)
                found_ms = now_ms if record is None else record.note(reader, silence)
                seconds = (now_ms - found_ms) / 1_000
                silent[reader] = self._silent_since(reader, modified_ms, lease_ms, seconds)
                left_ms = lease_ms - int(1_000 * (self._runtime.monotonic() - silent[reader][1]))
            is_alive = left_ms > 0
            remaining.append(left_ms if is_alive else lease_ms)
            if is_alive and not ask_processes:
                continue
            heartbeat = self.heartbeat(reader)
            if is_alive and not (heartbeat is not None and has_ended(heartbeat.process)):
                continue
            is_current = heartbeat is not None and heartbeat.number == entry.number
            if modified_ms is None and is_current:
                continue  # the listing omitted the object, so its age is unknown
            if heartbeat is None or not is_current:
                self.extend(reader, Heartbeat(entry.number, {}))
            else:
                found[reader] = heartbeat
        if record is not None:
            self._recorded = record.save()
        self._next_expiry_ms, self._watch.silent[self._folder] = min(remaining), silent
        leases = (entry.lease_ms for entry in state.readers.values() if entry.lease_ms is not None)
        self._look_seconds = min(leases, default=math.inf) / 1_000 / _LOOKS_PER_LEASE
        return found

    def expire_due(self, sync: Synchronizer[GroupState], now: float) -> bool:
        """Expire readers when the next lease may have ended; return whether that was due.

        Also when the readers have changed: a new one may have a shorter lease. Reads the state. One
        reader of a process does this for all of them.
        """
        has_changed = sync.local.state.readers != self._judged
        if now < self.expiry_due and not (
            has_changed and now >= self._judged_at + _CHANGE_PAUSE_SECONDS
        ):
            return False
        if not self._judging.acquire(blocking=False):
            return False
        try:
            expire_readers(sync, self)
            self._judged, self._judged_at = sync.local.state.readers, now
            self.expiry_due = now + max(self._next_expiry_ms / 1_000, _SHORTEST_PAUSE_SECONDS)
        finally:
            self._judging.release()
        return True

    def living(self, state: GroupState) -> list[str]:
        """Return the readers whose leases have not run out, by the storage's clock; writes nothing.

        A reader without a heartbeat counts as alive: its lease begins when others look for it.
        """
        if not state.readers:
            return []
        now_ms, listed = self._store.time_ms(), self.heartbeat_times_ms()
        return sorted(
            reader
            for reader, entry in state.readers.items()
            if entry.lease_ms is None or now_ms <= listed.get(reader, now_ms) + entry.lease_ms
        )

    def _dates(self) -> tuple[int, dict[str, int]]:
        """Return the storage's time, and when each heartbeat was written."""
        with self._watch.call(self._runtime):
            now_ms = self._store.time_ms()
            self._watch.compare_clocks(now_ms, self._runtime)
            listed = {entry.key: entry.modified_ms for entry in self._store.list(self._folder)}
        return now_ms, listed

    def _record(self, listed: Mapping[str, int]) -> SilentReaders:
        key = f"{self._folder}/{SILENT}"
        return SilentReaders(self._store, key, is_listed=key in listed)

    def _silent_since(
        self, reader: str, modified_ms: int, lease_ms: int, known_for: float
    ) -> tuple[int, float]:
        """Return an old heartbeat's date, and since when the reader could have written another.

        That is when this judge first found it, or began to watch the storage, or an outage ended;
        or when another judge found it, ``known_for`` seconds ago.
        """
        seconds, watch = lease_ms / 1_000, self._watch
        known = watch.silent.get(self._folder, {})
        known_ms, since = known.get(reader, (modified_ms, math.inf))
        if known_ms != modified_ms:
            since = math.inf
        now = self._runtime.monotonic()
        since = min(since, now - known_for, watch.watched_since(seconds))
        return modified_ms, max(since, watch.outage_ended(seconds))

    def heartbeat_times_ms(self) -> dict[str, int]:
        """Return the time of each reader's last heartbeat by the storage's clock."""
        listed = self._store.list(self._folder)
        named = ((entry.key.rpartition("/")[2], entry.modified_ms) for entry in listed)
        return {_reader(n): time_ms for n, time_ms in named if n not in (OLD_CLOCK, SILENT)}

    def with_heartbeats(self, state: GroupState, runtime: Runtime = SYSTEM) -> GroupState:
        """Return the state with the offsets of all readers' heartbeats recorded."""
        return record_heartbeats(state, self.heartbeats(state, runtime))

    def heartbeats(self, state: GroupState, runtime: Runtime = SYSTEM) -> Heartbeats:
        """Return the last heartbeat of each of the group's readers, or None.

        Reads nothing where reading does not acknowledge events: heartbeats have no offsets there.
        """
        if not state.configuration.acknowledges_on_reading:
            return {}
        readers = list(state.readers)
        return dict(zip(readers, runtime.each(self.heartbeat, readers), strict=True))

    def heartbeat(self, reader: str) -> Heartbeat | None:
        """Return a reader's last heartbeat, or None."""
        try:
            return decode_heartbeat(self._store.get(self._key(reader)))
        except FileNotFoundError:
            return None


_leases: WeakKeyDictionary[Synchronizer[GroupState], ReaderLeases] = WeakKeyDictionary()


def leases_of(sync: Synchronizer[GroupState]) -> ReaderLeases:
    """Return this process's view of a group's leases."""
    log = sync.table.log
    return _leases.setdefault(sync, ReaderLeases(log.store, log.path, log.runtime))


def record_heartbeat(state: GroupState, reader: str, heartbeat: Heartbeat | None) -> GroupState:
    """Return the state with a heartbeat's offsets recorded, if it belongs to this joining."""
    entry = state.readers.get(reader)
    if entry is None or heartbeat is None or heartbeat.number != entry.number:
        return state
    return transitions.record_offsets(state, reader, heartbeat.number, heartbeat.held)


def record_heartbeats(state: GroupState, heartbeats: Heartbeats) -> GroupState:
    """Return the state with the offsets of several readers' heartbeats recorded."""
    for reader, heartbeat in heartbeats.items():
        state = record_heartbeat(state, reader, heartbeat)
    return state


def expire_readers(
    sync: Synchronizer[GroupState],
    leases: ReaderLeases,
    *,
    ask_processes: bool = False,
    records: bool = False,
) -> list[str]:
    """Evict the readers that :meth:`ReaderLeases.expired` finds; return their ids, sorted."""
    with leases.observed():
        known = sync.fetch()
    if known is None or known.state.phase is not Phase.ACTIVE:
        return []
    expired = leases.expired(known.state, ask_processes=ask_processes, records=records)
    if not expired:
        return []

    def generator(state: GroupState) -> tuple[GroupState, None]:
        for reader, heartbeat in expired.items():
            state = transitions.evict(state, reader, heartbeat.number, heartbeat.held)
        return state, None

    update_settled(sync, "TAKE OVER", generator, {"readers": ",".join(sorted(expired))})
    leases.remove_expired(expired)
    return sorted(expired)


_HEARTBEATS_PER_LEASE = 3
_MAX_HEARTBEAT_LEASE_SECONDS = 60.0
"""A longer lease, or none, gives heartbeats as often as this one, since they report offsets."""
_LATE_FRACTION = 0.4
"""The part of a lease in which no heartbeat came although the reader's calls write three: its
application is busy. Later, an outage that nobody need notice could cost the lease (ADR 35)."""


class OwnLease:
    """The lease of one joining of a reader; thread-safe.

    Only the group's state proves that a heartbeat came in time. So a heartbeat extends the lease by
    this process's clock only when the state was read after it and still had the reader.
    """

    def __init__(
        self,
        leases: ReaderLeases,
        runtime: Runtime,
        reader_id: str,
        number: int,
        lease_ms: int | None,
        joined_at: float,
    ) -> None:
        """Begin the lease with the first heartbeat.

        If that fails, the first refresh tries again, or another reader writes it.
        """
        self._leases, self._runtime, self._reader_id = leases, runtime, reader_id
        self._seconds = math.inf if lease_ms is None else lease_ms / 1_000
        self._interval = min(self._seconds, _MAX_HEARTBEAT_LEASE_SECONDS) / _HEARTBEATS_PER_LEASE
        self._lock = new_lock()
        """Orders heartbeats, so that none goes back behind the offsets of another."""
        self._last = Heartbeat(number, {}, processes.identity())
        self._has_left = False
        self.is_lost = False
        """Whether the reader is no longer in its group."""
        self.sent_at = joined_at
        """A time before the last heartbeat."""
        self.due = joined_at
        """When the next heartbeat with new offsets is due: repeated ones do not postpone it."""
        self._ends_at = joined_at + self._seconds
        with contextlib.suppress(StoreError):
            self.extend({})

    def extend(self, held: HeldSegments | None = None) -> None:
        """Write a heartbeat that reports ``held``; None repeats what the last one reported.

        Raises ObjectClosed if the reader has left.
        """
        with self._lock:
            if self._has_left:
                raise ObjectClosed(f"reader {self._reader_id} was closed; create another one.")
            if held is not None:
                self._last = replace(self._last, held=held)
            began = self._runtime.monotonic()
            self._leases.extend(self._reader_id, self._last)
            self.sent_at = began
            if held is not None:
                self.due = began + self._interval

    def prove(self, sent_at: float) -> None:
        """Record that the state, read after the heartbeat of that time, still had the reader."""
        self._ends_at = max(self._ends_at, sent_at + self._seconds)  # a lost update is too early

    def lose(self) -> None:
        """Record that the reader is no longer in its group."""
        self.is_lost = True

    def has_ended(self, now: float) -> bool:
        """Return whether other readers may have expired this one."""
        return self.is_lost or now >= self._ends_at

    def seconds_to_extension(self) -> float:
        """Return the seconds until calls have been late with a heartbeat; negative after that."""
        late = max(self._interval, self._seconds * _LATE_FRACTION)
        return self.sent_at + late - self._runtime.monotonic()

    @property
    def has_stopped(self) -> bool:
        """Whether the reader has left its group, or is no longer in it."""
        return self._has_left or self.is_lost

    @property
    def ends_at(self) -> float:
        """The time at which the lease ends by this process's clock."""
        return self._ends_at

    def leave(self) -> None:
        """Write no further heartbeat; waits for one that is being written."""
        with self._lock:
            self._has_left = True
