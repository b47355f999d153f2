"""The lifecycle of a reader group: creation, repair, deletion, and changes within one life.

The group's table decides every change. A group that holds data is subscribed to its streams in
between (``subscriptions``): a creation, reset or update is committed to the group's table first,
then the streams are subscribed, then the group becomes active. Any later caller finishes a change
that was left half made. The scope has a row of the group from before it begins until it is deleted,
so that the scope cannot be deleted in between. The log of a deleted group stays, and with it the
generation, which continues when the name is created again.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from pravega_spark.engine.failpoints import failpoint
from pravega_spark.engine.log.commit_logging import short
from pravega_spark.engine.log_fields import log_fields, own_logger
from pravega_spark.engine.runtime import SYSTEM, Runtime
from pravega_spark.engine.store import Store, open_store
from pravega_spark.engine.store.root_marker import way_on
from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.engine.stream.repair import begun_view
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.tables.open_scopes import open_scope
from pravega_spark.engine.tables.scopes import GROUP, Scope
from pravega_spark.engine.tables.synchronizer import Generator
from pravega_spark.errors import (
    ConfigMismatch,
    InvalidInput,
    NoSuchReaderGroup,
    NotFound,
    StaleIdentity,
    TruncatedData,
)
from pravega_spark.names import split_group
from pravega_spark.reader_groups import assignment, segment_transitions
from pravega_spark.reader_groups.change_announcements import ChangeAnnouncements
from pravega_spark.reader_groups.group_configuration import ReaderGroupConfiguration
from pravega_spark.reader_groups.group_generation import (
    check_retained,
    in_generation,
    next_generation,
)
from pravega_spark.reader_groups.group_state import GroupState, Phase
from pravega_spark.reader_groups.group_table import Streams, check_has_log, open_group_state
from pravega_spark.reader_groups.position_settlement import update_settled
from pravega_spark.reader_groups.reader_leases import leases_of
from pravega_spark.reader_groups.stream_rounds import of_each
from pravega_spark.reader_groups.subscriptions import Subscriptions

logger = own_logger(__name__)

_Value = TypeVar("_Value")
_IMPOSSIBLE = (NotFound, InvalidInput, TruncatedData, StaleIdentity)
"""Errors of a claimed creation that can never succeed: its streams or start cuts were deleted."""


def open_group(root: str | Store, group: str) -> GroupLifecycle:
    """Open a group of a root over this process's streams; it need not exist."""
    store = open_store(root) if isinstance(root, str) else root
    return GroupLifecycle(store, group, partial(open_stream, store))


class GroupLifecycle:
    """One reader group as one process sees it; it need not exist yet."""

    def __init__(
        self, store: Store, name: str, streams: Streams, runtime: Runtime = SYSTEM
    ) -> None:
        """Name the group; ``streams`` opens a stream by its name. Raises InvalidName."""
        self.name, self.store, self.streams, self.runtime = name, store, streams, runtime
        self.sync = open_group_state(store, name, runtime)
        self.subscriptions = Subscriptions(streams)
        self.leases = leases_of(self.sync)
        self._announcements = ChangeAnnouncements(store, runtime)
        self._scope_name, self._short_name = split_group(name)

    @property
    def _scope(self) -> Scope:
        return open_scope(self.store, self._scope_name, self.runtime)

    # --------------------------------------------------------------------------- creation, repair

    def create(self, configuration: ReaderGroupConfiguration) -> bool:
        """Create the group; return False if it exists with this configuration.

        The first of concurrent creators decides the configuration. Raises ConfigMismatch if the
        group exists with another configuration; NoSuchScope, NoSuchStream, InvalidStreamCut;
        TruncatedData for a start whose segments have no record any more, and for any start behind
        the head if the group holds data.
        """
        claimed, state = False, self.repair()
        if state is None or state.phase is Phase.DELETED:
            generation = 0 if state is None else state.generation + 1
            with self.announced(configuration.holds_data):
                claimed = self._claim(generation, configuration)
                state = self.repair()
        has_ended = state is None or state.phase is Phase.DELETED
        if state is not None and not has_ended and state.configuration != configuration:
            raise ConfigMismatch(
                f"reader group {self.name} exists with another configuration, generation "
                f"{state.generation}; open it as it is, or update it.",
                group=self.name,
                generation=state.generation,
            )
        return claimed

    @contextlib.contextmanager
    def announced(self, holds_data: bool) -> Iterator[None]:
        """Announce a change of a group that holds data; the announcement of a failed one stays."""
        if not holds_data:
            yield
            return
        key = self._announcements.announce(self.name)
        yield
        self._announcements.withdraw(key)

    def _claim(self, generation: int, configuration: ReaderGroupConfiguration) -> bool:
        """Begin a generation after claiming it in the scope; return False if it was claimed."""
        scope_life = self._scope.check_exists()
        views = self.views(configuration)
        segment_transitions.begin(self.name, generation, configuration, views)  # refuse early
        check_retained(configuration, views, configuration.starts)
        claimed, record = self._scope.claim_group(
            self._short_name, generation, configuration.to_json(), scope_life=scope_life
        )
        failpoint("group.create.row")
        self._begin_claimed(generation, ReaderGroupConfiguration.from_json(record))
        return claimed

    def _begin_claimed(self, generation: int, configuration: ReaderGroupConfiguration) -> bool:
        """Begin a generation that was claimed in the scope, unless the group has reached it.

        If it can no longer begin, uses up its number, so that no other process begins it later.
        Returns whether this was the first commit of the group's log.
        """
        phase = Phase.CHANGING if configuration.holds_data else Phase.ACTIVE
        try:
            views = self.views(configuration)
            first = segment_transitions.begin(
                self.name, generation, configuration, views, phase=phase
            )
        except _IMPOSSIBLE:
            self._use_up(generation, configuration)
            raise
        parameters = {
            "streams": short(",".join(configuration.streams)),
            "retention": configuration.retention.value,
            "generation": generation,
        }
        operation = "CREATE READER GROUP"
        is_absent = self.sync.fetch() is None
        if is_absent and self.sync.initialise(first, operation, parameters=parameters):
            return True

        def generator(state: GroupState) -> tuple[GroupState | None, None]:
            if state.generation >= generation:
                return None, None
            return next_generation(state, configuration, views), None

        self.sync.update(operation, generator, parameters)
        return False

    def _use_up(self, generation: int, configuration: ReaderGroupConfiguration) -> None:
        operation = "TAKE BACK READER GROUP"
        ended = GroupState(self.name, generation, Phase.DELETED, configuration, {})
        if self.sync.fetch() is None and self.sync.initialise(ended, operation):
            return

        def generator(state: GroupState) -> tuple[GroupState | None, None]:
            if state.generation >= generation or state.phase is not Phase.DELETED:
                return None, None
            return replace(state, generation=generation), None

        self.sync.update(operation, generator)

    def end_absent(
        self, generation: int, configuration: ReaderGroupConfiguration
    ) -> GroupState | None:
        """Record a group without a scope's row as deleted; return None if it exists.

        The recorded generation is at least ``generation``, so that a later creation of the name
        begins after it.
        """
        known = self.sync.fetch()
        if known is not None and known.state.phase is not Phase.DELETED:
            return None
        if self._scope.group_row(self._short_name) is not None:
            return None
        self._use_up(generation, configuration)
        state = self.sync.local.state
        return state if state.phase is Phase.DELETED else None

    def repair(self) -> GroupState | None:
        """Finish a half-made creation, reset, update or deletion; return the newest state.

        The state is ACTIVE or DELETED, or None for a group that never existed. Every caller does
        this first, and so does the retention job.
        """
        while True:
            known = self.sync.fetch()
            state = None if known is None else known.state
            if state is not None and state.phase is Phase.ACTIVE:
                return state
            if state is not None and state.phase is not Phase.DELETED:
                self._finish(state)
            elif not self._finish_row(-1 if state is None else state.generation):
                return state

    def _finish_row(self, generation: int) -> bool:
        """Finish the change that left a row in the scope; return False if it has no row.

        The row belongs to the deletion of this generation, or to the creation of a later one.
        """
        row = self._scope.group_row(self._short_name)
        if row is None:
            return False
        if row["life"] <= generation:
            self._scope.drop_row(self._short_name, generation, GROUP)
            return True
        if generation < 0:
            check_has_log(self.sync.table.log, self.name)
        claimed = ReaderGroupConfiguration.from_json(json.loads(row["configuration"]))
        with contextlib.suppress(*_IMPOSSIBLE):
            if self._begin_claimed(row["life"], claimed):
                logger.warning(
                    "reader group %s is in the index of its scope and had no log: its creation was "
                    "not finished, or its folder was lost. It begins at its configured start; what "
                    "it read before, if anything, is not known.",
                    self.name,
                    extra=log_fields("create reader group", group=self.name),
                )
        return True

    def _finish(self, state: GroupState) -> None:
        """Subscribe or unsubscribe the streams of a change, and commit that it is finished."""
        failpoint("group.change.noted")
        if state.phase is Phase.DELETING:
            self.subscriptions.unsubscribe(state)
        else:
            self.subscriptions.subscribe(state)
        failpoint("group.change.subscribed")
        phase = Phase.DELETED if state.phase is Phase.DELETING else Phase.ACTIVE

        def generator(newest: GroupState) -> tuple[GroupState | None, None]:
            if (newest.generation, newest.phase) != (state.generation, state.phase):
                return None, None
            done = replace(newest, phase=phase, former_streams={}, renewed_streams=frozenset())
            return done, None

        self.sync.update(f"{phase.value} READER GROUP", generator)
        failpoint("group.change.done")

    def views(self, configuration: ReaderGroupConfiguration) -> dict[str, StreamView]:
        """Return the newest views of a configuration's streams. Raises NoSuchStream."""
        return of_each(self.streams, configuration.streams, begun_view)

    # ------------------------------------------------------------------------------- an open group

    def state(self) -> GroupState:
        """Return the newest state. Raises NoSuchReaderGroup."""
        state = self.repair()
        if state is None or state.phase is Phase.DELETED:
            ending = way_on(self.store, "; create it first.")
            raise NoSuchReaderGroup(
                f"reader group {self.name} does not exist{ending}", group=self.name
            )
        return state

    def life(self, state: GroupState) -> int | None:
        """Return the generation in which the group of this state was created; None if deleted.

        The scope's row names it. The row is read after the state: a later generation in it means
        that the group was deleted and created again in between.
        """
        row = self._scope.group_row(self._short_name)
        return row["life"] if row is not None and row["life"] <= state.generation else None

    def update(
        self,
        operation: str,
        generator: Generator[GroupState, _Value],
        parameters: Mapping[str, Any] | None = None,
    ) -> _Value:
        """Change the group's state in its present life, across concurrent resets.

        Raises NoSuchReaderGroup, and StaleIdentity if the group is deleted during the call.
        """
        seen = self.state()
        while True:
            update = in_generation(seen.generation, generator)
            value = update_settled(self.sync, operation, update, parameters)
            if value is not None:
                return value
            newest = self.state()
            created = self.life(newest)
            if created is None or created > seen.generation:
                raise self.stale(f"a call ended ({operation})")
            seen = newest

    def stale(self, before: str) -> StaleIdentity:
        """Return the error of a call whose group was deleted during the call."""
        return StaleIdentity(
            f"reader group {self.name} was deleted, and perhaps created again, before {before}. "
            "Open it again.",
            name=self.name,
        )

    # ----------------------------------------------------------------------------------- deletion

    def delete(self, life: int | None = None) -> bool:
        """Delete the group; return False if it does not exist.

        Its readers get ReinitializationRequired. ``life`` is the generation in which the group to
        delete was created, by default that of the present group.
        """

        def generator(state: GroupState) -> tuple[GroupState, bool]:
            later = state.generation + 1  # so that streams ignore earlier calls
            after = assignment.remove_readers(state)
            return replace(after, generation=later, phase=Phase.DELETING), True

        while True:
            seen = self.repair()
            if seen is None or seen.phase is Phase.DELETED:
                return False
            created = self.life(seen)
            if created is None or life not in (None, created):
                return False
            life = created
            update = in_generation(seen.generation, generator)
            with self.announced(seen.configuration.holds_data):
                if update_settled(self.sync, "DELETE READER GROUP", update):
                    self.repair()
                    self.leases.remove_all()
                    return True
