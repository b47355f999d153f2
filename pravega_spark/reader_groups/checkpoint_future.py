"""The future of a checkpoint that a caller waits for."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pravega_spark.engine.runtime.json_codec import to_json
from pravega_spark.engine.runtime.system import Runtime
from pravega_spark.errors import CheckpointFailed, InvalidInput
from pravega_spark.reader_groups.state import Checkpoint, GroupState
from pravega_spark.values.checks import check_timeout, shown
from pravega_spark.values.names import check_checkpoint
from pravega_spark.values.segments import StreamCut

_EXPIRE_SECONDS = 5.0
"""How often a waiting caller expires readers, so that a crashed one does not block it."""


@dataclass(frozen=True, slots=True)
class GroupCheckpoint:
    """A complete checkpoint: the group's cut of each stream.

    ``str`` makes a text of it, to keep beside what it covers, and ``parse`` reads that.
    """

    name: str
    stream_cuts: Mapping[str, StreamCut]

    def __str__(self) -> str:
        cuts = [str(self.stream_cuts[stream]) for stream in sorted(self.stream_cuts)]
        return to_json({"checkpoint": self.name, "cuts": cuts})

    @classmethod
    def parse(cls, text: str) -> GroupCheckpoint:
        """Return the checkpoint of a text made by ``str``; raise InvalidInput for any other."""
        try:
            record = json.loads(text)
            cuts = [StreamCut.parse(cut) for cut in record["cuts"]]
            name = check_checkpoint(record["checkpoint"])
        except (ValueError, TypeError, KeyError, RecursionError, InvalidInput):
            cuts, name = [], ""
        found = {cut.stream: cut for cut in cuts if cut.is_bound}
        if not cuts or len(found) < len(cuts):
            raise InvalidInput(
                f"{shown(text)} is not a checkpoint of a reader group: pass the text that "
                "`str(checkpoint)` made, whole."
            )
        return cls(name, found)


class CheckpointFuture:
    """A pending checkpoint, with ``done`` and ``result`` as in ``concurrent.futures.Future``."""

    def __init__(
        self,
        state: Callable[[], GroupState],
        expire_readers: Callable[[], object],
        runtime: Runtime,
        pause_seconds: float,
        generation: int,
        checkpoint: Checkpoint,
        publish: Callable[[GroupState], object],
    ) -> None:
        """Wait for a checkpoint of a generation, reading the group by ``state``.

        ``publish`` publishes the newest checkpoint of a state, if the group's retention says so.
        """
        self._state, self._expire_readers, self._runtime = state, expire_readers, runtime
        self._pause_seconds = pause_seconds
        self._generation, self._checkpoint = generation, checkpoint
        self._publish = publish
        self._found: GroupCheckpoint | None = None
        """The result, kept here because the group retains it only for a while."""
        self._unpublished: GroupState | None = None
        """The state that had the result, until its newest checkpoint is published."""

    def _poll(self) -> GroupCheckpoint | None:
        if self._found is None:
            self._found = self._read()
        return self._found

    def _read(self) -> GroupCheckpoint | None:
        state = self._state()
        found, last = state.checkpoint(self._checkpoint.number), state.last_checkpoint
        if found is None and last is not None:
            found = last if last.number == self._checkpoint.number else None
        if found is None or state.generation != self._generation:
            raise CheckpointFailed(
                f"checkpoint {self._checkpoint.name} of reader group {state.group} was cancelled, "
                "the group was reset or updated, or it was completed too long ago. Initiate "
                "another one.",
                group=state.group,
                generation=state.generation,
                checkpoint=self._checkpoint.name,
            )
        if not found.is_complete:
            return None
        if not found.silent:  # a silent one lies beyond what was acknowledged
            self._unpublished = state
        return GroupCheckpoint(found.name, state.cuts_of(found.positions))

    def _waiting(self) -> str:
        """Return the readers that have not answered, as text."""
        found = self._state().checkpoint(self._checkpoint.number)
        pending = () if found is None else found.pending_readers
        return f"reader {', '.join(sorted(pending))}" if pending else "no reader any more"

    def done(self) -> bool:
        """Return whether the checkpoint is complete; True never reverts.

        Raises CheckpointFailed.
        """
        return self._poll() is not None

    def result(self, timeout: float | None = None) -> GroupCheckpoint:
        """Wait until all readers have answered, and return the checkpoint.

        In a group with retention 'automatic' its streams then need nothing before it any more.
        Raises CheckpointFailed, and TimeoutError after ``timeout`` seconds, which names the readers
        that have not answered.
        """
        check_timeout("a checkpoint's result", timeout)
        runtime = self._runtime
        began = expired = runtime.monotonic()
        while (found := self._poll()) is None:
            now = runtime.monotonic()
            if timeout is not None and now - began >= timeout:
                raise TimeoutError(
                    f"checkpoint {self._checkpoint.name} is not complete after {timeout} s: it "
                    f"waits for {self._waiting()}, which answers at its next call, or expires."
                )
            if now - expired >= _EXPIRE_SECONDS:
                self._expire_readers()
                expired = now
            runtime.sleep(self._pause_seconds)
        unpublished, self._unpublished = self._unpublished, None
        if unpublished is not None:
            self._publish(unpublished)
        return found
