"""Spans of OpenTelemetry around the engine's work, in a process whose application traces.

This package imports no OpenTelemetry and needs none. A process traces if its application has set a
tracer provider; in any other one a span costs a look at the loaded modules, for a batch, a commit
or a call, never for each event. Spans begin in the thread that does the work: an append is a span
of the writers' thread, not of the call that accepted the event.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

SYSTEM_NAME: Final = "pravega_spark"
"""What spans name as the messaging system, and the name of the tracer."""

_API: Final = "opentelemetry.trace"
_MESSAGING: Final = {"append": ("PRODUCER", "send"), "read": ("CLIENT", "receive")}
"""By operation: the kind of its span and ``messaging.operation.type``, as the conventions have
them for a batch that is sent and for one that is fetched. Other operations move no messages."""
_UNTRACED: Final[AbstractContextManager[Any]] = nullcontext()
_known: list[tuple[object, Any]] = []
"""The last provider, and its tracer."""


def span(operation: str, name: str, /, **attributes: Any) -> AbstractContextManager[Any]:
    """Return the block of a span ``<operation> <name>``, whose value is the span; None untraced.

    ``name`` is the stream, or the path of another table. Its attributes follow OpenTelemetry's
    conventions for messaging; the given ones are named ``pravega.<name>``. An error is recorded.
    """
    tracer = _tracer()
    if tracer is None:
        return _UNTRACED
    kind, operation_type = _MESSAGING.get(operation, ("INTERNAL", None))
    found = {
        "messaging.system": SYSTEM_NAME,
        "messaging.destination.name": name,
        "messaging.operation.name": operation,
        **{f"pravega.{key}": value for key, value in attributes.items()},
    }
    if operation_type is not None:
        found["messaging.operation.type"] = operation_type
    kinds = sys.modules[_API].SpanKind
    traced: AbstractContextManager[Any] = tracer.start_as_current_span(
        f"{operation} {name}", kind=kinds[kind], attributes=found
    )
    return traced


def count_events(current: Any, events: int) -> None:
    """Set the number of events of a span that :func:`span` returned; None means no span."""
    if current is not None:
        current.set_attribute("messaging.batch.message_count", events)


def _tracer() -> Any:
    """Return the tracer of the application's provider; None if it has set none."""
    api = sys.modules.get(_API)
    if api is None:
        return None
    provider = api.get_tracer_provider()
    if type(provider) is api.ProxyTracerProvider:  # an instance check takes µs, for an ABC
        return None
    for known, tracer in _known:
        if known is provider:
            return tracer
    _known[:] = [(provider, provider.get_tracer(SYSTEM_NAME))]
    return _known[0][1]
