"""Which readers of a group are alive: each overwrites a small object, which tells how far it is.

Its age is told by the storage's own clock, as that of transactions. A reader that is taken for
dead too early loses its segments and is told so at its next look at the group: others go on from
what it last said, so that it costs a repetition and never an event.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from pravega_spark.engine.log.actions import to_json
from pravega_spark.engine.processes import has_ended
from pravega_spark.engine.runtime import SYSTEM, Runtime
from pravega_spark.engine.store import Store
from pravega_spark.engine.tables.synchronizer import Synchronizer
from pravega_spark.errors import InvalidConfiguration
from pravega_spark.model import parse_segment, segment_text
from pravega_spark.reader_groups import assignment
from pravega_spark.reader_groups.assignment import Held
from pravega_spark.reader_groups.group_configuration import MAX_READER_LEASE_MS, MIN_READER_LEASE_MS
from pravega_spark.reader_groups.group_state import GroupState, Key, Phase
from pravega_spark.units import parse_duration_ms

_OLD_CLOCK = "_clock.json"
"""What older versions of this package wrote to learn the time; no reader's file is named so."""
_COARSE_MS, _FINE_MS = 1_000, 20
"""Some storages tell whole seconds, others ticks: nobody is taken for dead early because of it."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What a reader last said: the number of its joining, what it held, and its process."""

    number: int
    held: Held
    process: str = ""

    def encode(self) -> bytes:
        """Return the object's bytes."""
        cells = [
            [key.stream, segment_text(key.segment_id), number, offset]
            for key, (number, offset) in self.held.items()
        ]
        record = {"number": self.number, "held": cells, "process": self.process}
        return to_json(record).encode()


def decode_heartbeat(data: bytes) -> Heartbeat | None:
    """Read what ``Sign.encode`` wrote; None for a torn one, which says nothing."""
    try:
        record = json.loads(data)
        held = {
            Key(stream, parse_segment(segment)): (number, offset)
            for stream, segment, number, offset in record["held"]
        }
        return Heartbeat(record["number"], held, record["process"])
    except (ValueError, KeyError, TypeError):
        return None


def parse_reader_lease_ms(lease: str | float | None) -> int | None:
    """Read a lease in milliseconds; raise InvalidConfiguration unless it is within its limits."""
    if lease is None:
        return None
    lease_ms = parse_duration_ms("the lease", lease)
    if not MIN_READER_LEASE_MS <= lease_ms <= MAX_READER_LEASE_MS:
        raise InvalidConfiguration(
            f"a reader's lease is {MIN_READER_LEASE_MS // 1000} s to "
            f"{MAX_READER_LEASE_MS // 1000} s, or None, got {lease!r}."
        )
    return lease_ms


def _file(reader: str) -> str:
    """Return the name of a reader's object: no store takes one that begins with a dot."""
    return f"_{reader}" if reader.startswith(".") else f"{reader}.json"


def _reader(file: str) -> str:
    return file.removeprefix("_") if file.startswith("_") else file.removesuffix(".json")


class ReaderLeases:
    """The signs of life of a group's readers."""

    def __init__(self, store: Store, group_path: str) -> None:
        """Name the group's folder; nothing is read yet."""
        self._store = store
        self._folder = f"{group_path}/_leases"
        self.next_end_ms = 0
        """How long after the last look for the dead the next of the living may be dead."""

    def _key(self, reader: str) -> str:
        return f"{self._folder}/{_file(reader)}"

    def extend(self, reader: str, sign: Heartbeat) -> None:
        """Begin the reader's lease anew."""
        self._store.put(self._key(reader), sign.encode(), durable=False)

    def drop(self, reader: str) -> None:
        """Forget a reader that has left."""
        self._store.delete([self._key(reader)])

    def clear(self) -> None:
        """Forget all, of a group that was deleted."""
        self._store.delete([entry.key for entry in self._store.list(self._folder)])

    def dead(self, state: GroupState, *, ask_processes: bool = False) -> dict[str, Heartbeat]:
        """Return the readers whose leases ran out, with what they last said.

        One that never gave a sign gets its lease now, from whoever looks first. With
        ``ask_processes`` also those whose processes ran on this machine and have ended.
        """
        if not state.readers:
            return {}
        now_ms = self._store.time_ms()
        listed = {entry.key: entry.modified_ms for entry in self._store.list(self._folder)}
        is_coarse = all(time_ms % 1_000 == 0 for time_ms in (now_ms, *listed.values()))
        tolerance_ms = _COARSE_MS if is_coarse else _FINE_MS
        found, ends = {}, [MAX_READER_LEASE_MS]
        for reader, member in state.readers.items():
            modified_ms, lease_ms = listed.get(self._key(reader)), member.lease_ms
            if lease_ms is None:
                continue
            ends_ms = (modified_ms or 0) + lease_ms + tolerance_ms
            lasts = modified_ms is not None and now_ms <= ends_ms
            ends.append(ends_ms - now_ms + 1 if lasts else lease_ms)
            if lasts and not ask_processes:
                continue
            sign = self.sign(reader)
            if lasts and not (sign is not None and has_ended(sign.process)):
                continue
            if modified_ms is None and sign is not None and sign.number == member.number:
                continue  # the listing left it out, so nothing is known of its age
            if sign is None or sign.number != member.number:
                self.extend(reader, Heartbeat(member.number, {}))
            else:
                found[reader] = sign
        self.next_end_ms = min(ends)
        return found

    def times(self) -> dict[str, int]:
        """Return when each reader last gave a sign, in ms by the storage's clock."""
        listed = self._store.list(self._folder)
        named = ((entry.key.rpartition("/")[2], entry.modified_ms) for entry in listed)
        return {_reader(name): at for name, at in named if name != _OLD_CLOCK}

    def fresh(self, state: GroupState, runtime: Runtime = SYSTEM) -> GroupState:
        """Return the state with what its readers last said recorded in it."""
        readers = list(state.readers)
        for reader, said in zip(readers, runtime.each(self.sign, readers), strict=True):
            state = recorded(state, reader, said)
        return state

    def sign(self, reader: str) -> Heartbeat | None:
        """Return what a reader last said, or None."""
        try:
            return decode_heartbeat(self._store.get(self._key(reader)))
        except FileNotFoundError:
            return None


def recorded(state: GroupState, reader: str, said: Heartbeat | None) -> GroupState:
    """Return the state with what a reader last said recorded, if that is of this joining."""
    member = state.readers.get(reader)
    if member is None or said is None or said.number != member.number:
        return state
    return assignment.record(state, reader, said.number, said.held)


def expire_readers(
    sync: Synchronizer[GroupState], leases: ReaderLeases, *, ask_processes: bool = False
) -> list[str]:
    """Take the readers out of the group that are dead, as ``Leases.dead`` has it; return them."""
    known = sync.fetch()
    if known is None or known.state.phase is not Phase.ACTIVE:
        return []
    dead = leases.dead(known.state, ask_processes=ask_processes)
    if not dead:
        return []

    def generator(state: GroupState) -> tuple[GroupState, None]:
        for reader, sign in dead.items():
            state = assignment.taken_over(state, reader, sign.number, sign.held)
        return state, None

    sync.update("TAKE OVER", generator, {"readers": ",".join(sorted(dead))})
    for reader in dead:
        leases.drop(reader)
    return sorted(dead)
