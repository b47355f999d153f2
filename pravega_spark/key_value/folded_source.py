"""The folded table of an open change log: one for each process, which all of its users share."""

from __future__ import annotations

from pravega_spark.engine.log import checkpointing
from pravega_spark.engine.log.commit_log import Log
from pravega_spark.engine.stream.records import SUBSCRIBER_PREFIX
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.key_value.folded_state import FoldedState
from pravega_spark.key_value.folded_table import FoldedTable
from pravega_spark.key_value.table_configuration import KeyValueTableConfiguration
from pravega_spark.key_value.table_key import KeyType
from pravega_spark.names import FOLD_SUBSCRIBER, folded_path

_MARK = f"{SUBSCRIBER_PREFIX}{FOLD_SUBSCRIBER}"


def folded_log(stream: StreamLog) -> Log:
    """Return the log of the folded table, whatever the keys are."""
    log = Log(stream.store, folded_path(stream.name), stream.runtime)
    log.maintain = checkpointing.maintain_in_background
    return log


def folded_table(stream: StreamLog, configuration: KeyValueTableConfiguration) -> FoldedTable:
    """Return the folded table of a change log, as this process has it open."""
    key_type = KeyType(configuration.key_type)
    name = "folded", key_type, configuration.secondary_key_length > 0
    known = stream.shared.get(name)
    if known is None:
        made = FoldedTable(stream.store, folded_path(stream.name), *name[1:], stream.runtime)
        known = stream.shared.setdefault(name, made)
    assert isinstance(known, FoldedTable)
    return known


class LogFold:
    """The folded table as the index of a change log sees it."""

    def __init__(self, stream: StreamLog, configuration: KeyValueTableConfiguration) -> None:
        """Take the change log; reads nothing."""
        self._table = folded_table(stream, configuration)

    def read(self) -> FoldedState | None:
        """Return the newest version; None if nothing was folded."""
        state = self._table.read()
        return None if state is None or state.record.is_ended else state

    def mark(self, view: StreamView) -> str | None:
        """Return what the last fold published in the change log."""
        return view.snapshot.domains.get(_MARK)
