"""Backups and restores in processes that are killed, of a stream that lives meanwhile.

Two processes write, one of them scales, and one truncates and sweeps with hardly any patience.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from pravega_spark.engine.log import garbage
from pravega_spark.errors import StoreRefused
from pravega_spark.manager import StreamManager
from pravega_spark.policies import RetentionPolicy, ScalingPolicy, StreamConfiguration
from tests.harness import failpoints
from tests.harness.retention_processes import write
from tests.harness.writer_processes import STREAM

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.harness.retention_processes"])
BACKUP = ("backup.file:20", "backup.log:2", "backup.table:2")
RESTORE = ("restore.closed", "restore.last:2")
WRITERS = ("w0", "w1")


def sweep(root: str, stop: str) -> None:
    """Truncate and sweep all the time; a file that is staged has two seconds to be committed."""
    garbage.CLEANUP_WAIT_SECONDS = 0.2
    retention = StreamManager(root).retention(STREAM)
    while not Path(stop).exists():
        retention.run(sample_every=0.001, grace=2.0, retain=0.0)
        time.sleep(0.05)


def back_up(root: str, target: str, crash: str) -> None:
    failpoints.kill_at(crash)
    StreamManager(root).backup(target)


def restore(root: str, crash: str) -> None:
    failpoints.kill_at(crash)
    StreamManager(root).restore()


def end_of(what: Any, *arguments: str) -> int | None:
    process = PROCESSES.Process(target=what, args=arguments, daemon=True)
    process.start()
    process.join(60)
    return process.exitcode


def check(root: str) -> int:
    """Read everything: of each writer and key, events follow each other without a gap."""
    numbers = defaultdict[tuple[str, str | None], list[int]](list)
    for event in StreamManager(root).read(STREAM):
        writer, number = event.data.decode().split()
        numbers[writer, event.routing_key].append(int(number))
    for found in numbers.values():
        assert found == list(range(found[0], found[-1] + 1, 8))
    return sum(map(len, numbers.values()))


def test_backups_and_restores_that_are_killed_while_everybody_goes_on(tmp_path: Path) -> None:
    root, copy, stop = (str(tmp_path / name) for name in ("root", "copy", "stop"))
    manager = StreamManager(root)
    manager.create_scope("s")
    policy = RetentionPolicy.by_size("3 KB")
    manager.create_stream(STREAM, StreamConfiguration(ScalingPolicy.by_event_rate(1_000), policy))
    told = [(write, (root, name, stop), {"scales": name == "w0"}) for name in WRITERS]
    actors = [
        PROCESSES.Process(target=what, args=args, kwargs=options, daemon=True)
        for what, args, options in [*told, (sweep, (root, stop), {})]
    ]
    for actor in actors:
        actor.start()
    try:
        while manager.stream_info(STREAM).version < 40:
            time.sleep(0.05)
        for crash in BACKUP:
            assert end_of(back_up, root, copy, crash) == -signal.SIGKILL, crash
            with pytest.raises(StoreRefused, match="is not whole"):
                check(copy)
        assert end_of(back_up, root, copy, "") == 0
    finally:
        Path(stop).touch()
        for actor in actors:
            actor.join(30)
    assert [actor.exitcode for actor in actors] == [0] * len(actors)
    assert check(copy)
    newest = max(Path(copy, STREAM, "events", "data").rglob("*.parquet"), key=_staged)
    newest.unlink()
    for crash in RESTORE:
        assert end_of(restore, copy, crash) == -signal.SIGKILL, crash
    assert end_of(restore, copy, "") == 0
    assert check(copy)
    done = StreamManager(copy).restore_stream(STREAM)  # reports what was done
    assert (done.dropped_events > 0, done.life) == (True, 2)
    with StreamManager(copy).create_writer(STREAM, "w0") as writer:
        assert writer.last_event_number > 0


def _staged(path: Path) -> tuple[int, int]:
    return int(path.parent.name.removeprefix("v")), path.stat().st_mtime_ns
