"""Records that were unused for long: archived outside the log, and still found by their names.

A sweep writes each record to an object before its commit removes the record's domain, and sets the
domain ``pravega.moved``: without that domain no look-up reads the archive. A writer with a user's
id, or a subscriber, whose record the log lacks is looked up in the archive and continues from it.

A record that is archived again has two objects until every retained version has the newer state.
Then a sweep deletes the older one, so there are as many objects as names, and a few that are young.
"""

from __future__ import annotations

from collections.abc import Iterable

import xxhash

from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.log.stored_state import state_version
from pravega_spark.engine.runtime.json_codec import digested_record, to_digested_line
from pravega_spark.engine.store import Store
from pravega_spark.engine.stream.records import (
    NOTE_PREFIX,
    SUBSCRIBER_PREFIX,
    WRITER_PREFIX,
    SubscriberRecord,
    WriterRecord,
    decode_subscriber,
    decode_writer,
)
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import CorruptLog

MOVED_DOMAIN = "pravega.moved"


def archive(stream: StreamLog, life: int, version: int, name: str, values: dict[str, str]) -> None:
    """Archive the domains of one record, ``name`` first, that last changed in ``version``.

    A late archive of an older state is harmless: it has a lower version.
    """
    data = to_digested_line({"name": name, "domains": values})
    stream.store.put(f"{_record_folder(stream, life, name)}/{version:020d}.json", data)


def delete_replaced(stream: StreamLog, life: int, names: Iterable[str], retained: int) -> None:
    """Delete the archives that no version from the retention mark ``retained`` on needs.

    A version needs the newest archive at or below it, if it lacks the record itself.
    """

    def replaced(name: str) -> list[str]:
        entries = stream.store.list(_record_folder(stream, life, name))
        reached = sorted(e.key for e in entries if state_version(e.key) <= retained)
        return reached[:-1]

    found = stream.runtime.each(replaced, list(names))
    stream.store.delete(key for keys in found for key in keys)


def find_writer(stream: StreamLog, view: StreamView, writer_id: str) -> WriterRecord | None:
    """Return a writer's record from the log or the archive, or None if it never had one."""
    known = view.writer(writer_id)
    if known is not None:
        return known
    name = f"{WRITER_PREFIX}{writer_id}"
    values = _found(stream, view, name)
    if name not in values:
        return None
    return decode_writer(writer_id, values[name], values.get(f"{NOTE_PREFIX}{writer_id}"))


def find_subscriber(stream: StreamLog, view: StreamView, name: str) -> SubscriberRecord | None:
    """Return a subscriber's record from the log or the archive, or None if it never had one."""
    known = view.subscriber(name)
    if known is not None:
        return known
    domain = f"{SUBSCRIBER_PREFIX}{name}"
    values = _found(stream, view, domain)
    return decode_subscriber(name, values[domain]) if domain in values else None


def read_archived_writers(store: Store, path: str, snapshot: Snapshot, life: int) -> dict[str, str]:
    """Return the domains of the writers that were archived as of a snapshot, for a restore."""
    domains: dict[str, str] = {}
    if MOVED_DOMAIN in snapshot.domains:
        for entry in store.list(f"{archive_folder(path)}/{life}"):
            if state_version(entry.key) <= snapshot.version:
                name, values = read_archived(store, entry.key)
                if name.startswith(WRITER_PREFIX) and name not in snapshot.domains:
                    domains |= values
    return domains


def is_writer_archive(data: bytes) -> bool:
    """Return True if an archived object is a writer's record, not a removed subscriber's."""
    return data.startswith(b'{"name":"%b' % WRITER_PREFIX.encode())


def _found(stream: StreamLog, view: StreamView, name: str) -> dict[str, str]:
    if MOVED_DOMAIN not in view.snapshot.domains:
        return {}
    folder = _record_folder(stream, view.life, name)
    entries = stream.store.list(folder)
    if not entries:
        return {}
    try:
        found, domains = read_archived(stream.store, entries[-1].key)
    except FileNotFoundError:  # a sweep has archived a newer state since the listing
        entries = stream.store.list(folder)
        found, domains = read_archived(stream.store, entries[-1].key)
    assert found == name, f"{entries[-1].key} holds {found}"
    return domains


def read_archived(store: Store, key: str) -> tuple[str, dict[str, str]]:
    """Return the name and the domains of an archived record; raise CorruptLog if it is damaged."""
    record = digested_record(store.get(key))
    if record is None:
        raise CorruptLog(
            f"{store.url}/{key} is torn or was changed: restore it from a copy.",
            path=f"{store.url.rstrip('/')}/{key}",
        )
    return record["name"], record["domains"]


def archive_folder(path: str) -> str:
    """Return the folder of the archives of all lives, for the events table at ``path``."""
    return f"{path}/_pravega/moved"


def _record_folder(stream: StreamLog, life: int, name: str) -> str:
    """Return the folder of a record: a digest, because names of applications may not be keys."""
    return f"{archive_folder(stream.path)}/{life}/{xxhash.xxh3_128_hexdigest(name.encode())}"
