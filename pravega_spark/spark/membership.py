"""The place of a streaming query in its reader group (option ``readerGroup``).

Lives in the one process that Spark keeps for a query's source. Spark says nothing when a query
has ended, and tells a source of the end of a batch only when it asks for the next one; the rest is
done by ``acknowledging``, from the progress that Spark reports to the driver.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from pravega_spark.errors import (
    ConfigMismatch,
    InvalidOption,
    NoSuchReaderGroup,
    ReinitializationRequired,
)
from pravega_spark.manager import StreamManager
from pravega_spark.model import StreamCut
from pravega_spark.readers.configuration import GroupRetention, ReaderGroupConfiguration
from pravega_spark.readers.group import ReaderGroup
from pravega_spark.readers.queries import QueryMember
from pravega_spark.spark.offsets import Offsets, Reading
from pravega_spark.spark.settings import ReadSettings

MODES = {"observer": GroupRetention.NONE, "subscriber": GroupRetention.AUTOMATIC}
"""What a group that the query creates keeps of its streams."""

Cuts = dict[str, StreamCut]


class Membership:
    """A query in its group: joined at Spark's first call, and again if need be."""

    def __init__(
        self, settings: ReadSettings, name: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Take the settings and the group's name; nothing is read yet."""
        self._settings, self._name, self._clock = settings, name, clock
        self._manager = StreamManager(settings.root)
        self._member: QueryMember | None = None
        self._generation = 0
        self._told: Cuts | None = None
        self._due = 0.0

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

    def begin(self, cuts: Cuts) -> None:
        """Join the group, which is created at these cuts if there is none yet."""
        if self.places() is not None:
            return
        mode = self._settings.group_mode or "observer"
        with contextlib.suppress(ConfigMismatch):  # somebody was faster: theirs is as good
            self._manager.create_reader_group(self._name, cuts, retention=MODES[mode])
        self._join(self._manager.reader_group(self._name))

    def _join(self, group: ReaderGroup) -> None:
        self._check(group.configuration)
        self._member = group.join_query()
        self._generation = self._member.generation
        self._told, self._due = None, self._clock()

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

    def reading(self) -> Reading:
        """Return what the query's offsets tell of it, once it has joined."""
        return Reading(self._settings.root, self._name, self._generation)

    def check(self, start: Offsets, reading: Reading | None) -> None:
        """Join where an offset of an earlier run says, and check that the query may go on there.

        Raises ReinitializationRequired if the group was reset since then, or another query took
        it over.
        """
        existed = self._member is not None or self.places() is not None
        if not existed:
            self.begin({name: offset.cut for name, offset in start.items()})
        assert self._member is not None
        self._member.check()
        if reading is None or reading.group != self._name or not existed:
            return
        if reading.generation != self._member.generation:
            raise ReinitializationRequired(
                f"reader group {self._name} was reset: the query's checkpoint is of generation "
                f"{reading.generation}, the group is in generation {self._member.generation}. "
                "Start the query with a new checkpoint folder to go on where the group is."
            )

    def finished(self, done: Offsets, *, last: bool = False) -> None:
        """Tell the group that all before ``done`` is done, at most once in the interval.

        With ``last`` at once, and the query leaves the group.
        """
        assert self._member is not None
        now = self._clock()
        if now < self._due and not last:
            return
        cuts = {name: offset.cut for name, offset in done.items()}
        if cuts == self._told:
            self._member.look()
        else:
            self._member.finished(cuts)
            self._told = cuts
        self._due = now + self._settings.group_interval_ms / 1_000
        if last:
            self.leave()

    def leave(self) -> None:
        """Leave the group, so that the next query need not wait."""
        member, self._member = self._member, None
        if member is not None:
            member.leave()
