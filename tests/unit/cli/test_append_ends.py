"""Every end of ``stream append`` but success says how many of its events are durable."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from pravega_spark.errors import CommitUnknown, PravegaSparkError, StoreFull
from pravega_spark.event_writer import EventStreamWriter
from pravega_spark.manager import StreamManager
from pravega_spark.values.units import count_text
from tests.harness.killed_processes import shell_status, wait_until
from tests.unit.cli.conftest import Shell

CLI = (sys.executable, "-m", "pravega_spark.cli", "stream", "append", "s/a")
Fail = Callable[[Exception], None]


@pytest.fixture
def manager(tmp_path: Path) -> StreamManager:
    made = StreamManager(tmp_path / "root")
    made.create_scope("s")
    made.create_stream("s/a")
    return made


@pytest.fixture
def fail_the_fourth(monkeypatch: pytest.MonkeyPatch) -> Fail:
    """The first three events are committed, and the fourth write fails."""
    write = EventStreamWriter.write_event

    def failing(error: Exception) -> None:
        count = iter(range(1_000_000))

        def write_event(self: EventStreamWriter, *args: Any, **options: Any) -> Future[Any]:
            if next(count) == 3:
                self.flush()
                failed: Future[Any] = Future()
                failed.set_exception(error)
                return failed
            return write(self, *args, **options)

        monkeypatch.setattr(EventStreamWriter, "write_event", write_event)

    return failing


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (StoreFull("no space", url="here"), "3 events of this run are durable."),
        (
            CommitUnknown("no answer", version=7),
            "3 events of this run are durable, and of those after them it is unknown.",
        ),
    ],
)
def test_an_error_of_the_storage_says_what_is_durable(
    shell: Shell, fail_the_fourth: Fail, error: PravegaSparkError, text: str
) -> None:
    fail_the_fourth(error)
    assert shell.failed("stream", "append", "s/a", stdin=b"1\n2\n3\n4\n").endswith(f"{text}\n")
    assert len(list(shell.manager.read("s/a"))) == 3


def test_with_a_writer_id_an_error_of_the_storage_is_repeated_and_nothing_is_mended(
    shell: Shell, fail_the_fourth: Fail
) -> None:
    fail_the_fourth(StoreFull("no space", url="here"))
    append = ("stream", "append", "s/a", "--writer-id", "w")
    error = shell.failed(*append, stdin=b"1\n2\n3\n4\n")
    assert error.endswith("are durable. Repeat the command, which writes what is missing.\n")
    shell.ok(*append, stdin=b"1\n2\n3\n4\n")
    assert [event.data for event in shell.manager.read("s/a")] == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize(
    "command",
    [("stream", "append", "s/a"), ("kvt", "put", "s/t", "--separator", ",")],
    ids=["append", "put"],
)
@pytest.mark.parametrize("begun", [1, 4])
def test_an_interrupt_before_a_write_that_began_is_noticed_counts_that_write(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], begun: int
) -> None:
    shell.manager.create_key_value_table("s/t")
    write, count = EventStreamWriter.write_event, itertools.count(1)

    def write_event(self: EventStreamWriter, *args: Any, **options: Any) -> Future[Any]:
        future = write(self, *args, **options)
        if next(count) == begun:
            raise KeyboardInterrupt
        return future

    monkeypatch.setattr(EventStreamWriter, "write_event", write_event)
    status, _, error = shell(*command, stdin=b"1,x\n2,x\n3,x\n4,x\n5,x\n")
    assert status == 130
    said = count_text(begun, "event" if command[0] == "stream" else "put")
    assert f": {said} of this run {'is' if begun == 1 else 'are'} durable.\n" in error
    with shell.manager.key_value_table("s/t") as table:
        stored = len(list(shell.manager.read("s/a"))) + len(list(table.entries()))
    assert stored == begun


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", str(disk)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no right to mount a file system")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.mark.medium
def test_a_full_disk_says_what_is_durable_and_that_is_what_is_there(
    small_disk: Path, run: Any
) -> None:
    manager = StreamManager(small_disk / "root")
    manager.create_scope("s")
    manager.create_stream("s/a")
    root = ("--root", str(small_disk / "root"))
    noise = b"\n".join(os.urandom(1_500).hex().encode() for _ in range(15_000))
    status, _, error = run("stream", "append", "s/a", *root, stdin=noise)
    stored = sum(1 for _ in manager.read("s/a"))
    assert status == 1
    assert "StoreFull" in error
    assert "nothing that needs it is committed" in error
    assert f" {stored:,} events of this run are durable." in error, error
    assert stored > 0


def begun(manager: StreamManager, events: int, *options: str) -> subprocess.Popen[bytes]:
    """Return a process whose input goes on, once it has committed so many events."""
    made = subprocess.Popen(
        [*CLI, "--root", manager.root, *options], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert made.stdin is not None
    made.stdin.write(b"".join(b"%d\n" % number for number in range(12_000)))
    made.stdin.flush()
    for number, _ in enumerate(manager.follow("s/a", timeout=60), 1):
        if number >= events:
            break
    return made


@pytest.mark.medium
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_an_interrupt_says_what_is_durable_and_that_is_what_is_there(
    manager: StreamManager, number: signal.Signals, status: int
) -> None:
    process = begun(manager, 1_000)
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    stored = sum(1 for _ in manager.read("s/a"))
    assert shell_status(process.returncode) == status
    assert error.decode().strip() == f"stream s/a: {stored:,} events of this run are durable."


@pytest.mark.medium
def test_a_signal_that_ends_puts_says_what_is_durable(manager: StreamManager) -> None:
    manager.create_key_value_table("s/t")
    command = [sys.executable, "-m", "pravega_spark.cli", "kvt", "put", "s/t", "--separator", ","]
    process = subprocess.Popen(
        [*command, "--root", manager.root], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin is not None
    process.stdin.write(b"".join(b"%d,x\n" % number for number in range(5_000)))
    process.stdin.flush()
    with manager.key_value_table("s/t") as table:
        wait_until(lambda: table.get("100", fresh=True) is not None)
        process.send_signal(signal.SIGTERM)
        _, error = process.communicate(timeout=60)
        stored = sum(1 for _ in table.entries())
    assert process.returncode == 143
    assert error.decode().strip() == f"table s/t: {stored:,} puts of this run are durable."


@pytest.mark.medium
def test_after_a_kill_between_two_notes_a_changed_record_is_refused(
    shell: Shell, tmp_path: Path
) -> None:
    append = ("--writer-id", "w")
    process = begun(shell.manager, 1_500, *append)
    process.kill()
    process.communicate()
    stored = sum(1 for _ in shell.manager.read("s/a"))
    records = [b"%d\n" % number for number in range(12_000)]
    path = tmp_path / "records"
    for changed in (0, 1_200, stored - 1):
        other = [*records]
        other[changed] = b"other\n"
        path.write_bytes(b"".join(other))
        error = shell.failed("stream", "append", "s/a", str(path), *append)
        assert "records are others" in error
    path.write_bytes(b"".join(records))
    shell.ok("stream", "append", "s/a", str(path), *append)
    assert [event.data + b"\n" for event in shell.manager.read("s/a")] == records
