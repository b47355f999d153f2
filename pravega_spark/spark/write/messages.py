"""The tasks' commit messages, and the commit of the chunks that they name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.engine.writing.append import AppendResult, append
from pravega_spark.engine.writing.identity import NumberedBatch
from pravega_spark.errors import IllegalState
from pravega_spark.spark.settings import WriteSettings
from pravega_spark.spark.versions import WriterCommitMessage
from pravega_spark.spark.write.task_run import SinkMessage
from pravega_spark.txn.open_look import look_at
from pravega_spark.values.checks import MIN_TIME_US


@dataclass
class TaskCommitMessage(SinkMessage):
    """The chunks that one task staged, and the life and version of the stream in its plan.

    Tasks that plan by themselves may have several versions.
    """

    life: int
    version: int
    chunks: list[StagedChunk] = field(default_factory=list)


def complete(messages: Sequence[WriterCommitMessage | None]) -> list[TaskCommitMessage]:
    """Return the tasks' messages; raise IllegalState if a task has none."""
    found = [message for message in messages if isinstance(message, TaskCommitMessage)]
    if len(found) < len(messages):
        raise IllegalState(
            f"{len(messages) - len(found)} of {len(messages)} tasks sent no commit message; "
            "nothing was committed. Write again."
        )
    return found


def chunks_of(messages: Sequence[TaskCommitMessage]) -> list[StagedChunk]:
    """Return the chunks of all tasks, in the order of the partitions."""
    return [chunk for message in messages for chunk in message.chunks]


def commit_chunks(
    settings: WriteSettings,
    messages: Sequence[TaskCommitMessage],
    identity: NumberedBatch | None,
    **parameters: object,
) -> AppendResult | None:
    """Append the chunks of all tasks in one commit; None if there are none.

    ``identity`` makes the commit idempotent, and the latest time of the events is noted under it if
    the settings say so; ``parameters`` go into the table's history.
    """
    chunks = chunks_of(messages)
    if not chunks:
        return None
    # A chunk's path has its folder, so the oldest version is true for all of them: nothing of a
    # later one is deleted while nothing of that one is. An older life is refused.
    life = min(message.life for message in messages)
    version = min(message.version for message in messages)
    stream = open_stream(settings.root, settings.stream)
    look_at(stream)
    time_us = _noted_us(settings, chunks)
    return append(stream, life, version, chunks, identity, time_us=time_us, parameters=parameters)


def _noted_us(settings: WriteSettings, chunks: Sequence[StagedChunk]) -> int | None:
    """Return the time that a commit of chunks notes, in us since 1970, or None."""
    if settings.event_time_delay_ms is None:
        return None
    latest_us = max(chunk.max_timestamp_us for chunk in chunks)
    return max(MIN_TIME_US, latest_us - 1_000 * settings.event_time_delay_ms)
