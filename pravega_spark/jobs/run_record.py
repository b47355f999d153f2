"""Records a job's round over all streams of the root, or of scopes, for people and other runs.

A round over single streams records nothing, since it says nothing about the others; nor does a dry
run. If the record cannot be read or written, the job logs that and does its work.
"""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import Mapping
from types import TracebackType

from pravega_spark.engine.store import open_store
from pravega_spark.engine.tables.claim_keeper import ClaimKeeper
from pravega_spark.engine.tables.maintenance_table import (
    AUTO,
    JOB,
    ClaimedWork,
    blocking_claim,
    open_maintenance,
)
from pravega_spark.errors import PravegaSparkError
from pravega_spark.jobs.signals import StopSignal
from pravega_spark.limits import CLAIM_MS
from pravega_spark.model import MaintenanceKind

logger = logging.getLogger(__name__)

_CHECK_SECONDS = 1.0
"""Pause between two looks whether a share of another process has ended."""


class RoundRecord:
    """Claims a round's work while its ``with`` block runs, and records the round if it finishes."""

    def __init__(self, kind: MaintenanceKind, arguments: Namespace, root: str) -> None:
        """Take the job's arguments, and the root as a URL."""
        self._kind = kind
        every = (None,) if not arguments.stream else ()
        is_recorded = not arguments.dry_run
        self._scopes: tuple[str | None, ...] = ()
        if is_recorded:
            self._scopes = tuple(sorted(set(arguments.scope))) or every
        self._store = open_store(root)
        self._table = open_maintenance(self._store)
        self._started_ms = 0
        self._work: ClaimedWork | None = None
        self._keeper: ClaimKeeper | None = None
        self._has_finished = False

    def claim(self, stop: StopSignal) -> None:
        """Claim the work; wait for the share that a process with ``maintain="auto"`` is doing.

        A job does not wait for another job: two rounds at the same time do no harm.
        """
        if not self._scopes:
            return
        waited = 0.0
        try:
            self._started_ms = self._store.time_ms()
            while not stop.is_set:
                self._work = self._table.claim(self._kind, self._scopes, JOB)
                now_ms = self._table.about_now_ms()
                entries = self._table.entries()
                other = blocking_claim(entries, self._kind, self._scopes, now_ms)
                if self._work or other is None or not other.by.startswith(f"{AUTO} "):
                    break
                if waited > CLAIM_MS / 1_000:
                    break
                stop.wait(_CHECK_SECONDS)
                waited += _CHECK_SECONDS
        except (PravegaSparkError, OSError) as error:
            self._warn("claimed", error)
        if self._work is not None:
            self._keeper = ClaimKeeper(self._table, self._work)
            self._keeper.start()

    def finish(self, streams: int, failures: Mapping[str, str]) -> None:
        """Record that the round has reached all streams."""
        if not self._scopes:
            return
        self._has_finished = True
        self._end_keeper()
        try:
            self._table.finish_now(
                self._kind, self._scopes, JOB, self._started_ms, streams, failures, self._work
            )
        except (PravegaSparkError, OSError) as error:
            self._warn("recorded", error)

    def _end_keeper(self) -> None:
        if self._keeper is not None:
            self._keeper.end()

    def _warn(self, done: str, error: Exception) -> None:
        logger.warning("the round of %s could not be %s: %s", self._kind.value, done, error)

    def __enter__(self) -> RoundRecord:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release the claim of a round that failed or was stopped."""
        if self._work is None or self._has_finished:
            return
        self._end_keeper()
        try:
            self._table.release(self._work)
        except (PravegaSparkError, OSError) as failure:
            self._warn("released", failure)
