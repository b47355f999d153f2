"""The place of a streaming query in its reader group (option ``readerGroup``).

Lives in the one process that Spark keeps for a query's source. Spark says nothing when a query
has ended, and tells a source of the end of a batch only when it asks for the next one; the rest is
done by ``acknowledging``, from the progress that Spark reports to the driver.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable

from pravega_spark.engine.layout.located_cut import locate
from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.engine.stream.repair import existing_view
from pravega_spark.errors import (
    ConfigMismatch,
    InvalidOption,
    NoSuchReaderGroup,
    ReinitializationRequired,
    TruncatedData,
)
from pravega_spark.manager import StreamManager
from pravega_spark.model import StreamCut
from pravega_spark.reader_groups.group_configuration import GroupRetention, ReaderGroupConfiguration
from pravega_spark.reader_groups.query_member import QueryMember
from pravega_spark.reader_groups.reader_group import ReaderGroup
from pravega_spark.spark.settings import ReadSettings
from pravega_spark.spark.source_offsets import OffsetOwner, StreamOffsets

logger = logging.getLogger(__name__)

MODES = {"observer": GroupRetention.NONE, "subscriber": GroupRetention.AUTOMATIC}
"""What a group that the query creates keeps of its streams."""

Cuts = dict[str, StreamCut]


class QueryMembership:
    """A query in its group: joined at Spark's first call, and again if need be."""

    def __init__(
        self, settings: ReadSettings, name: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Take the settings and the group's name; nothing is read yet."""
        self._settings, self._name, self._clock = settings, name, clock
        self._manager = StreamManager(settings.root)
        self._member: QueryMember | None = None
        self._due = 0.0
        self.owner = OffsetOwner(settings.root)
        """What the query's offsets tell of it: its group too, once it has joined."""

    def places(self) -> Cuts | None:
        """Join the group and return where it is; None if there is none yet.

        Raises InvalidOption if it is not one for this query, IllegalState if others read it.
        """
        if self._member is None:
            try:
                group = self._manager.reader_group(self._name)
            except NoSuchReaderGroup:
                return None
            self._join(group)
        assert self._member is not None
        return dict(self._member.cuts())

    def _join(self, group: ReaderGroup) -> QueryMember:
        self._check(group.configuration)
        member = self._member = group.join_query()
        root, self._due = self._settings.root, self._clock()
        self.owner = OffsetOwner(root, self._name, member.generation, member.number)
        return member

    def check(self, start: StreamOffsets, owner: OffsetOwner | None) -> None:
        """Take part in the group from an offset on, which may be of an earlier run.

        A group that does not exist is created there. Raises ReinitializationRequired if it was
        reset or deleted since the offset was made, or another query took it over; InvalidOption
        if the query never read what the group has still to read.
        """
        is_ours = owner is not None and owner.group == self._name
        member = self._member or self._enter(start, is_ours=is_ours)
        member.check()
        if is_ours and owner is not None and owner.generation != member.generation:
            self.leave()
            raise ReinitializationRequired(
                f"reader group {self._name} was reset: the query's checkpoint is of generation "
                f"{owner.generation}, the group is in generation {member.generation}. "
                "Start the query with a new checkpoint folder to go on where the group is.",
                group=self._name,
                generation=member.generation,
            )

    def _enter(self, start: StreamOffsets, *, is_ours: bool) -> QueryMember:
        """Join the group, or create it."""
        self._check_streams(start)
        if self.places() is not None:
            assert self._member is not None
            if not is_ours:
                self._check_origins(start, self._member)
            return self._member
        if is_ours:
            raise ReinitializationRequired(
                f"reader group {self._name} was deleted, and with it the position of the query. "
                "Start the query with a new checkpoint folder, which begins where the start "
                "options say, or without readerGroup.",
                group=self._name,
            )
        mode = self._settings.group_mode or "observer"
        with contextlib.suppress(ConfigMismatch):  # somebody was faster: theirs is as good
            self._create(start, MODES[mode])
        return self._join(self._manager.reader_group(self._name))

    def _create(self, start: StreamOffsets, retention: GroupRetention) -> None:
        """Create the group at an offset, or at the head where that has moved on."""
        while True:
            starts = {name: self._clipped(name, start) for name in self._settings.streams}
            try:
                self._manager.create_reader_group(self._name, starts, retention=retention)
            except TruncatedData:
                logger.info("the head has moved past %s: reader group %s", starts, self._name)
            else:
                return

    def _clipped(self, name: str, start: StreamOffsets) -> StreamCut:
        """Return where a group that is created begins: nothing was promised below the head."""
        if name not in start:
            return StreamCut.EARLIEST
        view = existing_view(open_stream(self._settings.root, name))
        return locate(view, start[name].cut).clipped_to_head()[0].cut

    def _check_streams(self, start: StreamOffsets) -> None:
        strange = sorted(set(start) - set(self._settings.streams))
        if strange:
            raise InvalidOption(
                f"option readerGroup={self._name}: the query's checkpoint has a place in "
                f"{', '.join(strange)}, which it does not name any more. Name the same streams as "
                "before, or start with a new checkpoint folder."
            )

    def _check_origins(self, start: StreamOffsets, member: QueryMember) -> None:
        """Raise InvalidOption if the query began after the group's place: a gap nobody has read."""
        for name, offset in start.items():
            place = member.cuts()[name]
            view = existing_view(open_stream(self._settings.root, name))
            if place.life != offset.life:
                continue
            if locate(view, place).is_at_or_after(locate(view, offset.origin)):
                continue
            self.leave()
            raise InvalidOption(
                f"option readerGroup={self._name}: the query's checkpoint began at {offset.origin} "
                f"of {name}, but the group is at {place}, and what lies between it has still to "
                "read. Start with a new checkpoint folder to go on where the group is, or reset "
                "the group to where the checkpoint began."
            )

    def _check(self, configuration: ReaderGroupConfiguration) -> None:
        """Raise InvalidOption if the group that exists is not one for this query."""
        settings, read = self._settings, sorted(configuration.streams)
        if read != list(settings.streams):
            raise InvalidOption(
                f"option readerGroup={self._name}: the group reads {', '.join(read)}, and the "
                f"query {', '.join(settings.streams)}; a query reads all of its group's streams. "
                "Name the same ones, or another group."
            )
        ends = sorted(name for name, span in configuration.streams.items() if span.end is not None)
        if ends:
            raise InvalidOption(
                f"option readerGroup={self._name}: the group stops at an end cut of "
                f"{', '.join(ends)}; a query's end is the option endingStreamCut. Name a group "
                "without end cuts."
            )
        mode = settings.group_mode
        holds = configuration.retention is not GroupRetention.NONE
        if mode is not None and holds != (mode == "subscriber"):
            raise InvalidOption(
                f"option readerGroupMode={mode}: reader group {self._name} exists with retention "
                f"{configuration.retention.value!r}; leave the option out to take the group as it "
                "is, or reset the group to another configuration."
            )

    def finished(self, done: StreamOffsets, *, last: bool = False) -> None:
        """Tell the group that all before ``done`` is done, at most once in the interval.

        With ``last`` at once, and the query leaves the group.
        """
        assert self._member is not None
        now = self._clock()
        if now < self._due and not last:
            return
        self._member.finished({name: offset.cut for name, offset in done.items()})
        self._due = now + self._settings.group_interval_ms / 1_000
        if last:
            self.leave()

    def leave(self) -> None:
        """Leave the group, so that the next query need not wait."""
        member, self._member = self._member, None
        if member is not None:
            member.leave()
