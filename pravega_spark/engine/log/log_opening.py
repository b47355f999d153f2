"""Open a log on an object store in three round trips: what can be asked at the same time is.

| round trip | requests |
| --- | --- |
| 1 | the root marker, unless the process has read it, and the hint |
| 2 | the hinted state file and its parts, the commit after them, and a listing of all after that |
| 3 | the other commits that are listed, and last the commit of the last part or state file |

A log that is hinted to begin at version 0, or has no hint, is opened from that commit, which round
trip 2 reads in place of a state file; it needs no third one if it has at most one commit more.

The listing begins after the hint was read, so it has every version that was committed before the
opening began. If that last commit is still stored when the versions after it have been read, and
none of those is missing, then no cleanup came between. Anything else is in doubt here, and the
caller opens the log step by step.

A copy of the state within the hint would save one of these requests, and a round trip only for a
log without a commit since its state file, one in 256: the commits since, and the proof that must
follow them, stay. Without the listing, stale or not, nothing shows a commit that was deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pravega_spark.engine.log.actions import Commit, parse_commit
from pravega_spark.engine.log.file_index import RecentLayer
from pravega_spark.engine.log.log_reader import Hint, LogReader, parse_hint
from pravega_spark.engine.log.snapshot import Snapshot, first_snapshot
from pravega_spark.engine.log.state_file import state_key
from pravega_spark.engine.log.state_part import part_key
from pravega_spark.engine.runtime import Runtime
from pravega_spark.limits import OPENED_COMMITS


@dataclass(frozen=True, slots=True)
class OpenedLog:
    """A log that was opened: a stored snapshot, and the commits after it up to the newest."""

    base: Snapshot | None
    """None if there is no log."""
    files: RecentLayer
    """The files since the last state file, at ``base``."""
    commits: tuple[Commit, ...]


_NO_LOG = OpenedLog(None, RecentLayer(-1), ())


def open_at_once(
    reader: LogReader, runtime: Runtime, hint: bytes | None, *, light: bool
) -> OpenedLog | None:
    """Return the log, whose hint the caller has read; None if its objects leave a doubt.

    Raises CorruptLog for a commit that cannot be read.
    """
    hinted = parse_hint(hint)
    base = max(0, hinted.newest)
    stored = _stored(reader, hinted) if base > 0 else [reader.key(0)]
    (*data, following), last = _read_base(reader, runtime, base, stored)
    if data[0] is None:
        return _NO_LOG if base == 0 and last == 0 and following is None else None
    if last - base > OPENED_COMMITS:
        return None
    found = _read_commits(reader, base, last, following)
    if found is None:
        return None
    if base > 0:
        state = reader.checked_state(hinted, data, found.pop(base))
        if state is None:
            return None
        snapshot, files = state, RecentLayer(base)
    else:
        first = parse_commit(0, data[0], reader.where, light=light)
        snapshot, files = first_snapshot(first, reader.where), RecentLayer(-1)
        if not light:
            files.apply(first)
    commits = tuple(
        parse_commit(version, found[version], reader.where, light=light)
        for version in range(base + 1, last + 1)
    )
    if any(c.restored_to is not None and c.restored_to < base for c in commits):
        return None
    return OpenedLog(snapshot, files, commits)


def _stored(reader: LogReader, hint: Hint) -> list[str]:
    """Return the keys of a state file and its parts."""
    parts = [part_key(reader.path, span) for span in hint.spans]
    return [state_key(reader.path, hint.state), *parts]


def _read_base(
    reader: LogReader, runtime: Runtime, base: int, stored: Sequence[str]
) -> tuple[list[bytes | None], int]:
    """Return the objects of the base, the commit after it, and the newest version that is known."""
    read: list[Any] = [
        partial(reader.store.get_many, [*stored, reader.key(base + 1)]),
        partial(reader.last_listed, base),
    ]
    found, last = runtime.each(lambda call: call(), read)
    return found, max(last, base + 1) if found[-1] is not None else last


def _read_commits(
    reader: LogReader, base: int, last: int, following: bytes | None
) -> dict[int, bytes] | None:
    """Return the commits of (base, last], and that of a stored state; None if one is missing.

    The state's commit is read after the others were, or at least after the one that follows.
    """
    found = {} if following is None else {base + 1: following}
    wanted = [version for version in range(base + 1, last + 1) if version not in found]
    if base > 0:
        wanted.append(base)
    data = reader.store.get_many([reader.key(version) for version in wanted]) if wanted else []
    read = dict(zip(wanted, data, strict=True))
    found.update((version, data) for version, data in read.items() if data is not None)
    return found if len(found) == last - base + (base > 0) else None
