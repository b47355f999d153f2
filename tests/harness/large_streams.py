"""Streams with large events that are small: the limits are lowered, so that tests are quick."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from pravega_spark.engine.attached_objects import attached_object
from pravega_spark.engine.log.reader import table_at
from pravega_spark.engine.store.base import Store
from pravega_spark.engine.stream.stream_log import StreamLog, chunk_ref

THRESHOLD = 100
"""An event of more bytes is a large one."""
BLOCK = 64
WINDOW = 3 * BLOCK


def lower_limits(
    patch: pytest.MonkeyPatch,
    most: int = 1 << 20,
    threshold: int = THRESHOLD,
    block: int = BLOCK,
    piece: int = 50,
) -> None:
    """Make events above ``threshold`` bytes large ones, of at most ``most``."""
    engine = "pravega_spark.engine"
    patch.setattr(f"{engine}.writing.encode.MAX_EVENT_BYTES", threshold)
    patch.setattr("pravega_spark.event_writer.MAX_EVENT_BYTES", threshold)
    patch.setattr(f"{engine}.writing.encode.MAX_LARGE_EVENT_BYTES", most)
    patch.setattr(f"{engine}.chunks.large_event_writer.MAX_LARGE_EVENT_BYTES", most)
    patch.setattr(f"{engine}.chunks.large_event_writer.LARGE_EVENT_BLOCK_BYTES", block)
    patch.setattr(f"{engine}.chunks.large_event_writer.LARGE_EVENT_PIECE_BYTES", piece)
    patch.setattr(f"{engine}.chunks.large_event.LARGE_EVENT_WINDOW_BYTES", WINDOW)


def objects(store: Store, stream: str) -> set[str]:
    """Return the keys of all stored objects of large events."""
    found = store.list(f"{stream}/events/data")
    return {entry.key for entry in found if entry.key.endswith(".event")}


@dataclass(frozen=True)
class Version:
    """What a version of a stream's table names of large events."""

    version: int
    named: dict[str, int]
    """The objects, by key, with their size."""


def retained_versions(stream: StreamLog) -> list[Version]:
    """Return what each retained version names; each named object exists in full."""
    log = stream.log
    snapshot = log.refresh()
    assert snapshot is not None
    sizes = {entry.key: entry.size for entry in stream.store.list(f"{log.path}/data")}
    found = []
    for version in range(snapshot.retention_mark, snapshot.version + 1):
        _, files = table_at(log.reader, version)
        named = {}
        for add in files.all():
            attached = attached_object(add.path)
            assert (attached is not None) == bool(chunk_ref(add, "").attachment)
            assert sizes[f"{log.path}/{add.path}"] == add.size
            if attached is not None:
                key = f"{log.path}/{attached[0]}"
                assert sizes.get(key) == attached[1], f"version {version} names {key}"
                named[key] = attached[1]
        found.append(Version(version, named))
    return found


def values(events: Any) -> list[bytes]:
    """Return the payloads of events, read as bytes and as files."""
    found = []
    for event in events:
        with event.open() as file:
            data = file.read()
        assert event.data == data
        found.append(data)
    return found
