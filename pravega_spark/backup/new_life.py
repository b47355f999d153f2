"""A restored stream goes on as a new one: what belongs to the old one is refused, and told so."""

from __future__ import annotations

from dataclasses import replace

from pravega_spark.backup.intact_version import IntactVersion
from pravega_spark.backup.table_at_version import end_transactions
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.log.version_pins import pins
from pravega_spark.engine.store import Store
from pravega_spark.engine.stream import archived_records
from pravega_spark.engine.stream.records import (
    RESTORED_SESSION,
    STREAM_DOMAIN,
    SUBSCRIBER_PREFIX,
    WRITER_PREFIX,
    StreamState,
    WriterRecord,
    decode_stream,
    decode_subscriber,
    decode_writer,
)
from pravega_spark.engine.stream.stream_log import events_path
from pravega_spark.engine.stream.writer_ids import is_anonymous

REASON = "the stream was restored from a copy"


def new_life(
    whole: IntactVersion, body: Body, version: int, now_ms: int, stream_id: str, store: Store
) -> tuple[list[str], int | None]:
    """Let the last commit of a restore begin a life with the events and offsets of the old one.

    Open transactions are aborted. Subscribers hold what they held, and wait for their groups to
    subscribe again. A query's next batch must follow the last one that the copy has. Records of
    writers that had left the state are part of it again.
    """
    snapshot = whole.snapshot
    record = decode_stream(snapshot.domains[STREAM_DOMAIN])
    if record.state is StreamState.DELETED:
        return [], None
    renewed = replace(record, stream_id=stream_id, life=record.life + 1)
    returned = archived_records.read_archived_writers(
        store, events_path(record.stream), snapshot, record.life
    )
    body.domains = {
        STREAM_DOMAIN: renewed.encode(),
        **dict.fromkeys(snapshot.names(archived_records.MOVED_DOMAIN)),
        **{held.domain: None for held in pins(snapshot)},
        **_subscribers(snapshot),
        **_writers(whole, version, returned),
    }
    return end_transactions(snapshot, body, version, now_ms, REASON), renewed.life


def _subscribers(snapshot: Snapshot) -> dict[str, str | None]:
    domains: dict[str, str | None] = {}
    for name in snapshot.names(SUBSCRIBER_PREFIX):
        group = name.removeprefix(SUBSCRIBER_PREFIX)
        known = decode_subscriber(group, snapshot.domains[name])
        domains[name] = None if known.removed else replace(known, generation=0).encode()
    return domains


def _writers(whole: IntactVersion, version: int, returned: dict[str, str]) -> dict[str, str | None]:
    domains: dict[str, str | None] = {
        f"{WRITER_PREFIX}{name}": WriterRecord(name, RESTORED_SESSION, -1, version).encode()
        for name in whole.batches
        if not is_anonymous(name)
    }
    domains |= returned
    texts = {name: whole.snapshot.domains[name] for name in whole.snapshot.names(WRITER_PREFIX)}
    for name, text in {**texts, **returned}.items():
        if not name.startswith(WRITER_PREFIX):
            continue
        writer_id = name.removeprefix(WRITER_PREFIX)
        known = decode_writer(writer_id, text)
        if known.session == 0 and not is_anonymous(writer_id):
            domains[name] = replace(known, session=RESTORED_SESSION).encode()
    return domains
