"""``/metrics``: the root's metrics for Prometheus, where its client is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter
from starlette.responses import Response

from pravega_spark.manager import StreamManager
from pravega_spark.serve.web_problems import problem

if TYPE_CHECKING:
    from pravega_spark.metrics.prometheus import RootMetrics


def metrics_route(manager: StreamManager) -> APIRouter:
    """Return the route; it says what to install where the client is missing."""
    routes = APIRouter(tags=["Metrics"])
    known: list[RootMetrics] = []

    @routes.get(
        "/metrics",
        operation_id="metrics",
        response_class=Response,
        responses={
            200: {"content": {"text/plain": {}}},
            501: {"description": "The extra metrics is not installed"},
        },
    )
    def metrics() -> Response:
        """Return the metrics of the root as Prometheus' text; two scrapes share a measurement."""
        from pravega_spark.metrics import prometheus

        if not known:
            try:
                known.append(prometheus.root_metrics(manager))
            except ModuleNotFoundError as missing:
                return problem(501, "NotInstalled", str(missing))
        return Response(known[0].text(), media_type=prometheus.CONTENT_TYPE)

    return routes
