"""Backups and restores in processes that are killed, while other processes use the stream.

Two processes write, one of them also scales, and a third truncates and sweeps with short times.
"""

from __future__ import annotations

import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from pravega_spark.config.policies import RetentionPolicy, ScalingPolicy, StreamConfiguration
from pravega_spark.engine.log import follow
from pravega_spark.engine.log import sweep as log_sweep
from pravega_spark.errors import StoreRefused
from pravega_spark.manager import StreamManager, root_of
from tests.harness import failpoints
from tests.harness.retention_processes import write
from tests.harness.warm_children import FORKED
from tests.harness.writer_processes import STREAM

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")

BACKUP = ("backup.file:20", "backup.log", "backup.table", "backup.led-up:2", "backup.applied")
UPDATE = ("backup.led-up", "backup.prepared", "backup.applied", "backup.changed")
RESTORE = ("restore.cleared", "restore.last:2")
WRITERS = ("w0", "w1")
CLEANUP_SECONDS = 4.0
"""In place of an hour: how old a commit is at least that is deleted."""
WAIT_SECONDS = 240.0


def know_of_cleanup() -> None:
    """Let this process look whether a log was cleaned that it read so long ago.

    As CLEANUP_WAIT_SECONDS asks for, of which a process does not know that it is short here.
    """
    mock.patch.object(follow, "STALE_SNAPSHOT_SECONDS", CLEANUP_SECONDS / 2).start()


def use(root: str, name: str, stop: str, *, scales: bool) -> None:
    know_of_cleanup()
    write(root, name, stop, scales=scales)


def sweep(root: str, stop: str) -> None:
    """Truncate and sweep in a loop; a staged file has two seconds to be committed."""
    know_of_cleanup()
    mock.patch.object(log_sweep, "CLEANUP_WAIT_SECONDS", CLEANUP_SECONDS).start()
    retention = StreamManager(root).retention(STREAM)
    while not Path(stop).exists():
        retention.run(sample_every=0.001, grace=2.0, retain=0.0)
        time.sleep(0.05)


def back_up(root: str, target: str, kill: str, update: str = "") -> None:
    failpoints.kill_at(kill)
    know_of_cleanup()
    StreamManager(root).backup(target, update=bool(update))


def restore(root: str, kill: str) -> None:
    failpoints.kill_at(kill)
    StreamManager(root).restore()


def exit_code(function: Callable[..., None], *arguments: str) -> int | None:
    """Run a function in a process of its own; return the process's exit code."""
    process = FORKED.Process(target=function, args=arguments, daemon=True)
    process.start()
    process.join(WAIT_SECONDS)
    return process.exitcode


def check(root: str) -> int:
    """Check that each writer's events of each key have no gap; return the number of events."""
    numbers = defaultdict[tuple[str, str | None], list[int]](list)
    for event in StreamManager(root).read(STREAM):
        writer, number = event.data.decode().split()
        numbers[writer, event.routing_key].append(int(number))
    for found in numbers.values():
        assert found == list(range(found[0], found[-1] + 1, 8))
    return sum(map(len, numbers.values()))


def test_killed_backups_and_restores_are_finished_by_the_next_while_the_stream_is_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "STALE_SNAPSHOT_SECONDS", CLEANUP_SECONDS / 2)
    root, copy, stop = (str(tmp_path / name) for name in ("root", "copy", "stop"))
    manager = StreamManager(root)
    manager.create_scope("s")
    policy = RetentionPolicy.by_size("3 KB")
    manager.create_stream(STREAM, StreamConfiguration(ScalingPolicy.by_event_rate(1_000), policy))

    def writes(name: str) -> bool:
        record = root_of(manager).stream(STREAM).view().writer(name)
        return record is not None and record.last > 0

    actors = [
        FORKED.Process(target=use, args=(root, w, stop), kwargs={"scales": w == "w0"})
        for w in WRITERS
    ]
    actors.append(FORKED.Process(target=sweep, args=(root, stop)))
    for actor in actors:
        actor.daemon = True
        actor.start()
    try:
        while manager.stream_info(STREAM).version < 40 or not all(map(writes, WRITERS)):
            time.sleep(0.05)
        for kill in BACKUP:
            assert exit_code(back_up, root, copy, kill) == -signal.SIGKILL, kill
            with pytest.raises(StoreRefused, match="is an incomplete copy"):
                check(copy)
        assert exit_code(back_up, root, copy, "") == 0
        for kill in UPDATE:
            assert exit_code(back_up, root, copy, kill, "update") == -signal.SIGKILL, kill
            assert check(copy), f"it is open, although {kill} has killed its update"
        assert exit_code(back_up, root, copy, "", "update") == 0
    finally:
        Path(stop).touch()
        for actor in actors:
            actor.join(WAIT_SECONDS)
    assert [actor.exitcode for actor in actors] == [0] * len(actors)
    assert check(copy)
    newest = max(Path(copy, STREAM, "events", "data").rglob("*.parquet"), key=_staged)
    newest.unlink()
    for kill in RESTORE:
        assert exit_code(restore, copy, kill) == -signal.SIGKILL, kill
    assert exit_code(restore, copy, "") == 0
    assert check(copy)
    done = StreamManager(copy).restore_stream(STREAM)  # reports the finished restore
    assert done.dropped_events > 0
    with StreamManager(copy).create_writer(STREAM, "w0") as writer:
        assert writer.last_event_number > 0


def _staged(path: Path) -> tuple[int, int]:
    """Return the horizon and the time at which a file was staged, to sort by age."""
    return int(path.parent.name.removeprefix("v")), path.stat().st_mtime_ns
