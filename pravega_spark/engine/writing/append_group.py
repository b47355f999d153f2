"""The appends of one process to one stream: batches that wait share a commit, also with others'.

One thread leads at a time: it commits for all batches that wait (``AppendLeader``), and each owner
gets its outcome. As long as no other process writes, that is all.

With other writers, the leader also commits for them. Whoever did goes on, in the background, as
long as they offer batches. No process is special: where the one that takes dies, the patience of
another ends.
"""

from __future__ import annotations

import atexit
import threading

from pravega_spark.engine.failpoints import failpoint
from pravega_spark.engine.log_fields import log_fields, own_logger
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.writing.append_draft import AppendResult, StagedBatch
from pravega_spark.engine.writing.append_leader import AppendLeader
from pravega_spark.engine.writing.open_append import OpenAppend
from pravega_spark.process_locks import new_lock

logger = own_logger(__name__)

_exiting = threading.Event()
atexit.register(_exiting.set)


class AppendGroup:
    """The batches of one process that wait for a commit of one stream; thread-safe."""

    def __init__(self, stream: StreamLog) -> None:
        """Begin without batches."""
        self._stream = stream
        self._runtime = stream.runtime
        self._lock = new_lock()
        self._waiting: list[OpenAppend] = []
        self.is_led = False
        """Whether a commit is under way, which a batch that is staged now waits for."""
        self.leader = AppendLeader(stream)
        """What the thread that leads does; nothing else may use it."""

    @property
    def offers(self) -> bool:
        """Whether batches should be offered now."""
        return self.leader.is_contended

    def append(self, batch: StagedBatch) -> AppendResult:
        """Wait until the batch is in the log, with all or none of its chunks.

        Raises what :meth:`AppendDraft.add` raises, OfferFirst, CommitUnknown and StoreError. For a
        batch that was offered, an error of the storage is CommitUnknown: another process may commit
        it later.
        """
        failpoint("append.staged")
        waiting = OpenAppend(batch, self._runtime.monotonic(), self._runtime.random())
        with self._lock:
            self._waiting.append(waiting)
            leads, self.is_led = not self.is_led, True
        if not leads:
            waiting.wake.wait()
        if not waiting.is_done:
            self._lead(waiting)
        return waiting.outcome()

    def _lead(self, own: OpenAppend) -> None:
        try:
            while not own.is_done:
                self._step()
        except BaseException as error:
            own.fail(error, self._stream.name)
        finally:
            self._hand_over()

    def _step(self) -> None:
        with self._lock:
            waiting = list(self._waiting)
        try:
            self.leader.step(waiting)
        finally:
            self._drop_done()

    def _drop_done(self) -> None:
        with self._lock:
            self._waiting = [one for one in self._waiting if not one.is_done]

    def _hand_over(self, *, goes_on: bool = True) -> None:
        """Let the owner of the next batch lead, or the background if others need it."""
        self._drop_done()
        with self._lock:
            if self._waiting:
                self._waiting[0].wake.set()
                return
            goes_on = goes_on and self.leader.takes and self.offers
            self.is_led = goes_on
        if goes_on:
            self.leader.has_offers = True
            self._runtime.start(self._take_on)

    def _take_on(self) -> None:
        """Commit for others as long as there are offers, then hand over."""
        try:
            while self.leader.goes_on and not _exiting.is_set():
                self._step()
                if self.leader.linger:
                    self._runtime.sleep(self.leader.linger)
        except Exception as error:
            name, fields = self._stream.name, log_fields("append", self._stream.name)
            logger.debug("stopped to commit for others of %s: %r", name, error, extra=fields)
        finally:
            self.leader.takes = False
            self._hand_over(goes_on=False)


def group_of(stream: StreamLog) -> AppendGroup:
    """Return the group of an open stream, which all of its writers in this process share."""
    found = stream.append_group
    if found is None:  # of two threads, the first one sets it
        found = stream.attach_group(AppendGroup(stream))
    assert isinstance(found, AppendGroup)
    return found
