"""The demo's scaler: what jobs/scaling.py does for every stream, for one, until it was split."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass

from pravega_spark import PravegaSparkError, ScalingPolicy
from pravega_spark.config import ScalingPace
from pravega_spark.engine.stream import open_stream
from pravega_spark.scaling.auto import act
from pravega_spark.scaling.decision import Action

COOLDOWN = "2 s"
"""Pravega waits for ten minutes; all its times are shortened in this proportion."""
LOOK_SECONDS = 0.25
FACTOR = 2

logger = logging.getLogger(__name__)


def policy(events: int, segments: int) -> ScalingPolicy:
    """Return a policy whose target the replay is above on any machine: a four-minute replay's."""
    target = max(1, events // (240 * segments))
    return ScalingPolicy.by_event_rate(target=target, factor=FACTOR, minimum=segments)


@dataclass(frozen=True)
class Split:
    """One split: when, by the monotonic clock, which segment, and why."""

    at: float
    segment: str
    reason: str


class Scaler:
    """Watches the stream's rates in a thread, and stops after the first splits."""

    def __init__(self, root: str, stream: str) -> None:
        """Name the stream; nothing is looked at yet."""
        self.splits: list[Split] = []
        self._stream = open_stream(root, stream)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-scaler", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        pace = ScalingPace.of_cooldown(COOLDOWN)
        while not self.splits and not self._stopping.wait(LOOK_SECONDS):
            try:
                rows = act(self._stream, pace).rows()
            except PravegaSparkError:
                logger.exception("the demo's scaler did not decide; it tries again")
                continue
            now = time.monotonic()
            self.splits = [
                Split(now, row["segment"], row["reason"])
                for row in rows
                if row["action"] == Action.SPLIT.value and row["epoch"] is not None
            ]
