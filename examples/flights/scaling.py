"""Scaling of the demo's stream, as the scaling job does it, until the first split.

On a slow or busy machine the load may never require a split. Then the fullest segment is split by
hand, and the report says so.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass

from pravega_spark import PravegaSparkError, ScalingPolicy
from pravega_spark.config.policies import ScalingPace
from pravega_spark.engine.stream.stream_log import StreamLog, open_stream
from pravega_spark.scaling.auto import run_scaling
from pravega_spark.scaling.commit import scale_stream
from pravega_spark.scaling.decision import Action
from pravega_spark.values.segments import KeyRange

COOLDOWN = "2 s"
"""Pravega's is ten minutes; all other times of scaling are shortened in proportion."""
POLL_SECONDS = 0.25
FACTOR = 2
BY_HAND_FROM = 0.5
"""Share of the events after which a segment is split by hand, if its load required no split."""
BY_HAND = "split by hand: its load required no split before half of the events were written"

logger = logging.getLogger(__name__)


def policy(events: int, segments: int) -> ScalingPolicy:
    """Return a policy whose target is the rate of a four-minute replay; real ones are faster."""
    target = max(1, events // (240 * segments))
    return ScalingPolicy.by_event_rate(target=target, factor=FACTOR, minimum=segments)


@dataclass(frozen=True)
class Split:
    """A split: its time by the monotonic clock, the segment, and the reason."""

    at: float
    segment: str
    reason: str


class Scaler:
    """Scales the stream by its rates in a thread, and stops after the first splits."""

    def __init__(self, root: str, stream: str, events: int) -> None:
        """Open the stream, to which so many ``events`` will be written."""
        self._events = events
        self.splits: list[Split] = []
        self._stream = open_stream(root, stream)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-scaler", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def finish(self) -> None:
        """Stop when all events are written; split a segment by hand if none was split.

        Raises PravegaSparkError.
        """
        self.stop()
        if not self.splits:
            self._split_by_hand()

    def stop(self) -> None:
        """Stop the thread."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        pace = ScalingPace.of_cooldown(COOLDOWN)
        while not self.splits and not self._stopping.wait(POLL_SECONDS):
            try:
                self._scale(pace)
            except PravegaSparkError:
                logger.exception("the demo could not scale its stream; it tries again")

    def _scale(self, pace: ScalingPace) -> None:
        rows = run_scaling(self._stream, pace).rows()
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
    """Return how many events the active segments contain."""
    view = stream.view()
    return sum(view.segment(segment_id).next_offset for segment_id in view.active.segment_ids)
