"""A table as of one version, from storage alone: its state and its files, without a ``Log``."""

from __future__ import annotations

from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.file_index import FileIndex, RecentLayer
from pravega_spark.engine.log.log_reader import LogReader
from pravega_spark.engine.log.snapshot import OPEN_PREFIX, Snapshot, first_snapshot
from pravega_spark.engine.log.state_file import state_version
from pravega_spark.engine.stream.records import OUTCOME_PREFIX, TransactionOutcome, decode_open
from pravega_spark.errors import CorruptLog


def table_at(reader: LogReader, version: int) -> tuple[Snapshot, FileIndex]:
    """Return the table's state and its live files as of a version.

    Raises CorruptLog if they cannot be rebuilt from what is stored.
    """
    opened = reader.open(below=version + 1)
    if opened is None:
        raise CorruptLog(f"{reader.where}: there is no log.", path=reader.where)
    found: Snapshot | None = opened[0] if opened[1] >= 0 else None
    recent = RecentLayer(opened[1])
    for commit in reader.span(recent.older, version):
        found = first_snapshot(commit, reader.where) if found is None else found.apply(commit)
        recent.apply(commit)
    assert found is not None
    return found, FileIndex(recent, reader.layer)


def beyond(reader: LogReader, version: int) -> list[str]:
    """Return the keys of commits, state files and checkpoints above a version, also of others'."""
    found = [f"{reader.folder}/_last_checkpoint"]
    folders = (f"{reader.path}/_pravega/{kind}" for kind in ("state", "checkpoint"))
    for folder in (reader.folder, *folders):
        for entry in reader.store.list(folder):
            number = entry.key.removeprefix(f"{folder}/").partition(".")[0]
            if number.isdecimal() and int(number) > version:
                found.append(entry.key)
    return found


def is_commit(key: str) -> bool:
    """Tell whether a key of :func:`beyond` is that of a commit."""
    folder, _, name = key.rpartition("/")
    return folder.endswith("/_delta_log") and state_version(name) >= 0


def end_transactions(
    snapshot: Snapshot, body: Body, version: int, now_ms: int, reason: str
) -> list[str]:
    """Let the commit of a version abort the transactions that are open; return their ids."""
    domains = dict(body.domains)
    for name, text in snapshot.open.items():
        opened = decode_open(name, text)
        outcome = TransactionOutcome(
            name,
            False,
            opened.created_ms,
            now_ms,
            version,
            "",
            writer_id=opened.writer_id,
            reason=reason,
        )
        domains[f"{OPEN_PREFIX}{name}"] = None
        domains[f"{OUTCOME_PREFIX}{name}"] = outcome.encode()
    body.domains = domains
    return sorted(snapshot.open)
