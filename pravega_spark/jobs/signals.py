"""Signals that stop a job, whether they reach Python or the JVM that started it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from typing import TYPE_CHECKING, Any

from pravega_spark.jobs.early_signals import SIGNALS, take
from pravega_spark.primitives.process_locks import new_lock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CANCEL_AGAIN_SECONDS = 1.0
"""Pause before Spark's work is cancelled again: some of it may have started after the signal."""


class StopSignal:
    """Set when the job is asked to stop. It raises nothing: an exception would break JVM calls."""

    def __init__(self) -> None:
        self._stopped = threading.Event()
        self._disarmed = threading.Event()
        self._first = new_lock()

    @property
    def is_set(self) -> bool:
        """Whether the job is to stop."""
        return self._stopped.is_set()

    def take_early(self) -> bool:
        """Stop if a signal arrived before :meth:`listen`; return whether the job is to stop."""
        if take():
            self.request()
        return self.is_set

    def request(self) -> None:
        """Stop the job before its next round."""
        self._stopped.set()

    def wait(self, seconds: float) -> bool:
        """Wait until the job is to stop, at most ``seconds``; return whether it is."""
        return self._stopped.wait(seconds)

    def listen(self, spark: SparkSession) -> None:
        """Stop the job on SIGINT, SIGTERM or SIGHUP, and cancel what Spark does for it.

        Under spark-submit the command is the JVM, and this script is its child: cron, systemd,
        Kubernetes and ``kill`` signal only the JVM, a terminal signals both. So the JVM is made to
        forward its signals; it lives until this script has ended, and returns its exit status. A
        JVM that other programs share is left unchanged. An ignored SIGHUP, as under ``nohup``,
        stays ignored here and in the JVM.
        """

        def on_signal(*_: object) -> None:
            if self._first.acquire(blocking=False):
                # Not in a signal's handler: the main thread may hold the event's lock.
                threading.Thread(target=self._stop, args=(spark,), daemon=True).start()

        for number in SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, on_signal)
        is_shared = "DATABRICKS_RUNTIME_VERSION" in os.environ
        if "PYSPARK_GATEWAY_PORT" in os.environ and not is_shared:
            _listen_to_the_jvm(on_signal)

    def disarm(self) -> None:
        """Cancel nothing from now on: the rounds have ended."""
        self._disarmed.set()

    def _stop(self, spark: SparkSession) -> None:
        self._stopped.set()
        while not self._disarmed.is_set():
            with contextlib.suppress(Exception):
                spark.interruptAll()
            self._disarmed.wait(CANCEL_AGAIN_SECONDS)


class _Handler:
    """A sun.misc.SignalHandler that the JVM calls in a thread of this process."""

    def __init__(self, on_signal: Any) -> None:
        self._on_signal = on_signal

    def handle(self, sign: Any) -> None:
        self._on_signal()

    class Java:
        """The Java interface, as py4j looks it up."""

        implements = ("sun.misc.SignalHandler",)


def _listen_to_the_jvm(on_signal: Any) -> None:
    from pyspark import SparkContext
    from pyspark.java_gateway import ensure_callback_server_started

    gateway: Any = SparkContext._gateway
    if gateway is None:
        return  # Spark Connect: there is no JVM of this process
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    misc = gateway.jvm.sun.misc
    for number in SIGNALS:
        misc.Signal.handle(misc.Signal(number.name.removeprefix("SIG")), _Handler(on_signal))
