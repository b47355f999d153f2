"""Every error this package raises, grouped by what the caller should do next.

::

    PravegaSparkError
    ├── InvalidInput (ValueError)        fix the argument and call again
    │   ├── InvalidName
    │   ├── InvalidConfiguration
    │   ├── InvalidStreamCut
    │   ├── InvalidOption
    │   └── EventTooLarge
    ├── NotFound (LookupError)           create it, or name another
    │   ├── NoSuchScope
    │   ├── NoSuchStream
    │   ├── NoSuchSegment
    │   ├── NoSuchEvent
    │   ├── NoSuchTransaction
    │   ├── NoSuchReaderGroup
    │   └── NoSuchSubscriber
    ├── IllegalState                     the object's state forbids the call: stop
    │   ├── StreamSealed
    │   ├── SegmentSealed
    │   ├── StreamNotSealed
    │   ├── ScopeNotEmpty
    │   ├── ScaleConflict
    │   ├── TxnFailed
    │   ├── PingFailed
    │   ├── ConfigMismatch
    │   ├── TooManyCheckpoints
    │   ├── CheckpointFailed
    │   ├── HeldBySubscriber
    │   └── ObjectClosed
    ├── Reopen                           open the object anew; it no longer matches the log
    │   ├── CommitUnknown
    │   ├── WriterFenced
    │   ├── OutOfOrder
    │   ├── StagedTooLate
    │   ├── StaleIdentity
    │   ├── ReinitializationRequired
    │   ├── GenerationMismatch
    │   ├── RootChanged
    │   └── ForkedProcess
    ├── TooBusy                          wait, then try again
    ├── TruncatedData                    go on at the head, which the error names
    ├── Damaged                          restore the named object from a copy
    │   ├── CorruptLog
    │   ├── CorruptChunk
    │   └── DataLoss
    └── StoreError (OSError)             the storage refused
        ├── StoreRefused
        ├── StoreFull
        ├── StoreReadOnly
        └── ForeignTable
"""

from __future__ import annotations


class PravegaSparkError(Exception):
    """Base of every error of this package."""


class InvalidInput(PravegaSparkError, ValueError):
    """An argument is not acceptable: fix it and call again; nothing was done."""


class InvalidName(InvalidInput):
    """A scope, stream, writer or group name breaks the naming rule."""


class InvalidConfiguration(InvalidInput):
    """A policy or option value is out of its range."""


class InvalidStreamCut(InvalidInput):
    """A cut belongs to another stream or life, or does not cover the key space once."""


class InvalidOption(InvalidInput):
    """A Spark option is unknown or its value cannot be read."""


class EventTooLarge(InvalidInput):
    """An event or an atomic list of events exceeds the size limit."""


class NotFound(PravegaSparkError, LookupError):
    """The named object does not exist."""


class NoSuchScope(NotFound):
    """The scope does not exist: create it first."""


class NoSuchStream(NotFound):
    """The stream does not exist, or was deleted."""


class NoSuchSegment(NotFound):
    """The stream has no segment of that id."""


class NoSuchEvent(NotFound):
    """The pointer names no event: it was truncated, or never written."""


class NoSuchTransaction(NotFound):
    """The stream knows no transaction of that id: never begun, or ended too long ago."""


class NoSuchReaderGroup(NotFound):
    """The reader group does not exist, or was deleted."""


class NoSuchSubscriber(NotFound):
    """The group is no subscriber of the stream: never was, removed, or expired: subscribe it."""


class IllegalState(PravegaSparkError):
    """The object exists but its state forbids the call."""


class StreamSealed(IllegalState):
    """The stream was sealed: no event can be written any more."""


class SegmentSealed(IllegalState):
    """A segment was sealed by a scale after events were routed to it: route them anew."""


class StreamNotSealed(IllegalState):
    """Only a sealed stream can be deleted: seal it first."""


class ScopeNotEmpty(IllegalState):
    """The scope still holds objects: delete them first, or delete recursively."""


class ScaleConflict(IllegalState):
    """A segment to be sealed is not current any more: another scale came first; look again."""


class TxnFailed(IllegalState):
    """The transaction has ended, or is about to, in another way than the call asks for."""


class PingFailed(IllegalState):
    """The transaction's lease cannot be extended: commit it before it runs out."""


class ConfigMismatch(IllegalState):
    """A reader group of that name exists with another configuration: take that, or reset it."""


class TooManyCheckpoints(IllegalState):
    """As many checkpoints as the group allows are under way: wait for one of them."""


class CheckpointFailed(IllegalState):
    """The checkpoint was cancelled, or the group was reset: initiate another one."""


class HeldBySubscriber(IllegalState):
    """A subscriber still needs what would be truncated: wait, remove it, or say to pass it."""


class ObjectClosed(IllegalState):
    """The writer, reader or manager was closed."""


class Reopen(PravegaSparkError):
    """The object's knowledge no longer matches the log: open it anew and go on from there."""


class CommitUnknown(Reopen):
    """Nobody can tell yet whether the commit landed: reopen, which settles it, then look."""


class WriterForgotten(CommitUnknown):
    """The log holds nothing of a writer that has written: open it again, by its own id if any.

    A sweep moved its record away, or deleted what was staged since it was opened.
    """


class WriterFenced(Reopen):
    """A newer session of the same writer id took over: this writer must stop."""


class OutOfOrder(Reopen):
    """A batch does not continue what the log holds of its writer: events before it are missing."""


class StagedTooLate(Reopen):
    """Data staged before the stream's horizon can no longer be committed: stage it again."""


class StaleIdentity(Reopen):
    """The stream was created again, or restored: the object belongs to an earlier life."""


class ReinitializationRequired(Reopen):
    """The reader is not in its group any more, or the group was reset: create the reader anew."""


class GenerationMismatch(Reopen):
    """The group was changed, reset or created again: what is used here is of another generation."""


class RootChanged(Reopen):
    """The root was removed, moved, unmounted or set up again since the object was opened."""


class ForkedProcess(Reopen):
    """The object was created before a fork: create it in the child process."""


class TooBusy(PravegaSparkError):
    """Too many races were lost in a row: wait and try again; nothing was done."""


class TruncatedData(PravegaSparkError):
    """Data to be read was truncated: go on at the head, or start again from an allowed cut."""


class Damaged(PravegaSparkError):
    """Stored bytes are not what was written: restore the named object from a copy."""


class CorruptLog(Damaged):
    """A log entry is torn, missing or not valid Delta."""


class CorruptChunk(Damaged):
    """A chunk is missing, torn, or does not hold what the log says."""


class DataLoss(Damaged):
    """A planned range could not be read to its end."""


class StoreError(PravegaSparkError, OSError):
    """The storage refused an operation."""

    def __str__(self) -> str:
        """Show the message alone, not OSError's errno form."""
        return str(self.args[0]) if self.args else ""


class StoreRefused(StoreError):
    """The root cannot hold streams: no exclusive create, or an unsupported kind of storage."""


class StoreFull(StoreError):
    """No space is left (ENOSPC, EDQUOT): free some and call again; nothing was committed."""


class StoreReadOnly(StoreError):
    """The root cannot be written (EROFS, EACCES)."""


class ForeignTable(StoreError):
    """A Delta table that is not ours, or has a feature this version does not know: left alone."""
