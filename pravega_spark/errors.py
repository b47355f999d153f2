"""Every error of this package, in branches by what the caller does next.

::

    PravegaSparkError
    ├── InvalidInput (ValueError)        fix the argument and call again
    │   ├── InvalidName
    │   ├── InvalidConfiguration
    │   ├── InvalidStreamCut
    │   ├── InvalidTime
    │   ├── InvalidPosition
    │   ├── InvalidOption
    │   ├── InvalidSchema
    │   ├── SchemaMismatch
    │   ├── SchemaChangeRefused
    │   └── EventTooLarge
    ├── NotFound (LookupError)           create the object, or name another one
    │   ├── NoSuchScope
    │   ├── NoSuchStream
    │   ├── NoSuchSegment
    │   ├── NoSuchEvent
    │   ├── NoSuchTransaction
    │   ├── NoSuchReaderGroup
    │   ├── NoSuchSubscriber
    │   ├── NoSuchCut
    │   └── NoSuchTable
    ├── IllegalState                     stop: the object's state forbids the call
    │   ├── StreamSealed
    │   ├── StreamNotSealed
    │   ├── ScopeNotEmpty
    │   ├── TxnFailed
    │   ├── PingFailed
    │   ├── ConfigMismatch
    │   ├── BatchConflict
    │   ├── CheckpointFailed
    │   ├── PositionOvertaken
    │   ├── TableSealed
    │   └── ObjectClosed
    ├── TryAgain                         wait or refresh, then call again; nothing was done
    │   ├── TooBusy
    │   ├── ConditionFailed
    │   ├── ConfigurationConflict
    │   ├── ScaleConflict
    │   ├── SegmentSealed
    │   ├── TooManyCheckpoints
    │   ├── HeldBySubscriber
    │   ├── RegistryUnavailable
    │   └── ConditionalTableUpdate
    │       ├── BadKeyVersion
    │       └── NoSuchKey
    ├── Reopen                           open the object again; it no longer matches the log
    │   ├── CommitUnknown
    │   │   └── WriterForgotten
    │   ├── WriterFenced
    │   ├── FencingTokenMismatch
    │   ├── OutOfOrder
    │   ├── StagedTooLate
    │   ├── StaleIdentity
    │   ├── ReinitializationRequired
    │   ├── GenerationMismatch
    │   ├── RootChanged
    │   └── ForkedProcess
    ├── TruncatedData                    continue at the head, which the error carries
    │   └── SegmentTruncated
    ├── Damaged                          restore the named object from a copy
    │   ├── CorruptLog
    │   ├── CorruptChunk
    │   └── DataLoss
    └── StoreError (OSError)             repair the storage, or its access, then call again
        ├── StoreRefused
        ├── StoreUnavailable
        ├── StoreFull
        ├── StoreReadOnly
        ├── ForeignTable
        └── KeyUnavailable
            └── KmsUnavailable

The message is for people: ``str(error)`` is one line, with escapes for the control characters of
values that it quotes. Programs act by the fields of each class; a field
is None, or empty, where the error was raised without that knowledge.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from pravega_spark.primitives.printable import printable

_STREAM_FILE = re.compile(
    r"(?:.*/)?([^/]+/(?:_kv_tables/)?[^/]+)/(?:events|metadata)"
    r"(?:/(?:_delta_log|_pravega|data/[vt]).*)?"
)
"""The path of a stream's table, or of a file in it; the name of the stream is its group."""


def _stream_of(path: str) -> str | None:
    """Return the stream whose table, or file of a table, a path or URL names."""
    match = _STREAM_FILE.fullmatch(path)
    return match and match[1]


_URL_USER = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*://)(?P<user>[^/@\s]*)@", re.IGNORECASE)
_CONTAINER_SCHEMES = frozenset({"abfs://", "abfss://"})
"""Before the @ of these stands a container."""
_URL_QUERY = re.compile(r"([a-z][a-z0-9+.-]*://[^?\s]*\?)\S+", re.IGNORECASE)


def without_credentials(text: str) -> str:
    """Return a text with ``***`` for the users, passwords and queries of its URLs."""
    if "://" not in text:
        return text
    return _URL_QUERY.sub(r"\1***", _URL_USER.sub(_without_user, text))


def _without_user(found: re.Match[str]) -> str:
    if found["scheme"].lower() in _CONTAINER_SCHEMES and ":" not in found["user"]:
        return found[0]
    return f"{found['scheme']}***@"


@dataclass(eq=False, repr=False)
class PravegaSparkError(Exception):
    """Base of every error of this package."""

    message: str = ""

    def __post_init__(self) -> None:
        """Keep the message as the only argument: so the error pickles, fields included."""
        self.message = without_credentials(self.message)
        self.args = (self.message,)

    def __str__(self) -> str:
        """Return the message printable, also where a builtin base would format it otherwise."""
        return printable(self.message)


class InvalidInput(PravegaSparkError, ValueError):
    """An argument is not acceptable: fix it and call again. Nothing was done."""


class InvalidName(InvalidInput):
    """The name of a scope, stream, writer or group breaks the naming rule."""


class InvalidConfiguration(InvalidInput):
    """The value of a policy or an option is out of its range."""


class InvalidStreamCut(InvalidInput):
    """A cut belongs to another stream or life, or does not cover the key space exactly once."""


@dataclass(eq=False, repr=False, kw_only=True)
class InvalidTime(InvalidInput):
    """A writer noted a time before the last one that it noted: note that one again, or a later one.

    Times are in microseconds since 1970.
    """

    writer_id: str | None = None
    time_us: int | None = None
    last_us: int | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class InvalidPosition(InvalidInput):
    """A writer noted a time at a position behind the one of its last note."""

    writer_id: str | None = None
    position: Any = None  # StreamCut | None
    last: Any = None  # StreamCut | None


class InvalidOption(InvalidInput):
    """An option of Spark or of a storage is unknown, has no effect, or its value cannot be read."""


@dataclass(eq=False, repr=False, kw_only=True)
class InvalidSchema(InvalidInput):
    """A stream cannot have this schema: a type that Delta lacks, or a name that is taken.

    ``column`` is the column at the top that is wrong, or None if it is the whole.
    """

    column: str | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class SchemaMismatch(InvalidInput):
    """Rows do not fit the schema of their stream: correct them, or send them elsewhere.

    ``row`` is the number of the first that does not, from 0, and None if all do not. ``column`` is
    the name of the column, and ``value`` the representation of the value, shortened if it is long.
    ``reason`` says why the value does not fit; it is None if the error is of no single value.
    """

    row: int | None = None
    column: str | None = None
    value: str | None = None
    reason: str | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class SchemaChangeRefused(InvalidInput):
    """A schema can only grow by nullable columns, and change its comments.

    ``column`` is the first one that the change would narrow, widen, rename, move or drop.
    """

    column: str | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class EventTooLarge(InvalidInput):
    """An event, or an atomic list of events, exceeds a size limit.

    Both fields are None if the list has too many events rather than too many bytes.
    """

    size_bytes: int | None = None
    limit_bytes: int | None = None


class NotFound(PravegaSparkError, LookupError):
    """The named object does not exist: create it, or name another one."""


@dataclass(eq=False, repr=False, kw_only=True)
class NoSuchScope(NotFound):
    """The scope does not exist: create it first."""

    scope: str | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class NoSuchStream(NotFound):
    """The stream does not exist, or was deleted."""

    stream: str | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class NoSuchSegment(NotFound):
    """The stream has no segment with this id."""

    stream: str | None = None
    segment_id: int | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class NoSuchEvent(NotFound):
    """No event was ever written where the pointer points."""

    pointer: Any = None  # EventPointer | None


@dataclass(eq=False, repr=False, kw_only=True)
class NoSuchTransaction(NotFound):
    """The stream knows no transaction with this id: it never began, or ended too long ago."""

    stream: str | None = None
    transaction_id: str | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class NoSuchReaderGroup(NotFound):
    """The reader group does not exist, or was deleted."""

    group: str | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class NoSuchSubscriber(NotFound):
    """The stream has no such subscriber: it never subscribed, was removed, or expired."""

    stream: str | None = None
    subscriber: str | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class NoSuchCut(NotFound):
    """The stream has no saved cut of this name."""

    stream: str | None = None
    name: str | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class NoSuchTable(NotFound):
    """The key-value table does not exist, or was deleted."""

    table: str | None = None


class IllegalState(PravegaSparkError):
    """The object exists, but its state forbids the call: the same call fails again."""


@dataclass(eq=False, repr=False, kw_only=True)
class StreamSealed(IllegalState):
    """The stream is sealed: it accepts no more events."""

    stream: str | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class StreamNotSealed(IllegalState):
    """Only a sealed stream can be deleted: seal it first."""

    stream: str | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class ScopeNotEmpty(IllegalState):
    """The scope still holds streams or reader groups: delete them first, or recursively."""

    scope: str | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class TxnFailed(IllegalState):
    """The transaction has ended, or is ending, in another way than the call asks for."""

    transaction_id: str | None = None
    status: Any = None  # TransactionStatus | None


@dataclass(eq=False, repr=False, kw_only=True)
class PingFailed(IllegalState):
    """The transaction's lease cannot be extended: commit before it runs out, or begin another."""

    transaction_id: str | None = None
    status: Any = None  # TransactionStatus | None


@dataclass(eq=False, repr=False, kw_only=True)
class ConfigMismatch(IllegalState):
    """A reader group of this name exists with another configuration: open it as it is, or reset it.

    ``generation`` is that of the existing group.
    """

    group: str | None = None
    generation: int | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class BatchConflict(IllegalState):
    """Another batch has this number: a query's checkpoint was changed, or two writes share an id.

    ``writer_id`` is that of the query or application, ``last`` the last number that is known.
    """

    writer_id: str | None = None
    number: int | None = None
    last: int | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class CheckpointFailed(IllegalState):
    """The checkpoint was cancelled, or the group was reset or updated: initiate another one.

    ``generation`` is the group's present one.
    """

    group: str | None = None
    generation: int | None = None
    checkpoint: str | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class PositionOvertaken(IllegalState):
    """Since a reader returned this position, others have had its segments, as far as is known.

    Nothing was changed. ``ranges`` are the events after the position that the reader was handed and
    that its group will not read again; those whose owners no record names count, too.
    """

    group: str | None = None
    reader: str | None = None
    ranges: tuple[Any, ...] = ()  # of SegmentRange


@dataclass(eq=False, repr=False, kw_only=True)
class TableSealed(IllegalState):
    """The key-value table was sealed: it can be read, and accepts no more changes."""

    table: str | None = None


class ObjectClosed(IllegalState):
    """The writer or reader was closed: create another one."""


class TryAgain(PravegaSparkError):
    """Nothing was done: wait, or read the present state, then call again."""


class TooBusy(TryAgain):
    """The call lost too many races in a row, or took too long: call it again later."""


@dataclass(eq=False, repr=False, kw_only=True)
class ConditionFailed(TryAgain):
    """A conditional call found another position than the expected one: read on and decide again.

    ``actual`` is the present position, of the same kind as ``expected``. It is the tail of the
    stream if the expected segment is sealed, or does not take the routing key.
    """

    stream: str | None = None
    expected: Any = None  # StreamCut | EventPointer | int | str | None
    actual: Any = None  # StreamCut | EventPointer | int | str | None


@dataclass(eq=False, repr=False, kw_only=True)
class ConfigurationConflict(TryAgain):
    """Another update changed the configuration first: read the present one and decide again.

    ``configuration`` is that of ``current_version``, and ``wanted`` what the update would set.
    """

    stream: str | None = None
    expected_version: int | None = None
    current_version: int | None = None
    configuration: Any = None  # StreamConfiguration | None
    wanted: Any = None  # StreamConfiguration | None


@dataclass(eq=False, repr=False, kw_only=True)
class ScaleConflict(TryAgain):
    """Another scale sealed the segment first: read the present segments and decide again.

    ``epoch`` is the stream's active one.
    """

    stream: str | None = None
    segment_id: int | None = None
    epoch: int | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class SegmentSealed(TryAgain):
    """A scale sealed the segment after events were routed to it: route them again."""

    stream: str | None = None
    segment_id: int | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class TooManyCheckpoints(TryAgain):
    """The group has as many incomplete checkpoints as it allows: wait for one of them."""

    group: str | None = None
    limit: int | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class HeldBySubscriber(TryAgain):
    """Subscribers still need what the truncation would delete: wait, remove or bypass them.

    ``cut`` is the first cut that the first of ``subscribers`` still needs.
    """

    subscribers: tuple[str, ...] = ()
    cut: Any = None  # StreamCut | None


class RegistryUnavailable(TryAgain):
    """The schema registry gave no answer: call again. Nothing was written."""


@dataclass(eq=False, repr=False, kw_only=True)
class ConditionalTableUpdate(TryAgain):
    """An update of a key-value table named a version that its key does not have.

    Get the entry again and decide again. ``key`` is the primary key, ``version`` the text of the
    version that it has, or of "not-exists".
    """

    table: str | None = None
    key: bytes | str | int | None = None
    version: str | None = None


class BadKeyVersion(ConditionalTableUpdate):
    """The key exists with another version, or exists although it must not."""


class NoSuchKey(ConditionalTableUpdate):
    """The key does not exist, and the update named a version of it."""


class Reopen(PravegaSparkError):
    """The object no longer matches the log: open it again and continue from what it reports."""


@dataclass(eq=False, repr=False, kw_only=True)
class CommitUnknown(Reopen):
    """The outcome of a commit is unknown: reopening decides it and reports the result.

    ``version`` is the one that the commit was to write.
    """

    version: int | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class WriterForgotten(CommitUnknown):
    """The log no longer knows the writer: open it again, by its id if the user chose one.

    A sweep archived its record, or deleted what it had staged.
    """

    writer_id: str | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class WriterFenced(Reopen):
    """A newer session of the same writer id took over: this writer must stop."""

    writer_id: str | None = None
    session: int | None = None
    newer_session: int | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class FencingTokenMismatch(Reopen):
    """The writer's fencing token is not the stream's newest one: this writer must stop."""

    stream: str | None = None
    fencing_token: str | None = None
    newest_token: str | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class OutOfOrder(Reopen):
    """A batch does not continue what the log holds of its writer: events before it are missing.

    ``last_event_number`` is the last number that the log holds.
    """

    writer_id: str | None = None
    last_event_number: int | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class StagedTooLate(Reopen):
    """Data staged at a version below the staging horizon cannot be committed: write it again."""

    version: int | None = None
    horizon: int | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class StaleIdentity(Reopen):
    """The name was deleted and created again, or restored: the object is of an earlier life.

    ``name`` is a stream, scope or reader group. ``current_life`` is None if that is unknown.
    """

    name: str | None = None
    life: int | None = None
    current_life: int | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class ReinitializationRequired(Reopen):
    """The reader is no longer in its group, or the group was reset or updated: create it again.

    ``generation`` is the group's present one, or None if the group was deleted.
    """

    group: str | None = None
    reader: str | None = None
    generation: int | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class GenerationMismatch(Reopen):
    """The subscriber was changed or subscribed again: the call is of another generation."""

    subscriber: str | None = None
    generation: int | None = None
    current_generation: int | None = None
    cut: Any = None  # StreamCut | None
    """The cut from which the stream holds data for the present generation."""


class RootChanged(Reopen):
    """The root was removed, moved, unmounted or set up again since the object was opened."""


class ForkedProcess(Reopen):
    """The object was created before a fork: create it in the child process."""


@dataclass(eq=False, repr=False, kw_only=True)
class TruncatedData(PravegaSparkError):
    """Events to be read were truncated: continue at the head, or start again at a valid cut.

    ``lost`` names the truncated ranges. A range whose end is unknown is empty. ``head`` is the
    earliest cut that loses nothing, of the stream that lost events; it is None if that stream was
    created again since.
    """

    head: Any = None  # StreamCut | None
    lost: tuple[Any, ...] = ()  # of SegmentRange


@dataclass(eq=False, repr=False, kw_only=True)
class SegmentTruncated(TruncatedData):
    """Bytes to be read were truncated: continue at ``head_offset``, the first that are left."""

    head_offset: int | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class Damaged(PravegaSparkError):
    """Stored bytes are not those that were written: restore the named object from a copy.

    ``path`` is the full path or URL of the file, or of the table. ``stream`` is the stream that it
    belongs to, or None for a table of a scope, a reader group or the root.
    """

    stream: str | None = None
    path: str | None = None

    def __post_init__(self) -> None:
        """Take the stream's name from the path, unless it is given."""
        super().__post_init__()
        if self.stream is None and self.path is not None:
            self.stream = _stream_of(self.path)

    def locate(self, table: str) -> None:
        """Name the table that the damage was found in, unless the error names its file."""
        if self.path is None:
            self.path, self.message = table, f"{table}: {self.message}"
            self.__post_init__()


@dataclass(eq=False, repr=False, kw_only=True)
class CorruptLog(Damaged):
    """A log entry is torn, missing or not valid Delta."""

    version: int | None = None


class CorruptChunk(Damaged):
    """A data file exists, but its bytes are wrong."""


@dataclass(eq=False, repr=False, kw_only=True)
class DataLoss(Damaged):
    """A range cannot be read to its end: a file is missing, or the log has a gap.

    ``lost`` is the unreadable rest of the range.
    """

    lost: Any = None  # SegmentRange | None


@dataclass(eq=False, repr=False, kw_only=True)
class StoreError(PravegaSparkError, OSError):
    """The storage refused an operation. ``url`` names the object, or the root."""

    url: str | None = None


class StoreRefused(StoreError):
    """The root cannot hold streams: no exclusive create, or an unsupported kind of storage."""


class StoreUnavailable(StoreError):
    """The storage gave no answer, or asked for fewer calls, for as long as calls are repeated."""


class StoreFull(StoreError):
    """No space is left (ENOSPC, EDQUOT): free some and call again.

    A call of one commit, such as a write or an update, has committed nothing. One of several, such
    as a deletion, goes on where it was when it is called again.
    """


class StoreReadOnly(StoreError):
    """The root cannot be written (EROFS, EACCES): grant the right, or name another root."""


class ForeignTable(StoreError):
    """The Delta table is not ours, or needs a feature that this version does not know."""


@dataclass(eq=False, repr=False, kw_only=True)
class KeyUnavailable(StoreError):
    """The key of an encrypted chunk was refused: it is unknown, destroyed, or not for this process.

    ``key`` is the name of the master key, ``stream`` the stream, and ``url`` the chunk's file, or
    None while a chunk is written.
    """

    key: str | None = None
    stream: str | None = None

    def __post_init__(self) -> None:
        """Take the stream's name from the URL, unless it is given."""
        super().__post_init__()
        if self.stream is None and self.url is not None:
            self.stream = _stream_of(self.url)


class KmsUnavailable(KeyUnavailable):
    """The process has no key management system, or that one failed: set it, or call again."""
