"""Calls to the package as histories have them, for processes and threads that are not simulated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pravega_spark import KeyVersion, StreamManager, TablePut
from pravega_spark.errors import (
    CommitUnknown,
    PravegaSparkError,
    StoreError,
)
from tests.sim.answers import cut_of, position_of, told_by
from tests.sim.history import Call, History


def version_of(version: KeyVersion) -> list[int]:
    return [version.segment_id, version.offset]


def text_of(data: bytes | Mapping[str, Any]) -> str:
    """Return the event of a history; of a row it is the item."""
    return data.decode() if isinstance(data, bytes) else str(data["item"])


def ended(call: Call, error: PravegaSparkError) -> None:
    """Give a call that raised its outcome."""
    if isinstance(error, CommitUnknown | StoreError):
        call.unknown()
    else:
        call.failed(error, told_by(error))


def asked(
    history: History,
    process: str,
    operation: str,
    ask: Callable[[], Any],
    told: Callable[[Any], Any] = lambda found: None,
    **arguments: Any,
) -> Any:
    """Record a call; return what it returned, or the package's error."""
    call = history.invoke(process, operation, **arguments)
    try:
        found = ask()
    except PravegaSparkError as error:
        ended(call, error)
        return error
    call.ok(told(found))
    return found


class Processes:
    """Verbs of one process on one root, each recorded as a call."""

    def __init__(self, manager: StreamManager, history: History, process: str) -> None:
        self.manager, self.history, self.process = manager, history, process

    def ask(self, operation: str, ask: Callable[[], Any], told: Any = None, **of: Any) -> Any:
        told = told if told is not None else (lambda found: None)
        return asked(self.history, self.process, operation, ask, told, **of)

    def read(self, stream: str, text: Callable[[Any], str] = text_of) -> Any:
        """Read a stream from its head to its tail; ``text`` makes events of the data."""

        def read() -> Any:
            reader: Any = self.manager.create_reader(stream)
            head = self.manager.head(stream)
            rows = [
                [event.segment_id, event.offset, event.routing_key, text(event.data)]
                for event in reader.events(head)
            ]
            return {"from": cut_of(head), "to": cut_of(reader.position), "events": rows}

        return self.ask("read", read, dict, stream=stream)

    def write(
        self,
        writer: Any,
        name: str,
        stream: str,
        events: Sequence[tuple[str, str]],
        stored: Callable[[str], Any] = str,
    ) -> Any:
        """Write events of one key in one call; ``stored`` makes of an event what is written."""

        def write() -> Any:
            data = [stored(event) for _, event in events]
            if len(data) == 1:
                return (writer.write_event(data[0], events[0][0]).result(),)
            return writer.write_events(data, events[0][0]).result()

        return self.ask(
            "write",
            write,
            lambda found: [position_of(pointer) for pointer in found],
            stream=stream,
            writer=name,
            events=[list(pair) for pair in events],
        )

    def update(self, table: Any, name: str, changes: dict[str, str]) -> Any:
        """Put values of keys, all or none."""
        return self.ask(
            "update",
            lambda: table.update([TablePut(key, value) for key, value in changes.items()]),
            lambda versions: [version_of(version) for version in versions],
            table=name,
            changes=[{"key": key, "value": value} for key, value in changes.items()],
        )

    def get(self, table: Any, name: str, keys: Sequence[str]) -> Any:
        """Get keys, freshly."""

        def told(found: Any) -> Any:
            return [e and [e.value.decode(), version_of(e.version)] for e in found]

        return self.ask(
            "get",
            lambda: table.get_all(keys, fresh=True),
            told,
            table=name,
            keys=list(keys),
            fresh=True,
        )

    def commit(
        self, writer: Any, transaction: str, streams: dict[str, list[tuple[str, str]]]
    ) -> Any:
        """Write a transaction, joint if it has several streams, and commit it."""
        staged = {name: [list(pair) for pair in pairs] for name, pairs in streams.items()}
        self.ask("stage", lambda: None, transaction=transaction, streams=staged)

        def commit() -> Any:
            txn = writer.begin_transaction()
            for name, pairs in streams.items():
                for key, event in pairs:
                    if len(streams) > 1:
                        txn.write_event(name, event, key)
                    else:
                        txn.write_event(event, key)
            txn.commit()

        return self.ask("commit", commit, transaction=transaction)
