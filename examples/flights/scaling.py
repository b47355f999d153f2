"""The demo's scaler: what jobs/scaling.py does for every stream, for one, until it was split.

On a machine that is too slow or too busy the load may never call for a split. Then the scaler
splits the fullest segment by hand, and says that.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass

from pravega_spark import PravegaSparkError, ScalingPolicy
from pravega_spark.engine.stream.stream_log import StreamLog, open_stream
from pravega_spark.model import KeyRange
from pravega_spark.policies import ScalingPace
from pravega_spark.scaling.auto_scaling import act
from pravega_spark.scaling.manual_scaling import scale_stream
from pravega_spark.scaling.scale_decision import Action

COOLDOWN = "2 s"
"""Pravega waits for ten minutes; all its times are shortened in this proportion."""
LOOK_SECONDS = 0.25
FACTOR = 2
BY_HAND_FROM = 0.5
"""When this part of the events is there and the load has called for no split, one is made."""
BY_HAND = "split by hand: its load called for no split before half of the events were there"

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

    def __init__(self, root: str, stream: str, events: int) -> None:
        """Name the stream, and how many events will come; nothing is looked at yet."""
        self._events = events
        self.splits: list[Split] = []
        self._stream = open_stream(root, stream)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-scaler", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def finish(self) -> None:
        """Stop watching; a stream that has not been split is split by hand. All events are there.

        Raises PravegaSparkError.
        """
        self.stop()
        if not self.splits:
            self._split_by_hand()

    def stop(self) -> None:
        """Stop watching."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        pace = ScalingPace.of_cooldown(COOLDOWN)
        while not self.splits and not self._stopping.wait(LOOK_SECONDS):
            try:
                self._look(pace)
            except PravegaSparkError:
                logger.exception("the demo's scaler did not decide; it tries again")

    def _look(self, pace: ScalingPace) -> None:
        rows = act(self._stream, pace).rows()
        now = time.monotonic()
        self.splits = [
            Split(now, row["segment"], row["reason"])
            for row in rows
            if row["action"] == Action.SPLIT.value and row["epoch"] is not None
        ]
        if not self.splits and written(self._stream) >= BY_HAND_FROM * self._events:
            self._split_by_hand()

    def _split_by_hand(self) -> None:
        view = self._stream.view()
        fullest = max(view.active.segments, key=lambda s: view.segment(s.segment_id).next_offset)
        keys = fullest.key_range
        middle = (keys.low + keys.high) / 2
        halves = [KeyRange(keys.low, middle), KeyRange(middle, keys.high)]
        scale_stream(self._stream, [fullest.segment_id], halves)
        self.splits = [Split(time.monotonic(), str(fullest), BY_HAND)]


def written(stream: StreamLog) -> int:
    """Return how many events are in the stream, in all."""
    view = stream.view()
    return sum(view.segment(segment_id).next_offset for segment_id in view.active.segment_ids)
