"""What a key-value table is at one version of its change log."""

from __future__ import annotations

from dataclasses import dataclass

from pravega_spark.engine.stream.epoch_history import epochs_between
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from pravega_spark.key_value.shared_table import table_configuration
from pravega_spark.values.segments import Epoch, Segment


@dataclass(frozen=True, slots=True)
class KeyValueTableInfo:
    """A table at one version of its change log; ``segments`` and ``epochs`` are that log's."""

    table: str
    life: int
    state: str
    """``ACTIVE``, ``SEALING`` or ``SEALED``."""
    version: int
    configuration: KeyValueTableConfiguration
    created_ms: int
    segments: tuple[Segment, ...]
    """The active segments, in the order of their key ranges."""
    epochs: tuple[Epoch, ...]
    """All layouts of this life, the oldest first, those that folds left behind included."""


def describe_table(stream: StreamLog, table: str, life: int) -> KeyValueTableInfo:
    """Return the newest version of a table in one life.

    The history of its log is read if folds have truncated an epoch. Raises NoSuchStream,
    StaleIdentity.
    """
    view = stream.view(life=life)
    return KeyValueTableInfo(
        table=table,
        life=life,
        state=view.record.state.value,
        version=view.version,
        configuration=table_configuration(view),
        created_ms=view.record.created_ms,
        segments=view.active.segments,
        epochs=epochs_between(stream, view),
    )
