"""A listener that acknowledges finished batches of streaming queries to their reader groups.

Spark reports the end of a batch to a source only when it asks for the next one. A query that was
stopped, or that ran once, asks for no more. Spark's progress events follow after each finished
batch, so this listener on the driver acknowledges the last batch, and batches before a long pause.
``pravega-spark reader-group sync`` finds batches that it misses in the checkpoint folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.runtime.system import SYSTEM, Runtime
from pravega_spark.errors import StoreError
from pravega_spark.reader_groups.lifecycle import open_group
from pravega_spark.reader_groups.query_member import acknowledge_batch
from pravega_spark.spark.jvm.run_listener import Progress, RunListener, end_offsets
from pravega_spark.spark.source_offsets import decode, owner_of, present
from pravega_spark.values.limits import GROUP_EXIT_SECONDS, GROUP_INTERVAL_MS

logger = own_logger(__name__)

Record = Mapping[str, Any]

_KEPT = 100
"""Events of a run that wait for a slow store; what earlier ones say, later ones say, too."""
_AGAIN = "It is tried again as long as this process runs."
_WAY_ON = (
    "A query that runs reports it with a later batch. For one that has ended, call pravega-spark "
    "reader-group sync --checkpoint FOLDER, with its checkpointLocation."
)


def _acknowledge(record: Record) -> None:
    owner = owner_of(record)
    assert owner is not None
    assert owner.group is not None
    cuts = {name: offset.cut for name, offset in present(decode(record)).items()}
    group = open_group(owner.root, owner.group)
    acknowledge_batch(group, owner.generation, cuts, owner.query)


class _Reports:
    """Acknowledges the batches of one run: the newest one, whenever the interval is over."""

    def __init__(self, run: str, runtime: Runtime) -> None:
        self._run, self._runtime = run, runtime
        self._due = 0.0
        self._pending: list[Record] = []
        """The end offsets of the last batch that are not acknowledged yet."""

    def progressed(self, progress: Progress) -> None:
        """Keep the finished batch as pending; acknowledge it if the interval is over."""
        self._pending = end_offsets(progress, "group")
        if self._runtime.monotonic() >= self._due:
            self.idled()

    def idled(self) -> None:
        """Acknowledge the pending batch; keep what the storage did not take for the next time."""
        self._pending = [record for record in self._pending if not self._is_done(record)]
        self._due = self._runtime.monotonic() + GROUP_INTERVAL_MS / 1_000

    ended = idled

    def seconds_left(self) -> float | None:
        """Return until when the pending batch waits for a later one, or for the storage."""
        return max(0.0, self._due - self._runtime.monotonic()) if self._pending else None

    def _is_done(self, record: Record) -> bool:
        """Never raises: the query itself reports the same batch later."""
        try:
            _acknowledge(record)
        except StoreError as error:
            self._warn(record, f"{error} {_AGAIN}")
            return False
        except Exception as error:
            self._warn(record, str(error))
        return True

    def abandoned(self) -> None:
        for record in list(self._pending):
            self._warn(record, f"the process ends, and has waited {GROUP_EXIT_SECONDS:g} s.")

    def _warn(self, record: Record, reason: str) -> None:
        group = str(record["group"]["name"])
        logger.warning(
            "failed to acknowledge the last batch of run %s to reader group %s: %s %s",
            self._run,
            group,
            reason,
            _WAY_ON,
            extra=log_fields("acknowledge", group=group),
        )


class GroupListener(RunListener):
    """Acknowledges finished batches to reader groups, in a thread for each query that has one.

    ``session()`` adds one to the sessions that it makes. Add one to any other session by
    ``spark.streams.addListener(GroupListener())``.
    """

    _field = "group"
    _exit_seconds = GROUP_EXIT_SECONDS

    def __init__(self, runtime: Runtime = SYSTEM) -> None:
        super().__init__(_KEPT)
        self._runtime = runtime

    def _reports_of(self, run: str) -> _Reports:
        return _Reports(run, self._runtime)
