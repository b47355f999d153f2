"""A streaming query as the only reader of a group.

Every reported batch becomes a complete checkpoint of the group. So a group that holds data
publishes it to its streams, lag and cuts are the group's own, and a reset returns to the last
batch. One query reads a group at a time. It holds a lease, which a thread extends while the query's
process lives. A query that was evicted, or whose group was reset, learns so at its next call.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from dataclasses import replace

from pravega_spark.engine.runtime import processes
from pravega_spark.engine.runtime.failpoints import failpoint
from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import (
    CommitUnknown,
    IllegalState,
    InvalidInput,
    NoSuchStream,
    ReinitializationRequired,
    StaleIdentity,
    StoreError,
)
from pravega_spark.reader_groups import segments, transitions
from pravega_spark.reader_groups.leases import Heartbeat, expire_readers
from pravega_spark.reader_groups.lifecycle import GroupLifecycle
from pravega_spark.reader_groups.state import GroupState, Phase
from pravega_spark.reader_groups.subscriptions import Subscriptions
from pravega_spark.reader_groups.table import Streams, of_each
from pravega_spark.txn.open_look import look_at
from pravega_spark.values.limits import QUERY_LEASE_MS
from pravega_spark.values.segments import StreamCut

logger = own_logger(__name__)

QUERY = "streaming-query"
"""The reader name of a query in its group."""
_HEARTBEATS_PER_LEASE = 6
_LONGEST_WAIT_MS = 120_000
_WAIT_SECONDS = 0.5
"""How often a query that waits for the lease of another reader checks it."""

Cuts = Mapping[str, StreamCut]


class QueryMember:
    """A query that has joined its group. Thread-safe except ``leave``."""

    def __init__(self, group: GroupLifecycle) -> None:
        """Join the group, waiting for the lease of a crashed query to end.

        Raises NoSuchReaderGroup, and IllegalState if the group has another live reader or query.
        """
        group.state()
        self._sync, self._streams, self._leases = group.sync, group.streams, group.leases
        self._subscriptions = Subscriptions(group.streams)
        self._runtime = group.runtime
        self._process = processes.identity()
        self._left = threading.Event()
        self._eviction = ""
        """Why the query is no longer in the group, and the next step."""
        self.was_updated = False
        """Whether it left because of an update after which its positions continue."""
        self.number = self._join()
        for name in self._sync.local.state.lives:
            look_at(group.streams(name), self, lambda member: member._left.is_set())
        self.generation, self._name = self._sync.local.state.generation, group.name
        self._extend_lease()
        threading.Thread(target=self._keep_lease, name="pravega-lease", daemon=True).start()

    def _join(self) -> int:
        def generator(state: GroupState) -> tuple[GroupState | None, int | None]:
            if state.readers:
                return None, None
            after = transitions.join(state, QUERY, QUERY_LEASE_MS, exclusive=True)
            number = after.readers[QUERY].number
            return replace(transitions.acquire(after, QUERY, number), query_number=number), number

        while True:
            number = self._sync.update("JOIN", generator, {"reader": QUERY})
            if number is not None:
                return number
            self._wait_for_others()

    def _wait_for_others(self) -> None:
        """Return when a reader has expired or left; raise IllegalState if one is alive."""
        if expire_readers(self._sync, self._leases, ask_processes=True):
            return
        before = self._leases.heartbeat_times_ms()
        state = self._sync.local.state
        for reader, entry in state.readers.items():
            if entry.lease_ms is None or entry.lease_ms > _LONGEST_WAIT_MS:
                lease = "no lease" if entry.lease_ms is None else f"{entry.lease_ms // 1_000} s"
                raise self._occupied(reader, f"whose lease is too long to wait for ({lease})")
        logger.warning(
            "found silent readers of reader group %s: %s; waiting until their leases expire",
            state.group,
            ", ".join(sorted(state.readers)),
            extra=log_fields("join", group=state.group),
        )
        while not expire_readers(self._sync, self._leases):
            now = self._leases.heartbeat_times_ms()
            for reader in self._sync.local.state.readers:
                if now.get(reader, 0) > before.get(reader, now.get(reader, 0)):
                    raise self._occupied(reader, "which is alive")
            if not self._sync.local.state.readers:
                return
            self._runtime.sleep(_WAIT_SECONDS)

    def _occupied(self, reader: str, why: str) -> IllegalState:
        heartbeat = self._leases.heartbeat(reader)
        process = "" if heartbeat is None else heartbeat.process
        where = f" in process {process}" if process else ""
        return IllegalState(
            f"reader group {self._sync.local.state.group} is read by {reader}, {why}{where}: a "
            "streaming query is the only reader of its group. Stop one of them (a crashed reader "
            "by `reader_offline`), or use another group."
        )

    # -------------------------------------------------------------------------------------- lease

    def _extend_lease(self) -> None:
        began = self._runtime.monotonic()
        self._leases.extend(QUERY, Heartbeat(self.number, {}, self._process))
        self._alive_until = began + QUERY_LEASE_MS / 1_000

    def _keep_lease(self) -> None:
        """Extend the lease until the query leaves or is no longer in the group.

        A query that cannot extend its lease expires with it.
        """
        while not self._left.wait(QUERY_LEASE_MS / 1_000 / _HEARTBEATS_PER_LEASE):
            try:
                self.refresh()
                self._extend_lease()
            except ReinitializationRequired:
                return
            except Exception as error:
                logger.warning(
                    "failed to extend a lease in reader group %s: %s",
                    self._name,
                    error,
                    extra=log_fields("extend lease", group=self._name),
                )

    def check(self) -> None:
        """Raise ReinitializationRequired if the group was changed or the query was evicted.

        Reads no storage while the lease lasts by this process's clock, since a thread refreshes it.
        """
        if self._eviction:
            raise self._evicted()
        if self._runtime.monotonic() >= self._alive_until:
            self.refresh()

    def refresh(self) -> None:
        """Read the group's state. Raises ReinitializationRequired if the query is not in it."""
        known = self._sync.fetch()
        if known is None:
            raise self._evicted()
        self._check_entry(known.state)

    def _check_entry(self, state: GroupState) -> None:
        entry = state.readers.get(QUERY)
        if entry is None or entry.number != self.number:
            raise self._evicted(state)

    def _evicted(self, state: GroupState | None = None) -> ReinitializationRequired:
        if not self._eviction:
            self.was_updated = (
                state is not None
                and state.generation != self.generation
                and state.continues(self.generation)
            )
            self._eviction = (
                "the group was updated. Start the query again with the same checkpoint folder."
                if self.was_updated
                else "the group was reset or deleted, or another query took it over when this one "
                f"sent no heartbeat for {QUERY_LEASE_MS // 1_000} s. Start the query with a new "
                "checkpoint folder to continue at the group's position."
            )
        self._left.set()
        return ReinitializationRequired(
            f"the streaming query is no longer in reader group {self._name}: {self._eviction}",
            group=self._name,
            reader=QUERY,
        )

    def continues(self, generation: int) -> bool:
        """Return whether all positions of the group continue those of an earlier generation."""
        return self._sync.local.state.continues(generation)

    # ------------------------------------------------------------------------------------ batches

    def cuts(self) -> Cuts:
        """Return the group's cuts as last read by this process."""
        return self._sync.local.state.cuts()

    def finish_batch(self, cuts: Cuts) -> None:
        """Record that all events before these cuts are processed, as a complete checkpoint.

        Ignores a cut that is not later than the group's. Answers pending checkpoints. Raises
        ReinitializationRequired, InvalidStreamCut.
        """

        def generator(state: GroupState) -> tuple[GroupState, None]:
            self._check_entry(state)
            after = with_finished_batch(state, cuts, self._streams)
            while (pending := after.pending_checkpoint(QUERY)) is not None:
                after = transitions.answer(after, QUERY, pending.number, {})
            return transitions.acquire(after, QUERY, self.number), None

        self._sync.update("FINISHED", generator, {"reader": QUERY})
        failpoint("group.query.finished")
        with contextlib.suppress(StoreError, CommitUnknown):  # the next publication covers it
            self._subscriptions.publish_last_checkpoint(self._sync.local.state)

    def leave(self) -> None:
        """Leave the group, so that the next query need not wait; does nothing after an eviction."""
        self._left.set()

        def generator(state: GroupState) -> tuple[GroupState | None, bool]:
            entry = state.readers.get(QUERY)
            if entry is None or entry.number != self.number:
                return None, False
            return transitions.remove_reader(state, QUERY), True

        if self._sync.update("LEAVE", generator, {"reader": QUERY}):
            self._leases.remove(QUERY)


def with_finished_batch(state: GroupState, cuts: Cuts, streams: Streams) -> GroupState:
    """Return the state moved to these cuts, with a complete checkpoint; equal if none is later.

    Skips a stream that was deleted or created again: its position stays. Raises
    InvalidInput for a stream that the group does not read.
    """
    strange = sorted(set(cuts) - set(state.lives))
    if strange:
        raise InvalidInput(
            f"reader group {state.group} does not read {', '.join(strange)}; it reads "
            f"{', '.join(sorted(state.lives))}."
        )

    def look(stream: StreamLog) -> StreamView | NoSuchStream | StaleIdentity:
        try:
            view = stream.view()
            view.check_life(cuts[stream.name].life)
            view.check_life(state.lives[stream.name])
        except (NoSuchStream, StaleIdentity) as error:
            return error
        return view

    after = state
    for name, view in of_each(streams, cuts, look).items():
        if isinstance(view, NoSuchStream | StaleIdentity):
            logger.warning(
                "skipped %s in reader group %s, which keeps its position: %s",
                name,
                state.group,
                view,
                extra=log_fields("acknowledge", name, group=state.group),
            )
            continue
        after = segments.move_to(after, view, cuts[name])
    if dict(after.positions()) == dict(state.positions()):
        return state
    return transitions.add_complete(after, f"batch-{after.next_number}")


def continued_cuts(state: GroupState, generation: int, cuts: Cuts) -> Cuts:
    """Return the cuts of a batch of this generation that still count in the group's present one.

    After an update these are those of the streams that it continued, after a reset none.
    """
    if state.generation == generation:
        return cuts
    continued = state.continued_streams(generation)
    return {stream: cut for stream, cut in cuts.items() if stream in continued}


def acknowledge_batch(
    group: GroupLifecycle, generation: int, cuts: Cuts, query_number: int | None = None
) -> bool:
    """Record a finished batch for a query that may have ended; return False if nothing changed.

    For callers that read Spark's own record of finished batches. Changes nothing if the group is
    in another generation or further ahead, or if another query joined after the one with
    ``query_number``: the later query may not have finished what the earlier one has. After an
    update of the group, the cuts of streams that it continues still count. Raises
    NoSuchReaderGroup, and IllegalState while the group has readers that report their own progress.
    """

    def generator(state: GroupState) -> tuple[GroupState | None, bool]:
        if state.phase is not Phase.ACTIVE:
            return None, False
        done = continued_cuts(state, generation, cuts)
        if not done:
            return None, False
        if query_number is not None and state.query_number != query_number:
            return None, False
        others = sorted(set(state.readers) - ({QUERY} if query_number is not None else set()))
        if others:
            raise IllegalState(
                f"reader group {state.group} is read by {', '.join(others)}, which report their "
                "own progress. Stop them first."
            )
        after = with_finished_batch(state, done, group.streams)
        entry = after.readers.get(QUERY)
        if entry is not None:
            after = transitions.acquire(after, QUERY, entry.number)
        return after, after != state

    group.state()
    changed = group.sync.update("ACKNOWLEDGE", generator)
    Subscriptions(group.streams).publish_last_checkpoint(group.sync.local.state)
    return changed
