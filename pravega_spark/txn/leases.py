"""Who is still there: a transaction's lease is a small object that its writer overwrites.

Its age is told by the storage's own clock, which also dates an object put just now to ask; so the
clocks of the machines need not agree, and a job that runs once need not wait to see what moves.
Whether a transaction may be aborted never depends on a clock: the closing mark decides. A clock
only says when to try.
"""

from __future__ import annotations

from math import sqrt

from pravega_spark.config import MAX_LEASE_MS, MIN_LEASE_MS, parse_duration_ms
from pravega_spark.engine.records import OpenTransaction
from pravega_spark.engine.stream import Stream, StreamView
from pravega_spark.errors import InvalidConfiguration
from pravega_spark.txn.manifests import Manifests, folder

_LEASE = "lease.json"


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


def extend(stream: Stream, opened: OpenTransaction) -> None:
    """Begin the lease anew: overwrite the object."""
    stream.store.put(f"{folder(stream, opened.transaction_id)}/{_LEASE}", b"{}\n", durable=False)


def expired(stream: Stream, view: StreamView, prepared_limit_ms: int) -> dict[str, str]:
    """Return the open transactions that nobody keeps alive, with the reason of each.

    Expired is whose lease ran out, or who is older than its maximum execution time; a prepared
    one only after ``prepared_limit_ms``, counted from its preparation.
    """
    if not view.transactions:
        return {}
    now_ms = stream.runtime.now_ms()
    idle_ms = _idle_ms(stream)
    found: dict[str, str] = {}
    for name, opened in view.transactions.items():
        idle = idle_ms.get(name, now_ms - opened.created_ms)
        if idle <= opened.lease_ms and now_ms <= opened.limit_ms:
            continue
        manifests = Manifests(stream, name)
        manifests.read()
        if manifests.is_closed:
            continue
        if manifests.is_prepared:
            since_ms = now_ms - manifests.entries[-1].time_ms
            if since_ms > prepared_limit_ms:
                found[name] = f"prepared {since_ms // 1000} s ago"
        elif idle > opened.lease_ms:
            found[name] = f"its lease of {opened.lease_ms // 1000} s ran out"
        else:
            found[name] = "its maximum execution time ran out"
    return found


def _idle_ms(stream: Stream) -> dict[str, int]:
    """Return the time since the last ping of each transaction that was pinged at all."""
    base = f"{stream.name}/transactions"
    clock = f"{base}/clock.json"
    stream.store.put(clock, b"{}\n", durable=False)
    entries = stream.store.list(base)
    now_ms = next((entry.modified_ms for entry in entries if entry.key == clock), 0)
    return {
        entry.key.split("/")[-2]: now_ms - entry.modified_ms
        for entry in entries
        if entry.key.endswith(f"/{_LEASE}")
    }
