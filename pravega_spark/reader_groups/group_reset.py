"""Resets of a reader group: a new generation at a checkpoint, at cuts, or newly configured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pravega_spark.arguments import shown
from pravega_spark.engine.log.commit_logging import short
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import InvalidStreamCut
from pravega_spark.model import StreamCut
from pravega_spark.reader_groups.checkpoint_future import GroupCheckpoint
from pravega_spark.reader_groups.generation_commit import GenerationChange, begin_generation
from pravega_spark.reader_groups.group_configuration import ReaderGroupConfiguration
from pravega_spark.reader_groups.group_generation import check_retained, next_generation
from pravega_spark.reader_groups.group_lifecycle import GroupLifecycle
from pravega_spark.reader_groups.group_state import GroupState
from pravega_spark.reader_groups.reader_leases import record_heartbeats

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
