"""How a job is told to end: by signals, wherever they arrive, in Python or in the JVM before it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from typing import Any

from pyspark.sql import SparkSession

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
AGAIN_SECONDS = 1.0
"""A job of Spark's that began just as it was told is cancelled so much later."""


class Ending:
    """Whether the job was told to end. No exception says so: one would tear calls to the JVM."""

    def __init__(self) -> None:
        """Begin as not told, and hear no signals yet."""
        self._told = threading.Event()
        self._over = threading.Event()
        self._first = threading.Lock()

    @property
    def is_told(self) -> bool:
        """Whether the job is to end."""
        return self._told.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait until the job is told to end, at most so long; return whether it is."""
        return self._told.wait(seconds)

    def listen(self, spark: SparkSession) -> None:
        """Have SIGINT, SIGTERM and SIGHUP end the job, and cancel what Spark does for it.

        Under spark-submit the command that was started is the JVM, and this script is its child:
        cron, systemd, Kubernetes and ``kill`` signal the JVM alone, a terminal signals both. So
        the JVM is told to hand its signals on; it lives until this script has ended, and takes
        its exit status. On a JVM that is not ours alone nothing is changed. A SIGHUP that is
        ignored, as under ``nohup``, stays so here and in the JVM.
        """

        def told(*_: object) -> None:
            if self._first.acquire(blocking=False):
                # Not in a signal's handler: the main thread may hold the event's lock.
                threading.Thread(target=self._end, args=(spark,), daemon=True).start()

        for number in SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, told)
        is_shared = "DATABRICKS_RUNTIME_VERSION" in os.environ
        if "PYSPARK_GATEWAY_PORT" in os.environ and not is_shared:
            _listen_to_the_jvm(told)

    def over(self) -> None:
        """Cancel nothing any more: the rounds have ended."""
        self._over.set()

    def _end(self, spark: SparkSession) -> None:
        self._told.set()
        while not self._over.is_set():
            with contextlib.suppress(Exception):
                spark.interruptAll()
            self._over.wait(AGAIN_SECONDS)


class _Handler:
    """A sun.misc.SignalHandler, which the JVM calls in a thread of this process."""

    def __init__(self, told: Any) -> None:
        self._told = told

    def handle(self, sign: Any) -> None:
        """Tell it."""
        self._told()

    class Java:
        """What py4j asks for."""

        implements = ("sun.misc.SignalHandler",)


def _listen_to_the_jvm(told: Any) -> None:
    from pyspark import SparkContext
    from pyspark.java_gateway import ensure_callback_server_started

    gateway: Any = SparkContext._gateway
    if gateway is None:
        return  # Spark Connect: no JVM of ours
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    misc = gateway.jvm.sun.misc
    for number in SIGNALS:
        misc.Signal.handle(misc.Signal(number.name.removeprefix("SIG")), _Handler(told))
