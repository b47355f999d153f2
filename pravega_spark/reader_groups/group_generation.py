"""Generations of a reader group: the first state of the next one, and changes within one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from pravega_spark.engine.layout.epochs import Layout
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.tables.synchronizer import Generator
from pravega_spark.model import StreamCut
from pravega_spark.reader_groups import assignment, segment_transitions
from pravega_spark.reader_groups.group_configuration import ReaderGroupConfiguration
from pravega_spark.reader_groups.group_state import Checkpoint, GroupState, Phase

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
    after = segment_transitions.begin(
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
        assignment.remove_readers(state),
        generation=state.generation + 1,
        configuration=configuration,
    )
    after = segment_transitions.remove_streams(after, state.lives.keys() - kept)
    for stream in sorted(layouts):
        cuts = configuration.streams[stream]
        after = segment_transitions.begin_stream(after, layouts[stream], cuts)
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
            segment_transitions.check_start(views[stream], cut)
