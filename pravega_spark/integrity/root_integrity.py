"""Checks of a root: its scopes' indexes, streams, reader groups and key-value tables.

They are found by their folders, so that a damaged index hides none of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Final

from pravega_spark.engine.kinds import log_title
from pravega_spark.engine.log.clock import CLOCK_KEY, decode_record
from pravega_spark.engine.log.commit import Log, check_not_lost
from pravega_spark.engine.state.due_hints import DUE_FOLDER
from pravega_spark.engine.state.maintenance_table import MAINTENANCE_TABLE
from pravega_spark.engine.state.settings_table import SETTINGS_TABLE
from pravega_spark.engine.store import Entry, Store
from pravega_spark.engine.store.root_marker import (
    MARKER_KEY,
    missing_marker,
    read_root,
    scope_folders,
)
from pravega_spark.engine.stream.stream_log import events_path, open_stream
from pravega_spark.errors import CorruptLog, Damaged, NoSuchScope, NoSuchStream, StoreRefused
from pravega_spark.integrity.log_integrity import DamagedObject, Integrity, check_log
from pravega_spark.integrity.lost import FROM_COPY, listed_rows, lost_groups, lost_streams
from pravega_spark.integrity.notes_integrity import check_leases, check_notes, check_root_notes
from pravega_spark.integrity.stream_integrity import check_stream
from pravega_spark.values.names import (
    GROUPS_FOLDER,
    TABLES_FOLDER,
    folded_path,
    split_stream,
    table_log,
)

_DECISIONS_TABLE: Final = "_transactions"
"""The decisions of joint transactions."""


def check_root(
    store: Store, names: Sequence[str] = (), *, deep: bool = False
) -> Iterator[Integrity]:
    """Check the streams, groups and tables of these names (``scope/name``), or everything.

    Raises NoSuchStream for a name that nothing has.
    """
    if names:
        if not store.exists(MARKER_KEY):
            yield _check_marker(store)
        rows = list(listed_rows(store))
        for name in names:
            found = list(_check_named(store, name, deep))
            found += lost_streams(store, rows, {name, table_log(*split_stream(name))})
            found += lost_groups(store, rows, {name})
            if not found:
                raise NoSuchStream(
                    f"there is no stream, reader group or key-value table {name}.", stream=name
                )
            yield from found
        return
    yield _check_marker(store)
    for table in (SETTINGS_TABLE, MAINTENANCE_TABLE, _DECISIONS_TABLE):
        yield from _check_table(store, table, f"{table} (table of the root)", deep)
    for scope in scope_folders(store):
        yield from _check_scope(store, scope, deep)
    rows = list(listed_rows(store))
    yield from lost_streams(store, rows)
    yield from lost_groups(store, rows)


def _check_marker(store: Store) -> Integrity:
    """Check the objects at the top of the root: marker, clock record, batches, due hints."""
    found = Integrity("(root)")
    try:
        if read_root(store, refresh=True) is None:
            reason = str(missing_marker(store))
            found.damage.append(DamagedObject(MARKER_KEY, reason))
    except StoreRefused as error:
        found.damage.append(DamagedObject(MARKER_KEY, str(error)))
    with contextlib.suppress(FileNotFoundError):
        if decode_record(store.get(CLOCK_KEY)) is None:
            reason = "the clock record is torn; the next run that deletes by age begins a new one"
            found.rebuilt.append(DamagedObject(CLOCK_KEY, reason))
    check_root_notes(store, found)
    return found


def _check_table(store: Store, path: str, shown: str, deep: bool) -> Iterator[Integrity]:
    """Check a table that need not exist; one that has objects and no log has lost that."""
    log = Log(store, path)
    found = check_log(log, shown, deep=deep)
    if found is not None:
        check_notes(store, path, found)
    else:
        found = Integrity(shown, is_deep=deep)
        try:
            check_not_lost(log, path, "the table", FROM_COPY, counts=_is_of_a_log)
        except CorruptLog as error:
            found.add_damage(error, path)
        if found.is_sound:
            return
    if path == MAINTENANCE_TABLE:  # begun again by the next round
        found.rebuilt, found.damage = [*found.rebuilt, *found.damage], []
    yield found


def _is_of_a_log(entry: Entry) -> bool:
    """Return whether an object shows that its table had a log: hints of rounds do not."""
    return not entry.key.startswith(f"{DUE_FOLDER}/")


def _check_scope(store: Store, scope: str, deep: bool) -> Iterator[Integrity]:
    folders = {name for name in store.folders(scope) if not name.startswith("_")}
    members = dict.fromkeys(sorted(folders))
    for folder in (GROUPS_FOLDER, TABLES_FOLDER):
        members |= dict.fromkeys(store.folders(f"{scope}/{folder}"))
    found = [part for name in members for part in _check_named(store, f"{scope}/{name}", deep)]
    index = list(_check_table(store, f"{scope}/_scope", f"{scope} (index)", deep))
    if not index and found:
        lost = Integrity(f"{scope} (index)", is_deep=deep)
        reason = f"the scope's index is lost, and the scope holds {found[0].name}. {FROM_COPY}"
        lost.damage.append(DamagedObject(f"{scope}/_scope", reason))
        index = [lost]
    yield from index
    yield from found


def _check_named(store: Store, full: str, deep: bool) -> Iterator[Integrity]:
    scope, name = split_stream(full)
    change_log = table_log(scope, name)
    if store.folders(full):
        yield from _streams(store, full, full, deep)
    if store.folders(change_log):
        yield from _streams(store, change_log, f"{full} (table)", deep)
        folded = folded_path(change_log)
        yield from _check_table(store, folded, f"{full} (folded table)", deep)
    group = f"{scope}/{GROUPS_FOLDER}/{name}"
    if store.folders(group):
        for found in _check_table(store, group, f"{full} (reader group)", deep):
            check_leases(store, group, found)
            yield found


def _streams(store: Store, log_name: str, shown: str, deep: bool) -> Iterator[Integrity]:
    stream = open_stream(store, log_name)
    path = events_path(log_name)
    try:
        if stream.log.refresh() is None:
            check_not_lost(stream.log, log_name, log_title(log_name), FROM_COPY)
            return
    except Damaged as error:
        found = Integrity(shown, is_deep=deep)
        found.add_damage(error, path)
        yield found
        return
    try:
        yield check_stream(stream, shown, deep=deep)
    except (NoSuchStream, NoSuchScope):  # deleted: its folder stays
        return
    history = f"{log_name}/metadata"
    if store.folders(history):
        yield from _check_table(store, history, f"{shown} (history)", deep)
