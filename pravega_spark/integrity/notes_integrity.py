"""Checks of small objects beside the logs: hints, memories and leases, and records of batches.

Most are written again by themselves, so a torn one is reported and does not count as damage.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

import xxhash

from pravega_spark.engine.log.files import ChangesPart, changes_key
from pravega_spark.engine.log.sweep_record import record_key as sweep_key
from pravega_spark.engine.runtime.json_codec import digested_record
from pravega_spark.engine.state.due_hints import DUE_FOLDER
from pravega_spark.engine.store import Store
from pravega_spark.engine.writing.split_batch import FOLDER as BATCHES_FOLDER
from pravega_spark.integrity.log_integrity import DamagedObject, Integrity
from pravega_spark.reader_groups.leases import OLD_CLOCK, decode_heartbeat
from pravega_spark.reader_groups.silent_readers import SILENT, decode_silences
from pravega_spark.scaling.rates import decode_rates


def _is_json(data: bytes) -> bool:
    try:
        return isinstance(json.loads(data), dict)
    except ValueError:
        return False


def _has_digest(data: bytes) -> bool:
    return digested_record(data) is not None


def _is_rates(data: bytes) -> bool:
    return decode_rates(data) is not None


def _is_heartbeat(data: bytes) -> bool:
    return decode_heartbeat(data) is not None


def _has_silences(data: bytes) -> bool:
    return decode_silences(data) is not None


_NOTES: Final[dict[str, tuple[Callable[[bytes], bool], str]]] = {
    "latest.json": (_is_json, "readers list the folders, and the next state file replaces it"),
    "sweep.json": (_has_digest, "the next sweep lists all files, and replaces it"),
    "swept.json": (_is_json, "the count of swept files begins again with the next sweep"),
    "compaction.json": (_has_digest, "the next plan looks at all chunks, and replaces it"),
    "rates.json": (_is_rates, "the scaling job computes the rates again from the log"),
}


def check_notes(store: Store, path: str, found: Integrity) -> None:
    """Check the hints and memories beside the log of the table at ``path``."""
    keys = [f"{path}/_pravega/{name}" for name in _NOTES]
    for key, data, (is_intact, way) in zip(
        keys, store.get_many(keys), _NOTES.values(), strict=True
    ):
        if data is not None and not is_intact(data):
            found.rebuilt.append(DamagedObject(key, f"it is torn, and not used: {way}"))
    found.rebuilt += _lost_changes(store, path)


def _lost_changes(store: Store, path: str) -> Iterator[DamagedObject]:
    """Yield the parts of a sweep's record that are not as it names them."""
    record = _sweep(store, path)
    segments = [] if record is None else [ChangesPart(*cells) for cells in record["segments"]]
    keys = [changes_key(path, segment.since, segment.version) for segment in segments]
    for key, segment, data in zip(keys, segments, store.get_many(keys), strict=True):
        if data is not None and xxhash.xxh3_128_hexdigest(data) == segment.digest:
            continue
        if _sweep(store, path) == record:
            state = "missing" if data is None else "torn"
            reason = f"it is {state}: a sweep that needs it lists all files, and replaces it"
            yield DamagedObject(key, reason)


def _sweep(store: Store, path: str) -> dict[str, Any] | None:
    record: dict[str, Any] | None = digested_record(store.get_many([sweep_key(path)])[0] or b"")
    return record


def check_leases(store: Store, group_path: str, found: Integrity) -> None:
    """Check the heartbeats of a group's readers, and the record of silent ones."""
    for entry in store.list(f"{group_path}/_leases"):
        name = entry.key.rpartition("/")[2]
        if name == OLD_CLOCK:
            continue
        is_intact, way = _is_heartbeat, "its reader writes it again with its next heartbeat"
        if name == SILENT:
            is_intact, way = _has_silences, "the next judge of the leases replaces it"
        reason = f"it is torn: {way}; until then it holds nothing"
        _check(store, entry.key, is_intact, found.rebuilt, reason)


def check_transaction_lease(store: Store, folder: str, found: Integrity) -> None:
    """Check the lease of an open transaction, of which mostly the date counts."""
    way = "its date counts, and the writer's next ping replaces it"
    _check(store, f"{folder}/lease.json", _is_json, found.rebuilt, f"it is torn: {way}")


def check_root_notes(store: Store, found: Integrity) -> None:
    """Check the records of batches, and the due hints of the root."""
    for entry in store.list(BATCHES_FOLDER):
        reason = (
            "it is torn, and the first batch of the writer's next run is refused. Put it back from "
            "a copy; or delete it, if the query or the application has the options that it had"
        )
        _check(store, entry.key, _has_digest, found.damage, reason)
    for entry in store.list(DUE_FOLDER):
        way = "the next round looks at its streams fully, and replaces it"
        _check(store, entry.key, _has_digest, found.rebuilt, f"it is torn, and not used: {way}")


def _check(
    store: Store,
    key: str,
    is_intact: Callable[[bytes], bool],
    where: list[DamagedObject],
    reason: str,
) -> None:
    data = store.get_many([key])[0]
    if data is not None and not is_intact(data):
        where.append(DamagedObject(key, reason))
