"""Which hashes of keys come twice in a write, found in bounded memory.

A sink in Python has no shuffle, so equal keys may be in different tasks. Each task sorts the hashes
of its keys: many of them are stored as runs, few stay in its message. The driver merges all runs a
part at a time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.engine.store.base import Store
from pravega_spark.errors import StagedTooLate, StoreError
from pravega_spark.values.limits import KEY_BLOCK_ROWS, KEY_MERGE_ROWS, KEY_RUN_ROWS, MESSAGE_KEYS

Hashes = NDArray[np.uint64]
_STORED: Final = np.dtype("<u8")
_NONE: Final = np.empty(0, np.uint64)


@dataclass(frozen=True)
class StoredRun:
    """Sorted hashes in an object, and what the driver must know to read a part of them."""

    key: str
    rows: int
    firsts: bytes
    """The first hash of each block."""
    digests: bytes
    """The digest of each block."""


class KeyHashes:
    """Collects the hashes of a task's keys."""

    def __init__(self, store: Store, folder: str) -> None:
        """Take the folder of the runs, which sweeps know as one of staged files."""
        self._store = store
        self._folder = folder
        self._name = os.urandom(8).hex()
        self._held: list[Hashes] = []
        self._rows = 0
        self.runs: list[StoredRun] = []

    def add(self, hashes: Hashes) -> None:
        """Add the hashes of some rows; raise StoreError."""
        self._held.append(hashes)
        self._rows += len(hashes)
        if self._rows >= KEY_RUN_ROWS:
            self._store_run()

    def finish(self) -> bytes:
        """Return the hashes that stay in the message: the others are stored. Raises StoreError."""
        if self._rows > MESSAGE_KEYS:
            self._store_run()
        return b"".join(hashes.astype(_STORED).tobytes() for hashes in self._held)

    def _store_run(self) -> None:
        ordered = np.sort(np.concatenate(self._held)).astype(_STORED)
        self._held, self._rows = [], 0
        key = f"{self._folder}/{self._name}-{len(self.runs)}.hashes"
        self._store.put(key, ordered.tobytes())
        digests = np.array([_digest(block) for block in _blocks(ordered)], _STORED)
        firsts = ordered[::KEY_BLOCK_ROWS].tobytes()
        self.runs.append(StoredRun(key, len(ordered), firsts, digests.tobytes()))


def hashes_that_come_twice(
    store: Store, in_messages: Sequence[bytes], runs: Sequence[StoredRun]
) -> Iterator[Hashes]:
    """Yield the hashes that come twice, in order, a part at a time; one may come again.

    In memory are a part, a block of each run, and what the messages have. Raises StagedTooLate if a
    sweep has deleted a run, and StoreError if one is damaged.
    """
    few = np.sort(np.frombuffer(b"".join(in_messages), _STORED))
    reads: list[Callable[[tuple[int, int]], Hashes]] = [
        lambda blocks: few[blocks[0] * KEY_BLOCK_ROWS : blocks[1] * KEY_BLOCK_ROWS],
        *(partial(_read, store, run) for run in runs),
    ]
    starts = [few[::KEY_BLOCK_ROWS], *(np.frombuffer(run.firsts, _STORED) for run in runs)]
    firsts = np.concatenate(starts)
    order = np.argsort(firsts, kind="stable")  # a run's blocks stay in order
    sources = np.repeat(np.arange(len(starts)), [len(found) for found in starts])[order]
    next_blocks = [0] * len(starts)
    step = max(1, KEY_MERGE_ROWS // KEY_BLOCK_ROWS)
    waiting = _NONE
    for at in range(0, len(order), step):
        counts = np.bincount(sources[at : at + step], minlength=len(starts))
        wanted = [
            (source, (next_blocks[source], next_blocks[source] + int(counts[source])))
            for source in np.flatnonzero(counts).tolist()
        ]
        for source, (_, end) in wanted:
            next_blocks[source] = end
        loaded = SYSTEM.each(lambda want: reads[want[0]](want[1]), wanted)
        merged = np.concatenate([waiting, *loaded])
        del loaded  # a part is in memory once
        merged.sort()
        is_twice = merged[1:] == merged[:-1]
        if is_twice.any():
            yield _distinct(merged[1:][is_twice])
        if at + step < len(order):  # a block that is not loaded begins at this hash or later
            bound = firsts[order[at + step]]
            waiting = _distinct(merged[np.searchsorted(merged, bound) :])
        del merged, is_twice


def _read(store: Store, run: StoredRun, blocks: tuple[int, int]) -> Hashes:
    """Return the hashes of consecutive blocks of a stored run."""
    first, last = (min(run.rows, block * KEY_BLOCK_ROWS) for block in blocks)
    width = _STORED.itemsize
    try:
        data = store.get_range(run.key, first * width, last * width)
    except FileNotFoundError:
        raise StagedTooLate(
            f"{run.key}, the hashes of keys that a task staged, was deleted by a sweep: the write "
            "took longer than the sweep's grace. Nothing was written; write again."
        ) from None
    wanted = np.frombuffer(run.digests, _STORED)[blocks[0] : blocks[1]].tolist()
    if len(data) == (last - first) * width:
        found = np.frombuffer(data, _STORED)
        if [_digest(block) for block in _blocks(found)] == wanted:
            return found
    raise StoreError(
        f"{run.key}, the hashes of keys that a task staged, is damaged. Nothing was written; write "
        "again, and check the storage."
    )


def _distinct(ordered: Hashes) -> Hashes:
    """Return sorted hashes, each once; ``np.unique`` would not use their order."""
    is_first = np.ones(len(ordered), np.bool_)
    is_first[1:] = ordered[1:] != ordered[:-1]
    found: Hashes = ordered[is_first]
    return found


def _blocks(hashes: Hashes) -> Iterator[Hashes]:
    for first in range(0, len(hashes), KEY_BLOCK_ROWS):
        yield hashes[first : first + KEY_BLOCK_ROWS]


def _digest(block: Hashes) -> int:
    return xxhash.xxh3_64_intdigest(block.tobytes())
