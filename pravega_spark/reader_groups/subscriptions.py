"""Subscriptions of a group that holds data: what its streams keep for it.

A stream has one subscriber for each group, with the group's generation. Every call may be repeated
or come late: a stream ignores a call whose generation is not newer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping

from pravega_spark.engine.layout.located_cut import locate
from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.stream import subscribers
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import (
    CommitUnknown,
    CorruptLog,
    GenerationMismatch,
    InvalidStreamCut,
    NoSuchStream,
    NoSuchSubscriber,
    StaleIdentity,
    StoreError,
)
from pravega_spark.reader_groups.state import GroupState, SegmentKey
from pravega_spark.reader_groups.table import Streams, of_each
from pravega_spark.values.segments import END, StreamCut

logger = own_logger(__name__)


class Subscriptions:
    """Subscribes a group to its streams and publishes its cuts to them."""

    def __init__(self, streams: Streams) -> None:
        """Take the function that opens a stream by its name."""
        self._streams = streams
        self._published = 0, 0
        """Generation and number of the last checkpoint that was published here."""
        self._warned: set[str] = set()
        self._asked = set[tuple[int, str]]()
        """Generations and streams of which it was asked whether the group has published a cut."""

    def subscribe(self, state: GroupState) -> None:
        """Subscribe the group to its streams, and unsubscribe it from former ones.

        A stream that the group renews keeps what it kept before. Any other begins at the group's
        cut, or at the head where that has passed the cut.
        """
        self._unsubscribe(state, state.former_streams)

        def subscribe(stream: StreamLog) -> None:
            with contextlib.suppress(NoSuchStream, StaleIdentity):  # deleted: nothing to keep
                subscribers.subscribe(
                    stream,
                    state.group,
                    state.generation,
                    start=state.held_cut(stream.name),
                    renew=stream.name in state.renewed_streams,
                )

        of_each(self._streams, state.subscribed_streams, subscribe)

    def expired(self, state: GroupState) -> list[str]:
        """Return the streams that keep nothing for a group that holds data: it was idle."""

        def is_expired(stream: StreamLog) -> bool:
            with contextlib.suppress(NoSuchStream, StaleIdentity):
                known = stream.view(life=state.lives[stream.name]).subscriber(state.group)
                return known is None or bool(known.removed)
            return False

        found = of_each(self._streams, state.subscribed_streams, is_expired)
        return [name for name, expired in found.items() if expired]

    def unsubscribe(self, state: GroupState) -> None:
        """Unsubscribe the group from all streams."""
        self._unsubscribe(state, state.subscribed_lives)

    def _unsubscribe(self, state: GroupState, lives: Mapping[str, int | None]) -> None:
        def unsubscribe(stream: StreamLog) -> None:
            life = lives[stream.name]
            try:
                subscribers.unsubscribe(stream, state.group, state.generation, life=life)
            except (NoSuchStream, StaleIdentity):
                pass  # deleted with its subscribers
            except CorruptLog:
                if stream.newest() is not None:
                    raise
                # Its log is lost: should it come back, retention releases what the group held.

        of_each(self._streams, lives, unsubscribe)

    def publish(self, state: GroupState, stream_cuts: Mapping[str, StreamCut]) -> None:
        """Allow streams to truncate before these cuts.

        Raises InvalidStreamCut, NoSuchSubscriber, GenerationMismatch.
        """

        def publish(stream: StreamLog) -> None:
            view = stream.view(life=state.lives[stream.name])
            clipped = locate(view, stream_cuts[stream.name]).above_head()
            subscribers.publish(stream, state.group, state.generation, clipped.cut, life=view.life)

        of_each(self._streams, stream_cuts, publish)

    def warn_of_uncut(self, state: GroupState, named: Collection[str]) -> None:
        """Warn of each stream that a group of retention 'manual' has never published a cut of.

        Such a stream keeps everything. Asks each stream that is not named once in a generation.
        """
        others = {s for s in state.lives.keys() - named if (state.generation, s) not in self._asked}

        def is_uncut(stream: StreamLog) -> bool:
            with contextlib.suppress(NoSuchStream, StaleIdentity):
                known = stream.view(life=state.lives[stream.name]).subscriber(state.group)
                return known is not None and not known.removed and known.published is None
            return False

        for name, uncut in of_each(self._streams, others, is_uncut).items():
            self._asked.add((state.generation, name))
            if uncut:
                logger.warning(
                    "reader group %s has published no cut of %s yet, so that stream keeps all that "
                    "the group has not read and all that it has: name it in `publish`, too, or "
                    "remove it from the group.",
                    state.group,
                    name,
                    extra=log_fields("publish", name, group=state.group),
                )

    def warn_if_behind(self, state: GroupState, offsets: Mapping[SegmentKey, int]) -> None:
        """Warn of streams that may truncate events after these offsets, where the group is now.

        It has published a later cut of them. Where checkpoints publish, a segment without an owner
        is behind the cut only if the group went back there, though the position does not name it.
        """
        publishes = state.configuration.releases_at_checkpoints
        waiting = {**state.unassigned, **offsets} if publishes else offsets

        def is_behind(stream: StreamLog) -> bool:
            with contextlib.suppress(NoSuchStream, StaleIdentity, InvalidStreamCut, StoreError):
                view = stream.view(life=state.lives[stream.name])
                known = view.subscriber(state.group)
                if known is None or known.published is None or known.removed:
                    return False
                published = locate(view, known.published.cut(stream.name, view.life))
                here = locate(view, state.cut(stream.name))
                for key, offset in waiting.items():
                    if key.stream == stream.name and view.has_segment(key.segment_id):
                        segment = view.lineage.find(key.segment_id)
                        past = published.offset_in(segment)
                        end = view.lineage.end(segment) if past == END else past
                        if here.offset_in(segment) == offset < end:
                            return True
            return False

        streams = {key.stream for key in waiting} & state.subscribed_streams
        for name, is_late in of_each(self._streams, streams, is_behind).items():
            if is_late:
                logger.warning(
                    "reader group %s went back in stream %s behind the cut that it has published: "
                    "retention may truncate these events before they are read",
                    state.group,
                    name,
                    extra=log_fields("go back", name, group=state.group),
                )

    def is_publication_due(self, state: GroupState) -> bool:
        """Return whether retention is automatic and the last checkpoint is unpublished here."""
        last = state.last_checkpoint
        if last is None or not state.configuration.releases_at_checkpoints:
            return False
        return self._published != (state.generation, last.number)

    def publish_last_checkpoint(self, state: GroupState) -> None:
        """Publish the last checkpoint once, if the group's retention is automatic.

        A newer published cut, and one of another generation, stays.
        """
        last = state.last_checkpoint
        if last is None or not self.is_publication_due(state):
            return
        cuts = state.cuts_of(last.positions)
        of_each(self._streams, cuts, lambda stream: self.publish_to(stream, state, cuts))
        self._published = state.generation, last.number

    def try_to_publish(self, state: GroupState) -> None:
        """Publish the last checkpoint; one that cannot be published now is published later.

        The next publication, or retention, covers it.
        """
        try:
            self.publish_last_checkpoint(state)
        except (StoreError, CommitUnknown):
            pass
        except Exception as error:
            logger.warning(
                "failed to publish a checkpoint of reader group %s; its streams keep more than "
                "they need to: %s",
                state.group,
                error,
                exc_info=True,
                extra=log_fields("publish", group=state.group),
            )

    def publish_left(self, state: GroupState) -> None:
        """Publish the last checkpoint of a group that no reader is left to publish for."""
        if not state.readers:
            self.try_to_publish(state)

    def publish_to(
        self, stream: StreamLog, state: GroupState, cuts: Mapping[str, StreamCut]
    ) -> None:
        """Publish the cut of one stream; a newer one, and one of another generation, stays."""
        with contextlib.suppress(InvalidStreamCut, GenerationMismatch, NoSuchStream, StaleIdentity):
            self._publish_or_warn(state, stream.name, cuts[stream.name])

    def _publish_or_warn(self, state: GroupState, name: str, cut: StreamCut) -> None:
        try:
            self.publish(state, {name: cut})
        except NoSuchSubscriber as error:
            if name not in self._warned:
                self._warned.add(name)
                logger.warning(
                    "stream %s no longer keeps data for reader group %s: %s Reset the group, or "
                    "call its update(retention=%r), to subscribe it again.",
                    name,
                    state.group,
                    error,
                    state.configuration.retention.value,
                    extra=log_fields("publish", name, group=state.group),
                )
