"""Failures of disks: full, read-only, power loss; on real file systems."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pravega_spark.config.descriptions import MaintenanceKind
from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.engine.store import PutOutcome, Store, ensure_probed, open_store
from pravega_spark.engine.store.reserve import RESERVE_BYTES, freeing, set_aside
from pravega_spark.errors import StoreError, StoreFull, StoreReadOnly, StoreRefused
from pravega_spark.maintenance.shares import MaintenanceShares
from pravega_spark.manager import StreamManager


def _mount(folder: Path, *options: str) -> None:
    command = ["mount", "-t", "tmpfs", *options, "none", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no right to mount: {done.stderr.strip()}")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A separate disk of one MiB."""
    if shutil.which("mount") is None:
        pytest.skip("no mount command")
    disk = tmp_path / "disk"
    disk.mkdir()
    _mount(disk, "-o", "size=1m")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def _write(store: Store, key: str, parts: Sequence[bytes]) -> None:
    with store.writer(key) as file:
        for part in parts:
            file.write(part)


def _files(folder: Path) -> list[str]:
    return sorted(name for _, _, names in os.walk(folder) for name in names)


def test_full_disk_fails_a_parquet_file_with_the_stores_error(small_disk: Path) -> None:
    store = open_store(small_disk / "root")
    noise = pa.table({"x": [os.urandom(1 << 16) for _ in range(32)]})
    with pytest.raises(StoreFull, match="chunk: No space left"), store.writer("chunk") as file:
        pq.write_table(noise, file, row_group_size=4)
    assert _files(small_disk) == []


def test_full_disk_is_an_error_that_leaves_nothing_behind(small_disk: Path) -> None:
    store = open_store(small_disk / "root")
    store.put("log/1", b"kept")
    for put in (store.put_if_absent, store.put):
        with pytest.raises(
            StoreFull, match=r"log/2: No space left.*nothing that needs it is committed"
        ):
            put("log/2", b"x" * (2 << 20))
        with pytest.raises(StoreFull):
            put("log/1" if put == store.put else "log/3", b"x" * (2 << 20))
    for key in ("log/1", "log/2", "data/1"):
        with pytest.raises(StoreFull, match=rf"{key}: No space left"):
            _write(store, key, [b"x" * (1 << 18)] * 8)
    assert _files(small_disk) == ["1"]
    assert store.get("log/1") == b"kept"
    assert store.put_if_absent("log/2", b"small") is PutOutcome.CREATED


def _eat(folder: Path, stop: threading.Event) -> None:
    """Take all space that becomes free, again and again, as a writer does that goes on."""
    while not stop.wait(0.001):
        with contextlib.suppress(OSError), open(folder / "eaten", "ab", buffering=0) as file:
            while not stop.is_set() and file.write(bytes(4096)):
                pass


@pytest.mark.parametrize("has_reserve", [True, False])
def test_full_disk_is_freed_beside_a_writer_that_eats_what_is_freed(
    tmp_path: Path, has_reserve: bool
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    _mount(disk, "-o", "size=8m")
    stop = threading.Event()
    eater = threading.Thread(target=_eat, args=(disk, stop))
    try:
        manager = StreamManager(disk / "root")
        manager.create_scope("s")
        manager.create_stream("s/t", StreamConfiguration(ScalingPolicy.fixed(2)))
        with manager.create_writer("s/t") as writer:
            for number in range(20):
                writer.write_event(os.urandom(1 << 16), str(number)).result()
        reserve = list((disk / "root").glob(".pravega_reserve-*"))
        assert sum(file.stat().st_size for file in reserve) == RESERVE_BYTES
        eater.start()
        while shutil.disk_usage(disk).free:
            time.sleep(0.001)
        if not has_reserve:
            for file in reserve:
                file.unlink()
            while shutil.disk_usage(disk).free:
                time.sleep(0.001)
            with pytest.raises(StoreFull):
                manager.truncate_stream("s/t", "latest")
            return
        shares = MaintenanceShares(open_store(disk / "root"), SYSTEM)
        for _ in range(3 * len(MaintenanceKind)):
            shares.wake_up()
        assert len(list((disk / "root").glob(".pravega_reserve-*"))) > len(reserve) - 6
        manager.update_settings(retain=0)
        manager.truncate_stream("s/t", "latest")
        assert manager.sweep_stream("s/t", grace=0).files >= 20
        stop.set()
        eater.join()
        (disk / "eaten").unlink()
        manager.sweep_stream("s/t", grace=0)
        assert len(list((disk / "root").glob(".pravega_reserve-*"))) == len(reserve)
        assert not list(manager.read("s/t"))
    finally:
        stop.set()
        if eater.is_alive():
            eater.join()
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.mark.parametrize("size", [40_000, 200_000])
def test_data_that_no_piece_of_the_reserve_holds_takes_several(tmp_path: Path, size: int) -> None:
    """As the record of a sweep of many files, after others took the large pieces."""
    disk = tmp_path / "disk"
    disk.mkdir()
    _mount(disk, "-o", "size=8m")
    try:
        ensure_probed(store := open_store(disk / "root"))
        for piece in (disk / "root").glob(".pravega_reserve-*"):
            if not piece.name.startswith(".pravega_reserve-16384-"):
                piece.unlink()
        with contextlib.suppress(OSError), open(disk / "eaten", "wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        with pytest.raises(StoreFull):
            store.put("log/1", bytes(size))
        data = os.urandom(size)
        with freeing(store):
            store.put("log/1", data)
        assert store.get("log/1") == data
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_small_disk_and_a_folder_that_is_no_root_get_no_reserve(small_disk: Path) -> None:
    ensure_probed(open_store(small_disk / "root"))
    assert _files(small_disk) == ["_pravega_spark.json"]
    folder = small_disk / "other"
    set_aside(open_store(folder))
    assert not folder.exists()


def test_read_only_disk_can_be_read_and_reports_a_write(small_disk: Path) -> None:
    open_store(small_disk / "root").put("log/1", b"kept")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    store = open_store(small_disk / "root")
    assert store.get("log/1") == b"kept"
    assert [entry.key for entry in store.list("")] == ["log/1"]
    for call in (
        lambda: store.put("log/2", b""),
        lambda: store.put_if_absent("log/2", b""),
        lambda: store.put_if_absent("new/folder/2", b""),
        lambda: store.delete(["log/1"]),
        lambda: ensure_probed(store),
    ):
        with pytest.raises(StoreReadOnly, match="Read-only file system"):
            call()
    assert store.put_if_absent("log/1", b"") is PutOutcome.EXISTS


def test_probed_root_can_be_opened_on_a_read_only_disk(small_disk: Path) -> None:
    ensure_probed(open_store(small_disk / "root"))
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    ensure_probed(open_store(small_disk / "root"))


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_folder_without_the_right_to_write_is_reported(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(StoreReadOnly, match="Permission denied"):
            open_store(tmp_path / "root").put_if_absent("key", b"")
    finally:
        tmp_path.chmod(0o700)


def test_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StoreRefused, match=r"file is a file, not a folder"):
            open_store(path)


KILLED = """
import os, sys
from pravega_spark.engine.store import local_files, open_store
def die(*arguments, **options):
    os._exit(9)
os.link = die
if sys.argv[2] == "named":
    local_files._O_TMPFILE = 0
    del os.O_TMPFILE
open_store(sys.argv[1]).put_if_absent("log/1", b"x" * 100_000)
"""


@pytest.mark.parametrize("kind", ["nameless", "named"])
def test_writer_killed_before_naming_the_file_leaves_no_object(tmp_path: Path, kind: str) -> None:
    store = open_store(tmp_path)
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), kind], check=False)
    assert done.returncode == 9
    assert store.list("") == []
    assert store.put_if_absent("log/1", b"next") is PutOutcome.CREATED
    if kind == "nameless" and hasattr(os, "O_TMPFILE"):
        assert _files(tmp_path) == ["1"]


WRITER_KILLED = """
import os, sys
from pravega_spark.engine.store import open_store
with open_store(sys.argv[1]).writer("data/1") as file:
    file.write(b"x" * 100_000)
    os._exit(9)
"""


def test_killed_writer_leaves_no_object_and_its_file_is_discarded(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    done = subprocess.run([sys.executable, "-c", WRITER_KILLED, str(tmp_path)], check=False)
    assert done.returncode == 9
    assert store.list("") == []
    assert store.discard_unfinished("data", 60_000) == []
    (left,) = store.discard_unfinished("data", -60_000)
    assert left.size == 100_000
    assert list(tmp_path.iterdir()) == []


_NEEDS_STRACE = pytest.mark.skipif(
    shutil.which("strace") is None, reason="strace is not installed (apt install strace)"
)
TRACED_WRITER = """
import sys
from pravega_spark.engine.store import open_store
with open_store(sys.argv[1]).writer("a/b") as file:
    file.write(b"x" * 100_000)
"""


@pytest.mark.medium
@_NEEDS_STRACE
def test_written_file_is_durable_before_it_has_its_name(tmp_path: Path) -> None:
    trace, root = tmp_path / "trace", tmp_path / "root"
    calls = "fsync,link,linkat,rename,renameat,renameat2"
    traced = ["strace", "-f", "-y", "-e", f"trace={calls}", "-o", str(trace)]
    subprocess.run([*traced, sys.executable, "-c", TRACED_WRITER, str(root)], check=True)
    lines = trace.read_text().splitlines()
    synced = next(i for i, line in enumerate(lines) if f"<{root}/a/." in line and "fsync" in line)
    named = next(i for i, line in enumerate(lines) if "link" in line and f"{root}/a/b" in line)
    folder = next(i for i, line in enumerate(lines) if "fsync" in line and f"<{root}/a>" in line)
    assert synced < named < folder


@pytest.mark.medium
@_NEEDS_STRACE
def test_acknowledged_create_was_fsynced_with_all_new_folders(tmp_path: Path) -> None:
    script = (
        "import sys; from pravega_spark.engine.store import open_store;"
        "open_store(sys.argv[1]).put_if_absent('a/b/c', b'x')"
    )
    trace = tmp_path / "trace"
    root = tmp_path / "root"
    traced = ["strace", "-f", "-y", "-e", "trace=fsync", "-o", str(trace)]
    subprocess.run([*traced, sys.executable, "-c", script, str(root)], check=True)
    synced = trace.read_text()
    for folder in (tmp_path, root, root / "a", root / "a" / "b"):
        assert f"<{folder}>" in synced


def test_put_makes_its_folders_again_when_one_is_pruned_while_it_makes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, mkdir = open_store(tmp_path), os.mkdir
    pruned: list[str] = []

    def mkdir_late(path: str, *rest: object, **options: object) -> None:
        if path.endswith("/a/b") and not pruned:
            pruned.append(path)
            os.rmdir(os.path.dirname(path))  # as another process that deletes the last file in it
        mkdir(path, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "mkdir", mkdir_late)
    assert store.put_if_absent("a/b/first", b"1") is PutOutcome.CREATED
    assert pruned
    assert store.get("a/b/first") == b"1"


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")
def test_folder_that_cannot_be_made_is_the_error() -> None:
    store = open_store("/proc/none")
    with pytest.raises(StoreError, match="/proc/none: No such file or directory"):
        store.put_if_absent("first", b"1")
