"""Pravega's health endpoints: ``/ping`` and ``/v1/health``.

The contributors are ``storage``, whether the root's marker can be read, and ``maintenance``,
whether a kind of it is overdue. A result is kept for a few seconds, so that probes cost little.
"""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter
from starlette.responses import Response

from pravega_spark.engine.store.root_marker import MARKER_KEY
from pravega_spark.errors import NotFound, PravegaSparkError, without_credentials
from pravega_spark.serve.answer_cache import AnswerCache
from pravega_spark.serve.rest_models import HealthResult, HealthStatus, RestRoute
from pravega_spark.serve.rest_scopes import NOT_FOUND
from pravega_spark.serve.served_root import ServedRoot

_KEPT_SECONDS: Final = 5.0
NAME: Final = "pravega-spark"


class ServerHealth:
    """The health of a server: of itself, its storage, and the root's maintenance."""

    def __init__(self, root: ServedRoot, cache: AnswerCache) -> None:
        """Take the root, and the cache in which results are kept."""
        self._root = root
        self._cache = cache

    def result(self) -> HealthResult:
        """Return the health with that of all contributors: one or two storage calls, or none."""
        return self._cache.get(("health",), None, _KEPT_SECONDS, self._look)

    def find(self, name: str | None) -> HealthResult:
        """Return the health of a contributor, or of all; raises NotFound."""
        found = self.result()
        if name in (None, found.name):
            return found
        if name not in found.children:
            raise NotFound(
                f"there is no health contributor {str(name)[:100]!r}; there are "
                f"{', '.join(found.children)}."
            )
        return found.children[name]

    def _look(self) -> HealthResult:
        storage = self._storage()
        children = {"storage": storage}
        if storage.readiness:
            children["maintenance"] = self._maintenance()
        return _health(NAME, storage.readiness, {}, children)

    def _storage(self) -> HealthResult:
        try:
            is_found = self._root.store.exists(MARKER_KEY)
        except (PravegaSparkError, OSError) as error:
            return _health("storage", False, {"error": without_credentials(str(error))})
        details = {"root": self._root.url}
        if not is_found:
            details["error"] = "the root's marker is missing"
        return _health("storage", is_found, details)

    def _maintenance(self) -> HealthResult:
        """Return what is overdue. That is no reason to restart or avoid a server: it stays UP."""
        try:
            found = self._root.manager.maintenance()
        except (PravegaSparkError, OSError) as error:
            return _health("maintenance", False, {"error": without_credentials(str(error))})
        overdue = [info.kind.value for info in found if info.is_overdue and info.scope is None]
        return _health("maintenance", True, {"overdue": ", ".join(overdue) or "nothing"})


def _health(
    name: str,
    is_up: bool,
    details: dict[str, str],
    children: dict[str, HealthResult] | None = None,
) -> HealthResult:
    status = HealthStatus.UP if is_up else HealthStatus.DOWN
    return HealthResult(
        name=name,
        status=status,
        readiness=is_up,
        liveness=True,
        details=details,
        children=children or {},
    )


def health_routes(health: ServerHealth) -> APIRouter:
    """Return the routes."""
    routes = APIRouter(route_class=RestRoute, tags=["Health"])

    @routes.get("/ping", operation_id="ping", response_class=Response)
    async def ping() -> Response:
        """Answer 200 while the server runs."""
        return Response()

    @routes.get("/v1/health/liveness", operation_id="getLiveness")
    async def liveness() -> bool:
        """Return true while the server runs, even if the storage hangs and holds all threads."""
        return True

    def add(path: str, name: str, look: Any, model: Any) -> None:
        def of_all() -> Any:
            return look(health.find(None))

        def of_one(contributor: str) -> Any:
            return look(health.find(contributor))

        kind = name.lower()
        if path != "/liveness":
            routes.add_api_route(
                f"/v1/health{path}",
                of_all,
                response_model=model,
                operation_id=f"get{name}",
                summary=f"Return the {kind} of the server",
            )
        routes.add_api_route(
            f"/v1/health{path}/{{contributor}}",
            of_one,
            response_model=model,
            operation_id=f"getContributor{name}",
            summary=f"Return the {kind} of one contributor",
            responses=NOT_FOUND,
        )

    add("/readiness", "Readiness", lambda found: found.readiness, bool)
    add("/liveness", "Liveness", lambda found: found.liveness, bool)
    add("/details", "Details", lambda found: found.details, dict[str, str])
    add("/status", "Status", lambda found: found.status, HealthStatus)
    add("", "Health", lambda found: found, HealthResult)
    return routes
