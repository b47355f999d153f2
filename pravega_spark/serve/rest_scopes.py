"""Pravega's REST API for scopes: ``/v1/scopes``."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter

from pravega_spark.engine.store.root_marker import way_on
from pravega_spark.errors import InvalidName, NoSuchScope
from pravega_spark.names import check_scope
from pravega_spark.serve.rest_models import CreateScopeRequest, RestRoute, ScopeProperty, ScopesList
from pravega_spark.serve.served_root import ServedRoot
from pravega_spark.serve.web_problems import problem

NOT_FOUND: Final[dict[int | str, dict[str, Any]]] = {404: {"description": "Not found"}}
CONFLICT: Final[dict[int | str, dict[str, Any]]] = {409: {"description": "It exists already"}}
PRECONDITION: Final[dict[int | str, dict[str, Any]]] = {
    412: {"description": "Not empty, or not sealed"}
}


def existing_scope(root: ServedRoot, scope: str) -> str:
    """Return the name of a scope that exists; raise NoSuchScope for any other."""
    try:
        if root.manager.scope_exists(check_scope(scope)):
            return scope
    except InvalidName:
        pass  # a name that no scope can have
    ending = way_on(root.store, "; create it first.")
    raise NoSuchScope(f"scope {scope[:300]} does not exist{ending}", scope=scope)


def scope_routes(root: ServedRoot) -> APIRouter:
    """Return the routes."""
    routes = APIRouter(prefix="/v1/scopes", route_class=RestRoute, tags=["Scopes"])

    @routes.get("", operation_id="listScopes")
    def list_scopes() -> ScopesList:
        """List all scopes."""
        return ScopesList(scopes=[ScopeProperty(scopeName=s) for s in root.manager.list_scopes()])

    @routes.post(
        "",
        operation_id="createScope",
        status_code=201,
        response_model=ScopeProperty,
        responses=CONFLICT,
    )
    def create_scope(wanted: CreateScopeRequest) -> Any:
        """Create a scope."""
        if not root.manager.create_scope(wanted.scopeName):
            return problem(409, "ScopeExists", f"scope {wanted.scopeName} exists already.")
        return ScopeProperty(scopeName=wanted.scopeName)

    @routes.get("/{scope}", operation_id="getScope", responses=NOT_FOUND)
    def get_scope(scope: str) -> ScopeProperty:
        """Return a scope that exists."""
        return ScopeProperty(scopeName=existing_scope(root, scope))

    @routes.delete(
        "/{scope}",
        operation_id="deleteScope",
        status_code=204,
        responses={**NOT_FOUND, **PRECONDITION},
    )
    def delete_scope(scope: str) -> None:
        """Delete an empty scope."""
        existing_scope(root, scope)
        root.manager.delete_scope(scope)

    return routes
