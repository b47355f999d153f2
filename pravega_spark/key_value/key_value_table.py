"""KeyValueTable: get and put entries by key, update them on conditions, and iterate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, overload

from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import ObjectClosed, PravegaSparkError, TruncatedData
from pravega_spark.event_writer import EventStreamWriter, queue_of
from pravega_spark.key_value.change_log import TableChangeLog
from pravega_spark.key_value.changes import (
    IN_CHUNK,
    NO_SECONDARY,
    SHORT_PUTS,
    encode_put,
    encode_remove,
    is_alive,
    value_of,
)
from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from pravega_spark.key_value.description import KeyValueTableInfo, describe_table
from pravega_spark.key_value.entry import KeyVersion, PutFuture, TableEntry, of_table, translated
from pravega_spark.key_value.keys import Key, KeyType, TableKey
from pravega_spark.key_value.reader import TableIterator, TableReader, stored_keys
from pravega_spark.key_value.shared_table import SharedTable, open_table
from pravega_spark.key_value.updates import (
    TableInsert,
    TableModification,
    TablePut,
    TableRemove,
    UpdateEncoder,
)
from pravega_spark.values.checks import check_whole
from pravega_spark.values.handles import ClosedByBlock, NotPicklable

_SHORT_KEY = len(SHORT_PUTS)
_new: Any = tuple.__new__
"""Makes a named tuple in a third of the time that its own constructor takes."""
_LOOKS = 8
"""How often a get looks again because its value was folded, and truncated, meanwhile."""


class KeyValueTable(ClosedByBlock, NotPicklable):
    """A key-value table; thread-safe. Made by ``StreamManager.key_value_table``.

    Puts and removals without a condition are pipelined: their futures are done once they are
    durable. Conditional updates are durable, or refused, when the call returns. A get sees all that
    this process knows to be durable, and what others wrote up to the table's ``staleness`` before;
    with ``fresh=True`` all that was durable when it was called. An object of a deleted table raises
    NoSuchTable, or StaleIdentity once the name has been created again.
    """

    _NOT_PICKLABLE = "a KeyValueTable cannot be pickled; open it where it is used."

    def __init__(
        self,
        stream: StreamLog,
        table: str,
        view: StreamView,
        *,
        on_open: Callable[[object, Callable[[Any], bool]], None] = lambda user, is_closed: None,
    ) -> None:
        """Open the table in the life of a view of its change log; no storage is asked."""
        shared: SharedTable = open_table(stream, table, view)
        self._name = table
        self._stream = stream
        self._log = stream.log
        self._shared = shared
        self._index = shared.index
        self._codec = shared.codec
        self._now = shared.index.now
        self._life = shared.life
        self._encoder = UpdateEncoder(shared.codec, shared.configuration.value_limit)
        self._value_limit = shared.configuration.value_limit
        configuration = shared.configuration
        self._takes_bytes = (
            configuration.key_type is KeyType.BYTES
            and configuration.primary_key_length is None
            and not shared.codec.has_secondary
        )
        """Whether any short bytes are a key, so that the hot paths need no further check."""
        self._writer: EventStreamWriter | None = None
        self._lost: PravegaSparkError | None = None
        """A failure since the last flush: the next flush raises it, even if a call has done so."""
        self._is_closed = False
        on_open(self, lambda table: table._is_closed)

    @property
    def name(self) -> str:
        """The name, ``scope/table``."""
        return self._name

    @property
    def root(self) -> str:
        """The URL or the path of the root."""
        return self._stream.root_url

    @property
    def configuration(self) -> KeyValueTableConfiguration:
        """The configuration that the table was created with, and its tags as far as known here."""
        made, snapshot = self._shared.configuration, self._log.snapshot
        if snapshot is None:
            return made
        view = self._stream.view_of(snapshot)
        return (
            replace(made, tags=view.record.configuration.tags) if view.life == self._life else made
        )

    def info(self) -> KeyValueTableInfo:
        """Return the state, the configuration, and the segments and epochs of the newest version.

        Raises NoSuchTable, StaleIdentity.
        """
        with translated():
            return describe_table(self._stream, self._name, self._life)

    def __repr__(self) -> str:
        return f"KeyValueTable({self._name!r}, root={self.root!r})"

    @property
    def changelog(self) -> TableChangeLog:
        """The puts and removals of the table, in the order of each key; no storage is asked."""
        return TableChangeLog(self._stream, self._name, self._codec, self._life)

    # Reading

    def get(
        self, key: Key, secondary_key: bytes | str = b"", *, fresh: bool = False
    ) -> TableEntry | None:
        """Return the entry of a key, or None. Raises InvalidInput, NoSuchTable, StaleIdentity."""
        index = self._index
        if type(key) is bytes and self._takes_bytes and key and secondary_key == b"":
            stored: Any = (key, b"")  # equal to a TableKey, and cheaper
        else:
            stored = self._codec.encode(key, secondary_key)
            key = self._codec.decode(stored.primary)
        if fresh or self._log.snapshot is not index.snapshot or self._now() >= index.due:
            self._follow(fresh)
        change = index.tables[0].get(stored)
        if change is None or index.ttl_ms is not None:
            return self._found([TableKey(*stored)], [key])[0]
        segment_id, offset, time_us, value = change
        if value is None or value is IN_CHUNK:
            return self._found([TableKey(*stored)], [key])[0]
        version = _new(KeyVersion, (self._life, segment_id, offset))
        found: TableEntry = _new(TableEntry, (key, value, version, stored[1], time_us))
        return found

    def get_all(self, keys: Iterable[Any], *, fresh: bool = False) -> list[TableEntry | None]:
        """Return the entries of at most 256 keys as of one version, in their order.

        None stands for a key without an entry. A key with a secondary part is given as a pair.
        """
        stored = stored_keys(self._codec, keys)
        self._follow(fresh)
        return self._found(stored, [self._codec.decode(key.primary) for key in stored])

    def exists(self, key: Key, secondary_key: bytes | str = b"", *, fresh: bool = False) -> bool:
        """Return whether the key has an entry."""
        stored = self._codec.encode(key, secondary_key)
        self._follow(fresh)
        change = self._index.tables[0].get(stored)
        if change is not None:
            return is_alive(change, self._index.expired_us())
        return bool(self._index.find([stored]))

    def _found(self, stored: Sequence[TableKey], keys: Sequence[Key]) -> list[TableEntry | None]:
        for _ in range(_LOOKS):
            try:
                return self._look_up(stored, keys)
            except (TruncatedData, FileNotFoundError):
                self._follow(fresh=True)
        return self._look_up(stored, keys)

    def _look_up(self, stored: Sequence[TableKey], keys: Sequence[Key]) -> list[TableEntry | None]:
        found = self._index.find(stored)
        entries = list[TableEntry | None]()
        for key, at in zip(keys, stored, strict=True):
            change = found.get(at)
            if change is None:
                entries.append(None)
                continue
            value = value_of(self._stream, self._life, change)
            version = KeyVersion(self._life, change.segment_id, change.offset)
            entries.append(TableEntry(key, value, version, at.secondary, change.timestamp_us))
        return entries

    def at(self, version: int | None = None) -> TableReader:
        """Return a reader of one version: by default the newest one, which this call asks for.

        ``version`` is a version of the change log, such as ``TableReader.version``; the log must
        still hold it, and must not have been folded beyond it. Raises TruncatedData,
        InvalidInput for a version that does not exist yet, and StaleIdentity for one of a life
        before this one. The number does not say of which copy it is; ``TableReader.cut`` does.
        """
        if version is not None:
            check_whole("version", version)
        self._follow(fresh=True)
        state = self._index.freeze(at_its_time=version is not None)
        if version is not None and version != state.version:
            with translated():
                state = self._index.freeze_at(version)
        return TableReader(state, self._codec)

    def entries(
        self,
        *,
        prefix: Any = None,
        low: Any = None,
        high: Any = None,
        primary: Any = None,
        secondary_prefix: bytes | None = None,
        secondary_low: bytes | None = None,
        secondary_high: bytes | None = None,
        after: str | None = None,
    ) -> TableIterator[TableEntry]:
        """Iterate over entries in the order of their keys, as of the newest version.

        All of them, those whose primary keys have a ``prefix``, those from ``low`` to ``high``,
        both included, or those of one ``primary`` key, of which a prefix or a range of secondary
        keys may be given. ``after`` continues after the ``continuation`` of another iteration.
        """
        return self.at().entries(
            after=after,
            prefix=prefix,
            low=low,
            high=high,
            primary=primary,
            secondary_prefix=secondary_prefix,
            secondary_low=secondary_low,
            secondary_high=secondary_high,
        )

    def keys(self, *, after: str | None = None, **given: Any) -> TableIterator[Any]:
        """Iterate over keys as :meth:`entries` does; a key with a secondary part is a pair."""
        return self.at().keys(after=after, **given)

    def _follow(self, fresh: bool) -> None:
        with translated():
            self._index.follow(fresh=fresh)

    # Puts without a condition

    def put(self, key: Key, value: bytes | str, secondary_key: bytes | str = b"") -> PutFuture:
        """Set the value of a key; the future's result is its new version, once it is durable.

        Puts of one handle that name one primary key are durable in their order. Blocks while the
        buffer of the handle is full. Raises InvalidInput, NoSuchTable, TableSealed, StaleIdentity,
        and the failure of earlier puts if neither a future nor a call has raised it.
        """
        if (
            type(key) is bytes
            and 0 < len(key) < _SHORT_KEY
            and secondary_key == b""
            and type(value) is bytes
            and len(value) <= self._value_limit
            and self._takes_bytes
        ):
            payload = b"".join((SHORT_PUTS[len(key)], key, NO_SECONDARY, value))
            return self._write(payload, key.hex())
        data = self._encoder.value(value)
        stored = self._codec.encode(key, secondary_key)
        return self._write(encode_put(stored, data), self._codec.routing_key(stored.primary))

    @overload
    def remove(self, key: Key, secondary_key: bytes | str = b"") -> PutFuture: ...
    @overload
    def remove(
        self, key: Key, secondary_key: bytes | str = b"", *, version: KeyVersion | str
    ) -> KeyVersion: ...
    def remove(
        self,
        key: Key,
        secondary_key: bytes | str = b"",
        *,
        version: KeyVersion | str | None = None,
    ) -> PutFuture | KeyVersion:
        """Remove a key, if it exists; as :meth:`put` does, its future is done when it is durable.

        With a ``version`` the key is removed only if it has that one, before the call returns:
        returns the version of the removal, which no entry has. Raises BadKeyVersion, NoSuchKey.
        """
        if version is not None:
            return self.update([TableRemove(key, version, secondary_key)])[0]
        stored = self._codec.encode(key, secondary_key)
        return self._write(encode_remove(stored), self._codec.routing_key(stored.primary))

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all puts and removals of this handle are durable.

        Raises the failure of a change since the last flush once, even if another call has raised
        it.
        """
        writer = self._writer
        if writer is not None:
            try:
                with translated():
                    self._flush(writer, timeout)
            except PravegaSparkError:
                is_refused = queue_of(writer).pending.is_own_thread  # in a callback
                if self._is_lost(writer) and not is_refused:
                    self._lost = None
                raise
        lost, self._lost = self._lost, None
        if lost is not None:
            raise of_table(lost) from lost

    def _flush(self, writer: EventStreamWriter, timeout: float | None) -> None:
        try:
            writer.flush(timeout=timeout)
        except ObjectClosed:
            if not self._is_closed:
                raise
            writer.close()  # which waits for a close of another thread
            queue_of(writer).raise_failure()  # one that a future has told, too

    def _write(self, payload: bytes, routing_key: str) -> PutFuture:
        writer = None
        try:
            writer = self._writer or self._open_writer()
            return writer.write_event(payload, routing_key)  # type: ignore[return-value]
        except PravegaSparkError as error:
            if self._is_closed and isinstance(error, ObjectClosed):
                raise self._closed() from error
            if writer is None or not self._is_known(writer):
                raise of_table(error) from error
        return self._write(payload, routing_key)

    def _is_lost(self, writer: EventStreamWriter) -> bool:
        """Return whether a writer has failed; the next put then opens another one."""
        failure = queue_of(writer).failure
        if failure is None:
            return False
        with self._index.lock:
            if self._writer is writer:  # no other thread was first
                self._writer, self._lost = None, failure
        return True

    def _is_known(self, writer: EventStreamWriter) -> bool:
        """Return whether a failure was reported before this call: then it can be made."""
        is_known = queue_of(writer).is_failure_repeated
        return self._is_lost(writer) and is_known

    def _open_writer(self) -> EventStreamWriter:
        self._index.guard.check()
        with self._index.lock, translated():
            if self._is_closed:
                raise self._closed()
            if self._writer is None:
                self._writer = EventStreamWriter(self._stream, life=self._life, future=PutFuture)
            return self._writer

    def _closed(self) -> ObjectClosed:
        return ObjectClosed(f"table {self._name} was closed here; open it again.")

    # Updates on conditions

    def insert(self, key: Key, value: bytes | str, secondary_key: bytes | str = b"") -> KeyVersion:
        """Set the value of a key that must not exist; return its version. Raises BadKeyVersion."""
        return self.update([TableInsert(key, value, secondary_key)])[0]

    def replace(
        self,
        key: Key,
        value: bytes | str,
        version: KeyVersion | str,
        secondary_key: bytes | str = b"",
    ) -> KeyVersion:
        """Set the value of a key that must have this version; return the new one.

        Raises BadKeyVersion if it has another version, NoSuchKey if it does not exist.
        """
        return self.update([TablePut(key, value, version, secondary_key)])[0]

    def update(self, modifications: Sequence[TableModification]) -> tuple[KeyVersion, ...]:
        """Make several changes in one commit, all or none; return the version of each.

        The keys may be of any partitions; at most 256, each once. Every condition is decided on the
        version before the commit. It comes after all earlier puts of this handle. Raises
        ObjectClosed, BadKeyVersion and NoSuchKey, after which nothing has changed; CommitUnknown if
        it is unknown whether it has.
        """
        if self._is_closed:
            raise self._closed()
        steps = self._encoder.steps(modifications)
        if not steps:
            return ()
        self._wait_for_puts()
        with translated():
            return self._shared.combiner.update(steps)

    def _wait_for_puts(self) -> None:
        """Wait for the puts before an update; raise their failure unless it is known."""
        writer = self._writer
        if writer is not None:
            try:
                with translated():
                    writer.flush()
            except PravegaSparkError:
                if not self._is_known(writer):
                    raise

    # Life

    def close(self) -> None:
        """Make all puts durable and stop writing; a closed table can still be read.

        A second call, in another thread, waits for the first one.
        """
        with self._index.lock:  # a first put may be about to open the writer
            self._is_closed = True
            writer = self._writer
        if writer is not None:
            with translated():
                writer.close()


def durable_puts(table: KeyValueTable) -> int:
    """Return how many puts and removals of a handle are durable, since the last one that failed."""
    writer = table._writer
    return 0 if writer is None else writer.last_event_number
