"""Checks of a root: its scopes' indexes, streams, reader groups and key-value tables.

They are found by their folders, so that a damaged index hides none of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pravega_spark.engine.log.commit_log import Log
from pravega_spark.engine.store import Store
from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.engine.stream.stream_log import events_path
from pravega_spark.engine.tables.scopes import GROUPS_FOLDER
from pravega_spark.errors import NoSuchScope, NoSuchStream
from pravega_spark.integrity.log_integrity import Integrity, check_log
from pravega_spark.integrity.stream_integrity import check_stream
from pravega_spark.names import (
    MAX_SCOPE_LENGTH,
    TABLES_FOLDER,
    folded_path,
    is_name,
    split_stream,
    table_log,
)


def check_root(
    store: Store, names: Sequence[str] = (), *, deep: bool = False
) -> Iterator[Integrity]:
    """Check the streams, groups and tables of these names (``scope/name``), or everything.

    Raises NoSuchStream for a name that nothing has.
    """
    if names:
        for name in names:
            found = list(_check_named(store, name, deep))
            if not found:
                raise NoSuchStream(
                    f"there is no stream, reader group or key-value table {name}.", stream=name
                )
            yield from found
        return
    for scope in store.folders(""):
        if not is_name(scope, MAX_SCOPE_LENGTH):
            continue
        index = check_log(Log(store, f"{scope}/_scope"), f"{scope} (index)", deep=deep)
        if index is not None:
            yield index
        members = {name: None for name in store.folders(scope) if not name.startswith("_")}
        for folder in (GROUPS_FOLDER, TABLES_FOLDER):
            members |= dict.fromkeys(store.folders(f"{scope}/{folder}"))
        for name in members:
            yield from _check_named(store, f"{scope}/{name}", deep)


def _check_named(store: Store, full: str, deep: bool) -> Iterator[Integrity]:
    scope, name = split_stream(full)
    change_log = table_log(scope, name)
    if store.folders(events_path(full)):
        yield from _streams(store, full, full, deep)
    if store.folders(events_path(change_log)):
        yield from _streams(store, change_log, f"{full} (table)", deep)
        folded = check_log(Log(store, folded_path(change_log)), f"{full} (folded table)", deep=deep)
        yield from [] if folded is None else [folded]
    if store.folders(f"{scope}/{GROUPS_FOLDER}/{name}"):
        log = Log(store, f"{scope}/{GROUPS_FOLDER}/{name}")
        group = check_log(log, f"{full} (reader group)", deep=deep)
        yield from [] if group is None else [group]


def _streams(store: Store, log_name: str, shown: str, deep: bool) -> Iterator[Integrity]:
    try:
        yield check_stream(open_stream(store, log_name), shown, deep=deep)
    except (NoSuchStream, NoSuchScope):  # deleted: its folder stays
        return
