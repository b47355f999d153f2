"""Small Delta tables in any store: create, commit, clean up, list the versions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pravega_spark.engine.log.actions import Add, Body, Remove
from pravega_spark.engine.log.checkpoint import maintain
from pravega_spark.engine.log.commit import Log
from pravega_spark.engine.log.retained import VersionAges, raise_horizon
from pravega_spark.engine.log.snapshot import PROTOCOL, Snapshot, new_table
from pravega_spark.engine.log.sweep import delete_old_commits, mark_has_aged
from pravega_spark.engine.runtime.system import Runtime
from pravega_spark.engine.store import Store
from pravega_spark.values.limits import CLEANUP_WAIT_SECONDS
from tests.harness.fake_runtime import NOW_MS, FakeRuntime

FILE_BYTES = 10
"""The size of every file."""


def table_log(store: Store, runtime: Runtime | None = None, path: str = "s/t/events") -> Log:
    """Return the log of an empty table; create the table unless it exists."""
    log = Log(store, path, runtime or FakeRuntime())

    def decide(snapshot: Snapshot | None) -> Body | None:
        if snapshot is not None:
            return None
        table = new_table({"a": "long"}, [], "id", path, NOW_MS)
        return Body("CREATE", protocol=PROTOCOL, metadata=table)

    commit(log, decide)
    return log


def commit(log: Log, body: Callable[[Snapshot | None], Body | None]) -> Snapshot:
    """Commit the body that ``body`` makes from the newest snapshot; return the new snapshot."""
    return log.commit(lambda snapshot: (body(snapshot), None)).snapshot


def event_add(path: str, segment: int, base: int, rows: int, *, change: bool = True) -> Add:
    partition = {"segment_id": str(segment), "base_offset": str(base)}
    return Add(path, partition, FILE_BYTES, NOW_MS, None, {"rows": str(rows)}, change)


def put(log: Log, value: str | None, adds: Sequence[Add] = (), removes: Sequence[str] = ()) -> int:
    """Commit a value of the domain ``test``, with added and removed files; return the version."""
    removed = [Remove(path, NOW_MS, size=FILE_BYTES) for path in removes]

    def decide(snapshot: Snapshot | None) -> Body:
        return Body("TEST", domains={"test": value}, adds=adds, removes=removed)

    return commit(log, decide).version


def raise_marks(log: Log, horizon: int, mark: int) -> Snapshot:
    """Commit a horizon, and one version as the retention mark and the commit-deletion mark."""
    newest = log.refresh()
    assert newest is not None
    return raise_horizon(log, horizon, mark, aged_since=newest.commit_deletion_set_version)


def clean(log: Log, runtime: FakeRuntime, mark: int) -> int:
    """Write two checkpoints, raise both marks, and delete older commits once it has aged."""
    newest = log.refresh()
    assert newest is not None
    maintain(log.reader, mark, checkpoint=True)
    maintain(log.reader, newest.version, checkpoint=True)
    raise_marks(log, newest.version, mark)
    mark_has_aged(log, VersionAges.read(log, now_ms=runtime.now_ms() + 10**12))
    runtime.sleep(CLEANUP_WAIT_SECONDS + 1)
    return delete_old_commits(log)


def versions(log: Log) -> list[int]:
    """Return the versions whose commits are stored."""
    names = [entry.key.rsplit("/", 1)[-1] for entry in log.store.list(log.reader.folder)]
    return [int(name[:20]) for name in names if name.endswith(".json") and name[0] != "_"]


def add_ids(log: Log, count: int) -> Snapshot:
    """Commit as many domains at once as writers with ids leave, and then a state file."""
    ids: dict[str, str | None] = {f"pravega.writer.{n}": f"[1,{n},{n}]" for n in range(count)}
    added = commit(log, lambda snapshot: Body("TEST", domains=ids))
    maintain(log.reader, added.version)
    return added
