"""A reader group: create, reset and delete it, its checkpoints, its readers and its lag.

The group's table is the arbiter of all of it; a group that holds data tells its streams in between
(``holds``). So a creation or reset is first noted in the group's log, then the streams take the
hold, then the group is active; who finds it in between finishes it. Before a group begins, and
until it is deleted, its scope has a row of it, so that no scope is deleted around it. The log of a
deleted group stays, and with it the generation, which goes on when the name is created again.
"""

from __future__ import annotations

import contextlib
import json
import reprlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from pravega_spark.engine.failpoints import failpoint
from pravega_spark.engine.log.commit_log import Log
from pravega_spark.engine.log.operator_log import short
from pravega_spark.engine.runtime import SYSTEM, Runtime
from pravega_spark.engine.store import Store
from pravega_spark.engine.stream.repair import existing_view
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.tables.scopes import GROUP, GROUPS_FOLDER, Scope
from pravega_spark.engine.tables.synchronizer import Generator, Synchronizer
from pravega_spark.errors import (
    ConfigMismatch,
    IllegalState,
    InvalidInput,
    InvalidName,
    InvalidStreamCut,
    NoSuchReaderGroup,
    NotFound,
    StaleIdentity,
    TruncatedData,
)
from pravega_spark.limits import POLL_LOCAL_SECONDS, POLL_REMOTE_SECONDS
from pravega_spark.model import StreamCut
from pravega_spark.names import check_checkpoint, check_list, check_name, split_group
from pravega_spark.reader_groups import assignment, checkpoints, group_changes, segment_transitions
from pravega_spark.reader_groups.changing_groups import ChangingGroups
from pravega_spark.reader_groups.checkpoint_future import CheckpointFuture, GroupCheckpoint
from pravega_spark.reader_groups.group_codec import GroupCodec
from pravega_spark.reader_groups.group_configuration import (
    NOTIFICATION_INTERVAL,
    READER_LEASE,
    GroupRetention,
    ReaderGroupConfiguration,
)
from pravega_spark.reader_groups.group_lag import GroupLag, lag_of
from pravega_spark.reader_groups.group_reader import Deserializer, EventStreamReader
from pravega_spark.reader_groups.group_state import Checkpoint, GroupState, Key, Phase
from pravega_spark.reader_groups.notifications import Notification, watch
from pravega_spark.reader_groups.position import Position
from pravega_spark.reader_groups.query_member import QUERY, QueryMember, acknowledge
from pravega_spark.reader_groups.reader_leases import (
    ReaderLeases,
    expire_readers,
    parse_reader_lease_ms,
    recorded,
)
from pravega_spark.reader_groups.segment_selector import view_of
from pravega_spark.reader_groups.subscriptions import Subscriptions
from pravega_spark.units import parse_duration_ms

_Value = TypeVar("_Value")
_IMPOSSIBLE = (NotFound, InvalidInput, TruncatedData, StaleIdentity)
"""Why a group cannot begin that was noted: its streams, or the places to start at, are gone."""


def group_path(group: str) -> str:
    """Return the key of a group's table; raise InvalidName for what is no name of a group."""
    scope, name = split_group(group)
    return f"{scope}/{GROUPS_FOLDER}/{name}"


def _first_phase(configuration: ReaderGroupConfiguration) -> Phase:
    """Return how a group begins: at once, or with its streams to be told first."""
    return Phase.CHANGING if configuration.holds else Phase.ACTIVE


def _check_held(
    configuration: ReaderGroupConfiguration,
    views: Mapping[str, StreamView],
    given: Mapping[str, StreamCut],
) -> None:
    """Raise TruncatedData if the group is to hold data that is gone already."""
    if configuration.holds:
        for stream, cut in given.items():
            segment_transitions.check_start(views[stream], cut)


def _told(
    to: GroupCheckpoint | Mapping[str, StreamCut | str] | ReaderGroupConfiguration | None,
    state: GroupState,
) -> str:
    """Return in short where a reset of this state goes to."""
    if isinstance(to, ReaderGroupConfiguration):
        return short(to.to_json())
    if isinstance(to, GroupCheckpoint):
        return short(f"checkpoint {to.name}")
    if isinstance(to, Mapping):
        return short({str(stream): str(cut) for stream, cut in to.items()})
    return "the configured start" if state.last is None else "the last checkpoint"


def _only_in(
    generation: int, generator: Generator[GroupState, _Value]
) -> Generator[GroupState, _Value | None]:
    """Return what does as the generator in this generation, and in any other one nothing."""

    def update(state: GroupState) -> tuple[GroupState | None, _Value | None]:
        return generator(state) if state.generation == generation else (None, None)

    return update


class ReaderGroup:
    """One reader group of one process. Made by ``StreamManager``; it need not exist yet."""

    def __init__(
        self,
        store: Store,
        name: str,
        streams: Callable[[str], StreamLog],
        runtime: Runtime = SYSTEM,
    ) -> None:
        """Name the group; ``streams`` opens a stream by its name."""
        path = group_path(name)
        self.name = name
        self.runtime = runtime
        self.is_local = store.is_local
        self.sync: Synchronizer[GroupState] = Synchronizer(
            store, path, GroupCodec(), runtime, group_changes.log_changes
        )
        self._streams, self._holds = streams, Subscriptions(streams)
        self._leases = ReaderLeases(store, path)
        self._changes = ChangingGroups(store, runtime)
        scope, self._short_name = split_group(name)
        self._scope = Scope(store, scope, runtime)

    @property
    def log(self) -> Log:
        """The log of the group's table: its history, and what a sweep works on."""
        return self.sync.table.log

    # ------------------------------------------------------------------------------------ its life

    def create(self, configuration: ReaderGroupConfiguration) -> bool:
        """Create the group; False if it exists with this configuration.

        Of several creators at once the first one's configuration is taken. Raises ConfigMismatch
        if it exists with another one; NoSuchScope, NoSuchStream, InvalidStreamCut; TruncatedData
        for a start that is forgotten, and for any start below the head if the group holds data.
        """
        claimed, state = False, self.settle()
        if state is None or state.phase is Phase.DELETED:
            generation = 0 if state is None else state.generation + 1
            with self._announced(configuration.holds):
                claimed = self._note(generation, configuration)
                state = self.settle()
        if state is not None and state.configuration != configuration:
            raise ConfigMismatch(
                f"reader group {self.name} exists with another configuration, generation "
                f"{state.generation}; open it as it is, or reset it to this one.",
                group=self.name,
                generation=state.generation,
            )
        return claimed

    @contextlib.contextmanager
    def _announced(self, holds: bool) -> Iterator[None]:
        """Announce a change of a group that holds data until it is finished; not if it fails."""
        if not holds:
            yield
            return
        key = self._changes.announce(self.name)
        yield
        self._changes.take_back(key)

    def _note(self, generation: int, configuration: ReaderGroupConfiguration) -> bool:
        """Begin a generation after noting it in the scope; False if another one has noted it."""
        scope_life = self._scope.check_exists()
        views = self._views(configuration)
        segment_transitions.begin(
            self.name, generation, configuration, views
        )  # what it refuses is not noted
        _check_held(configuration, views, configuration.starts)
        told = configuration.to_json()
        claimed, noted = self._scope.claim_group(
            self._short_name, generation, told, scope_life=scope_life
        )
        failpoint("group.create.row")
        self._begin_noted(generation, ReaderGroupConfiguration.from_json(noted))
        return claimed

    def _begin_noted(self, generation: int, configuration: ReaderGroupConfiguration) -> None:
        """Begin the generation that the scope has noted, unless the group has come to it.

        If it cannot begin any more, its number is used up, so that nobody else begins it later.
        """
        try:
            views = self._views(configuration)
            phase = _first_phase(configuration)
            first = segment_transitions.begin(
                self.name, generation, configuration, views, phase=phase
            )
        except _IMPOSSIBLE:
            self._use_up(generation, configuration)
            raise
        cause = {
            "streams": short(",".join(configuration.streams)),
            "retention": configuration.retention.value,
            "generation": generation,
        }
        operation = "CREATE READER GROUP"
        absent = self.sync.fetch() is None
        if absent and self.sync.initialise(first, operation, parameters=cause):
            return

        def generator(state: GroupState) -> tuple[GroupState | None, None]:
            if state.generation >= generation:
                return None, None
            return self._begin(state, configuration, views), None

        self.sync.update(operation, generator, cause)

    def _use_up(self, generation: int, configuration: ReaderGroupConfiguration) -> None:
        ended = GroupState(self.name, generation, Phase.DELETED, configuration, {})
        if self.sync.fetch() is None and self.sync.initialise(ended, "TAKE BACK READER GROUP"):
            return

        def generator(state: GroupState) -> tuple[GroupState | None, None]:
            if state.generation >= generation:
                return None, None
            return replace(state, generation=generation), None

        self.sync.update("TAKE BACK READER GROUP", generator)

    def settle(self) -> GroupState | None:
        """Finish a creation, reset or deletion that was left half made; return the newest state.

        That is ACTIVE or DELETED, or None for a group that never was. Whoever comes next does
        this, and the retention job.
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
        """Carry on what left a row in the scope and no group; False if there is no row.

        That is a deletion of this generation, or the creation of a later one.
        """
        row = self._scope.group_row(self._short_name)
        if row is None:
            return False
        if row["life"] <= generation:
            self._scope.drop_row(self._short_name, generation, GROUP)
            return True
        noted = ReaderGroupConfiguration.from_json(json.loads(row["configuration"]))
        with contextlib.suppress(*_IMPOSSIBLE):
            self._begin_noted(row["life"], noted)
        return True

    def _begin(
        self,
        state: GroupState,
        configuration: ReaderGroupConfiguration,
        views: Mapping[str, StreamView],
        starts: Mapping[str, StreamCut] | None = None,
        last: Checkpoint | None = None,
    ) -> GroupState:
        """Return the first state of the next generation."""
        after = segment_transitions.begin(
            self.name,
            state.generation + 1,
            configuration,
            views,
            starts=starts,
            next_number=state.next_number,
            phase=Phase.CHANGING,
            last=last,
        )
        former = {s: life for s, life in state.released.items() if s not in after.held}
        is_settled = not former and not after.held
        return replace(after, former=former, phase=Phase.ACTIVE if is_settled else Phase.CHANGING)

    def _views(self, configuration: ReaderGroupConfiguration) -> dict[str, StreamView]:
        return {stream: existing_view(self._streams(stream)) for stream in configuration.streams}

    def _finish(self, state: GroupState) -> None:
        """Carry on a creation, reset or deletion that has begun; whoever comes next does."""
        if state.phase in (Phase.ACTIVE, Phase.DELETED):
            return
        failpoint("group.change.noted")
        if state.phase is Phase.DELETING:
            self._holds.drop(state)
        else:
            self._holds.take(state)
        failpoint("group.change.told")
        phase = Phase.DELETED if state.phase is Phase.DELETING else Phase.ACTIVE

        def generator(newest: GroupState) -> tuple[GroupState | None, None]:
            if (newest.generation, newest.phase) != (state.generation, state.phase):
                return None, None
            return replace(newest, phase=phase, former={}), None

        self.sync.update(f"{phase.value} READER GROUP", generator)
        failpoint("group.change.done")

    def exists(self) -> bool:
        """Tell whether the group exists."""
        state = self.settle()
        return state is not None and state.phase is Phase.ACTIVE

    def state(self) -> GroupState:
        """Return the newest state. Raises NoSuchReaderGroup."""
        state = self.settle()
        if state is None or state.phase is Phase.DELETED:
            raise NoSuchReaderGroup(
                f"reader group {self.name} does not exist; create it first.", group=self.name
            )
        return state

    def reset(
        self,
        to: GroupCheckpoint
        | Mapping[str, StreamCut | str]
        | ReaderGroupConfiguration
        | None = None,
    ) -> int:
        """Begin a new generation and return its number; readers get ReinitializationRequired.

        At the last completed checkpoint (the configured start if there is none), at a checkpoint,
        at cuts (streams that are not named stay where they were last recorded), or with another
        configuration at its start. Checkpoints under way fail. Raises NoSuchReaderGroup,
        InvalidStreamCut; TruncatedData for a place that is forgotten, and for any given place
        below the head if the group holds data.
        """

        def generator(state: GroupState) -> tuple[GroupState, int]:
            configuration = state.configuration
            starts: Mapping[str, StreamCut] | None = None
            given: Mapping[str, StreamCut] = {}
            last = None
            if isinstance(to, ReaderGroupConfiguration):
                configuration, given = to, to.starts
            elif to is not None:
                given = self._cuts(state, to)
                starts = {**state.cuts(), **given}
            elif state.last is not None:
                starts, last = state.cuts_of(state.last.positions), state.last
            views = self._views(configuration)
            after = self._begin(state, configuration, views, starts, last)
            _check_held(configuration, views, given)
            return after, after.generation

        life: int | None = None
        while True:
            seen = self.state()
            began = self._life(seen)
            if began is None or life not in (None, began):
                raise self._ended("it was reset")
            life = began
            update = _only_in(seen.generation, generator)
            will_hold = isinstance(to, ReaderGroupConfiguration) and to.holds
            with self._announced(will_hold or seen.configuration.holds):
                cause = {"generation": seen.generation + 1, "to": _told(to, seen)}
                generation = self.sync.update("RESET READER GROUP", update, cause)
                if generation is not None:
                    self.settle()
                    return generation

    def _update(
        self,
        operation: str,
        generator: Generator[GroupState, _Value],
        parameters: Mapping[str, Any] | None = None,
    ) -> _Value:
        """Change the group's state in the life that it has now, whatever resets come between."""
        seen = self.state()
        while True:
            update = _only_in(seen.generation, generator)
            value = self.sync.update(operation, update, parameters)
            if value is not None:
                return value
            newest = self.state()
            began = self._life(newest)
            if began is None or began > seen.generation:
                raise self._ended(f"a call ended ({operation})")
            seen = newest

    def _ended(self, before: str) -> StaleIdentity:
        return StaleIdentity(
            f"reader group {self.name} was deleted, and perhaps created again, before {before}. "
            "Open it again.",
            name=self.name,
        )

    def _life(self, state: GroupState) -> int | None:
        """Return the generation in which the group of this state began; None if it has ended.

        The scope's row names it. The row is read after the state: one of a later generation says
        that the group was deleted and created again in between.
        """
        row = self._scope.group_row(self._short_name)
        return row["life"] if row is not None and row["life"] <= state.generation else None

    def _cuts(
        self, state: GroupState, to: GroupCheckpoint | Mapping[str, StreamCut | str]
    ) -> dict[str, StreamCut]:
        given = to.stream_cuts if isinstance(to, GroupCheckpoint) else to
        if not isinstance(given, Mapping):
            raise InvalidStreamCut(
                f"reader group {self.name}: a place is a checkpoint of the group or a mapping from "
                f"streams to cuts, got {reprlib.repr(given)}; give {{'scope/stream': 'earliest'}}."
            )
        strange = sorted(set(given) - set(state.lives))
        if strange:
            raise InvalidStreamCut(
                f"reader group {self.name} does not read {', '.join(strange)}; it reads "
                f"{', '.join(sorted(state.lives))}."
            )
        return {stream: StreamCut.of(cut) for stream, cut in given.items()}

    def delete(self, life: int | None = None) -> bool:
        """Delete the group; False if there is none. Its readers get ReinitializationRequired.

        ``life`` is the generation in which the group began that the call was made for, by default
        the present one's.
        """

        def generator(state: GroupState) -> tuple[GroupState, bool]:
            return (
                replace(
                    state,
                    generation=state.generation + 1,  # so that no earlier call to a stream counts
                    phase=Phase.DELETING,
                    readers={},
                    assigned={},
                    unassigned=dict(state.unassigned)
                    | {key: owned.offset for key, owned in state.assigned.items()},
                    checkpoints=(),
                ),
                True,
            )

        while True:
            seen = self.settle()
            if seen is None or seen.phase is Phase.DELETED:
                return False
            began = self._life(seen)
            if began is None or life not in (None, began):
                return False
            life = began
            update = _only_in(seen.generation, generator)
            with self._announced(seen.configuration.holds):
                if self.sync.update("DELETE READER GROUP", update):
                    self.settle()
                    self._leases.clear()
                    return True

    # --------------------------------------------------------------------------------- its readers

    def create_reader(
        self,
        reader_id: str,
        *,
        lease: str | float | None = READER_LEASE,
        deserializer: Deserializer | None = None,
    ) -> EventStreamReader:
        """Let a reader into the group. Raises IllegalState if a living one of that id is in it.

        A reader that does not read for longer than its ``lease`` is taken for dead. With a lease
        of None it never is: somebody must call ``reader_offline`` (as in Pravega). Raises
        InvalidName, also for the name that streaming queries have in their groups.
        """
        if reader_id == QUERY:
            raise InvalidName(
                f"reader name {reader_id!r} is that of streaming queries; use another."
            )
        self.state()
        return EventStreamReader(
            self._copy(),
            self._streams,
            reader_id,
            lease_ms=parse_reader_lease_ms(lease),
            holds=self._holds,
            deserializer=deserializer,
        )

    def _copy(self) -> Synchronizer[GroupState]:
        """Return the state as one reader sees it."""
        store = self.sync.table.log.store
        return Synchronizer(
            store, group_path(self.name), GroupCodec(), self.runtime, group_changes.log_changes
        )

    def join_query(self) -> QueryMember:
        """Let a streaming query into the group, which then has all segments.

        Raises IllegalState if another one, or a reader, is alive in the group.
        """
        self.state()
        return QueryMember(self._copy(), self._streams, self._leases)

    def acknowledge(
        self, generation: int, cuts: Mapping[str, StreamCut], query: int | None = None
    ) -> bool:
        """Note that a streaming query has done all before these cuts; False if nothing changed.

        For who reads Spark's own notes of finished batches; of an older ``generation`` nothing
        counts, nor of a ``query`` (the number of its joining) after which another one joined.
        Raises IllegalState while readers are in the group who say by themselves how far they are.
        """
        self.state()
        return acknowledge(self.sync, self._streams, generation, cuts, query)

    def reader_offline(self, reader_id: str, position: Position | str | None = None) -> bool:
        """Take a reader out of the group; False if it is not in it.

        Others go on at ``position``; without one, or for segments that it lacks, at what the
        reader recorded last. Segments that it names and the reader has finished or released since
        stay as they are. Raises InvalidInput for a position that the streams do not have.
        """
        check_name("reader", reader_id)
        state = self.state()
        offsets = {} if position is None else dict(Position.of(position).offsets)
        for key in state.owned_by(reader_id).keys() & offsets.keys():
            view = view_of(self._streams(key.stream), state.lives[key.stream])
            if view is not None and view.has_segment(key.segment_id):
                end = view.segment(key.segment_id).next_offset
                if not 0 <= offsets[key] <= end:
                    raise InvalidInput(
                        f"{key} has {end} events; the position names {offsets[key]}."
                    )

        said = self._leases.sign(reader_id)

        def generator(newest: GroupState) -> tuple[GroupState | None, bool]:
            if reader_id not in newest.readers:
                return None, False
            return assignment.offline(recorded(newest, reader_id, said), reader_id, offsets), True

        return self._update("READER OFFLINE", generator, {"reader": reader_id})

    def bury(self) -> list[str]:
        """Take out the readers whose leases ran out, and return their ids; readers do it too."""
        return expire_readers(self.sync, self._leases)

    def online_readers(self) -> list[str]:
        """Return the ids of the readers in the group, sorted."""
        return sorted(self.state().readers)

    def distribution(self) -> dict[str | None, int]:
        """Return the number of segments of each reader, and of none of them (None)."""
        state = self.state()
        found: Counter[str | None] = Counter(dict.fromkeys(state.readers, 0))
        found.update(owned.reader for owned in state.assigned.values())
        found[None] = len(state.unassigned)
        return dict(found)

    # ------------------------------------------------------------------------------- where it is

    @property
    def configuration(self) -> ReaderGroupConfiguration:
        """The configuration of the present generation."""
        return self.state().configuration

    @property
    def generation(self) -> int:
        """How often the group was created or reset, from 0."""
        return self.state().generation

    def stream_cuts(self) -> dict[str, StreamCut]:
        """Return the place that was recorded last in each stream; cheap, and may be old."""
        return self.state().cuts()

    def last_checkpoint(self) -> GroupCheckpoint | None:
        """Return the last completed checkpoint of this generation, or None."""
        state = self.state()
        if state.last is None:
            return None
        return GroupCheckpoint(state.last.name, state.cuts_of(state.last.positions))

    def cuts_at(self, positions: Iterable[Position | str]) -> dict[str, StreamCut]:
        """Return the cuts that positions of the group's readers make, such as those in a store.

        Raises InvalidInput unless they name every segment that a reader has now.
        """
        state = self.state()
        offsets: dict[Key, int] = {}
        for position in check_list("positions", positions):
            offsets.update(Position.of(position).offsets)
        lacking = sorted(state.assigned.keys() - offsets.keys())
        if lacking:
            raise InvalidInput(
                f"the positions do not name {', '.join(map(str, lacking))}, which readers of "
                f"reader group {self.name} have; give one position of each reader."
            )
        told = {key: offsets[key] for key in state.assigned}
        return state.cuts_of(dict(state.positions()) | told)

    def is_at_end(self) -> bool:
        """Tell whether everything that the group is to read was read."""
        return self.state().is_at_end

    def publish(self, cuts: Mapping[str, StreamCut | str]) -> None:
        """Let streams go what is before these cuts (retention 'manual'); others stay as they are.

        Raises IllegalState for a group of another retention, InvalidStreamCut for a cut behind
        the last one.
        """
        state = self.state()
        if state.configuration.retention is not GroupRetention.MANUAL:
            raise IllegalState(
                f"reader group {self.name} has retention "
                f"{state.configuration.retention.value!r}; only one with 'manual' publishes cuts "
                "by hand."
            )
        self._holds.publish(state, self._cuts(state, cuts))

    def lag(self) -> GroupLag:
        """Return what is unread, from the recorded positions on: events, bytes and seconds.

        Recorded is also what each reader last said, at most a third of its lease ago.
        """
        state = self._leases.fresh(self.state(), self.runtime)
        return lag_of(state, {stream: self._streams(stream) for stream in state.lives})

    def notifications(
        self, *, interval: str | float = NOTIFICATION_INTERVAL, timeout: float | None = None
    ) -> Iterator[Notification]:
        """Yield the numbers of segments and readers, at first and when they change, and the end.

        Looks every ``interval``. After everything was read it yields EndOfDataNotification and
        ends; also when nothing has changed for ``timeout`` seconds. Raises NoSuchReaderGroup.
        """
        interval_ms = parse_duration_ms("the interval", interval)
        return watch(self.state, self.runtime, interval_ms / 1_000, timeout)

    # ------------------------------------------------------------------------------- checkpoints

    def initiate_checkpoint(self, name: str | None = None) -> CheckpointFuture:
        """Ask all readers for a checkpoint; each sees a marker, and answers by its next call.

        A name that is under way is joined. Raises InvalidName, TooManyCheckpoints,
        NoSuchReaderGroup.
        """
        return self._initiate(None if name is None else check_checkpoint(name), silent=False)

    def generate_stream_cuts(self) -> CheckpointFuture:
        """Ask all readers where they are, without markers; nothing else changes by it."""
        return self._initiate(None, silent=True)

    def _initiate(self, name: str | None, *, silent: bool) -> CheckpointFuture:
        def generator(state: GroupState) -> tuple[GroupState, tuple[int, Checkpoint]]:
            given = name or f"{'cuts' if silent else 'checkpoint'}-{state.next_number}"
            after, begun = checkpoints.initiate(state, given, silent=silent)
            return after, (after.generation, begun)

        generation, begun = self._update("CHECKPOINT", generator)
        longest = (POLL_LOCAL_SECONDS if self.is_local else POLL_REMOTE_SECONDS)[1]
        return CheckpointFuture(self.state, self.bury, self.runtime, longest, generation, begun)

    def cancel_outstanding_checkpoints(self) -> None:
        """Fail the checkpoints that are under way."""
        self._update("CANCEL CHECKPOINTS", lambda state: (checkpoints.cancel(state), True))
