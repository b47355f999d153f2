"""The commit that ends the copy of a table: what it is a copy of, and what the copy cannot keep.

It aborts open transactions, since their chunks are not copied. It also removes the records of
reader groups that the copy lacks: no such group could ever release its data there.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass

from pravega_spark.engine.json_codec import DECODE_ERRORS
from pravega_spark.engine.log.actions import Body, Commit
from pravega_spark.engine.log.snapshot import OPEN_PREFIX, Snapshot
from pravega_spark.engine.log.version_pins import pins
from pravega_spark.engine.stream.records import (
    OUTCOME_PREFIX,
    STREAM_DOMAIN,
    SUBSCRIBER_PREFIX,
    StreamState,
    TransactionOutcome,
    decode_open,
    decode_stream,
    decode_subscriber,
)
from pravega_spark.names import is_group

BACKUP = "BACKUP"
"""Operation of the last commit of a table's copy, and of those that lead up to a newer one."""
REASON = "it was open when the stream was backed up, and its events are not in the copy"


@dataclass(frozen=True, slots=True)
class CopyRecord:
    """What the last commit of a table's copy says of the copy."""

    of: str
    """The source."""
    version: int
    """The version of the source that the copy holds, and the token of that version's commit."""
    token: str
    id: str
    """The id of the backup."""
    files: int
    bytes: int
    aborted: tuple[str, ...] = ()
    """Transactions that were open."""
    released: tuple[str, ...] = ()
    """Groups that hold data of the stream and are not copied."""

    def body(self) -> Body:
        """Return the body of a commit that says so."""
        return Body(BACKUP, asdict(self))

    @classmethod
    def of_commit(cls, commit: Commit | None) -> CopyRecord | None:
        """Return the record in a commit; None if it has none, as those of earlier releases."""
        if commit is None or commit.operation != BACKUP:
            return None
        try:
            stored = commit.info["operationParameters"]
            record = {name: json.loads(text) for name, text in stored.items()}
            lists = {name: tuple(record[name]) for name in ("aborted", "released")}
            return cls(**{**record, **lists})
        except (TypeError, *DECODE_ERRORS):
            return None


def closing_changes(
    snapshot: Snapshot, version: int, now_ms: int, has_group: Callable[[str], bool]
) -> tuple[dict[str, str | None], tuple[str, ...], tuple[str, ...]]:
    """Return what a table's copy drops of a snapshot, in the commit of ``version``.

    That is the changes of domains, the ids of the transactions that it aborts, and the subscribers
    that it releases. Other tables than streams have pins alone.
    """
    body = Body(BACKUP, domains={pin.domain: None for pin in pins(snapshot)})
    if STREAM_DOMAIN not in snapshot.domains or is_deleted(snapshot):
        return dict(body.domains), (), ()
    domains, released = _uncopied_groups(snapshot, has_group)
    body.domains = {**body.domains, **dict.fromkeys(domains)}
    aborted = abort_open_transactions(snapshot, body, version, now_ms, REASON)
    return dict(body.domains), tuple(aborted), tuple(released)


def is_deleted(snapshot: Snapshot) -> bool:
    """Return whether a table is the log of a deleted stream."""
    text = snapshot.domains.get(STREAM_DOMAIN)
    return text is not None and decode_stream(text).state is StreamState.DELETED


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
