"""A checkpoint that somebody waits for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import TimeoutError as WaitTimeout
from dataclasses import dataclass

from pravega_spark.engine.runtime import Runtime
from pravega_spark.errors import CheckpointFailed
from pravega_spark.model import StreamCut
from pravega_spark.reader_groups.group_state import Checkpoint, GroupState

_BURY_SECONDS = 5.0
"""Who waits for a checkpoint looks so often whether a reader that owes an answer has died."""


@dataclass(frozen=True, slots=True)
class GroupCheckpoint:
    """A completed checkpoint: where the group was in each stream."""

    name: str
    stream_cuts: Mapping[str, StreamCut]


class CheckpointFuture:
    """A checkpoint under way, with the interface of ``concurrent.futures.Future``."""

    def __init__(
        self,
        state: Callable[[], GroupState],
        bury: Callable[[], object],
        runtime: Runtime,
        pause_seconds: float,
        generation: int,
        checkpoint: Checkpoint,
    ) -> None:
        """Wait for a checkpoint of a generation; ``bury`` takes dead readers out of the group."""
        self._state, self._bury, self._runtime = state, bury, runtime
        self._pause_seconds = pause_seconds
        self._generation, self._checkpoint = generation, checkpoint
        self._found: GroupCheckpoint | None = None
        """The result, once it was seen: the group keeps it for a while only."""

    def _poll(self) -> GroupCheckpoint | None:
        if self._found is None:
            self._found = self._look()
        return self._found

    def _look(self) -> GroupCheckpoint | None:
        state = self._state()
        found = state.checkpoint(self._checkpoint.number)
        if found is None and state.last is not None:
            found = state.last if state.last.number == self._checkpoint.number else None
        if found is None or state.generation != self._generation:
            raise CheckpointFailed(
                f"checkpoint {self._checkpoint.name} of reader group {state.group} was cancelled, "
                "the group was reset, or it was completed too long ago.",
                group=state.group,
                generation=state.generation,
                checkpoint=self._checkpoint.name,
            )
        if not found.is_complete:
            return None
        return GroupCheckpoint(found.name, state.cuts_of(found.positions))

    def done(self) -> bool:
        """Tell whether it is complete, for good once it was. Raises CheckpointFailed."""
        return self._poll() is not None

    def result(self, timeout: float | None = None) -> GroupCheckpoint:
        """Return the checkpoint when all readers have answered.

        Raises CheckpointFailed, and TimeoutError after ``timeout`` seconds.
        """
        runtime = self._runtime
        began = buried = runtime.monotonic()
        while (found := self._poll()) is None:
            now = runtime.monotonic()
            if timeout is not None and now - began >= timeout:
                raise WaitTimeout(
                    f"checkpoint {self._checkpoint.name} is not complete after {timeout} s."
                )
            if now - buried >= _BURY_SECONDS:
                self._bury()
                buried = now
            runtime.sleep(self._pause_seconds)
        return found
