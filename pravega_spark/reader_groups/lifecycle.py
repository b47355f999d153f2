"""The lifecycle of a reader group: creation, generations, repair and deletion.

The group's table decides every change. A group that holds data is subscribed to its streams in
between (``subscriptions``): a creation, reset or update is committed to the group's table first,
then the streams are subscribed, then the group becomes active. Any later caller finishes a change
that was left half made. The scope has a row of the group from before it begins until it is deleted,
so that the scope cannot be deleted in between. The log of a deleted group stays, and with it the
generation, which continues when the name is created again.

Announced changes of reader groups: one small object under the root for each change under way. A
group that holds data announces each change before it begins, and withdraws the announcement when
its streams are subscribed or unsubscribed. So the retention of a stream finds half-made changes by
one listing, however many groups there are.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from pravega_spark.engine.kinds import GROUP
from pravega_spark.engine.layout.epochs import Layout
from pravega_spark.engine.log.commit import short
from pravega_spark.engine.runtime.failpoints import failpoint
from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.runtime.system import SYSTEM, Runtime
from pravega_spark.engine.state.scopes import Scope, open_scope
from pravega_spark.engine.state.synchronizer import Generator
from pravega_spark.engine.store import Store, open_store
from pravega_spark.engine.store.root_marker import way_on
from pravega_spark.engine.stream.repair import begun_view
from pravega_spark.engine.stream.stream_log import StreamLog, open_stream
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import (
    ConfigMismatch,
    InvalidInput,
    NoSuchReaderGroup,
    NoSuchStream,
    NotFound,
    StaleIdentity,
    StoreReadOnly,
    TruncatedData,
)
from pravega_spark.reader_groups import segments, transitions
from pravega_spark.reader_groups.configuration import ReaderGroupConfiguration
from pravega_spark.reader_groups.leases import leases_of
from pravega_spark.reader_groups.settlement import settle_positions, update_settled
from pravega_spark.reader_groups.state import Checkpoint, GroupState, Phase, UndecidedPositions
from pravega_spark.reader_groups.subscriptions import Subscriptions
from pravega_spark.reader_groups.table import Streams, check_has_log, of_each, open_group_state
from pravega_spark.values.names import split_group
from pravega_spark.values.segments import StreamCut

logger = own_logger(__name__)

FOLDER = "_changing_groups"
"""A folder of the root; no scope has such a name."""
ABANDONED_MS = 3_600_000
"""A change that began this long ago is no longer under way: its announcement can be deleted."""


class ChangeAnnouncements:
    """The announced changes of all reader groups under a root."""

    def __init__(self, store: Store, runtime: Runtime = SYSTEM) -> None:
        """Name the root; reads nothing yet."""
        self._store, self._runtime = store, runtime

    def announce(self, group: str) -> str:
        """Announce a change of a group; return the key of the announcement."""
        key = f"{FOLDER}/{group}/{self._runtime.token()}.json"
        self._store.put(key, b"{}\n")
        return key

    def withdraw(self, key: str) -> None:
        """Delete the announcement of a finished change."""
        self._delete([key])

    def _delete(self, keys: list[str]) -> None:
        """Delete announcements; one that stays costs a look at its group, and no more."""
        try:
            self._store.delete(keys)
        except StoreReadOnly as error:
            group = "/".join(keys[0].split("/")[1:3]) if keys else ""
            logger.warning(
                "an announced change of reader group %s is finished; its announcement stays until "
                "someone who may delete it runs the retention of a stream: %s",
                group,
                error,
                extra=log_fields("finish change", group=group),
            )

    def repair(self, repair_group: Callable[[str], str | None]) -> dict[str, str]:
        """Repair every announced group; return the error of each group that cannot be repaired.

        ``repair_group`` returns an error or None. The announcements of a repaired group are
        deleted, except recent ones, whose change may not have begun yet.
        """
        found: dict[str, dict[str, int | None]] = {}
        for entry in self._store.list(FOLDER):
            group = entry.key.removeprefix(f"{FOLDER}/").rpartition("/")[0]
            found.setdefault(group, {})[entry.key] = entry.modified_ms
        if not found:
            return {}
        before_ms = self._store.time_ms() - ABANDONED_MS
        results = self._runtime.each(repair_group, list(found))
        errors = {group: error for group, error in zip(found, results, strict=True) if error}
        repaired = [keys for group, keys in found.items() if group not in errors]
        old = [
            key
            for keys in repaired
            for key, modified_ms in keys.items()
            if modified_ms is not None and modified_ms < before_ms
        ]
        if old:
            self._delete(old)
        return errors


_Value = TypeVar("_Value")


def next_generation(
    state: GroupState,
    configuration: ReaderGroupConfiguration,
    views: Mapping[str, StreamView],
    starts: Mapping[str, StreamCut] | None = None,
    last: Checkpoint | None = None,
) -> GroupState:
    """Return the first state of the generation after this one; ``starts`` override start cuts.

    Raises UndecidedPositions.
    """
    state.check_nothing_prepared(state.prepared)
    after = segments.begin(
        state.group,
        state.generation + 1,
        configuration,
        views,
        starts=starts,
        next_number=state.next_number,
        phase=Phase.CHANGING,
        last=last,
    )
    return _before_subscriptions(state, after)


def continued_generation(
    state: GroupState,
    configuration: ReaderGroupConfiguration,
    layouts: Mapping[str, Layout],
) -> GroupState:
    """Return the first state of the generation after this one, in which streams continue.

    The streams of ``layouts`` begin at their configured starts. All others keep their positions, in
    the group and in its last checkpoint, to which the streams that begin are added.
    """
    kept = configuration.streams.keys() - layouts.keys()
    after = replace(
        transitions.remove_readers(state),
        generation=state.generation + 1,
        configuration=configuration,
    )
    after = segments.remove_streams(after, state.lives.keys() - kept)
    for stream in sorted(layouts):
        cuts = configuration.streams[stream]
        after = segments.begin_stream(after, layouts[stream], cuts)
    last = after.last_checkpoint
    if last is not None:
        begun = {key: offset for key, offset in after.positions() if key.stream in layouts}
        last = replace(last, positions={**last.positions, **begun})
    renewed = state.subscribed_streams & after.subscribed_streams & kept
    after = replace(after, last_checkpoint=last, renewed_streams=renewed)
    return _before_subscriptions(state, after)


def _before_subscriptions(before: GroupState, after: GroupState) -> GroupState:
    """Return the state of a new generation with the subscriptions that are still to be made."""
    kept = after.subscribed_streams
    former = {s: life for s, life in before.subscribed_lives.items() if s not in kept}
    phase = Phase.CHANGING if former or kept else Phase.ACTIVE
    return replace(after, former_streams=former, phase=phase)


def in_generation(
    generation: int, generator: Generator[GroupState, _Value]
) -> Generator[GroupState, _Value | None]:
    """Return a generator that changes only this generation, and returns None in any other."""

    def update(state: GroupState) -> tuple[GroupState | None, _Value | None]:
        return generator(state) if state.generation == generation else (None, None)

    return update


def check_retained(
    configuration: ReaderGroupConfiguration,
    views: Mapping[str, StreamView],
    starts: Mapping[str, StreamCut],
) -> None:
    """Raise TruncatedData if the group is to hold data that was truncated already."""
    if configuration.holds_data:
        for stream, cut in starts.items():
            segments.check_start(views[stream], cut)


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
        segments.begin(self.name, generation, configuration, views)  # refuse early
        check_retained(configuration, views, configuration.starts)
        claimed, record = self._scope.claim_object(
            GROUP, self._short_name, generation, configuration.to_json(), scope_life=scope_life
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
            first = segments.begin(self.name, generation, configuration, views, phase=phase)
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
        if self._scope.row(GROUP, self._short_name) is not None:
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
        row = self._scope.row(GROUP, self._short_name)
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
                    "reader group %s is in the index of its scope and had no log: its creation "
                    "was not finished, or its folder was lost. It begins at its configured start; "
                    "its earlier positions, if any, are not known.",
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
        row = self._scope.row(GROUP, self._short_name)
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
            after = transitions.remove_readers(state)
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


@dataclass(frozen=True, slots=True)
class GenerationChange:
    """How the next generation of a group is made from a state of the present one.

    ``target`` is a short text for the table's history.
    """

    generator: Generator[GroupState, int]
    holds_data: bool
    target: str


def begin_generation(
    group: GroupLifecycle,
    operation: str,
    prepare: Callable[[GroupState], GenerationChange | None],
    ended: str,
) -> int:
    """Commit the change that ``prepare`` returns for the newest state; return its generation.

    If ``prepare`` returns None, nothing changes. It runs again if another generation began during
    the call; the configuration stays the same within a generation. Raises NoSuchReaderGroup, and
    StaleIdentity if the group is deleted during the call: ``ended`` says how the call ended. Of a
    group that holds data nothing changes, and CorruptLog is raised, if a stream that it
    goes on to read has lost its log.
    """
    life: int | None = None
    while True:
        seen = group.state()
        created = group.life(seen)
        if created is None or life not in (None, created):
            raise group.stale(ended)
        life = created
        change = prepare(seen)
        if change is None:
            return seen.generation
        try:
            after, _ = change.generator(seen)  # an invalid change is refused before it is announced
        except UndecidedPositions as found:
            settle_positions(group.sync, found.transactions, ended)
            continue
        holds_data = change.holds_data or seen.configuration.holds_data
        if holds_data:  # what the streams are told afterwards can be told
            kept = seen.lives.keys() if after is None else seen.lives.keys() & after.lives.keys()
            of_each(group.streams, kept, partial(_check_log, seen))
        with group.announced(holds_data):
            update = in_generation(seen.generation, change.generator)
            parameters = {"generation": seen.generation + 1, "to": change.target}
            generation = update_settled(group.sync, operation, update, parameters)
            if generation is not None:
                group.repair()
                return generation


def _check_log(state: GroupState, stream: StreamLog) -> None:
    """Raise CorruptLog if a stream that the group reads has lost its log; it may be deleted."""
    with contextlib.suppress(NoSuchStream, StaleIdentity):
        stream.view(life=state.lives[stream.name])
