"""The events that all peers are filled with: as Arrow, as Parquet and as plain bytes."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bench.harness.dataset import KEYS, table
from bench.peers.peer import Place

SCHEMA = pa.schema(
    {"routing_key": pa.string(), "timestamp": pa.timestamp("us", "UTC"), "event": pa.binary()}
)
_BLOCK = 500_000
TIME = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
TRANSACTION_EVENTS = 100
EVENTS = 10_000
"""Pipelined writes repeat so many different events."""


def blocks(place: Place) -> Iterator[pa.Table]:
    """Yield the events: routing key, time and event."""
    for number, first in enumerate(range(0, place.rows, _BLOCK)):
        yield table(min(_BLOCK, place.rows - first), number)


def lists(block: pa.Table) -> tuple[list[str], list[bytes]]:
    """Return the keys and the events of a block."""
    return block["routing_key"].to_pylist(), block["event"].to_pylist()


def pool() -> tuple[list[str], list[bytes]]:
    """Return keys and events that pipelined writes repeat."""
    return lists(table(EVENTS))


@functools.cache
def hundred(number: int = 0) -> pa.Table:
    """Return the events of a transaction."""
    return table(TRANSACTION_EVENTS, number)


def one(event: bytes) -> pa.Table:
    """Return a table with one event."""
    return pa.table([["key"], [TIME], [event]], schema=SCHEMA)


def encoded(rows: pa.Table) -> bytes:
    """Return rows as the bytes of a Parquet file."""
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="zstd")
    return bytes(sink.getvalue())


def parquet(place: Place) -> Path:
    """Return a folder with the events as Parquet, made once a run."""

    def make(context: Any) -> Path:
        folder: Path = context.folder / "events"
        folder.mkdir()
        for number, block in enumerate(blocks(place)):
            pq.write_table(block, folder / f"{number:05d}.parquet", compression="zstd")
        return folder

    return place.context.shared("peers' events", make)


def plain(place: Place) -> Path:
    """Return a file with the events one after the other; the n-th has the key n % KEYS."""

    def make(context: Any) -> Path:
        path: Path = context.folder / "events.bin"
        with path.open("wb") as file:
            for block in blocks(place):
                file.write(b"".join(block["event"].to_pylist()))
        return path

    assert KEYS == 1_000, "the peers that read the file count on it"
    return place.context.shared("peers' events, plain", make)


def by_key(rows: pa.Table) -> int:
    """Count rows by key; return how many there are."""
    counts = rows.select(["routing_key"]).group_by("routing_key").aggregate([([], "count_all")])
    return int(sum(counts["count_all"].to_pylist()))
