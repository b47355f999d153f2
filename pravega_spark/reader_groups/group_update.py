"""Updates of a reader group: streams and fields change, and kept streams keep their positions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pravega_spark.arguments import check_list
from pravega_spark.engine.log.commit_logging import short
from pravega_spark.engine.stream.repair import begun_view
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import InvalidConfiguration
from pravega_spark.names import split_log
from pravega_spark.policies import UNCHANGED
from pravega_spark.reader_groups.generation_commit import GenerationChange, begin_generation
from pravega_spark.reader_groups.group_configuration import (
    ReaderGroupConfiguration,
    StreamCutRange,
)
from pravega_spark.reader_groups.group_generation import check_retained, continued_generation
from pravega_spark.reader_groups.group_lifecycle import GroupLifecycle
from pravega_spark.reader_groups.group_state import GroupState
from pravega_spark.reader_groups.reader_leases import record_heartbeats


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
