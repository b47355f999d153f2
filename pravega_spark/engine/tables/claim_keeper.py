"""Extends a claim on maintenance in the background while its process works."""

from __future__ import annotations

import threading

from pravega_spark.engine.log_fields import log_fields, own_logger
from pravega_spark.engine.tables.maintenance_table import ClaimedWork, MaintenanceTable
from pravega_spark.errors import PravegaSparkError
from pravega_spark.limits import CLAIM_MS

logger = own_logger(__name__)

_EXTEND_SECONDS = CLAIM_MS / 3_000


class ClaimKeeper:
    """Keeps a claim from ``start`` to ``end``; if that is short, it commits nothing."""

    def __init__(
        self, table: MaintenanceTable, work: ClaimedWork, every_seconds: float = _EXTEND_SECONDS
    ) -> None:
        """Take claimed work."""
        self._table = table
        self._work = work
        self._every_seconds = every_seconds
        self._ended = threading.Event()
        self.is_lost = False
        """Whether another process has the claim by now, since this one did not run for a while."""

    def start(self) -> None:
        """Extend the claim from now on."""
        name = f"pravega-claim-{self._work.kind.value}"
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def end(self) -> None:
        """End the thread, without waiting for a commit that it is making."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(self._every_seconds):
            try:
                self.is_lost = not self._table.extend(self._work)
            except (PravegaSparkError, OSError) as error:  # the next attempt comes before the end
                kind, root = self._work.kind.value, self._table.root_url
                logger.debug(
                    "could not extend the claim on %s of %s: %s",
                    kind,
                    root,
                    error,
                    extra=log_fields("claim", kind=kind, root=root),
                )
            if self.is_lost:
                return
