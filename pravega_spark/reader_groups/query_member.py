"""A streaming query as a member of a group: it has all segments, and says which batches are done.

Every finished batch that it tells is a completed checkpoint of the group, so a group that holds
data lets it go, lag and cuts are the group's own, and a reset goes back to the last one. One query
is in a group at a time, by its lease, which a thread extends while the query's process lives. One
that was taken over, or whose group was reset, is told so when it comes to the group the next time.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

from pravega_spark.engine import processes
from pravega_spark.engine.failpoints import failpoint
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.tables.synchronizer import Synchronizer
from pravega_spark.errors import (
    CommitUnknown,
    IllegalState,
    InvalidInput,
    NoSuchStream,
    ReinitializationRequired,
    StaleIdentity,
    StoreError,
)
from pravega_spark.model import StreamCut
from pravega_spark.reader_groups import assignment, checkpoints, segment_transitions
from pravega_spark.reader_groups.group_state import GroupState, Phase
from pravega_spark.reader_groups.reader_leases import Heartbeat, ReaderLeases, expire_readers
from pravega_spark.reader_groups.subscriptions import Subscriptions

logger = logging.getLogger(__name__)

QUERY = "streaming-query"
"""The name under which a query is in its group."""
LEASE_MS = 30_000
_SIGNS_OF_LEASE = 6
_LONGEST_WAIT_MS = 120_000
_WAIT_SECONDS = 0.5
"""How often one that waits for another's lease to run out looks again."""

Streams = Callable[[str], StreamLog]
Cuts = Mapping[str, StreamCut]


class QueryMember:
    """A query's place in its group; made by joining it. Thread-safe but for ``leave``."""

    def __init__(
        self, sync: Synchronizer[GroupState], streams: Streams, leases: ReaderLeases
    ) -> None:
        """Join, waiting for the lease of a query that died.

        Raises IllegalState if another one, or a reader, is alive in the group.
        """
        self._sync, self._streams, self._leases = sync, streams, leases
        self._holds = Subscriptions(streams)
        self._runtime = sync.table.log.runtime
        self._process = processes.identity()
        self._left = threading.Event()
        self._is_ousted = False
        self.number = self._join()
        self.generation, self._name = sync.local.state.generation, sync.local.state.group
        self._sign()
        threading.Thread(target=self._live, name="pravega-lease", daemon=True).start()

    def _join(self) -> int:
        def generator(state: GroupState) -> tuple[GroupState | None, int | None]:
            if state.readers:
                return None, None
            after = assignment.join(state, QUERY, LEASE_MS, alone=True)
            number = after.readers[QUERY].number
            return replace(assignment.acquire(after, QUERY, number), query=number), number

        while True:
            number = self._sync.update("JOIN", generator, {"reader": QUERY})
            if number is not None:
                return number
            self._wait_for_others()

    def _wait_for_others(self) -> None:
        """Return when something has become of those in the way; raise IllegalState if they live."""
        if expire_readers(self._sync, self._leases, ask_processes=True):
            return
        before = self._leases.times()
        state = self._sync.local.state
        for reader, member in state.readers.items():
            if member.lease_ms is None or member.lease_ms > _LONGEST_WAIT_MS:
                lease = "no lease" if member.lease_ms is None else f"{member.lease_ms // 1_000} s"
                raise self._occupied(reader, f"whose lease is too long to wait for ({lease})")
        logger.warning(
            "reader group %s is read by %s, which gives no sign: waiting for its lease to run out.",
            state.group,
            ", ".join(sorted(state.readers)),
        )
        while not expire_readers(self._sync, self._leases):
            now = self._leases.times()
            for reader in self._sync.local.state.readers:
                if now.get(reader, 0) > before.get(reader, now.get(reader, 0)):
                    raise self._occupied(reader, "which is alive")
            if not self._sync.local.state.readers:
                return
            self._runtime.sleep(_WAIT_SECONDS)

    def _occupied(self, reader: str, why: str) -> IllegalState:
        sign = self._leases.sign(reader)
        where = f" in process {sign.process}" if sign is not None and sign.process else ""
        return IllegalState(
            f"reader group {self._sync.local.state.group} is read by {reader}, {why}{where}: a "
            "streaming query reads all of a group by itself. Stop the one or the other (a reader "
            "that died by `reader_offline`), or use a group of its own."
        )

    # ------------------------------------------------------------------------------- signs of life

    def _sign(self) -> None:
        began = self._runtime.monotonic()
        self._leases.extend(QUERY, Heartbeat(self.number, {}, self._process))
        self._alive_until = began + LEASE_MS / 1_000

    def _live(self) -> None:
        """Extend the lease until the query leaves, or finds that it is not in the group any more.

        One that cannot extend it is dead when it runs out.
        """
        while not self._left.wait(LEASE_MS / 1_000 / _SIGNS_OF_LEASE):
            try:
                self.look()
                self._sign()
            except ReinitializationRequired:
                return
            except Exception as error:
                logger.warning("a lease in reader group %s is not extended: %s", self._name, error)

    def check(self) -> None:
        """Raise ReinitializationRequired if the group was reset, or the query taken over.

        No storage is asked while the lease lasts by this process's clock: a thread looks now and
        then.
        """
        if self._is_ousted:
            raise self._ousted()
        if self._runtime.monotonic() >= self._alive_until:
            self.look()

    def look(self) -> None:
        """Look whether the query is in the group still. Raises ReinitializationRequired."""
        known = self._sync.fetch()
        if known is None:
            raise self._ousted()
        self._member(known.state)

    def _member(self, state: GroupState) -> None:
        member = state.readers.get(QUERY)
        if member is None or member.number != self.number:
            raise self._ousted()

    def _ousted(self) -> ReinitializationRequired:
        self._is_ousted = True
        self._left.set()
        return ReinitializationRequired(
            f"the streaming query is not in reader group {self._name} any more: the group was "
            "reset or deleted, or another query took it over when this one gave no sign for "
            f"{LEASE_MS // 1_000} s. Start the query with a new checkpoint folder to go on where "
            "the group is.",
            group=self._name,
        )

    # ---------------------------------------------------------------------------------- its places

    def cuts(self) -> Cuts:
        """Return where the group is, as last known here."""
        return self._sync.local.state.cuts()

    def finished(self, cuts: Cuts) -> None:
        """Note that all before these cuts is done: a completed checkpoint of the group.

        A cut that is not later than the group's place is ignored. Answers checkpoints that others
        have asked for. Raises ReinitializationRequired, InvalidStreamCut.
        """

        def generator(state: GroupState) -> tuple[GroupState, None]:
            self._member(state)
            after = moved(state, cuts, self._streams)
            while (owed := after.owed_by(QUERY)) is not None:
                after = checkpoints.answer(after, QUERY, owed.number, {})
            return assignment.acquire(after, QUERY, self.number), None

        self._sync.update("FINISHED", generator, {"reader": QUERY})
        failpoint("group.query.finished")
        with contextlib.suppress(StoreError, CommitUnknown):  # the next one says it, too
            self._holds.publish_last(self._sync.local.state)

    def leave(self) -> None:
        """Leave the group, so that the next query need not wait; also after being taken over."""
        self._left.set()

        def generator(state: GroupState) -> tuple[GroupState | None, bool]:
            member = state.readers.get(QUERY)
            if member is None or member.number != self.number:
                return None, False
            return assignment.offline(state, QUERY), True

        if self._sync.update("LEAVE", generator, {"reader": QUERY}):
            self._leases.drop(QUERY)


def moved(state: GroupState, cuts: Cuts, streams: Streams) -> GroupState:
    """Return the group's state with all before these cuts done, noted as a checkpoint.

    A stream that was deleted, or created again, is passed over: its place waits for a reset.
    Raises InvalidInput for a stream that the group does not read.
    """
    strange = sorted(set(cuts) - set(state.lives))
    if strange:
        raise InvalidInput(
            f"reader group {state.group} does not read {', '.join(strange)}; it reads "
            f"{', '.join(sorted(state.lives))}."
        )
    after = state
    for name, cut in sorted(cuts.items()):
        try:
            view = streams(name).view()
            view.check_life(cut.life)
            view.check_life(state.lives[name])
        except (NoSuchStream, StaleIdentity) as error:
            logger.warning(
                "reader group %s keeps no place in %s any more, until it is reset: %s",
                state.group,
                name,
                error,
            )
            continue
        after = segment_transitions.move_to(after, view, cut)
    if dict(after.positions()) == dict(state.positions()):
        return state
    return checkpoints.note(after, f"batch-{after.next_number}")


def acknowledge(
    sync: Synchronizer[GroupState],
    streams: Streams,
    generation: int,
    cuts: Cuts,
    query: int | None = None,
) -> bool:
    """Note for a query that may have ended that all before these cuts is done; False if it was.

    For who reads Spark's own notes of finished batches. Nothing changes if the group is in
    another generation, or further, or if another query has joined since that with the number
    ``query``: that one may not have finished what the former one has. Raises IllegalState while
    readers are in the group who say by themselves how far they are.
    """

    def generator(state: GroupState) -> tuple[GroupState | None, bool]:
        if state.generation != generation or state.phase is not Phase.ACTIVE:
            return None, False
        if query is not None and state.query != query:
            return None, False
        others = sorted(set(state.readers) - ({QUERY} if query is not None else set()))
        if others:
            raise IllegalState(
                f"reader group {state.group} is read by {', '.join(others)}, which say by "
                "themselves how far they are."
            )
        after = moved(state, cuts, streams)
        member = after.readers.get(QUERY)
        if member is not None:
            after = assignment.acquire(after, QUERY, member.number)
        return after, after != state

    changed = sync.update("ACKNOWLEDGE", generator)
    Subscriptions(streams).publish_last(sync.local.state)
    return changed
