"""A table as of one version, read from storage without a ``Log``: its state and its files."""

from __future__ import annotations

from pravega_spark.engine.log.file_index import FileIndex, RecentLayer
from pravega_spark.engine.log.log_reader import LogReader
from pravega_spark.engine.log.snapshot import Snapshot, first_snapshot
from pravega_spark.engine.log.state_file import state_version
from pravega_spark.engine.log.state_part import part_key
from pravega_spark.errors import CorruptLog


def table_at(reader: LogReader, version: int) -> tuple[Snapshot, FileIndex]:
    """Return the table's state and its live files as of a version.

    Raises CorruptLog if the stored objects do not suffice to rebuild them.
    """
    opened = reader.open(below=version + 1)
    if opened is None:
        raise CorruptLog(f"{reader.where}: the table has no log.", path=reader.where)
    found: Snapshot | None = opened[0] if opened[1] >= 0 else None
    recent = RecentLayer(opened[1])
    for commit in reader.span(recent.older, version):
        found = first_snapshot(commit, reader.where) if found is None else found.apply(commit)
        recent.apply(commit)
    assert found is not None
    return found, reader.files(recent)


def keys_after(reader: LogReader, version: int) -> list[str]:
    """Return the keys of all commits, state files, their parts and checkpoints after a version.

    Includes objects of other Delta writers, and Delta's pointer to its last checkpoint.
    """
    found = [f"{reader.folder}/_last_checkpoint"]
    folders = (f"{reader.path}/_pravega/{kind}" for kind in ("state", "checkpoint"))
    for folder in (reader.folder, *folders):
        for entry in reader.store.list(folder):
            number = entry.key.removeprefix(f"{folder}/").partition(".")[0]
            if number.isdecimal() and int(number) > version:
                found.append(entry.key)
    parts = [span for span in reader.spans(version) if span.version > version]
    return found + [part_key(reader.path, span) for span in parts]


def is_commit_key(key: str) -> bool:
    """Return whether a key that :func:`keys_after` returned is that of a commit."""
    folder, _, name = key.rpartition("/")
    return folder.endswith("/_delta_log") and state_version(name) >= 0
