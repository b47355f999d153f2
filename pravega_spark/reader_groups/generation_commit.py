"""The commit that begins a generation of a reader group, and its subscriptions in the streams."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pravega_spark.engine.tables.synchronizer import Generator
from pravega_spark.reader_groups.group_generation import in_generation
from pravega_spark.reader_groups.group_lifecycle import GroupLifecycle
from pravega_spark.reader_groups.group_state import GroupState, UndecidedPositions
from pravega_spark.reader_groups.position_settlement import settle_positions, update_settled


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
    StaleIdentity if the group is deleted during the call: ``ended`` says how the call ended.
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
            change.generator(seen)  # an invalid change is refused before it is announced
        except UndecidedPositions as found:
            settle_positions(group.sync, found.transactions, ended)
            continue
        with group.announced(change.holds_data or seen.configuration.holds_data):
            update = in_generation(seen.generation, change.generator)
            parameters = {"generation": seen.generation + 1, "to": change.target}
            generation = update_settled(group.sync, operation, update, parameters)
            if generation is not None:
                group.repair()
                return generation
