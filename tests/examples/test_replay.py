"""The demo kills its ingest once, at the worst moment, and starts it again."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from flights.replay import IngestProcess, Replay, ReplayFailed

BATCHES = 20
ROWS = 100

# Writes a batch and then records it in the checkpoint, as Spark does; resumes where the checkpoint
# ends. Waits to be killed before or after it records one batch as finished.
INGEST = """
import os, sys, time
folder, batch_of_kill, place = sys.argv[1], int(sys.argv[2]), sys.argv[3]

def at(here):
    if here == place and batch == batch_of_kill and not os.path.exists(f"{folder}/waited"):
        open(f"{folder}/waited", "w").close()
        time.sleep(600)

for name in ("offsets", "commits", "stream"):
    os.makedirs(f"{folder}/{name}", exist_ok=True)
for batch in range(len(os.listdir(f"{folder}/commits")), %d):
    open(f"{folder}/offsets/{batch}", "w").close()
    open(f"{folder}/stream/{batch}", "w").close()
    at("before")
    open(f"{folder}/commits/{batch}", "w").close()
    at("after")
"""


class Fake:
    """An ingest of 20 batches, and what the demo observes of it."""

    def __init__(
        self, folder: Path, program: str = INGEST % BATCHES, waits: tuple[int, str] = (8, "before")
    ) -> None:
        self.folder = folder
        self.ingest = IngestProcess(
            [sys.executable, "-c", program, str(folder), *map(str, waits)],
            checkpoint=folder,
            log=folder / "log",
        )
        self.seen: list[tuple[int, int]] = []
        self.replay = Replay(
            self.ingest,
            [ROWS] * BATCHES,
            written=self.written,
            read=lambda: 0,
            on_sample=lambda written, read: self.seen.append((written, read)),
        )

    def written(self) -> int:
        stream = self.folder / "stream"
        return ROWS * len(os.listdir(stream)) if stream.exists() else 0

    def run(self) -> None:
        self.replay.start()
        try:
            self.replay.run()
        finally:
            self.ingest.stop()


def test_ingest_is_killed_between_its_commit_and_the_checkpoint(tmp_path: Path) -> None:
    fake = Fake(tmp_path)
    fake.run()
    timeline = fake.replay.timeline
    assert fake.written() == BATCHES * ROWS
    assert timeline.killed_durable
    assert timeline.killed_at is not None
    assert timeline.killed_batch == 8
    assert timeline.resumed_at is not None
    assert timeline.killed_at < timeline.resumed_at < timeline.ingested_at
    assert fake.seen[-1] == (BATCHES * ROWS, 0)


def test_ingest_that_is_never_ahead_of_its_checkpoint_is_killed_at_any_moment(
    tmp_path: Path,
) -> None:
    fake = Fake(tmp_path, waits=(12, "after"))
    fake.run()
    timeline = fake.replay.timeline
    assert timeline.killed_at is not None
    assert not timeline.killed_durable
    assert fake.written() == BATCHES * ROWS


def test_kill_leaves_no_process_of_the_ingest(tmp_path: Path) -> None:
    program = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open({str(tmp_path / "child")!r}, "w").write(str(child.pid))
open({str(tmp_path / "ready")!r}, "w").close()
time.sleep(600)
"""
    fake = Fake(tmp_path, program)
    fake.ingest.start()
    while not (tmp_path / "ready").exists():
        assert not fake.ingest.ended()
    child = (tmp_path / "child").read_text()
    fake.ingest.stop()
    deadline = time.monotonic() + 60
    while _runs(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _runs(child)


def _runs(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_ingest_that_fails_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    fake = Fake(tmp_path, "print('before'); raise SystemExit('the disk is full')")
    with pytest.raises(ReplayFailed, match=r"status 1; .*log ends:\n(?s:.*)the disk is full"):
        fake.run()


def test_ingest_does_not_join_the_spark_that_runs_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setenv("PYSPARK_GATEWAY_SECRET", "x")
    program = "import os; assert not [n for n in os.environ if n.startswith('PYSPARK_GATEWAY')]"
    fake = Fake(tmp_path, program)
    fake.run()
    assert fake.replay.timeline.killed_at is None


@pytest.mark.medium
def test_replay_that_stalls_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flights.replay.STALLED_SECONDS", 0.5)
    with pytest.raises(ReplayFailed, match="nothing was written or read"):
        Fake(tmp_path, "import time; time.sleep(600)").run()


def test_stopping_twice_or_before_the_start_does_nothing(tmp_path: Path) -> None:
    fake = Fake(tmp_path)
    fake.ingest.stop()
    fake.ingest.start()
    fake.ingest.stop()
    fake.ingest.stop()
    with pytest.raises(ReplayFailed, match="status -9"):
        fake.ingest.ended()
