"""Pravega's REST API for reader groups: ``/v1/scopes/{scope}/readergroups``."""

from __future__ import annotations

from fastapi import APIRouter

from pravega_spark.errors import InvalidName, NoSuchReaderGroup
from pravega_spark.names import split_group
from pravega_spark.reader_groups.group_description import GroupVersion, get_group
from pravega_spark.serve.rest_models import (
    ReaderGroupName,
    ReaderGroupProperty,
    ReaderGroupsList,
    RestRoute,
)
from pravega_spark.serve.rest_scopes import NOT_FOUND, existing_scope
from pravega_spark.serve.served_root import ServedRoot


def existing_group(root: ServedRoot, scope: str, name: str) -> GroupVersion:
    """Return a group; raise NoSuchReaderGroup also for a name that no group can have."""
    full = f"{scope}/{name}"
    try:
        split_group(full)
    except InvalidName:
        raise NoSuchReaderGroup(
            f"reader group {full[:600]} does not exist; create it first.", group=full
        ) from None
    return get_group(root.store, full)


def reader_group_routes(root: ServedRoot) -> APIRouter:
    """Return the routes."""
    routes = APIRouter(
        prefix="/v1/scopes/{scope}/readergroups", route_class=RestRoute, tags=["ReaderGroups"]
    )

    @routes.get("", operation_id="listReaderGroups", responses=NOT_FOUND)
    def list_reader_groups(scope: str) -> ReaderGroupsList:
        """List the reader groups of a scope."""
        existing_scope(root, scope)
        names = [group.partition("/")[2] for group in root.manager.list_reader_groups(scope)]
        return ReaderGroupsList(
            readerGroups=[ReaderGroupName(readerGroupName=name) for name in names]
        )

    @routes.get("/{group}", operation_id="getReaderGroup", responses=NOT_FOUND)
    def get_reader_group(scope: str, group: str) -> ReaderGroupProperty:
        """Return the streams and the readers of a group."""
        state = existing_group(root, scope, group).state
        prefix = f"{scope}/"
        return ReaderGroupProperty(
            scopeName=scope,
            readerGroupName=group,
            streamList=[stream.removeprefix(prefix) for stream in sorted(state.lives)],
            onlineReaderIds=sorted(state.readers),
        )

    @routes.delete(
        "/{group}", operation_id="deleteReaderGroup", status_code=204, responses=NOT_FOUND
    )
    def delete_reader_group(scope: str, group: str) -> None:
        """Delete a group, and release the data that it held."""
        found = existing_group(root, scope, group)
        root.manager.delete_reader_group(found.state.group)

    return routes
