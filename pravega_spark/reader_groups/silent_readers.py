"""The record of silent readers, for judges of leases that run once.

A judge that finds a heartbeat older than its reader's lease does not know whether the storage
answered in that time. One that lives on watches the storage for a lease; one that ends records what
it found, in one small object beside the heartbeats. A later judge that finds the same heartbeat a
lease after the record knows as much (ADR 35).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, NamedTuple

from pravega_spark.engine.runtime.json_codec import to_json
from pravega_spark.engine.store import Store

SILENT: Final = "_silent.json"
"""Its name among the heartbeats; no reader's object is named so."""
_NOBODY: Final = {"number": 0, "held": [], "process": ""}
"""The fields of a heartbeat, which version 0.1.0 expects of each object of the folder."""


class Silence(NamedTuple):
    """A heartbeat that was older than the lease: its joining and date, and when that was found.

    Both times are the storage's.
    """

    number: int
    written_ms: int
    found_ms: int


Silences = Mapping[str, Silence]
"""Silences by reader."""


def encode_silences(silences: Silences) -> bytes:
    """Return the object's bytes."""
    return to_json({**_NOBODY, "silent": dict(sorted(silences.items()))}).encode()


def decode_silences(data: bytes) -> dict[str, Silence] | None:
    """Decode the result of :func:`encode_silences`; return None for a torn object."""
    try:
        found = json.loads(data)["silent"].items()
        return {reader: Silence(*map(int, cells)) for reader, cells in found}
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


class SilentReaders:
    """What one judge knows of the record of a group, at one look at its leases."""

    def __init__(self, store: Store, key: str, *, is_listed: bool) -> None:
        """Name the object; ``is_listed`` says whether a listing has it. Reads nothing yet."""
        self._store, self._key, self._is_listed = store, key, is_listed
        self._known: dict[str, Silence] | None = None
        self._found = dict[str, Silence]()

    def _read(self) -> dict[str, Silence]:
        if self._known is None:
            data = self._store.get_many([self._key])[0] if self._is_listed else None
            self._known = (decode_silences(data) if data is not None else None) or {}
        return self._known

    def note(self, reader: str, silence: Silence) -> int:
        """Note a silence that was found now; return when a judge has found it first."""
        before = self._read().get(reader)
        if before is not None and before[:2] == silence[:2]:
            silence = silence._replace(found_ms=min(before.found_ms, silence.found_ms))
        self._found[reader] = silence
        return silence.found_ms

    def save(self) -> frozenset[str]:
        """Write the record if it has changed, delete one of nobody; return whom it names."""
        if self._found:
            if self._found != self._read():
                self._store.put(self._key, encode_silences(self._found), durable=False)
        elif self._is_listed:
            self._store.delete([self._key])
        return frozenset(self._found)
