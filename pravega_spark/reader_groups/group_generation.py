"""Generations of a reader group: the first state of the next one, and changes within one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.tables.synchronizer import Generator
from pravega_spark.model import StreamCut
from pravega_spark.reader_groups import segment_transitions
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
    """Return the first state of the generation after this one; ``starts`` override start cuts."""
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
    kept = after.subscribed_streams
    former = {s: life for s, life in state.subscribed_lives.items() if s not in kept}
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
