"""Streams and reader groups that a root names and that have no object.

A row of a scope's index is written before its stream, so it proves nothing by itself. All other
names of a stream were written when the stream existed.

Reader groups that an index lists and that have no object: lost ones, and killed creations. A
group's row is written before its log, so it proves nothing by itself. A log of a group stays when
it is deleted, and its streams know a group that holds data only after its log has begun.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from pravega_spark.engine.kinds import GROUP, put_back_advice
from pravega_spark.engine.log.commit import Log
from pravega_spark.engine.runtime.json_codec import digested_record
from pravega_spark.engine.state.due_hints import DUE_FOLDER
from pravega_spark.engine.state.scopes import Scope, row_name
from pravega_spark.engine.state.state_table import Row
from pravega_spark.engine.store import Store
from pravega_spark.engine.store.root_marker import scope_folders
from pravega_spark.engine.stream.stream_log import events_path, open_stream
from pravega_spark.engine.stream.subscribers import listed
from pravega_spark.engine.writing.split_batch import FOLDER as BATCHES_FOLDER
from pravega_spark.errors import Damaged, NoSuchScope, NoSuchStream
from pravega_spark.integrity.log_integrity import DamagedObject, Integrity
from pravega_spark.reader_groups.configuration import ReaderGroupConfiguration
from pravega_spark.reader_groups.state import Phase
from pravega_spark.reader_groups.table import group_path, open_group_state
from pravega_spark.txn.decision_log import DecisionLog
from pravega_spark.values.names import GROUPS_FOLDER, table_of_log

ListedRow = tuple[str, Row]
"""A scope, and a row of its index."""
FROM_COPY: Final = "Put it back from a copy (docs/backup.md)."


def lost_streams(
    store: Store, listed: Sequence[ListedRow], only: Collection[str] | None = None
) -> Iterator[Integrity]:
    """Yield the streams, and the logs of tables, that are named and have no folder.

    Whatever has a folder is checked by that. ``listed`` are the rows of the indexes, ``only`` the
    names to look for; None: all.
    """
    rows = {f"{scope}/{row['name']}": row for scope, row in listed if row["kind"] != GROUP}
    named = dict.fromkeys(rows, "")
    for what, streams in _namings(store, rows):
        named |= {name: what for name in streams if not named.get(name)}
    for name, what in sorted(named.items()):
        if (only is None or name in only) and not store.folders(name):
            yield from _without_folder(store, name, what)


def _without_folder(store: Store, name: str, what: str) -> Iterator[Integrity]:
    table = table_of_log(name)
    found = Integrity(name if table is None else f"{table} (table)")
    if store.exists(name) or store.exists(events_path(name)):
        reason = f"a file is in the place of the stream's folder. {FROM_COPY}"
        found.damage.append(DamagedObject(name, reason))
    elif what:
        reason = (
            f"all of its objects are lost: {what} shows that it existed. "
            f"{put_back_advice(name, 'its folder')} (docs/backup.md). A call that changes "
            "the stream before that begins it empty, in a new life."
        )
        found.damage.append(DamagedObject(name, reason))
    else:
        reason = (
            "the index lists it, it has no object, and nothing else names it: its creation was "
            "killed, and the next change ends it. If it ever had events, put its folder back first"
        )
        found.rebuilt.append(DamagedObject(name, reason))
    if Log(store, events_path(name)).refresh() is None:  # or it has been created since
        yield found


def listed_rows(store: Store) -> Iterator[ListedRow]:
    """Yield the rows of all indexes, each with its scope; damage is told elsewhere."""
    for scope in scope_folders(store):
        with contextlib.suppress(NoSuchScope, Damaged):
            index = Scope(store, scope)
            index.check_exists()
            yield from ((scope, row) for row in index.table.read().rows.values())


def _namings(store: Store, rows: Mapping[str, Row]) -> Iterator[tuple[str, Iterable[str]]]:
    """Yield what names streams that have existed, with their names."""
    has_lived = [name for name, row in rows.items() if row["life"] > 1 or row["version"] >= 0]
    yield "its row in the index of its scope", has_lived
    for scope in scope_folders(store):
        for group in store.folders(f"{scope}/{GROUPS_FOLDER}"):
            with contextlib.suppress(Damaged):
                found = open_group_state(store, f"{scope}/{group}").fetch()
                if found is not None and found.state.phase is not Phase.DELETED:
                    yield f"reader group {scope}/{group}", found.state.lives
    with contextlib.suppress(Damaged):
        for token, record in DecisionLog(store).read().items():
            yield f"joint transaction {token}", [name for name, _ in record.participants]
    for key, batch in _records(store, BATCHES_FOLDER):
        yield f"the batch of several streams in {key}", batch["streams"]
    for key, hints in _records(store, DUE_FOLDER):
        scope, _, file = key.removeprefix(f"{DUE_FOLDER}/").rpartition("/")
        if file.startswith("streams-"):
            yield f"the maintenance of the root ({key})", [f"{scope}/{n}" for n in hints["tables"]]


def _records(store: Store, folder: str) -> Iterator[tuple[str, Mapping[str, Mapping[str, object]]]]:
    """Yield the intact records below a folder, which have a digest each."""
    for entry in store.list(folder):
        with contextlib.suppress(FileNotFoundError):
            record = digested_record(store.get(entry.key))
            if record is not None:
                yield entry.key, record


def lost_groups(
    store: Store, listed_rows: Sequence[ListedRow], only: Collection[str] | None = None
) -> Iterator[Integrity]:
    """Yield the groups that are listed and have no folder, by name; ``only`` these, or all."""
    groups = {f"{s}/{row_name(row)}": row for s, row in listed_rows if row["kind"] == GROUP}
    for group, row in sorted(groups.items()):
        path = group_path(group)
        if (only is not None and group not in only) or store.folders(path):
            continue
        found = Integrity(f"{group} (reader group)")
        what = _naming(store, group, row)
        if what:
            reason = (
                f"all of its objects are lost: {what} shows that it existed. Put its folder back "
                "from a copy (docs/backup.md). Whoever opens it before that begins it again at its "
                "configured start, so that it reads events twice or passes over some."
            )
            found.damage.append(DamagedObject(path, reason))
        else:
            reason = (
                "the index lists it, it has no object, and nothing else names it: its creation was "
                "killed, and the next call ends it, or it was lost, and the next call begins it "
                "again at its configured start. If it has read events, put its folder back first"
            )
            found.rebuilt.append(DamagedObject(path, reason))
        if Log(store, path).refresh() is None:  # or it has been created since
            yield found


def _naming(store: Store, group: str, row: Row) -> str:
    """Return what was written when the group existed; an empty text if nothing says so."""
    if row["life"] > 0:
        return "its row in the index of its scope"
    for stream in ReaderGroupConfiguration.from_json(json.loads(row["configuration"])).streams:
        with contextlib.suppress(Damaged, NoSuchStream):
            if any(found.name == group for found in listed(open_stream(store, stream).view())):
                return f"its subscription to stream {stream}"
    with contextlib.suppress(Damaged):
        for token, record in DecisionLog(store).read().items():
            if group in record.groups:
                return f"joint transaction {token}"
    return ""
