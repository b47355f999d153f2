"""Real processes race or are killed at failpoints; the next process completes their work."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from pravega_spark.config.encryption import EncryptionPolicy
from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.engine.key_management import KMS_VARIABLE
from pravega_spark.manager import StreamManager
from tests.harness import file_kms
from tests.harness.file_kms import MasterKeys
from tests.harness.tiers import IS_LONG
from tests.harness.warm_children import WarmChild
from tests.harness.writer_processes import STREAM

PROJECT = Path(__file__).parents[2]
COUNT = 24


def start(*arguments: str, crash: str = "", **variables: str) -> WarmChild:
    return WarmChild("tests.harness.writer_processes", *arguments, crash=crash, **variables)


def finish(process: WarmChild) -> tuple[int | None, str]:
    out, _ = process.communicate(timeout=240)
    return process.returncode, out


def run(*arguments: str, crash: str = "") -> int | None:
    return finish(start(*arguments, crash=crash))[0]


def ready(processes: list[WarmChild]) -> None:
    for process in processes:
        assert process.stdout.readline() == "ready\n"


def go(processes: list[WarmChild]) -> list[str]:
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    results = [finish(process) for process in processes]
    assert [code for code, _ in results] == [0] * len(processes)
    return [out for _, out in results]


@pytest.fixture
def root(tmp_path: Path) -> str:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    manager.create_stream(STREAM, StreamConfiguration(ScalingPolicy.fixed(2)))
    return str(tmp_path)


def texts(root: str, **options: Any) -> list[str]:
    return [event.data.decode() for event in StreamManager(root, **options).read(STREAM)]


# ------------------------------------------------------------------------------ killed writers


@pytest.mark.parametrize("point", ["append.staged:3", "commit.before:4", "commit.applied:2"])
def test_restarted_writer_resumes_without_loss_or_duplicate(root: str, point: str) -> None:
    check_resumed(root, point)


def test_restarted_writer_of_an_encrypted_stream_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    MasterKeys(tmp_path / "keys.json")
    monkeypatch.setenv(file_kms.VARIABLE, str(tmp_path / "keys.json"))
    monkeypatch.setenv(KMS_VARIABLE, file_kms.FACTORY)
    root = str(tmp_path / "root")
    manager = StreamManager(root)
    manager.create_scope("s")
    policy = EncryptionPolicy("first")
    manager.create_stream(STREAM, StreamConfiguration(ScalingPolicy.fixed(2), encryption=policy))
    check_resumed(root, "append.staged:3")


def check_resumed(root: str, point: str) -> None:
    """Kill a writer at a point, start it again, and check that each event is there once."""
    assert run("resume", root, "w", str(COUNT), crash=point) == -signal.SIGKILL
    left = len(texts(root))
    assert left < COUNT
    assert run("resume", root, "w", str(COUNT)) == 0

    found = texts(root)
    assert sorted(map(int, found)) == list(range(COUNT))
    for key in range(3):
        mine = [int(text) for text in found if int(text) % 3 == key]
        assert mine == list(range(key, COUNT, 3))
    with StreamManager(root).create_writer(STREAM, "w") as writer:
        assert (writer.last_event_number, writer.last_note) == (COUNT, f"line {COUNT}")


def test_second_process_with_the_same_writer_id_fences_the_first(root: str) -> None:
    old = start("stall", root, "w")
    ready([old])
    with StreamManager(root).create_writer(STREAM, "w") as writer:
        assert writer.last_event_number == 1
        writer.write_event("newer")
        writer.flush()
        assert go([old]) == ["WriterFenced\n"]
        writer.write_event("newest")
    assert sorted(texts(root)) == ["before the stall", "newer", "newest"]


# --------------------------------------------------------------------------------------- races


def check_race(found: list[str], racers: int, count: int) -> None:
    check_each_once(found, {f"r{racer}": count for racer in range(racers)})


def check_each_once(found: list[str], written: dict[str, int]) -> None:
    """Check that the events of each writer are there once and in order."""
    assert len(found) == len(set(found)) == sum(written.values())
    for name, count in written.items():
        mine = [int(text.partition("-")[2]) for text in found if text.startswith(f"{name}-")]
        assert mine == list(range(count))


def test_eight_processes_on_a_local_disk_commit_each_event_once_in_order(root: str) -> None:
    racers, count = 8, 15
    processes = [start("race", root, f"r{n}", str(count)) for n in range(racers)]
    ready(processes)
    go(processes)

    check_race(texts(root), racers, count)
    names = sorted(p.name for p in Path(root, STREAM, "events", "_delta_log").glob("*.json"))
    assert names == [f"{version:020d}.json" for version in range(len(names))]
    assert len(names) <= racers * count + 1
    commits = [Path(root, STREAM, "events", "_delta_log", name).read_text() for name in names]
    tokens = {json.loads(text.splitlines()[0])["commitInfo"]["txnId"] for text in commits}
    assert len(tokens) == len(names)
    paths = [
        json.loads(line)["add"]["path"]
        for text in commits
        for line in text.splitlines()
        if line.startswith('{"add"')
    ]
    assert len(set(paths)) == len(paths)


POINTS = ("append.listed:2", "commit.before:2", "commit.applied:2", "append.taken:1")


@pytest.mark.long
@pytest.mark.parametrize("points", [(p, p) for p in POINTS] if IS_LONG else [POINTS], ids=str)
def test_writers_survive_others_that_are_killed_while_they_commit_for_them(
    root: str, points: tuple[str, ...]
) -> None:
    doomed = [start("write_on", root, f"d{n}", crash=p) for n, p in enumerate(points)]
    racers = [start("write_on", root, f"r{n}") for n in range(6)]
    ready([*doomed, *racers])
    deadline = time.monotonic() + 240
    while sum(process.poll() is not None for process in doomed) < 2:
        assert time.monotonic() < deadline, "fewer than two writers reached their failpoints"
        time.sleep(0.05)
    written = {f"r{n}": int(out) for n, out in enumerate(go(racers))}
    for process in doomed:
        process.communicate("end\n", timeout=240)
    ends = [process.returncode for process in doomed]
    assert -signal.SIGKILL in ends
    assert set(ends) <= {0, -signal.SIGKILL}
    found = texts(root)
    check_each_once([text for text in found if text.startswith("r")], written)
    for n in range(len(doomed)):
        mine = [int(text.partition("-")[2]) for text in found if text.startswith(f"d{n}-")]
        assert mine == list(range(len(mine)))


@pytest.mark.slow
def test_verbs_of_one_process_are_not_starved_by_the_writers_of_others(root: str) -> None:
    racers, transactions = 4, 8
    processes = [start("write_on", root, f"r{n}") for n in range(racers)]
    ready(processes)
    with StreamManager(root).create_transactional_writer(STREAM) as writer:
        for number in range(transactions):  # the others write until all of these are committed
            with writer.begin_transaction() as transaction:
                transaction.write_event(f"t-{number}", "t")
    written = {f"r{n}": int(out) for n, out in enumerate(go(processes))}
    found = texts(root)
    check_each_once([text for text in found if text.startswith("r")], written)
    assert [text for text in found if text.startswith("t-")] == [
        f"t-{n}" for n in range(transactions)
    ]


@pytest.mark.s3
def test_eight_processes_on_s3_commit_each_event_once_in_order(s3: Any) -> None:
    racers, count = 8, 2
    root = f"s3://{s3.bucket}/race-of-processes"
    manager = StreamManager(root, storage_options=s3.options)
    manager.create_scope("s")
    manager.create_stream(STREAM)
    options = json.dumps(s3.options)
    processes = [
        start("race", root, f"r{n}", str(count), STORAGE_OPTIONS=options) for n in range(racers)
    ]
    ready(processes)
    go(processes)
    check_race(texts(root, storage_options=s3.options), racers, count)
    assert manager.stream_info(STREAM).version <= racers * count


def test_concurrent_creates_have_one_winner(tmp_path: Path) -> None:
    processes = [start("create", str(tmp_path), str(n)) for n in range(1, 5)]
    ready(processes)
    created = [out == "True\n" for out in go(processes)]

    (winner,) = [n for n, has_won in enumerate(created, 1) if has_won]
    info = StreamManager(tmp_path).stream_info(STREAM)
    assert (len(info.segments), info.version, info.life) == (winner, 0, 1)


# ----------------------------------------------------- killed between the scope and the stream


def test_stream_is_completed_after_its_creator_was_killed_between_row_and_table(
    tmp_path: Path,
) -> None:
    process = start("create", str(tmp_path), "2", crash="create.row")
    ready([process])
    assert process.stdin is not None
    process.stdin.write("go\n")
    assert finish(process)[0] == -signal.SIGKILL

    manager = StreamManager(tmp_path)
    assert manager.list_streams("s") == [STREAM]
    with manager.create_writer(STREAM) as writer:
        writer.write_event("x")
    assert [segment.number for segment in manager.segments(STREAM)] == [0, 1]


@pytest.mark.parametrize(
    "point", ["delete.committed", "delete.row", "sweep.delete", "sweep.recorded"]
)
def test_killed_delete_is_finished_by_the_next_call(root: str, point: str) -> None:
    manager = StreamManager(root)
    with manager.create_writer(STREAM) as writer:
        writer.write_event("x")
    assert run("delete", root, crash=point) == -signal.SIGKILL

    assert not manager.stream_exists(STREAM)
    assert not manager.delete_stream(STREAM)
    assert manager.list_streams("s") == []
    assert list(Path(root, STREAM, "events", "data").rglob("*.parquet")) == []
    assert manager.create_stream(STREAM)
    assert [segment.number for segment in manager.segments(STREAM)] == [2]


@pytest.mark.parametrize("point", ["sweep.history", "sweep.delete", "sweep.recorded"])
def test_killed_sweep_loses_no_event(root: str, point: str) -> None:
    assert run("resume", root, "w", "9", crash="append.staged:2") == -signal.SIGKILL
    assert run("resume", root, "w", str(COUNT)) == 0
    for n in range(3):
        with StreamManager(root).create_writer(STREAM) as writer:
            writer.write_event(f"{COUNT + n}")
    assert run("sweep", root, crash=point) == -signal.SIGKILL
    assert run("sweep", root) == 0
    assert sorted(map(int, texts(root))) == list(range(COUNT + 3))
