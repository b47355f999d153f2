"""Find the files removed since the retention mark, which retained versions still reference.

A sweep caches its result in a small object next to the log, so the next sweep reads only newer
commits. A cache whose digest or token does not match is not used, which costs only time.
"""

from __future__ import annotations

import json

import xxhash

from pravega_spark.engine.json_codec import to_json
from pravega_spark.engine.log.commit_log import Log
from pravega_spark.engine.log.snapshot import Snapshot

_FORMAT = 1


def removed_since_retention_mark(
    log: Log, snapshot: Snapshot, *, keep: bool = True
) -> dict[str, int]:
    """Return what the commits after the snapshot's retention mark removed.

    These are the paths, each with the version that removed it. ``keep`` writes the cache; a caller
    that only looks must not.
    """
    version, found = _cached(log, snapshot)
    if version < snapshot.version:
        for commit in log.reader.span(version, snapshot.version):
            found |= dict.fromkeys(commit.removes, commit.version)
        if keep:
            log.store.put(_key(log), _encode(snapshot, found), durable=False)
    return found


def _cached(log: Log, snapshot: Snapshot) -> tuple[int, dict[str, int]]:
    """Return the last version that the cache covers, and the paths by the removing version.

    Without a usable cache these are the retention mark and no paths.
    """
    uncached: tuple[int, dict[str, int]] = snapshot.retention_mark, {}
    try:
        line, _, digest = log.store.get(_key(log)).partition(b"\n")
        if xxhash.xxh3_128_hexdigest(line).encode() != digest.strip():
            return uncached
        record = json.loads(line)
        version = int(record["version"])
        if record["format"] != _FORMAT or not record["since"] <= snapshot.retention_mark <= version:
            return uncached
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return uncached
    if version > snapshot.version:
        return uncached
    commit = log.reader.commit(version, light=True)
    if commit is None or commit.token != record["token"]:
        return uncached
    return version, {
        path: at for path, at in record["removed"].items() if at > snapshot.retention_mark
    }


def _encode(snapshot: Snapshot, removed: dict[str, int]) -> bytes:
    record = {
        "format": _FORMAT,
        "since": snapshot.retention_mark,
        "version": snapshot.version,
        "token": snapshot.token,
        "removed": removed,
    }
    line = to_json(record).encode()
    return b"%b\n%b\n" % (line, xxhash.xxh3_128_hexdigest(line).encode())


def _key(log: Log) -> str:
    return f"{log.path}/_pravega/removed.json"
