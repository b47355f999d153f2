"""After a power cut anywhere, a new process finds what was acknowledged, and goes on.

Two processes work on a root while strace records their calls on files. From the record a seed draws
when the power fails, and one of the contents that the disk may have then. Each fsync that the store
makes is left out of the record once: then some disk breaks a promise.
"""

from __future__ import annotations

import logging
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.tiers import sized
from tests.sim.history import joined
from tests.sim.power.disks import KINDS, Inode, content
from tests.sim.power.fsyncs import FSYNCS
from tests.sim.power.recording import Recording
from tests.sim.power.reopening import checked, first_refused
from tests.sim.power.system_calls import SystemCall, parsed
from tests.sim.power.workload import smaller_large_events
from tests.sim.recorded import calls_of

pytestmark = pytest.mark.extended

DISKS = sized(60, 1_000, "POWER_DISKS")
RECORDS = sized(1, 5, "POWER_RECORDS")
"""Runs that are recorded; the disks are drawn from them in turn."""
ALL_FILE_SYSTEMS = frozenset(KINDS)
CAUGHT_ON = {
    "content of commits": ALL_FILE_SYSTEMS,
    "content of chunks": ALL_FILE_SYSTEMS,
    "content of the rest": ALL_FILE_SYSTEMS,
    "names of commits": ALL_FILE_SYSTEMS,
    # A journal that keeps the order of all names has these when it has the commit's name.
    "names of chunks": {"folders"},
    "folders above": {"folders"},
    "chunks of large events": ALL_FILE_SYSTEMS,
    "chunks of bytes": ALL_FILE_SYSTEMS,
    "commits of groups": ALL_FILE_SYSTEMS,
    "rows of groups": ALL_FILE_SYSTEMS,
    "names of group commits": {"folders"},  # on the others a later fsync of anything has them
}
_NEEDS_STRACE = pytest.mark.skipif(
    shutil.which("strace") is None, reason="strace is not installed (apt install strace)"
)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> list[Recording]:
    return [Recording(tmp_path_factory.mktemp("power"), seed) for seed in range(RECORDS)]


@pytest.fixture(autouse=True)
def _smaller_large_events(monkeypatch: pytest.MonkeyPatch) -> None:
    smaller_large_events(monkeypatch)


@pytest.fixture(autouse=True)
def _no_warnings_of_what_was_lost() -> Iterator[None]:
    """What was not acknowledged may be gone, and the package warns of it."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


@_NEEDS_STRACE
@pytest.mark.slow
@pytest.mark.long
def test_whatever_the_disk_has_after_a_power_cut_every_promise_holds(
    recordings: list[Recording], tmp_path: Path
) -> None:
    records = [recording.whole() for recording in recordings]
    for number in range(DISKS):
        record = records[number % len(records)]
        checked(record, KINDS[number % 3], number, tmp_path / "disks")


@_NEEDS_STRACE
@pytest.mark.slow
@pytest.mark.parametrize("fsyncs", FSYNCS)
def test_fsync_that_is_left_out_breaks_a_promise(
    recordings: list[Recording], tmp_path: Path, fsyncs: str
) -> None:
    record = recordings[0].without(fsyncs)
    assert record.dropped > 0
    for kind in sorted(CAUGHT_ON[fsyncs]):
        assert first_refused(record, [kind], range(150), tmp_path / "disks") is not None, kind


@_NEEDS_STRACE
@pytest.mark.slow
def test_recorded_run_uses_what_a_power_cut_can_break(recordings: list[Recording]) -> None:
    record = recordings[0].whole()
    done = {call.operation for call in calls_of(joined(recordings[0].history)) if call.ok}
    assert {"create", "write", "commit", "update", "read", "get", "compact", "sweep"} <= done
    assert {"write_bytes", "read_bytes", "next", "leave"} <= done
    assert any(change.is_removal for change in record.changes)
    assert any(len(data) > 4096 for inode in record.inodes for _, _, data in inode.writes)


@_NEEDS_STRACE
def test_command_that_is_terminated_ends_what_it_traces_and_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.sim.power", "--disks", "1", "--recordings", "1"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment) as power:
        while not list(tmp_path.glob("power-*/0/history")):  # what is traced has begun
            assert power.poll() is None
            time.sleep(0.01)
        power.terminate()
        _, said = power.communicate(timeout=100)  # until all that it started have ended
    assert (power.returncode, said, list(tmp_path.iterdir())) == (1, b"", [])


def test_record_of_strace_is_read_with_calls_that_others_interrupt() -> None:
    def shown(text: str) -> str:
        return "".join(f"\\x{byte:02x}" for byte in text.encode())

    lines = [
        f"7 fsync(3<{shown('/r/a')}> <unfinished ...>\n",
        f'8 mkdir("{shown("/r/b")}", 0777) = 0\n',
        f'8 mkdir("{shown("/r/b")}", 0777) = -1 EEXIST (File exists)\n',
        "7 <... fsync resumed>) = 0\n",
        "8 +++ exited with 0 +++\n",
    ]
    mkdir, fsync = parsed(iter(lines))
    assert (mkdir.name, mkdir.texts(), mkdir.began, mkdir.ended) == ("mkdir", [b"/r/b"], 1, 1)
    assert (fsync.name, fsync.files(), fsync.began, fsync.ended) == ("fsync", ["/r/a"], 0, 3)


def call(line: int, name: str = "write") -> SystemCall:
    return SystemCall(line, line, 1, name, "", 0, "")


def test_file_that_was_not_fsynced_may_have_any_part_and_one_that_was_has_all() -> None:
    data = bytes(range(1, 251)) * 40
    inode = Inode(writes=[(call(1), 0, data)], size=len(data))
    found = {content(inode, "ext4", 9, random.Random(seed)) for seed in range(50)}
    assert found == {data[:size] for size in (0, 4096, 8192, len(data))}
    holed = [content(inode, "xfs", 9, random.Random(seed)) for seed in range(50)]
    assert any(b"\0" * 4096 in one for one in holed)
    inode.fsyncs.append(call(2, "fsync"))
    assert {content(inode, kind, 9, random.Random(1)) for kind in KINDS} == {data}
    assert content(inode, "ext4", 1, random.Random(1)) in found
