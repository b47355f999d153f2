"""Records a round over all streams of the root, or of scopes, for people and other runs.

A round over single streams records nothing, since it says nothing about the others; nor does a dry
run. If the record cannot be read or written, the round is done without it, and a warning is logged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Protocol

from pravega_spark.engine.log_fields import log_fields, own_logger
from pravega_spark.engine.runtime import SYSTEM, Runtime
from pravega_spark.engine.store import Store
from pravega_spark.engine.tables.claim_keeper import ClaimKeeper
from pravega_spark.engine.tables.maintenance_table import (
    JOB,
    ClaimedWork,
    blocking_claim,
    open_maintenance,
)
from pravega_spark.errors import PravegaSparkError
from pravega_spark.limits import CLAIM_MS
from pravega_spark.model import MaintenanceKind
from pravega_spark.root_settings import AUTO

logger = own_logger(__name__)

_CHECK_SECONDS = 1.0
"""Pause between two looks whether a share of another process has ended."""


class Stoppable(Protocol):
    """What stops a round before its end."""

    @property
    def is_set(self) -> bool:
        """Whether the round is to stop."""
        ...

    def wait(self, seconds: float) -> bool:
        """Wait until the round is to stop, at most ``seconds``; return whether it is."""
        ...


def recorded_scopes(
    scopes: Iterable[str], streams: Iterable[str], *, dry_run: bool
) -> tuple[str | None, ...]:
    """Return the scopes for which a round is recorded: none, some, or (None,) for all."""
    if dry_run:
        return ()
    every: tuple[str | None, ...] = () if list(streams) else (None,)
    return tuple(sorted(set(scopes))) or every


class RoundRecord:
    """Claims a round's work while its ``with`` block runs, and records the round if it finishes."""

    def __init__(
        self,
        store: Store,
        kind: MaintenanceKind,
        scopes: tuple[str | None, ...],
        runtime: Runtime = SYSTEM,
    ) -> None:
        """Take the scopes for which the round is recorded; without any, nothing is recorded."""
        self.kind = kind
        self._scopes = scopes
        self._store = store
        self._table = open_maintenance(store, runtime)
        self._started_ms = 0
        self._work: ClaimedWork | None = None
        self._keeper: ClaimKeeper | None = None
        self._has_finished = False

    def claim(self, stop: Stoppable) -> str | None:
        """Claim the work; wait for the share that a process with ``maintain="auto"`` is doing.

        Returns what has the claim if it is another job's: two rounds at the same time do no harm.
        """
        if not self._scopes:
            return None
        waited, other = 0.0, None
        try:
            self._started_ms = self._store.time_ms()
            while not stop.is_set:
                self._work = self._table.claim(self.kind, self._scopes, JOB)
                if self._work is not None:
                    break
                now_ms, entries = self._table.about_now_ms(), self._table.entries()
                other = blocking_claim(entries, self.kind, self._scopes, now_ms)
                if other is not None and not other.by.startswith(f"{AUTO} "):
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
            return None
        return None if other is None else other.by

    def finish(self, streams: int, failures: Mapping[str, str]) -> None:
        """Record that the round has reached all streams."""
        if not self._scopes:
            return
        self._has_finished = True
        self._end_keeper()
        try:
            self._table.finish_now(
                self.kind, self._scopes, JOB, self._started_ms, streams, failures, self._work
            )
        except (PravegaSparkError, OSError) as error:
            self._warn("recorded", error)

    def _end_keeper(self) -> None:
        if self._keeper is not None:
            self._keeper.end()

    def _warn(self, done: str, error: Exception) -> None:
        kind, root = self.kind.value, self._store.url
        logger.warning(
            "the round of %s of %s could not be %s: %s",
            kind,
            root,
            done,
            error,
            extra=log_fields("maintain", kind=kind, root=root),
        )

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
