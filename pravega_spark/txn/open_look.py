"""A look at the open transactions of a stream: what a process that is gone decided is carried out.

A process that appends to a stream, or that reads it as a member of a group, knows the stream's open
transactions from the commits that it reads anyway. One that stays open for longer than its lease is
looked at in the background: one listing, and a read of the last manifest of each transaction that
has a new one. What is decided is committed as by the next commit of a transaction; nothing is
decided here. A process looks once a lease, and not at all while it knows no open transaction.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from pravega_spark.engine.runtime.failpoints import failpoint
from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import (
    NoSuchStream,
    PravegaSparkError,
    StaleIdentity,
    StoreReadOnly,
    StoreRefused,
)
from pravega_spark.values.limits import OPEN_LOOK_SECONDS

logger = own_logger(__name__)

_IsClosed = Callable[[Any], bool]


@dataclass(slots=True)
class _Known:
    """An open transaction as this process knows it."""

    since: float
    """When it was seen first, or looked at last."""
    lease_seconds: float
    manifest: str = ""
    """The key of its last manifest when it was looked at."""
    is_prepared: bool = False
    """Whether that prepares it; of a part of a joint one, the decision log says more."""
    is_decided: bool = False


class OpenLook:
    """The looks of this process at the open transactions of one stream."""

    def __init__(self, stream: StreamLog) -> None:
        """Begin to follow what this process reads of the stream's log; makes no storage call."""
        self._stream = stream
        self._known: dict[str, _Known] = {}
        """The open transactions by id."""
        self._is_pending = self._has_changed = self._is_refused = False
        self._readers: list[tuple[weakref.ref[object], _IsClosed]] = []
        """Readers of groups, for which looks go on although nothing is appended."""
        stream.log.on_change(self.notice)
        self.notice()

    def add_reader(self, reader: object, is_closed: _IsClosed) -> None:
        """Look for a reader of a group, as long as it is open."""
        self._readers = [*self._open_readers(), (weakref.ref(reader), is_closed)]
        self.notice()

    def _open_readers(self) -> list[tuple[weakref.ref[object], _IsClosed]]:
        found = [(known(), known, is_closed) for known, is_closed in self._readers]
        return [(k, closed) for r, k, closed in found if r is not None and not closed(r)]

    def notice(self) -> None:
        """See to the open transactions of the snapshot, whose log may be locked."""
        snapshot = self._stream.log.snapshot
        self._has_changed = True
        if snapshot is None or not snapshot.open or self._is_pending or self._is_refused:
            return
        self._is_pending = True
        # A stream that the process has dropped is collected, and looked at no more.
        self._stream.runtime.later(OPEN_LOOK_SECONDS, partial(_tick, weakref.ref(self)))

    def tick(self) -> None:
        """Look if a known transaction is open for longer than its lease; costs no call else."""
        goes_on = False
        self._has_changed = False
        try:
            goes_on = self._look_if_due()
        except (NoSuchStream, StaleIdentity):
            pass
        except (StoreReadOnly, StoreRefused) as error:
            self._is_refused = True
            logger.info(
                "this process may not carry out transactions of %s, and leaves those that dead "
                "processes decided to others: %s",
                self._stream.name,
                error,
                extra=log_fields("commit transaction", self._stream.name),
            )
        except PravegaSparkError as error:
            goes_on = True
            logger.debug(
                "could not look at the open transactions of %s: %s",
                self._stream.name,
                error,
                extra=log_fields("commit transaction", self._stream.name),
            )
        finally:
            self._is_pending = False
        if goes_on or self._has_changed or self._open_readers():
            self.notice()

    def _look_if_due(self) -> bool:
        """Return whether a transaction that is open has to wait for its next look."""
        stream = self._stream
        snapshot, now = stream.log.snapshot, stream.runtime.monotonic()
        if snapshot is None:
            return False
        view = stream.view_of(snapshot)
        view.check_exists()
        known, opened = self._known, snapshot.open
        self._known = {n: known.get(n) or _Known(now, lease_seconds(view, n)) for n in opened}
        if not any(now - one.since >= one.lease_seconds for one in self._known.values()):
            return bool(opened)
        for one in self._known.values():
            one.since = now
        self._look(view)
        return False

    def _look(self, view: StreamView) -> None:
        """Carry out what is decided; the last manifest of a transaction says so."""
        from pravega_spark.txn import commit, settlement  # late: most processes never look
        from pravega_spark.txn.manifests import ManifestKind, last_kinds, last_manifests

        failpoint("look.before")
        stream, known = self._stream, self._known
        found = last_manifests(stream, known)
        new = {name: key for name, key in found.items() if key != known[name].manifest}
        for name, kind in last_kinds(stream, new).items():
            known[name].manifest = new[name]
            known[name].is_prepared = kind is ManifestKind.PREPARED
            known[name].is_decided = kind.is_closing
        decided = {name for name, one in known.items() if one.is_decided}
        prepared = {name for name, one in known.items() if one.is_prepared}
        settlement.carry_out_decided(stream, view, prepared)
        if decided:
            commit.find_and_commit_decided(stream, view, decided)


def _tick(known: weakref.ref[OpenLook]) -> None:
    look = known()
    if look is not None:
        look.tick()


def lease_seconds(view: StreamView, transaction_id: str) -> float:
    """Return the lease of a transaction that is open in a view."""
    opened = view.transaction(transaction_id)
    assert opened is not None
    return opened.lease_ms / 1_000


def look_at(
    stream: StreamLog,
    reader: object | None = None,
    is_closed: Callable[[Any], bool] = lambda reader: False,
) -> None:
    """From now on, look at the open transactions of a stream that this process appends to.

    With the reader of a group, until it is closed or collected, also if nothing is appended. Each
    class that appends or reads calls it: what they share lies in the engine, which knows no
    transactions.
    """
    look = stream.kept(OpenLook, partial(OpenLook, stream))
    if reader is not None:
        look.add_reader(reader, is_closed)
