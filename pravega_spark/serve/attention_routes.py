"""The route of what needs attention."""

from __future__ import annotations

from fastapi import APIRouter

from pravega_spark.serve.attention import Attention
from pravega_spark.serve.attention_models import AttentionAnswer


def attention_routes(attention: Attention) -> APIRouter:
    """Return the route; it costs no storage call while a page is live."""
    routes = APIRouter(tags=["Page"])

    @routes.get("/api/attention", operation_id="attention")
    def needed() -> AttentionAnswer:
        """Return what needs attention, worst first, and how much was looked at, and when."""
        attention.refresh()
        return attention.answer()

    return routes
