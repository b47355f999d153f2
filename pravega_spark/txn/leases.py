"""Transaction leases: a small object that the writer overwrites while it is alive.

The storage's own clock dates the lease and an object that is put to read that clock. So machine
clocks need not agree.

No lease runs out over an outage of the storage, in which nobody can extend it (ADR 35). A process
that has watched the storage for a whole lease knows that there was none. Any other that finds that
a lease has run out extends it once more, and says so in the object. A transaction expires when that
last lease has run out, too, and no outage is known since it began. This needs no memory of the
judge: it may be a job that runs once.

Correctness never depends on a clock, since the closing manifest decides. The clock only gives the
time of an abort, and never too early.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import sqrt
from typing import NamedTuple

from pravega_spark.config.descriptions import TransactionStatus
from pravega_spark.engine.log.retained import VersionAges
from pravega_spark.engine.runtime.json_codec import to_json
from pravega_spark.engine.store.lease_watch import watch_of
from pravega_spark.engine.stream.records import OpenTransaction
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import InvalidConfiguration, PingFailed
from pravega_spark.txn.manifests import ManifestKind, Manifests, transaction_folder
from pravega_spark.values.checks import shown
from pravega_spark.values.limits import MAX_LEASE_MS, MIN_LEASE_MS
from pravega_spark.values.units import parse_duration_ms

_LAST_LEASES = 2
"""Last leases, if a judge found the one before so late that another outage may have hidden it."""
_LATE_LEASES = 2
"""A last lease that is this many times as old as it lasts was found late."""


def parse_lease_ms(lease: str | float) -> int:
    """Return a lease in milliseconds; raise InvalidConfiguration unless it is 10 s to 600 s."""
    lease_ms = parse_duration_ms("the lease", lease)
    if not MIN_LEASE_MS <= lease_ms <= MAX_LEASE_MS:
        raise InvalidConfiguration(
            f"a transaction's lease must be {MIN_LEASE_MS // 1000} s to "
            f"{MAX_LEASE_MS // 1000} s, got {shown(lease)}."
        )
    return lease_ms


def ping_interval_seconds(lease_ms: int) -> float:
    """Return the seconds between two pings, as in Pravega: lease / max(1, sqrt(lease))."""
    lease = lease_ms / 1_000
    return lease / max(1.0, sqrt(lease))


def age_ms(stream: StreamLog, opened: OpenTransaction) -> int:
    """Return a lower bound of a transaction's age, by the storage's clock."""
    if opened.version == 0:  # begun by an older version of this package
        return max(0, stream.now_ms() - opened.created_ms)
    ages = VersionAges.read(stream.log, keep=False)
    return ages.now_ms - ages.written_ms(opened.version)


class Lease:
    """The lease of one transaction, in a process that extends it."""

    def __init__(self, stream: StreamLog, opened: OpenTransaction) -> None:
        """Refer to a lease; makes no storage call."""
        self._stream = stream
        self._opened = opened
        self._store = stream.store
        self._key = _key(stream, opened.transaction_id)
        self._runtime = stream.runtime
        self.seconds = opened.lease_ms / 1_000
        self._until: float | None = None

    def can_extend(self) -> bool:
        """Return True if another lease ends before the maximum execution time.

        The remaining time is read from the storage's clock once, and measured by the monotonic
        clock from then on, so that no machine's wall clock counts.
        """
        if self._until is None:
            opened = self._opened
            left_ms = opened.limit_ms - opened.created_ms - age_ms(self._stream, opened)
            self._until = self._runtime.monotonic() + left_ms / 1_000
        return self._runtime.monotonic() + self.seconds <= self._until

    def extend(self) -> None:
        """Restart the lease: overwrite its object."""
        with watch_of(self._store).call(self._runtime):
            _put_lease(self._stream, self._key)

    def extended(self) -> bool:
        """Restart the lease if it can be extended; return whether it was."""
        if not self.can_extend():
            return False
        self.extend()
        return True


def extend_lease(lease: Lease | None, manifests: Manifests, status: TransactionStatus) -> None:
    """Restart the lease of a transaction; raise PingFailed if it cannot be extended."""
    if lease is None or status is not TransactionStatus.OPEN:
        raise PingFailed(
            f"{manifests.name} is {status.value}: it has no lease.",
            transaction_id=manifests.transaction_id,
            status=status,
        )
    if not lease.can_extend():
        raise PingFailed(
            f"{manifests.name} reaches its maximum execution time before another lease of "
            f"{lease.seconds:.0f} s ends: commit it, or begin another with a longer "
            "max_execution.",
            transaction_id=manifests.transaction_id,
            status=status,
        )
    lease.extend()


def extended_ms(stream: StreamLog, view: StreamView) -> dict[str, int]:
    """Return the time of each open transaction's last ping, by id; writes nothing.

    In ms since 1970 by the storage's clock, without transactions that were never pinged.
    """
    listed = {entry.key: entry.modified_ms for entry in stream.store.list(_base(stream))}
    keys = {name: _key(stream, name) for name in view.transactions}
    return {name: listed[key] for name, key in keys.items() if key in listed}


class Expiry(NamedTuple):
    """Why a transaction has expired."""

    reason: str
    is_prepared: bool


def expired_transactions(
    stream: StreamLog, view: StreamView, prepared_limit_ms: int, *, write: bool = True
) -> dict[str, Expiry]:
    """Return the open transactions whose lease has run out, by id.

    A lease is not extended beyond the maximum execution time. A prepared transaction has no lease
    and expires ``prepared_limit_ms`` after its preparation; the part of a joint one has, since the
    process that prepares it decides at once. A transaction that was never pinged
    gets its lease by this call, and one whose lease has run out its last one, unless this process
    has watched the storage for a whole lease; without ``write`` none does.
    """
    if not view.transactions:
        return {}
    with watch_of(stream.store).call(stream.runtime):
        ages_ms = _ages_ms(stream)
    found: dict[str, Expiry] = {}
    for name, opened in sorted(view.transactions.items()):
        idle_ms = ages_ms.get(_key(stream, name))
        if idle_ms is None:
            if write:
                _put_lease(stream, _key(stream, name))
        elif idle_ms > opened.lease_ms:
            expiry = _expiry(stream, opened, ages_ms, prepared_limit_ms)
            if expiry is None:
                continue
            is_leased = opened.is_part or not expiry.is_prepared
            next_number = _next_last_lease(stream, opened, idle_ms) if is_leased else 0
            if not next_number:
                found[name] = expiry
            elif write:
                _put_lease(stream, _key(stream, name), next_number)
    return found


def _next_last_lease(stream: StreamLog, opened: OpenTransaction, idle_ms: int) -> int:
    """Return the number of the last lease that a transaction still has to get; 0 if none.

    ``idle_ms`` is the age of a lease that has run out. In an outage nobody could extend it.
    """
    seconds, watch = opened.lease_ms / 1_000, watch_of(stream.store)
    now = stream.runtime.monotonic()
    if now - watch.watched_since(seconds) >= seconds:
        return 0
    number = _last_lease(stream, opened.transaction_id)
    if number == 0 or 1_000 * (now - watch.outage_ended(seconds)) < idle_ms:
        return max(number, 1)
    is_late = idle_ms > _LATE_LEASES * opened.lease_ms
    return number + 1 if is_late and number < _LAST_LEASES else 0


def _last_lease(stream: StreamLog, transaction_id: str) -> int:
    """Return which last lease a transaction has; 0 if its writer extended the lease since."""
    try:
        record = json.loads(stream.store.get(_key(stream, transaction_id)))
        return int(record.get("last", 0))
    except (FileNotFoundError, ValueError, TypeError, AttributeError):
        return 0


def _put_lease(stream: StreamLog, key: str, last: int = 0) -> None:
    """Begin a lease; ``last`` is not 0 if not the transaction's writer extends it."""
    record: Mapping[str, int] = {"last": last} if last else {}
    stream.store.put(key, f"{to_json(record)}\n".encode(), durable=False)


def expiry_reasons(
    stream: StreamLog, view: StreamView, prepared_limit_ms: int, *, write: bool = True
) -> dict[str, str]:
    """Return the reason of each of the :func:`expired_transactions`, by id."""
    found = expired_transactions(stream, view, prepared_limit_ms, write=write)
    return {name: expiry.reason for name, expiry in found.items()}


def _expiry(
    stream: StreamLog, opened: OpenTransaction, ages_ms: dict[str, int], prepared_limit_ms: int
) -> Expiry | None:
    """Return why a transaction without a lease has expired; None if decided or still prepared."""
    manifests = Manifests(stream, opened.transaction_id)
    entries = manifests.read()
    if manifests.is_closed:
        return None
    ran_out = f"its lease of {opened.lease_ms // 1000} s ran out"
    if manifests.last is ManifestKind.PREPARED and opened.is_part:
        return Expiry(ran_out, True)  # its process decides at once, or is gone
    if manifests.last is ManifestKind.PREPARED:
        since_ms = ages_ms.get(manifests.key(len(entries) - 1), 0)
        reason = f"it was prepared {since_ms // 1000} s ago and not decided since"
        return Expiry(reason, True) if since_ms > prepared_limit_ms else None
    if age_ms(stream, opened) > opened.limit_ms - opened.created_ms:
        return Expiry("its maximum execution time ran out", False)
    return Expiry(ran_out, False)


def _base(stream: StreamLog) -> str:
    return f"{stream.name}/transactions"


def _key(stream: StreamLog, transaction_id: str) -> str:
    return f"{transaction_folder(stream, transaction_id)}/lease.json"


def _ages_ms(stream: StreamLog) -> dict[str, int]:
    """Return a lower bound of the age of each object in the stream's transaction folder."""
    now_ms = stream.store.time_ms()
    watch_of(stream.store).compare_clocks(now_ms, stream.runtime)
    return {e.key: now_ms - e.modified_ms for e in stream.store.list(_base(stream))}
