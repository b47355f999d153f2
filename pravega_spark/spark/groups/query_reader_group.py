"""A streaming query's membership in its reader group (option ``readerGroup``).

It lives in the one process that Spark keeps for a query's source. Spark does not report the end of
a query to the source, and reports the end of a batch only when it asks for the next one.
``group_listener`` covers the rest by the progress that Spark reports to the driver.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from pravega_spark.engine.layout.located_cut import locate
from pravega_spark.engine.runtime.failpoints import failpoint
from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.store import open_store
from pravega_spark.engine.store.parallel_calls import in_rounds
from pravega_spark.engine.stream.repair import begun_view
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.errors import (
    ConfigMismatch,
    InvalidOption,
    NoSuchReaderGroup,
    NoSuchStream,
    ReinitializationRequired,
    TruncatedData,
)
from pravega_spark.reader_groups.configuration import GroupRetention, ReaderGroupConfiguration
from pravega_spark.reader_groups.lifecycle import open_group
from pravega_spark.reader_groups.query_member import QueryMember
from pravega_spark.spark.settings import ReadSettings
from pravega_spark.spark.source_offsets import OffsetOwner, StreamOffsets, stale_error
from pravega_spark.values.segments import StreamCut

logger = own_logger(__name__)

MODES = {"observer": GroupRetention.NONE, "subscriber": GroupRetention.AUTOMATIC}
"""The retention of a group that the query creates, by the option readerGroupMode."""

Cuts = dict[str, StreamCut]


class QueryMembership:
    """A query in its group: joins at Spark's first call, and again after leaving."""

    def __init__(
        self, settings: ReadSettings, name: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Take the settings and the group's name; reads nothing yet."""
        self._settings, self._name, self._clock = settings, name, clock
        self._store = open_store(settings.root)
        self._group = open_group(self._store, name)
        self._member: QueryMember | None = None
        self._due = 0.0
        self.owner = OffsetOwner(settings.root)
        """The owner that the query's offsets name; includes its group once it has joined."""

    def group_cuts(self) -> Cuts | None:
        """Join the group and return its cuts; None if it does not exist yet.

        Raises InvalidOption if the group does not fit this query, IllegalState if another reader
        or query reads it.
        """
        if self._member is None:
            try:
                configuration = self._group.state().configuration
            except NoSuchReaderGroup:
                return None
            self._join(configuration)
        assert self._member is not None
        return dict(self._member.cuts())

    def _join(self, configuration: ReaderGroupConfiguration) -> QueryMember:
        self._check(configuration)
        member = self._member = QueryMember(self._group)
        root, self._due = self._settings.root, self._clock()
        self.owner = OffsetOwner(
            root, self._name, generation=member.generation, query=member.number
        )
        return member

    def check(self, start: StreamOffsets, owner: OffsetOwner | None) -> None:
        """Take part in the group from an offset on, which may be of an earlier run.

        Creates the group there if it does not exist. Joins it again after an update that keeps
        its streams. Raises ReinitializationRequired if the group was reset, deleted or given
        other streams after the offset was made, or another query took it over; InvalidOption if
        the query has skipped events that the group has still to read.
        """
        is_ours = owner is not None and owner.group == self._name
        member = self._member or self._enter(start, is_ours=is_ours)
        try:
            member.check()
        except ReinitializationRequired as error:
            member = self._joined_again(member, error)
        if is_ours and owner is not None and not member.continues(owner.generation):
            self.leave()
            raise ReinitializationRequired(
                f"reader group {self._name} was reset, or streams were added to it: the query's "
                f"checkpoint is of generation {owner.generation}, the group is in generation "
                f"{member.generation}. Start the query with a new checkpoint folder to continue "
                "at the group's position.",
                group=self._name,
                generation=member.generation,
            )

    def _joined_again(self, member: QueryMember, error: ReinitializationRequired) -> QueryMember:
        """Join the group again after an update; raise the error if its positions do not continue.

        Raises InvalidOption if the group no longer fits this query.
        """
        if not member.was_updated:
            raise error
        failpoint("group.query.updated")
        self._member = None
        try:
            joined = self._join(self._group.state().configuration)
        except NoSuchReaderGroup:
            raise error from None
        if not joined.continues(member.generation):
            self.leave()
            raise error
        return joined

    def _enter(self, start: StreamOffsets, *, is_ours: bool) -> QueryMember:
        """Join the group, or create it."""
        self._check_streams(start)
        if self.group_cuts() is not None:
            assert self._member is not None
            if not is_ours:
                self._check_origins(start, self._member)
            return self._member
        if is_ours:
            raise ReinitializationRequired(
                f"reader group {self._name} was deleted, and with it the position of the query. "
                "Start the query with a new checkpoint folder, which begins at the start options, "
                "or without readerGroup.",
                group=self._name,
            )
        mode = self._settings.group_mode or "observer"
        with contextlib.suppress(ConfigMismatch):  # another process has just created it
            self._create(start, MODES[mode])
        return self._join(self._group.state().configuration)

    def _create(self, start: StreamOffsets, retention: GroupRetention) -> None:
        """Create the group at an offset, or at the head where it has passed the offset."""
        names = self._settings.streams
        while True:
            try:
                cuts = in_rounds(self._store, lambda name: self._clipped(name, start), names)
                starts = dict(zip(names, cuts, strict=True))
                self._group.create(ReaderGroupConfiguration(starts, retention=retention))
            except NoSuchStream as error:
                if self._settings.fail_on_data_loss:
                    raise
                raise InvalidOption(
                    f"option readerGroup={self._name}: the group cannot be created over stream "
                    f"{error.stream}, which does not exist; failOnDataLoss=false only continues "
                    "an existing group without a deleted stream. Create the stream again, or "
                    "start with a new checkpoint folder and without this stream."
                ) from error
            except TruncatedData:
                logger.info(
                    "retried creating reader group %s: head moved",
                    self._name,
                    extra=log_fields("create reader group", group=self._name),
                )
            else:
                return

    def _clipped(self, name: str, start: StreamOffsets) -> StreamCut:
        """Return the start cut of a new group: no earlier than the head, and of the present life.

        Raises StaleIdentity if the query has read another life, unless it may go on at the head.
        """
        if name not in start:
            return StreamCut.EARLIEST
        view = begun_view(open_stream(self._store, name))
        if view.life != start[name].life:
            if self._settings.fail_on_data_loss:
                raise stale_error(start[name].cut, view.life)
            return view.head
        return locate(view, start[name].cut).above_head().cut

    def _check_streams(self, start: StreamOffsets) -> None:
        strange = sorted(set(start) - set(self._settings.streams))
        if strange:
            raise InvalidOption(
                f"option readerGroup={self._name}: the query's checkpoint has offsets of "
                f"{', '.join(strange)}, which the query no longer names. Name the same streams as "
                "before, or start with a new checkpoint folder."
            )

    def _check_origins(self, start: StreamOffsets, member: QueryMember) -> None:
        """Raise InvalidOption if the query began after the group's cut and so skipped events."""
        cuts = member.cuts()

        def has_skipped(name: str) -> bool:
            here, offset = cuts[name], start[name]
            if here.life != offset.life:
                return False
            try:
                view = begun_view(open_stream(self._store, name))
            except NoSuchStream:
                if self._settings.fail_on_data_loss:
                    raise
                return False  # the query goes on without the stream, which has no events to skip
            if view.life != here.life:  # neither has anything to read before the head
                return False
            return not locate(view, here).is_at_or_after(locate(view, offset.origin))

        names = list(start)
        for name, skipped in zip(names, in_rounds(self._store, has_skipped, names), strict=True):
            if skipped:
                self.leave()
                raise InvalidOption(
                    f"option readerGroup={self._name}: the query's checkpoint began at "
                    f"{start[name].origin} of {name}, but the group is at {cuts[name]} and has "
                    "still to read the events between. Start with a new checkpoint folder to "
                    "continue at the group's position, or reset the group to the cut at which the "
                    "checkpoint began."
                )

    def _check(self, configuration: ReaderGroupConfiguration) -> None:
        """Raise InvalidOption if an existing group does not fit this query."""
        settings, read = self._settings, sorted(configuration.streams)
        if read != list(settings.streams):
            raise InvalidOption(
                f"option readerGroup={self._name}: the group reads {', '.join(read)}, and the "
                f"query {', '.join(settings.streams)}; a query reads all of its group's streams. "
                "Name the same streams, or another group."
            )
        ends = sorted(name for name, cuts in configuration.streams.items() if cuts.end is not None)
        if ends:
            raise InvalidOption(
                f"option readerGroup={self._name}: the group has an end cut of {', '.join(ends)}; "
                "a query's end is the option endingStreamCut. Name a group without end cuts."
            )
        mode = settings.group_mode
        if mode is not None and configuration.holds_data != (mode == "subscriber"):
            raise InvalidOption(
                f"option readerGroupMode={mode}: reader group {self._name} exists with retention "
                f"{configuration.retention.value!r}; omit the option to use the group as it is, or "
                "update the group's retention."
            )

    def finish_batch(self, done: StreamOffsets, *, last: bool = False) -> None:
        """Report that all events before ``done`` are processed, at most once in the interval.

        With ``last``, report immediately and leave the group.
        """
        assert self._member is not None
        now = self._clock()
        if now < self._due and not last:
            return
        cuts = {name: offset.cut for name, offset in done.items()}
        try:
            self._member.finish_batch(cuts)
        except ReinitializationRequired as error:
            self._joined_again(self._member, error).finish_batch(cuts)
        self._due = now + self._settings.group_interval_ms / 1_000
        if last:
            self.leave()

    @property
    def has_joined(self) -> bool:
        """Whether the query is in the group now."""
        return self._member is not None

    def leave(self) -> None:
        """Leave the group, so that the next query need not wait."""
        member, self._member = self._member, None
        if member is not None:
            member.leave()
