"""Retention of one stream for users and for Spark's executors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from pravega_spark.config.descriptions import MaintenanceKind
from pravega_spark.config.policies import RetentionPolicy
from pravega_spark.engine.stream.overdue_maintenance import overdue_maintenance
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import InvalidInput, InvalidName
from pravega_spark.reader_groups.description import find_group
from pravega_spark.retention.decision import RetentionEntry
from pravega_spark.retention.explanation import RetentionExplanation
from pravega_spark.retention.retention_set import entry_of_sample
from pravega_spark.retention.run import (
    RetentionResult,
    explain_retention,
    parse_options,
    run_retention,
)
from pravega_spark.values.checks import shown


class StreamRetention:
    """Explains and runs the retention of one stream; made by ``StreamManager.retention``."""

    def __init__(self, stream: StreamLog, life: int, before_run: Callable[[], object]) -> None:
        """Take a stream, its life, and a function that each run calls first."""
        self._stream = stream
        self._life = life
        self._before_run = before_run

    def explain(
        self, *, policy: RetentionPolicy | None = None, expire: str | float | None = None
    ) -> RetentionExplanation:
        """Return which data a run would truncate, which stays, and who holds or loses it; print it.

        With ``policy``, as if that were the stream's: try a policy before you set it. As if
        subscribers that published nothing for ``expire`` were removed, which by default is the
        setting. Reads the state of each group that holds data: whose checkpoint waits for a reader
        says so. Changes nothing. Raises InvalidInput, StaleIdentity, NoSuchStream.
        """
        if not isinstance(policy, RetentionPolicy | None):
            raise InvalidInput(f"policy must be a RetentionPolicy or None, got {shown(policy)}.")
        options = parse_options(expire=expire, sweep=False)
        found = explain_retention(self._stream, options, policy=policy, life=self._life)
        overdue = overdue_maintenance(self._stream, self._stream.view(refresh=False))
        return replace(
            found,
            overdue=overdue.get(MaintenanceKind.RETENTION, ""),
            awaited=tuple(_awaited(self._stream, found)),
        )

    def samples(self) -> list[RetentionEntry]:
        """Return the samples of the retention set, the oldest first; none below the head.

        Each is the tail at a version, with its time and all bytes written before it. The retained
        versions are entries of the set, too: ``StreamManager.cut_at`` has their tails. Costs one
        look at the log. Raises StaleIdentity, NoSuchStream.
        """
        view = self._stream.view(life=self._life)
        return [entry_of_sample(view, record) for record in view.samples]

    def run(
        self,
        *,
        sample_every: str | float | None = None,
        expire: str | float | None = None,
        sweep: bool = True,
        grace: str | float | None = None,
        retain: str | float | None = None,
    ) -> RetentionResult:
        """Truncate as far as the policy and the subscribers allow; safe to repeat and to kill.

        One commit truncates the stream, and samples its tail if the newest sample is older than
        ``sample_every``. Then the stream is swept, by the rules of ``StreamManager.sweep_stream``.
        Interrupted changes of reader groups are completed first. An argument that is None is the
        stream's setting, or the root's; ``RetentionResult.settings`` shows what held.
        Raises StaleIdentity, NoSuchStream, TooBusy.
        """
        options = parse_options(
            sample_every=sample_every, expire=expire, sweep=sweep, grace=grace, retain=retain
        )
        self._before_run()
        return run_retention(self._stream, options, life=self._life)


def _awaited(stream: StreamLog, found: RetentionExplanation) -> Iterator[str]:
    """Yield the checkpoints for which the groups that hold data wait, and the readers of these."""
    prefix = "subscriber "
    holders = [claim.holder for claim in found.claims if claim.holder.startswith(prefix)]
    for holder in holders:
        try:
            group = find_group(stream.store, holder.removeprefix(prefix))
        except InvalidName:  # a subscriber that is not a group
            continue
        if group is None:
            continue
        for checkpoint, readers in group.state.awaited.items():
            yield (
                f"checkpoint {checkpoint} of reader group {group.state.group} waits for reader "
                f"{', '.join(readers)}"
            )
