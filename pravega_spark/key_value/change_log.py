"""TableChangeLog: the puts and removals of a key-value table, which anybody can follow."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from pravega_spark.config.descriptions import SubscriberInfo
from pravega_spark.engine.log.reader import snapshot_at
from pravega_spark.engine.stream import subscribers
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import InvalidInput, TruncatedData
from pravega_spark.event_reader import EventReader
from pravega_spark.key_value.changes import check_version, decode_change
from pravega_spark.key_value.entry import KeyVersion, translated
from pravega_spark.key_value.keys import Key, KeyCodec
from pravega_spark.values.checks import check_whole, shown
from pravega_spark.values.events import Event
from pravega_spark.values.segments import StreamCut


class KeyChange(NamedTuple):
    """A put or a removal of one key, in the order of the table's change log."""

    key: Key
    value: bytes | None
    """None: the key was removed."""
    version: KeyVersion
    """The version that the entry has from then on; a removal has one, too."""
    secondary_key: bytes = b""
    timestamp_us: int = 0
    """When the change was made, by the clock of its writer, in microseconds since 1970."""

    @property
    def is_removal(self) -> bool:
        """Whether the key was removed."""
        return self.value is None


class KeyChanges(Iterator[KeyChange]):
    """Yields changes; ``position`` is the cut after the last one, where a later call continues."""

    def __init__(self, events: Iterator[Event], reader: EventReader, log: TableChangeLog) -> None:
        self._events = events
        self._reader = reader
        self._log = log

    def __next__(self) -> KeyChange:
        """Return the next change; raise TruncatedData if it is no longer in the change log."""
        with advised(self._log.table):
            return self._log.change(next(self._events))

    @property
    def position(self) -> StreamCut | None:
        """The cut after the last change that was returned; None before the first."""
        return self._reader.position


class TableChangeLog:
    """The changes of one life of a table; made by ``KeyValueTable.changelog``. Thread-safe.

    The changes of one primary key come in their order, those of different ones in any. Entries
    that expire leave no removal. Maintenance truncates what is folded, unless a reader group with
    a ``retention`` has still to read it: such a group misses no change.
    """

    def __init__(self, stream: StreamLog, table: str, codec: KeyCodec, life: int) -> None:
        """Name the log; nothing is read."""
        self._stream = stream
        self._codec = codec
        self._life = life
        self.table = table

    @property
    def name(self) -> str:
        """The name by which a reader group reads the log, instead of a stream's."""
        return self._stream.name

    def __repr__(self) -> str:
        return f"TableChangeLog({self.table!r}, root={self._stream.root_url!r})"

    def head(self) -> StreamCut:
        """Return the cut before the oldest change that the log has."""
        return self._view().head

    def tail(self) -> StreamCut:
        """Return the cut after the newest change."""
        return self._view().tail

    def cut_at(self, version: int) -> StreamCut:
        """Return the cut after the changes of a version of the log, and of all before it.

        Raises InvalidInput for a version that does not exist yet, TruncatedData for one that the
        log has no longer.
        """
        check_whole("version", version)
        newest = self._view()
        check_version(version, newest)
        then = newest
        if version < newest.version:
            with translated():
                then = StreamView(snapshot_at(self._stream.log.reader, version))
                then.check_life(self._life)
        return then.tail

    def subscribers(self) -> list[SubscriberInfo]:
        """Return who holds the log: the fold of the table, ``pravega.fold``, and reader groups."""
        return subscribers.listed(self._view())

    def changes(
        self,
        start: StreamCut | str = StreamCut.EARLIEST,
        end: StreamCut | str = StreamCut.LATEST,
    ) -> KeyChanges:
        """Iterate over the changes between two cuts; LATEST is the tail at the time of the call.

        Raises InvalidStreamCut for a cut of another log, TruncatedData for a start below the head,
        NoSuchTable, StaleIdentity.
        """
        return self._read(lambda reader: reader.events(start, end))

    def follow(
        self, start: StreamCut | str = StreamCut.LATEST, *, timeout: float | None = None
    ) -> KeyChanges:
        """Iterate over the changes from a cut on, and wait for new ones at the tail.

        Ends when a sealed table was read to its end, or after ``timeout`` seconds without a change.
        Raises as :meth:`changes` does.
        """
        return self._read(lambda reader: reader.follow(start, timeout=timeout))

    def change(self, event: Event) -> KeyChange:
        """Return the change that an event is, which a reader of a group has returned.

        Raises InvalidInput for an event of anything else, or one that was deserialized.
        """
        pointer = event.pointer if isinstance(event, Event) else None
        if pointer is None or pointer.stream != self.name or not isinstance(event.data, bytes):
            raise InvalidInput(
                f"{shown(event)} is not an event of the change log of table {self.table}: pass "
                f"events of {self.name}, from a reader without a deserializer."
            )
        stored, value = decode_change(event.data)
        version = KeyVersion(pointer.life, event.segment_id, event.offset)
        key = self._codec.decode(stored.primary)
        return KeyChange(key, value, version, stored.secondary, event.timestamp_us)

    def _view(self) -> StreamView:
        with translated():
            return self._stream.view(life=self._life)

    def _read(self, begin: Callable[[EventReader], Iterator[Event]]) -> KeyChanges:
        reader = EventReader(self._stream, life=self._life)
        with advised(self.table):
            return KeyChanges(begin(reader), reader, self)


@contextlib.contextmanager
def advised(table: str) -> Iterator[None]:
    """Raise errors of the change log as the table's; one of truncated changes tells the way on."""
    try:
        with translated():
            yield
    except TruncatedData as error:
        raise TruncatedData(
            f"{error} These changes of table {table} were folded. Read the entries at one version, "
            "and then the changes after it; a reader group with a retention, in Spark "
            "readerGroupMode=subscriber, keeps the changes that it has still to read.",
            head=error.head,
            lost=error.lost,
        ) from error
