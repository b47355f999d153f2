"""The commit that begins a generation of a reader group, and its subscriptions in the streams."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.tables.synchronizer import Generator
from pravega_spark.errors import NoSuchStream, StaleIdentity
from pravega_spark.reader_groups.group_generation import in_generation
from pravega_spark.reader_groups.group_lifecycle import GroupLifecycle
from pravega_spark.reader_groups.group_state import GroupState, UndecidedPositions
from pravega_spark.reader_groups.position_settlement import settle_positions, update_settled
from pravega_spark.reader_groups.stream_rounds import of_each


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
