"""The entries of a writer's queue leave it in order: adjacent single events as one part."""

from __future__ import annotations

import random
from itertools import groupby
from typing import Any

from pravega_spark.engine.writing.batch import AtomicWrite, Barrier, Entries, Singles, entry_of
from pravega_spark.engine.writing.futures import EventOutcomes, PendingWrites, WriteFuture

OUTCOMES = EventOutcomes(PendingWrites())


def test_parts_are_what_was_added_in_order() -> None:
    chance = random.Random(7)
    entries, added = Entries(), list[Any]()
    for number in range(300):
        if chance.random() < 0.8:
            added.append((b"%d" % number, f"k{number}", number, number, OUTCOMES))
            entries.extend(added[-1])
        else:
            future: WriteFuture[Any] = WriteFuture()
            write = AtomicWrite([b"a"], None, 0, future) if number % 2 else Barrier(future)
            added.append(write)
            entries.extend(entry_of(write))
    barriers = sum(isinstance(one, Barrier) for one in added)
    assert (len(entries), entries.writes) == (300, 300 - barriers)
    for most in (0, 1, 2, 17, 299, 300, 1_000):
        parts = [*entries.parts(most)]
        found = [one for part in parts for one in _each(part)]
        assert found == added[:most]
        kinds = [isinstance(part, Singles) for part in parts]
        assert all(len([*run]) == 1 for is_single, run in groupby(kinds) if is_single)
    entries.drop(120)
    assert [one for part in entries.parts(300) for one in _each(part)] == added[120:]


def test_parts_do_not_have_what_is_added_while_they_are_taken() -> None:
    entries = Entries()
    entries.extend((b"1", None, 0, 1, OUTCOMES))
    parts = entries.parts(10)
    (first,) = _each(next(parts))
    entries.extend((b"2", None, 0, 2, OUTCOMES))
    assert first[0] == b"1"
    assert [*parts] == []
    assert len(entries) == 2


def _each(part: Any) -> list[Any]:
    return [*zip(*part, strict=True)] if isinstance(part, Singles) else [part]
