"""Takes the events of streaming queries out of Spark's JVM, by one thread for the whole process."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from typing import TYPE_CHECKING, Any

from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.primitives.process_locks import new_lock
from pravega_spark.spark.jvm.java_objects import java_object

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryListener

logger = own_logger(__name__)

_DELIVER_SECONDS = 5.0
"""Longest wait, at the end of the process, for events that Spark has not delivered yet."""
_lock = new_lock()
_feeds: list[_Feed] = []
"""One for each JVM of this process: the last one is that of the JVM that runs."""


class _Feed:
    """The listeners of a JVM, and the thread that takes their events from its queue."""

    def __init__(self, gateway: Any) -> None:
        self.gateway = gateway
        self._events = java_object(gateway, __package__, "QueryEvents")
        self._listeners: list[StreamingQueryListener] = []
        self._process = os.getpid()
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="pravega-query-events", daemon=True).start()

    def add(self, listener: StreamingQueryListener, text: str) -> Any:
        """Return the listener's counterpart in the JVM."""
        self._listeners.append(listener)
        return self._events.listener(len(self._listeners) - 1, text)

    def _run(self) -> None:
        while event := self._take():
            try:
                self._pass_on(*event.split(" ", 2))
            except Exception:
                logger.exception(
                    "failed to take an event of a query: %s",
                    event[:200],
                    extra=log_fields("take query event"),
                )
        self._ended.set()

    def _take(self) -> str:
        try:
            return str(self._events.take())
        except Exception:  # the JVM has ended
            return ""

    def _pass_on(self, number: str, kind: str, text: str) -> None:
        from pyspark.sql.streaming import listener as events

        made = getattr(events, f"Query{kind}Event").fromJson(json.loads(text))
        getattr(self._listeners[int(number)], f"onQuery{kind}")(made)

    def drain(self) -> None:
        """Wait until the listeners have the events so far, but not long; then take no more."""
        from pyspark import SparkContext

        if self._process != os.getpid():
            return  # a forked child has the connection of its parent
        with contextlib.suppress(Exception):
            context: Any = SparkContext._active_spark_context
            bus = context._jsc.sc().listenerBus()
            bus.waitUntilEmpty(int(1_000 * _DELIVER_SECONDS))
        with contextlib.suppress(Exception):
            self._events.end()
            self._ended.wait(_DELIVER_SECONDS)


def jvm_listener(listener: StreamingQueryListener, text: str) -> Any:
    """Return what passes the events of queries on to a listener, for PySpark to add to a session.

    They are the queries in whose end offsets the text ``text`` is. No event of a start is passed.
    """
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    with _lock:
        if not _feeds or _feeds[-1].gateway is not gateway:
            _feeds.append(_Feed(gateway))
        return _feeds[-1].add(listener, text)


def drain() -> None:
    """At the end of the process: let the listeners have all events that Spark has sent."""
    for feed in _feeds[-1:]:
        feed.drain()
