"""Our own API for the root, its reader groups and its key-value tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fastapi import APIRouter

from pravega_spark.engine.runtime import SYSTEM
from pravega_spark.errors import NoSuchTable, NotFound
from pravega_spark.key_value.table_key import KeyType
from pravega_spark.key_value.table_snapshot import TableSnapshot, table_snapshot
from pravega_spark.model import MaintenanceInfo
from pravega_spark.names import split_table, table_log
from pravega_spark.serve.answer_cache import AnswerCache
from pravega_spark.serve.api_models import (
    GroupDetails,
    GroupsPage,
    MaintenanceRow,
    RootOverview,
    TableRow,
    TablesPage,
)
from pravega_spark.serve.api_streams import Name, Offset, PageSize, Search
from pravega_spark.serve.group_rows import GroupRows, segment_rows
from pravega_spark.serve.rest_reader_groups import existing_group
from pravega_spark.serve.rest_scopes import NOT_FOUND
from pravega_spark.serve.root_watch import RootWatch

_KEPT_SECONDS: Final = 10.0


def root_api(
    watch: RootWatch,
    cache: AnswerCache,
    groups: GroupRows,
    *,
    version: str,
    allow_changes: bool,
) -> APIRouter:
    """Return the routes."""
    routes = APIRouter(prefix="/api", tags=["Page"])

    @routes.get("/overview", operation_id="overview")
    def overview() -> RootOverview:
        """Return the root: its scopes, how much it holds, and the last runs of maintenance."""
        names = watch.names()
        manager = watch.root.manager
        found = cache.get(("maintenance",), None, _KEPT_SECONDS, manager.maintenance)
        return RootOverview(
            root=watch.root.url,
            version=version,
            allow_changes=allow_changes,
            poll_seconds=watch.poll_seconds,
            scopes=list(names.scopes),
            streams=len(names.streams),
            reader_groups=len(names.groups),
            tables=len(names.tables),
            maintenance=[_maintenance(info) for info in found if info.scope is None],
        )

    _add_groups(routes, watch, groups)
    _add_tables(routes, watch, cache)
    return routes


def _add_groups(routes: APIRouter, watch: RootWatch, groups: GroupRows) -> None:
    @routes.get("/groups", operation_id="pageOfGroups")
    def list_groups(search: Search = None, after: Name = None, limit: PageSize = 50) -> GroupsPage:
        """Return reader groups by name, and how far behind each is."""
        page, total, following = _page(watch.names().groups, search, after, limit)
        rows = [groups.row(name) for name in page]
        found = [row for row in rows if row is not None]
        return GroupsPage(groups=found, total=total, next=following)

    @routes.get("/groups/{scope}/{group}", operation_id="groupDetails", responses=NOT_FOUND)
    def group_details(
        scope: str, group: str, offset: Offset = 0, limit: PageSize = 200
    ) -> GroupDetails:
        """Return a group and its segments from ``offset`` on: reader, offset, lag of each."""
        named = existing_group(watch.root, scope, group)
        found = groups.find(named.state.group) or named
        streams = sorted(found.state.lives)
        positions = [p for stream in streams for p in groups.positions(found, stream)]
        return GroupDetails(
            row=groups.row_of(found),
            configuration=found.state.configuration.to_json(),
            segments=segment_rows(positions[offset : offset + limit]),
            total_segments=len(positions),
        )


def _add_tables(routes: APIRouter, watch: RootWatch, cache: AnswerCache) -> None:
    def row(name: str) -> TableRow | None:
        try:
            return cache.get(("table", name), None, _KEPT_SECONDS, lambda: _table(watch, name))
        except NotFound:  # deleted since it was listed
            return None

    @routes.get("/tables", operation_id="pageOfTables")
    def list_tables(search: Search = None, after: Name = None, limit: PageSize = 50) -> TablesPage:
        """Return key-value tables by name."""
        page, total, following = _page(watch.names().tables, search, after, limit)
        rows = SYSTEM.each(row, page)
        found = [row for row in rows if row is not None]
        return TablesPage(tables=found, total=total, next=following)

    @routes.get("/tables/{scope}/{table}", operation_id="tableDetails", responses=NOT_FOUND)
    def table_details(scope: str, table: str) -> TableRow:
        """Return a key-value table."""
        found = row(f"{scope}/{table}") if f"{scope}/{table}" in watch.names().tables else None
        if found is None:
            raise NoSuchTable(f"table {scope}/{table} does not exist.")
        return found


def _page(
    names: Sequence[str], search: str | None, after: str | None, limit: int
) -> tuple[list[str], int, str | None]:
    """Return a page of the names that contain a text, how many do, and where the next begins."""
    found = [name for name in names if not search or search.lower() in name.lower()]
    rest = [name for name in found if after is None or name > after]
    page = rest[:limit]
    return page, len(found), page[-1] if len(rest) > limit else None


def _maintenance(info: MaintenanceInfo) -> MaintenanceRow:
    return MaintenanceRow(
        kind=info.kind.value,
        is_overdue=info.is_overdue,
        finished_ms=info.finished_ms,
        by=info.by,
        streams=info.streams,
        failed=info.failed,
        claimed_by=info.claimed_by,
    )


def _table(watch: RootWatch, name: str) -> TableRow:
    scope, table = split_table(name)
    found = table_snapshot(watch.root.log(table_log(scope, table)))
    return _table_row(scope, table, found)


def _table_row(scope: str, table: str, found: TableSnapshot) -> TableRow:
    configuration = found.configuration
    folded = None if found.folded is None else found.folded.record
    return TableRow(
        scope=scope,
        table=table,
        state=found.view.record.state.value,
        key_type=KeyType(configuration.key_type).value,
        ttl=None if configuration.ttl is None else str(configuration.ttl),
        tags=sorted(configuration.tags),
        partitions=len(found.view.active.segments),
        version=found.view.version,
        unfolded_changes=found.changes,
        unfolded_bytes=found.changed_bytes,
        folded_entries=0 if folded is None else folded.rows,
        folded_files=0 if folded is None else folded.files,
        folded_bytes=0 if folded is None else folded.size_bytes,
        folded_ms=None if folded is None else folded.folded_ms,
    )
