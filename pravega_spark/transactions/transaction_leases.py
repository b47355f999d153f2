"""Who is still there: a transaction's lease is a small object that its writer overwrites.

Its age is told by the storage's own clock, which also dates an object put just now to ask; so the
clocks of the machines need not agree, and a job that runs once need not wait to see what moves.
Whether a transaction may be aborted never depends on a clock: the closing mark decides. A clock
only says when to try, and never too early.
"""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

from pravega_spark.engine.log.version_ages import VersionAges
from pravega_spark.engine.stream.records import OpenTransaction
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import InvalidConfiguration
from pravega_spark.limits import MAX_LEASE_MS, MIN_LEASE_MS
from pravega_spark.transactions.manifests import Kind, Manifests, folder
from pravega_spark.units import parse_duration_ms


def parse_lease_ms(lease: str | float) -> int:
    """Read a lease in milliseconds; raise InvalidConfiguration unless it is 10 s to 600 s."""
    lease_ms = parse_duration_ms("the lease", lease)
    if not MIN_LEASE_MS <= lease_ms <= MAX_LEASE_MS:
        raise InvalidConfiguration(
            f"a transaction's lease is {MIN_LEASE_MS // 1000} s to {MAX_LEASE_MS // 1000} s, got "
            f"{lease!r}."
        )
    return lease_ms


def ping_interval_seconds(lease_ms: int) -> float:
    """Return how often a lease is extended, as Pravega has it: lease / max(1, sqrt(lease))."""
    lease = lease_ms / 1_000
    return lease / max(1.0, sqrt(lease))


def age_ms(stream: StreamLog, opened: OpenTransaction) -> int:
    """Return how long a transaction has been open at least, by the storage's clock."""
    if opened.version == 0:  # begun by an older version of this package
        return max(0, stream.now_ms() - opened.created_ms)
    ages = VersionAges.read(stream.log, keep=False)
    return ages.now_ms - ages.written_ms(opened.version)


class Lease:
    """A transaction's lease, in a process that extends it."""

    def __init__(self, stream: StreamLog, opened: OpenTransaction) -> None:
        """Take it up; nothing is asked yet."""
        self._stream = stream
        self._opened = opened
        self._store = stream.store
        self._key = _key(stream, opened.transaction_id)
        self._runtime = stream.runtime
        self._seconds = opened.lease_ms / 1_000
        self._until: float | None = None

    def has_time(self) -> bool:
        """Tell whether another lease ends before the maximum execution time.

        What is left of that is asked once, of the storage's clock, and measured from then on: so
        neither the beginner's wall clock counts, nor one that jumps later.
        """
        if self._until is None:
            opened = self._opened
            left_ms = opened.limit_ms - opened.created_ms - age_ms(self._stream, opened)
            self._until = self._runtime.monotonic() + left_ms / 1_000
        return self._runtime.monotonic() + self._seconds <= self._until

    def extend(self) -> None:
        """Begin the lease anew: overwrite the object."""
        self._store.put(self._key, b"{}\n", durable=False)


def extended_ms(stream: StreamLog, view: StreamView) -> dict[str, int]:
    """Return when each open transaction's lease was extended last, by id; writes nothing.

    In ms since 1970 by the storage's clock. One that was never extended is left out.
    """
    listed = {entry.key: entry.modified_ms for entry in stream.store.list(_base(stream))}
    keys = {name: _key(stream, name) for name in view.transactions}
    return {name: listed[key] for name, key in keys.items() if key in listed}


class Expiry(NamedTuple):
    """Why a transaction that nobody keeps alive is to be aborted; whether it is prepared."""

    reason: str
    prepared: bool


def expired_transactions(
    stream: StreamLog, view: StreamView, prepared_limit_ms: int, *, write: bool = True
) -> dict[str, Expiry]:
    """Return the open transactions that nobody keeps alive, by id.

    Whose lease ran out; beyond the maximum execution time it is not extended. A prepared one only
    after ``prepared_limit_ms`` since its preparation. One that was never pinged gets its lease
    now, from whoever looks first; without ``write`` no lease begins.
    """
    if not view.transactions:
        return {}
    ages_ms = _ages_ms(stream)
    found: dict[str, Expiry] = {}
    for name, opened in sorted(view.transactions.items()):
        idle_ms = ages_ms.get(_key(stream, name))
        if idle_ms is None:
            if write:
                stream.store.put(_key(stream, name), b"{}\n", durable=False)
        elif idle_ms > opened.lease_ms:
            why = _why(stream, opened, ages_ms, prepared_limit_ms)
            if why is not None:
                found[name] = why
    return found


def expiry_reasons(
    stream: StreamLog, view: StreamView, prepared_limit_ms: int, *, write: bool = True
) -> dict[str, str]:
    """Return the reason of each transaction that is :func:`expired_transactions`."""
    found = expired_transactions(stream, view, prepared_limit_ms, write=write)
    return {name: why.reason for name, why in found.items()}


def _why(
    stream: StreamLog, opened: OpenTransaction, ages_ms: dict[str, int], prepared_limit_ms: int
) -> Expiry | None:
    """Judge a transaction whose lease ran out; None if it is decided, or waits for that."""
    manifests = Manifests(stream, opened.transaction_id)
    entries = manifests.read()
    if manifests.is_closed:
        return None
    if manifests.last is Kind.PREPARED:
        since_ms = ages_ms.get(manifests.key(len(entries) - 1), 0)
        reason = f"prepared {since_ms // 1000} s ago, and nobody has decided it"
        return Expiry(reason, True) if since_ms > prepared_limit_ms else None
    if age_ms(stream, opened) > opened.limit_ms - opened.created_ms:
        return Expiry("its maximum execution time ran out", False)
    return Expiry(f"its lease of {opened.lease_ms // 1000} s ran out", False)


def _base(stream: StreamLog) -> str:
    return f"{stream.name}/transactions"


def _key(stream: StreamLog, transaction_id: str) -> str:
    return f"{folder(stream, transaction_id)}/lease.json"


def _ages_ms(stream: StreamLog) -> dict[str, int]:
    """Return the time since each object of the stream's transactions was written, at least."""
    now_ms = stream.store.time_ms()
    return {e.key: now_ms - e.modified_ms for e in stream.store.list(_base(stream))}
