"""Reader groups that an index lists and that have no object: lost ones, and killed creations.

A group's row is written before its log, so it proves nothing by itself. A log of a group stays when
it is deleted, and its streams know a group that holds data only after its log has begun.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterator, Sequence

from pravega_spark.engine.log.commit_log import Log
from pravega_spark.engine.store import Store
from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.engine.stream.subscribers import listed
from pravega_spark.engine.tables.row_files import Row
from pravega_spark.engine.tables.scopes import GROUP, row_name
from pravega_spark.errors import Damaged, NoSuchStream
from pravega_spark.integrity.log_integrity import DamagedObject, Integrity
from pravega_spark.integrity.lost_streams import ListedRow
from pravega_spark.reader_groups.group_configuration import ReaderGroupConfiguration
from pravega_spark.reader_groups.group_table import group_path
from pravega_spark.transactions.decision_log import DecisionLog


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
