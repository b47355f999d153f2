"""The commit that ends the copy of a stream: it drops what the copy cannot keep.

It aborts open transactions, since their chunks are not copied. It also removes the records of
reader groups that the copy lacks: no such group could ever release its data there.
"""

from __future__ import annotations

from collections.abc import Callable

from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.log_reader import LogReader
from pravega_spark.engine.log.snapshot import OPEN_PREFIX, Snapshot
from pravega_spark.engine.log.version_pins import pins
from pravega_spark.engine.runtime import Runtime
from pravega_spark.engine.stream.records import (
    OUTCOME_PREFIX,
    SUBSCRIBER_PREFIX,
    TransactionOutcome,
    decode_open,
    decode_subscriber,
)
from pravega_spark.names import is_group

REASON = "it was open when the stream was backed up, and its events are not in the copy"


def close_copy(
    runtime: Runtime,
    copy: LogReader,
    snapshot: Snapshot,
    source: str,
    has_group: Callable[[str], bool],
) -> tuple[int, tuple[str, ...], tuple[str, ...]]:
    """Put the closing commit of a stream's copy after the version of ``snapshot``.

    Returns the commit's version, the ids of the transactions that it aborts, and the subscribers
    that it releases.
    """
    now_ms = max(runtime.now_ms(), snapshot.timestamp_ms + 1)
    body = Body("BACKUP", {"of": source, "version": snapshot.version})
    domains, released = _uncopied_groups(snapshot, has_group)
    body.domains = {**{pin.domain: None for pin in pins(snapshot)}, **dict.fromkeys(domains)}
    version = snapshot.version + 1
    aborted = abort_open_transactions(snapshot, body, version, now_ms, REASON)
    copy.store.put(copy.key(version), body.encode(runtime.token(), now_ms))
    return version, tuple(aborted), tuple(released)


def abort_open_transactions(
    snapshot: Snapshot, body: Body, version: int, now_ms: int, reason: str
) -> list[str]:
    """Add to the commit of a version the abort of all open transactions; return their ids."""
    domains = dict(body.domains)
    for name, text in snapshot.open.items():
        opened = decode_open(name, text)
        outcome = TransactionOutcome(
            name,
            False,
            opened.created_ms,
            now_ms,
            version,
            "",
            writer_id=opened.writer_id,
            reason=reason,
        )
        domains[f"{OPEN_PREFIX}{name}"] = None
        domains[f"{OUTCOME_PREFIX}{name}"] = outcome.encode()
    body.domains = domains
    return sorted(snapshot.open)


def _uncopied_groups(
    snapshot: Snapshot, has_group: Callable[[str], bool]
) -> tuple[list[str], list[str]]:
    """Return the domains of groups that are not copied, and those of the groups that hold data.

    Includes removed groups: in the copy a group of that name starts at generation 0 again. Plain
    subscribers belong to the stream and are copied with it.
    """
    domains, holding = [], []
    for domain in snapshot.names(SUBSCRIBER_PREFIX):
        name = domain.removeprefix(SUBSCRIBER_PREFIX)
        if is_group(name) and not has_group(name):
            domains.append(domain)
            if not decode_subscriber(name, snapshot.domains[domain]).removed:
                holding.append(name)
    return domains, sorted(holding)
