"""Retention of one stream as people and jobs ask for it: times as text, results as rows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import TooBusy
from pravega_spark.limits import SAMPLE_FREQUENCY
from pravega_spark.retention import retention_run
from pravega_spark.retention.explanation import RetentionExplanation
from pravega_spark.retention.retention_run import RetentionOptions, RetentionResult
from pravega_spark.units import parse_duration_ms


class StreamRetention:
    """What a stream keeps and why; made by ``StreamManager.retention``."""

    def __init__(self, stream: StreamLog, life: int, before: Callable[[], object]) -> None:
        """Name the stream and its life, and what a run is to do before it decides."""
        self._stream = stream
        self._life = life
        self._before = before

    def explain(self, *, expire: str | float | None = None) -> RetentionExplanation:
        """Return what would go now, what stays and who holds it; print it, or ask its fields.

        With ``expire``, as if subscribers that published nothing for so long were removed.
        Nothing is changed. Raises StaleIdentity, NoSuchStream.
        """
        return retention_run.decide(
            self._stream, options(expire=expire, sweep=False), life=self._life
        )

    def run(
        self,
        *,
        sample_every: str | float = SAMPLE_FREQUENCY,
        expire: str | float | None = None,
        sweep: bool = True,
        grace: str | float = "1 day",
        retain: str | float = "30 days",
    ) -> RetentionResult:
        """Let go what the policy and the subscribers allow, now; safe to repeat and to kill.

        One commit truncates the stream and samples its tail if the newest sample is older than
        ``sample_every``; then it is swept, by the rules of ``StreamManager.sweep_stream``. Reader
        groups that were left half made are finished first.
        Raises StaleIdentity, NoSuchStream, TooBusy.
        """
        ages = {"sample_every": sample_every, "grace": grace, "retain": retain}
        given = options(expire=expire, sweep=sweep, **ages)
        self._before()
        return retention_run.act(self._stream, given, life=self._life)


def options(
    *,
    sample_every: str | float = SAMPLE_FREQUENCY,
    expire: str | float | None = None,
    sweep: bool = True,
    grace: str | float = "1 day",
    retain: str | float = "30 days",
) -> RetentionOptions:
    """Return the options of a run from times as people write them."""
    return RetentionOptions(
        parse_duration_ms("the frequency of samples", sample_every),
        None if expire is None else parse_duration_ms("the expiry of subscribers", expire),
        sweep,
        parse_duration_ms("grace", grace),
        parse_duration_ms("retain", retain),
    )


def rows_of(
    root: str, stream: str, *, options: RetentionOptions, dry_run: bool, limit_seconds: float
) -> list[dict[str, Any]]:
    """Do the work on a stream, or only decide; return its row of run.ROW_SCHEMA. For executors.

    Raises TooBusy if that takes longer than the limit: what is under way is safe to leave, and
    the next run finishes it.
    """
    opened = open_stream(root, stream)

    def work() -> RetentionResult:
        if dry_run:
            return RetentionResult(retention_run.decide(opened, options))
        return retention_run.act(opened, options)

    return [within(limit_seconds, work, stream).row()]


def within(seconds: float, work: Callable[[], RetentionResult], stream: str) -> RetentionResult:
    """Return what the work gives; raise what it raises, or TooBusy if it takes too long."""
    found: list[RetentionResult] = []
    raised: list[BaseException] = []

    def guarded() -> None:
        try:
            found.append(work())
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=guarded, name=f"retention-{stream}", daemon=True)
    thread.start()
    thread.join(seconds)
    if raised:
        raise raised[0]
    if not found:
        raise TooBusy(
            f"retention of stream {stream} took longer than its limit of {seconds:g} s; it is "
            "finished by the next run. Give it more time if that happens again."
        )
    return found[0]
