"""The next life of a restored stream, so that identities of the old life are refused."""

from __future__ import annotations

from dataclasses import replace

from pravega_spark.backup.final_commit import abort_open_transactions
from pravega_spark.backup.restore_point import IntactVersion
from pravega_spark.backup.table_restore import restored_version
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.log_reader import snapshot_at
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.log.version_pins import pins
from pravega_spark.engine.runtime import Runtime
from pravega_spark.engine.store import Store
from pravega_spark.engine.stream import archived_records
from pravega_spark.engine.stream.life_claim import draw_life
from pravega_spark.engine.stream.records import (
    RESTORED_DOMAIN,
    RESTORED_SESSION,
    STREAM_DOMAIN,
    SUBSCRIBER_PREFIX,
    WRITER_PREFIX,
    Restoration,
    StreamState,
    WriterRecord,
    decode_stream,
    decode_subscriber,
    decode_writer,
)
from pravega_spark.engine.stream.stream_log import StreamLog, events_path
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.stream.writer_ids import is_anonymous
from pravega_spark.names import is_group

REASON = "the stream was restored from a copy"


def begin_new_life(
    intact: IntactVersion,
    body: Body,
    version: int,
    now_ms: int,
    store: Store,
    runtime: Runtime,
    listed: int,
) -> tuple[list[str], int | None]:
    """Make the last commit of a restore begin a new life with the old events and offsets.

    The life is drawn above all that the stream's objects name, and above ``listed``.
    Open transactions are aborted. Subscribers keep the data that they held until their groups
    subscribe again. A query's next batch must follow the last batch in the copy. Archived records
    of writers return to the stream's state. Returns the ids of the aborted transactions and the
    new life, or None for a deleted stream, which stays deleted; a life that was drawn for it and
    has not begun is drawn again.
    """
    snapshot = intact.snapshot
    record = decode_stream(snapshot.domains[STREAM_DOMAIN])
    if record.state is StreamState.DELETED:
        if record.is_drawn:
            body.domains = {STREAM_DOMAIN: replace(record, sealed_ms=now_ms).encode()}
        return [], None
    archived = store.folders(archived_records.archive_folder(events_path(record.stream)))
    above = max(record.life, intact.life, listed, *(int(n) for n in archived if n.isdecimal()))
    renewed = replace(record, stream_id=runtime.token(), life=draw_life(runtime, above))
    returned = archived_records.read_archived_writers(
        store, events_path(record.stream), snapshot, record.life
    )
    body.domains = {
        STREAM_DOMAIN: renewed.encode(),
        RESTORED_DOMAIN: Restoration(renewed.life, now_ms).encode(),
        **dict.fromkeys(snapshot.names(archived_records.MOVED_DOMAIN)),
        **{pin.domain: None for pin in pins(snapshot)},
        **_subscribers(snapshot),
        **_writers(intact, version, returned),
    }
    return abort_open_transactions(snapshot, body, version, now_ms, REASON), renewed.life


def continued_lives(stream: StreamLog, view: StreamView) -> dict[int, int]:
    """Return the lives that a restored stream continues, with the last version of each."""
    found, reader = {view.life: view.version}, stream.log.reader
    at = view.version
    while (before := restored_version(reader, at)) is not None:
        found[StreamView(snapshot_at(reader, before)).life] = at = before
    return found


def _subscribers(snapshot: Snapshot) -> dict[str, str | None]:
    """Return the subscribers' records, those of groups at generation 0.

    So any group's next generation is newer. A plain subscriber's is recorded here alone, and stays.
    """
    domains: dict[str, str | None] = {}
    for name in snapshot.names(SUBSCRIBER_PREFIX):
        known = decode_subscriber(name.removeprefix(SUBSCRIBER_PREFIX), snapshot.domains[name])
        kept = replace(known, generation=0) if is_group(known.name) else known
        domains[name] = None if kept.removed else kept.encode()
    return domains


def _writers(
    intact: IntactVersion, version: int, returned: dict[str, str]
) -> dict[str, str | None]:
    """Return the writers' records; those with batches are marked as restored.

    A writer whose batches were all dropped gets a record, too: it must start again at batch 0.
    """
    domains: dict[str, str | None] = {
        f"{WRITER_PREFIX}{name}": WriterRecord(name, RESTORED_SESSION, -1, version).encode()
        for name in intact.batches
        if not is_anonymous(name)
    }
    domains |= returned
    texts = {name: intact.snapshot.domains[name] for name in intact.snapshot.names(WRITER_PREFIX)}
    for name, text in {**texts, **returned}.items():
        if not name.startswith(WRITER_PREFIX):
            continue
        writer_id = name.removeprefix(WRITER_PREFIX)
        known = decode_writer(writer_id, text)
        if known.session == 0 and not is_anonymous(writer_id):
            domains[name] = replace(known, session=RESTORED_SESSION).encode()
    return domains
