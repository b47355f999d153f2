"""A group that holds data, as its streams know it: a subscriber, in the generation of the group.

Every call may be repeated and may come late: a stream ignores what is not of a newer generation.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping

from pravega_spark.engine.layout.located_cut import locate
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.subscribers import publish, subscribe, unsubscribe
from pravega_spark.errors import (
    GenerationMismatch,
    InvalidStreamCut,
    NoSuchStream,
    NoSuchSubscriber,
    StaleIdentity,
)
from pravega_spark.model import StreamCut
from pravega_spark.reader_groups.group_configuration import GroupRetention
from pravega_spark.reader_groups.group_state import GroupState

logger = logging.getLogger(__name__)


class Subscriptions:
    """What a group tells its streams."""

    def __init__(self, streams: Callable[[str], StreamLog]) -> None:
        """Take what opens a stream by its name."""
        self._streams = streams
        self._published = 0
        self._warned: set[str] = set()

    def take(self, state: GroupState) -> None:
        """Make the streams keep what the group reads from its place on, and let go former ones.

        Where the head has moved past the place, that is from the head on.
        """
        self._let_go(state, state.former)
        for name in sorted(state.held):
            start = state.cut(name)
            with contextlib.suppress(NoSuchStream, StaleIdentity):  # deleted: nothing to keep
                subscribe(self._streams(name), state.group, state.generation, start=start)

    def drop(self, state: GroupState) -> None:
        """Make the streams keep nothing for the group any more."""
        self._let_go(state, state.released)

    def _let_go(self, state: GroupState, lives: Mapping[str, int | None]) -> None:
        for name, life in sorted(lives.items()):
            with contextlib.suppress(NoSuchStream, StaleIdentity):  # deleted, with what it kept
                unsubscribe(self._streams(name), state.group, state.generation, life=life)

    def publish(self, state: GroupState, places: Mapping[str, StreamCut]) -> None:
        """Let the streams know that the group needs nothing before these cuts any more.

        Raises InvalidStreamCut, NoSuchSubscriber, GenerationMismatch.
        """
        for name, cut in sorted(places.items()):
            stream = self._streams(name)
            view = stream.view(life=state.lives[name])
            place, _ = locate(view, cut).clipped_to_head()
            publish(stream, state.group, state.generation, place.cut, life=view.life)

    def is_due(self, state: GroupState) -> bool:
        """Tell whether the streams may go by the last checkpoint and have not heard of it here."""
        is_automatic = state.configuration.retention is GroupRetention.AUTOMATIC
        return is_automatic and state.last is not None and state.last.number != self._published

    def publish_last(self, state: GroupState) -> None:
        """Publish the last checkpoint if the group asks for that, once.

        What is newer already, or of another generation, stays.
        """
        if state.last is None or not self.is_due(state):
            return
        for name, cut in state.cuts_of(state.last.positions).items():
            with contextlib.suppress(
                InvalidStreamCut, GenerationMismatch, NoSuchStream, StaleIdentity
            ):
                self._publish_or_warn(state, name, cut)
        self._published = state.last.number

    def _publish_or_warn(self, state: GroupState, name: str, cut: StreamCut) -> None:
        try:
            self.publish(state, {name: cut})
        except NoSuchSubscriber as error:
            if name not in self._warned:
                self._warned.add(name)
                logger.warning(
                    "stream %s keeps nothing for reader group %s any more: %s Reset the group to "
                    "subscribe again.",
                    name,
                    state.group,
                    error,
                )
