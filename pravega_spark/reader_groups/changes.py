"""Resets and updates of a reader group: each begins a new generation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pravega_spark.config.policies import UNCHANGED
from pravega_spark.engine.log.commit import short
from pravega_spark.engine.stream.repair import begun_view
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import InvalidConfiguration, InvalidStreamCut
from pravega_spark.reader_groups.checkpoint_future import GroupCheckpoint
from pravega_spark.reader_groups.configuration import ReaderGroupConfiguration, StreamCutRange
from pravega_spark.reader_groups.leases import record_heartbeats
from pravega_spark.reader_groups.lifecycle import (
    GenerationChange,
    GroupLifecycle,
    begin_generation,
    check_retained,
    continued_generation,
    next_generation,
)
from pravega_spark.reader_groups.state import GroupState
from pravega_spark.values.checks import check_list, shown
from pravega_spark.values.names import split_log
from pravega_spark.values.segments import StreamCut

CutsOrCheckpoint = GroupCheckpoint | Mapping[str, StreamCut | str]
ResetTarget = CutsOrCheckpoint | ReaderGroupConfiguration | None
"""None: the last completed checkpoint, or the configured start without one."""


def reset_group(group: GroupLifecycle, target: ResetTarget) -> int:
    """Begin a new generation at a target and return its number.

    Streams that the target does not name stay where the readers' last heartbeats say.
    """

    def prepare(seen: GroupState) -> GenerationChange:
        heartbeats = group.leases.heartbeats(seen, group.runtime)

        def generator(state: GroupState) -> tuple[GroupState, int]:
            after = _begun(group, record_heartbeats(state, heartbeats), target)
            return after, after.generation

        will_hold_data = isinstance(target, ReaderGroupConfiguration) and target.holds_data
        return GenerationChange(generator, will_hold_data, _target_text(target, seen))

    return begin_generation(group, "RESET READER GROUP", prepare, "it was reset")


def preview_reset(group: GroupLifecycle, state: GroupState, target: ResetTarget) -> GroupState:
    """Return the state that a reset would begin, and commit nothing; raises what it would raise.

    Positions that a joint transaction has prepared count as undecided.
    """
    reported = group.leases.with_heartbeats(state, group.runtime)
    return _begun(group, replace(reported, prepared={}), target)


def _begun(group: GroupLifecycle, state: GroupState, target: ResetTarget) -> GroupState:
    """Return the first state of the generation that begins at a target."""
    configuration = state.configuration
    starts: Mapping[str, StreamCut] | None = None
    given: Mapping[str, StreamCut] = {}
    last = None
    if isinstance(target, ReaderGroupConfiguration):
        configuration, given = target, target.starts
    elif target is not None:
        given = cuts_of(state, target)
        starts = {**state.cuts(), **given}
    elif state.last_checkpoint is not None:
        last = state.last_checkpoint
        starts = state.cuts_of(last.positions)
    views = group.views(configuration)
    if target is None:
        _check_same_lives(state, views)
    after = next_generation(state, configuration, views, starts, last)
    check_retained(configuration, views, given)
    return after


def _check_same_lives(state: GroupState, views: Mapping[str, StreamView]) -> None:
    """Raise InvalidStreamCut if a stream of the group was created again.

    A reset without a target goes back, and nobody asked for another life's events.
    """
    again = sorted(stream for stream, view in views.items() if view.life != state.lives[stream])
    if again:
        raise InvalidStreamCut(
            f"reader group {state.group} reads an earlier life of {', '.join(again)}, which was "
            "deleted and created again, or restored from a copy. Reset the group to "
            f"{{{again[0]!r}: 'earliest'}} to read the present life, or update it: remove the "
            "stream and add it."
        )


def cuts_of(state: GroupState, given: CutsOrCheckpoint) -> dict[str, StreamCut]:
    """Return given cuts by stream; raise InvalidStreamCut for a stream of another group."""
    found = given.stream_cuts if isinstance(given, GroupCheckpoint) else given
    if not isinstance(found, Mapping):
        raise InvalidStreamCut(
            f"reader group {state.group}: expected a checkpoint of the group or a mapping from "
            f"streams to cuts, got {shown(found)}; pass {{'scope/stream': 'earliest'}}."
        )
    strange = sorted(set(found) - set(state.lives))
    if strange:
        raise InvalidStreamCut(
            f"reader group {state.group} does not read {', '.join(strange)}; it reads "
            f"{', '.join(sorted(state.lives))}."
        )
    return {stream: StreamCut.of(cut) for stream, cut in found.items()}


def _target_text(target: ResetTarget, state: GroupState) -> str:
    """Return a short text of the target for the table's history."""
    if isinstance(target, ReaderGroupConfiguration):
        return short(target.to_json())
    if isinstance(target, GroupCheckpoint):
        return short(f"checkpoint {target.name}")
    if isinstance(target, Mapping):
        return short({str(stream): str(cut) for stream, cut in target.items()})
    return "the configured start" if state.last_checkpoint is None else "the last checkpoint"


@dataclass(frozen=True, slots=True)
class GroupUpdate:
    """What an update changes: added streams, removed streams, and fields by their names.

    The names are those of the arguments of :class:`ReaderGroupConfiguration`.
    """

    add: Mapping[str, StreamCutRange]
    remove: frozenset[str]
    fields: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        add: Iterable[str] | Mapping[str, Any],
        remove: Iterable[str],
        **fields: Any,
    ) -> GroupUpdate:
        """Check what a user gives; fields that are UNCHANGED stay.

        Raises InvalidInput, InvalidConfiguration, InvalidName.
        """
        streams = add if isinstance(add, Mapping) else check_list("the added streams", add)
        removed = check_list("the removed streams", remove)
        for name in removed:
            split_log(name)
        added = ReaderGroupConfiguration(streams).streams if streams else {}
        given = {name: value for name, value in fields.items() if value is not UNCHANGED}
        return cls(added, frozenset(removed), given)

    def applied(self, state: GroupState) -> ReaderGroupConfiguration:
        """Return the group's configuration after the update. Raises InvalidConfiguration."""
        read = state.configuration.streams
        unread = sorted(self.remove - read.keys())
        if unread:
            raise InvalidConfiguration(
                f"reader group {state.group} does not read {', '.join(unread)}, so it cannot be "
                f"removed; the group reads {', '.join(read)}."
            )
        kept = {name: cuts for name, cuts in read.items() if name not in self.remove}
        again = sorted(self.add.keys() & kept.keys())
        if again:
            raise InvalidConfiguration(
                f"reader group {state.group} reads {', '.join(again)} already, so it cannot be "
                "added; name it in `remove`, too, to begin again at a start cut."
            )
        streams = {**kept, **self.add}
        if not streams:
            raise InvalidConfiguration(
                f"reader group {state.group} reads no stream but {', '.join(read)}; a group needs "
                "one. Add a stream in the same call, or delete the group."
            )
        return state.configuration.replaced(streams=streams, **self.fields)


def update_group(group: GroupLifecycle, update: GroupUpdate) -> int:
    """Change a group's configuration and return its generation, the present one if nothing changes.

    A retention that the group has already changes something if the group expired: a new generation
    subscribes again. The heartbeats of the readers are recorded first, so that few events are read
    again.
    """

    def prepare(seen: GroupState) -> GenerationChange | None:
        configuration = update.applied(seen)
        if not update.add and configuration == seen.configuration:
            wants_data = "retention" in update.fields and configuration.holds_data
            if not (wants_data and group.subscriptions.expired(seen)):
                return None
        heartbeats = group.leases.heartbeats(seen, group.runtime)

        def generator(state: GroupState) -> tuple[GroupState, int]:
            views = {stream: _addable(group, stream) for stream in update.add}
            starts = {stream: cuts.start for stream, cuts in update.add.items()}
            check_retained(configuration, views, starts)
            recorded = record_heartbeats(state, heartbeats)
            after = continued_generation(recorded, configuration, views)
            return after, after.generation

        return GenerationChange(generator, configuration.holds_data, short(configuration.to_json()))

    return begin_generation(group, "UPDATE READER GROUP", prepare, "it was updated")


def _addable(group: GroupLifecycle, stream: str) -> StreamView:
    """Return the newest view of a stream to add. Raises NoSuchStream, IllegalState."""
    view = begun_view(group.streams(stream))
    view.check_not_sealing(f"added to reader group {group.name}")
    return view
