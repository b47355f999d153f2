"""Automatic scaling of one stream for users: what a run would do, and the run."""

from __future__ import annotations

from typing import Any

from pravega_spark.arguments import check_flag, shown
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import InvalidConfiguration
from pravega_spark.policies import ScalingPace
from pravega_spark.scaling.auto_scaling import PACE, explain_scaling, run_scaling


class StreamScaling:
    """Explains and runs the automatic scaling of one stream; made by ``StreamManager.scaling``."""

    def __init__(self, stream: StreamLog, life: int) -> None:
        """Take a stream and its life."""
        self._stream = stream
        self._life = life

    def explain(
        self, *, pace: ScalingPace = PACE, use_keys: bool = False
    ) -> tuple[dict[str, Any], ...]:
        """Return what a run would do with each active segment, as the rows of the scaling job.

        A row has the segment, its keys and rates, the action and its reason. ``use_keys`` splits a
        segment under a policy by event rate between its newest keys if that balances the load
        better. Changes nothing. Raises StaleIdentity, NoSuchStream.
        """
        _check(pace, use_keys)
        found = explain_scaling(self._stream, pace, use_keys=use_keys, life=self._life)
        return tuple(found.rows())

    def run(
        self, *, pace: ScalingPace = PACE, use_keys: bool = False
    ) -> tuple[dict[str, Any], ...]:
        """Scale as :meth:`explain` says, and return the rows with the outcome of each scale.

        Safe to kill, to repeat and to run concurrently: a segment is sealed once. A row's ``epoch``
        is the new epoch; ``dropped`` says why a concurrent change prevented the scale.
        """
        _check(pace, use_keys)
        return tuple(run_scaling(self._stream, pace, use_keys=use_keys, life=self._life).rows())


def _check(pace: ScalingPace, use_keys: bool) -> None:
    check_flag("use_keys", use_keys)
    if not isinstance(pace, ScalingPace):
        raise InvalidConfiguration(
            "pace must be a ScalingPace, such as ScalingPace.of_cooldown('10 min'); got "
            f"{shown(pace)}."
        )
