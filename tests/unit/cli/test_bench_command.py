"""``bench`` measures, proves and cleans up, and works nowhere but in its own folder."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from pravega_spark import StreamManager
from pravega_spark.benchmark.folder import MARK_KEY, Prefix
from pravega_spark.benchmark.meter import Bounds, Meter
from pravega_spark.benchmark.run import Plan, Proof, prove
from pravega_spark.benchmark.run import run as run_bench
from pravega_spark.benchmark.workloads import Workloads
from pravega_spark.engine.store.root_marker import MARKER_KEY
from tests.harness.killed_processes import shell_status
from tests.unit.cli.conftest import CommandLine, Shell

PRICES = Path("bench/scale/prices-2025-06-us-east-1.toml")
COMMAND = [sys.executable, "-u", "-m", "pravega_spark.cli", "bench"]
WORKLOADS = ["append", "pipelined", "tail", "transaction", "writers"]
_prefixes = itertools.count()


def prefix_in_memory() -> str:
    return f"memory://bench-{next(_prefixes)}"


def files(folder: Path) -> list[str]:
    """All that is in a folder, hidden files and empty folders too."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def aged(folder: Path) -> None:
    """Let a folder's run be over for long."""
    old = (folder / MARK_KEY).stat().st_mtime - 3_600
    os.utime(folder / MARK_KEY, (old, old))


def started(prefix: Path, until: str, *options: str) -> subprocess.Popen[str]:
    """A process that measures, once it has said so."""
    argv = [*COMMAND, "--root", str(prefix), "--seconds", "10 min", *options]
    process = subprocess.Popen(argv, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if until in line:
            return process
    raise AssertionError(f"it ended before {until}")


@pytest.mark.medium(covers=True)
def test_all_workloads_are_measured_within_the_bounds_and_nothing_is_left(
    run: CommandLine, manager: StreamManager, tmp_path: Path
) -> None:
    options = ["--seconds", "10 min", "--calls", "3000", "--bytes", "20 MiB", "--writers", "3"]
    options += ["--prices", str(PRICES)]
    status, text, error = run(
        "bench", "--root", str(tmp_path / "a b"), *options, "--output", "json"
    )
    assert status == 0, error
    found = json.loads(text)
    assert f"Works in file://{tmp_path}/a b/pravega-spark-bench-" in error
    assert "3,000 calls" in error
    assert [each["name"] for each in found["workloads"]] == [*WORKLOADS, "read back"]
    for each in found["workloads"][:-1]:
        assert each["operations"] > 0, each["name"]
        assert 0 < each["p50_ms"] <= each["p99_ms"]
        assert each["calls"]["PUT"] > 0
    append = found["workloads"][0]
    assert 2 <= append["calls"]["PUT"] / append["operations"] < 2.5
    hourly = append["calls"]["PUT"] * 0.005 + append["calls"]["LIST"] * 0.005
    hourly += append["calls"]["GET"] * 0.0004
    assert append["dollars_an_hour"] == pytest.approx(hourly / 1_000 * 3_600 / append["seconds"])
    used, proof = found["used"], found["proof"]
    assert sum(used["calls"].values()) <= 3_000
    assert used["written_bytes"] + used["read_bytes"] <= 20 << 20
    assert (proof["is_good"], proof["is_complete"], proof["breaks"]) == (True, True, [])
    assert proof["events"] == proof["acknowledged"] > 0
    assert found["removed_objects"] > 0
    assert files(tmp_path) == []  # nor the folder that it made for itself
    assert manager.list_scopes() == ["other", "s"]  # the root of the variable


@pytest.mark.medium
def test_table_says_what_was_measured_proved_and_spent(run: CommandLine) -> None:
    status, text, error = run(
        *("bench", "--root", prefix_in_memory(), "--seconds", "10 min", "--calls", "2000"),
        *("--prices", str(PRICES)),
    )
    assert status == 0, error
    assert "Not measured" not in error
    assert [line.split("  ")[0] for line in text.splitlines()[1:7]] == [*WORKLOADS, "read back"]
    rows = [line.split() for line in text.splitlines()[1:6]]
    few = [name for name, operations, *_ in rows if int(operations.replace(",", "")) < 100]
    assert few
    assert f"Fewer than 100 operations of {', '.join(few)}: their P99 is the slowest one." in text
    assert "none of the" in text
    assert re.search(r"This run took .* PUT, .* GET, .*: \$0\.0", text)


@pytest.mark.medium
def test_local_disk_has_nothing_to_pay(shell: Shell, tmp_path: Path) -> None:
    argv = ["bench", "--root", str(tmp_path), "--seconds", "10 min", "--calls", "1000"]
    status, text, error = shell(*argv)
    assert status == 0, error
    assert "A local storage bills no request." in error
    assert "A local storage bills none of them" in text
    assert "$" not in text + error
    _, text, _ = shell(*argv, "--output", "json")
    found = json.loads(text)
    assert [found["prices"], found["used"]["dollars"]] == [None, None]
    for each in found["workloads"]:
        assert each["dollars_an_hour"] is None
        assert each["dollars_a_month_to_keep_an_hour"] is None


@pytest.mark.medium
@pytest.mark.parametrize("after", ["set-up", "append"])
def test_what_could_not_be_measured_in_the_time_is_named_with_what_to_give(
    run: CommandLine, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    name = {"set-up": "set_up", "append": "_append"}[after]
    work = getattr(Workloads, name)

    def slow(workloads: Workloads, *given: Any) -> Any:
        """Let the time be over when it is done."""
        done = work(workloads, *given)
        workloads._meter._began -= 5.0
        return done

    monkeypatch.setattr(Workloads, name, slow)
    status, text, error = run("bench", "--root", prefix_in_memory(), "--seconds", "5s")
    missing = WORKLOADS if after == "set-up" else WORKLOADS[1:]
    assert f"Not measured: {', '.join(missing)}. The share of --seconds (5.0 s in all)" in error
    assert "give more, up to 10.0 minutes." in error
    assert status == (1 if after == "set-up" else 0), text


def test_help_has_the_limits_that_errors_name(shell: Shell) -> None:
    said = " ".join(shell.ok("bench", "--help").split())
    for limits in ("5.0 s to 10.0 minutes", "1,000 to 1,000,000", "16 MiB to 16 GiB", "1 to 256"):
        assert limits in said
    assert "48 bytes to 1 MiB" in said


def test_no_root_is_taken_from_the_variable_or_a_profile(shell: Shell) -> None:
    error = shell.failed("bench")
    assert "Missing option '--root'" in error
    assert "No such option" in shell.failed("bench", "--profile", "x")


@pytest.mark.parametrize(
    ("option", "value", "part"),
    [
        ("--seconds", "1s", "--seconds must be between 5.0 s and 10.0 minutes, got 1.0 s"),
        ("--seconds", "soon", "--seconds 'soon' is not a valid duration"),
        ("--seconds", "11 min", "got 11.0 minutes"),
        ("--calls", "999", "--calls must be between 1000 and 1000000, got 999"),
        ("--bytes", "1 MiB", "--bytes must be between 16 MiB and 16 GiB, got 1 MiB"),
        ("--writers", "0", "--writers must be between 1 and 256, got 0"),
        ("--writers", "100000", "got 100000"),
        ("--event-size", "47", "--event-size must be between 48 bytes and 1 MiB, got 47 bytes"),
        ("--remove", "nyc", "has no folder 'nyc' of a benchmark: no run has left anything there"),
        ("--prices", "/none.toml", "/none.toml cannot be read as prices"),
    ],
)
def test_a_value_that_is_not_allowed_is_misuse(
    shell: Shell, option: str, value: str, part: str
) -> None:
    status, _, error = shell("bench", "--root", prefix_in_memory(), option, value)
    assert status == 2
    assert part in error


@pytest.mark.parametrize("place", ["", "/", "/s", "/s/a/events/data", "/new/deep"])
def test_a_root_and_a_place_in_one_are_refused(shell: Shell, tmp_path: Path, place: str) -> None:
    root = StreamManager(tmp_path / "root")
    root.create_scope("s")
    root.create_stream("s/a")
    assert "a root of streams" in shell.failed("bench", "--root", f"{tmp_path}/root{place}")
    assert not [name for name in files(tmp_path) if "bench" in name or "new" in name]


def test_a_link_into_a_root_and_a_link_in_a_root_are_refused(shell: Shell, tmp_path: Path) -> None:
    StreamManager(tmp_path / "root").create_scope("s")
    (tmp_path / "outside").mkdir()
    (tmp_path / "in").symlink_to(tmp_path / "root" / "s")
    (tmp_path / "root" / "out").symlink_to(tmp_path / "outside")
    for link in ("in", "root/out"):
        assert "a root of streams" in shell.failed("bench", "--root", str(tmp_path / link))
    assert files(tmp_path / "outside") == []


def test_a_root_in_memory_is_refused(shell: Shell) -> None:
    assert "a root of streams" in shell.failed("bench", "--root", shell.manager.root)


@pytest.mark.parametrize("place", ["", "/part=1", "/_delta_log", "/new/deep"])
@pytest.mark.parametrize("is_old", [False, True], ids=["new", "cleaned up"])
def test_a_delta_table_and_a_place_in_one_are_refused(
    shell: Shell, tmp_path: Path, place: str, is_old: bool
) -> None:
    table = tmp_path / "table"
    write_deltalake(table, pa.table({"part": [1], "value": [2]}), partition_by=["part"])
    if is_old:
        DeltaTable(table).create_checkpoint()
        (table / "_delta_log" / "00000000000000000000.json").unlink()
    before = files(table)
    assert "a Delta table" in shell.failed("bench", "--root", f"{table}{place}")
    assert files(table) == before


def test_a_place_in_a_scope_without_its_root_is_refused(shell: Shell, tmp_path: Path) -> None:
    root = StreamManager(tmp_path / "root")
    root.create_scope("s")
    root.create_stream("s/a")
    (tmp_path / "root" / MARKER_KEY).unlink()
    for place in ("s/a", "s/new"):
        assert "a scope of a root" in shell.failed("bench", "--root", f"{tmp_path}/root/{place}")


@pytest.mark.parametrize("folder", ["_delta_log", "_scope"])
def test_a_table_and_a_scope_without_its_root_are_refused(
    shell: Shell, tmp_path: Path, folder: str
) -> None:
    (tmp_path / folder).mkdir()
    assert f"has a folder {folder}" in shell.failed("bench", "--root", str(tmp_path))


@pytest.mark.parametrize("place", ["file", "file/below/it", "link"])
def test_a_file_is_no_place(shell: Shell, tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert "is a file, not a folder" in shell.failed("bench", "--root", str(tmp_path / place))
    assert files(tmp_path) == ["file", "link"]


@pytest.mark.medium
@pytest.mark.parametrize(
    ("number", "until"),
    [
        (signal.SIGINT, "setting up"),
        (signal.SIGHUP, "append:"),
        (signal.SIGINT, "tail:"),
        (signal.SIGTERM, "transaction:"),
    ],
)
def test_a_signal_ends_the_run_and_leaves_nothing(
    tmp_path: Path, number: signal.Signals, until: str
) -> None:
    (tmp_path / "mine").write_text("kept")
    with started(tmp_path, until, "--calls", "3000") as process:
        process.send_signal(number)
        _, error = process.communicate(timeout=300)
    assert shell_status(process.returncode) == 128 + number
    assert "Traceback" not in error
    assert "interrupted: the figures so far are not a result\n" in error
    assert files(tmp_path) == ["mine"]


@pytest.mark.medium
@pytest.mark.parametrize("interrupts", [1, 2])
def test_a_first_interrupt_of_the_clean_up_lets_it_end_and_a_second_one_says_what_is_left(
    tmp_path: Path, interrupts: int
) -> None:
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        if text.startswith("removing") and said.count(text) <= interrupts:
            raise KeyboardInterrupt

    bounds = Bounds(600.0, 1_000, 1 << 24)
    meter = Meter(bounds)
    with pytest.raises(KeyboardInterrupt):
        run_bench(
            Prefix(str(tmp_path), meter, said.append), "run", Plan(bounds, 1, 100), meter, say
        )
    assert said.count("interrupted: the figures so far are not a result") == 1
    if interrupts == 1:
        assert files(tmp_path) == []
    else:
        assert "run is not removed; the next run names the command" in said[-1]
        assert f"run/{MARK_KEY}" in files(tmp_path)


@pytest.mark.medium
def test_the_next_run_names_what_a_killed_one_left_and_the_command_that_removes_it(
    shell: Shell, tmp_path: Path
) -> None:
    with started(tmp_path, "append:") as process:
        process.kill()
    (left,) = tmp_path.iterdir()
    prefix = str(tmp_path)
    assert "may be under way until" in shell.failed(
        "bench", "--root", prefix, "--remove", left.name
    )
    aged(left)
    status, _, error = shell("bench", "--root", prefix, "--seconds", "10 min", "--calls", "1000")
    assert status == 0, error
    assert "left by a run that was killed" in error
    (command,) = re.findall("pravega-spark (bench --root .* --remove .*)", error)
    assert files(tmp_path)
    assert f"Removed file://{left}" in shell.ok(*command.split(" "))
    assert files(tmp_path) == []


def test_a_folder_without_an_object_was_left_by_nobody(tmp_path: Path) -> None:
    """As some S3 servers show it for ever, and as a run that begins just now has made it."""
    _left_folder(tmp_path)
    assert not Prefix(str(tmp_path), Meter(Bounds(600.0, 1_000, 1 << 24)), print).left()


def _left_folder(prefix: Path, *marks: str) -> Path:
    folder = prefix / "pravega-spark-bench-20260101t000000-0123456789ab"
    folder.mkdir()
    for mark in marks:
        (folder / mark).write_text('{"longest_ms": 1}')
        os.utime(folder / mark, (1e9, 1e9))
    return folder


def test_a_folder_without_a_mark_is_not_removed(shell: Shell, tmp_path: Path) -> None:
    folder = _left_folder(tmp_path, "other")
    error = shell.failed("bench", "--root", str(tmp_path), "--remove", folder.name)
    assert "so no benchmark has made it" in error
    assert files(folder) == ["other"]


def test_a_removal_follows_no_link(shell: Shell, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "data").write_text("kept")
    (tmp_path / "prefix").mkdir()
    folder = _left_folder(tmp_path / "prefix", MARK_KEY)
    (folder / "link").symlink_to(mine)
    argv = ["bench", "--root", str(tmp_path / "prefix"), "--remove", folder.name]
    assert f"{folder}/link is a symbolic link" in shell.failed(*argv)
    (folder / "link").unlink()
    assert "1 object." in shell.ok(*argv)
    assert (files(tmp_path / "prefix"), files(mine)) == ([], ["data"])


def test_empty_folders_of_a_killed_clean_up_are_removed(shell: Shell, tmp_path: Path) -> None:
    folder = _left_folder(tmp_path)
    (folder / "bench" / "_scope").mkdir(parents=True)
    found = shell.json("bench", "--root", str(tmp_path), "--remove", folder.name)
    assert found == {"removed": f"file://{folder}", "objects": 0}
    assert files(tmp_path) == []


@pytest.mark.medium
def test_the_proof_names_events_that_were_acknowledged_and_are_not_there() -> None:
    meter = Meter(Bounds(600.0, 100_000, 1 << 30))
    folder = Prefix(prefix_in_memory(), meter, print).folder("run", 60.0)
    workloads = Workloads(folder, meter, "run", 1, 100)
    workloads.set_up()
    for _ in workloads.measure(1.0):
        pass
    good = Proof()
    prove(good, workloads, folder, meter, "run")
    assert (good.breaks, good.is_complete) == ([], True)
    workloads.chains["append/0"].acknowledged += 1
    short = Proof()
    prove(short, workloads, folder, meter, "run")
    assert len(short.breaks) == 1
    assert "key append/0" in short.breaks[0]
    foreign = Proof()
    prove(foreign, workloads, folder, meter, "another run")
    written = {
        key.partition("/")[0] for key, chain in workloads.chains.items() if chain.acknowledged
    }
    assert len(foreign.breaks) == len(written) > 0


@pytest.mark.medium
def test_two_runs_at_once_do_not_meet(tmp_path: Path) -> None:
    argv: Sequence[str] = [
        *COMMAND,
        "--root",
        str(tmp_path),
        "--seconds",
        "10 min",
        "--calls",
        "1000",
    ]
    both = [
        subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for process in both:
        text, error = process.communicate(timeout=300)
        assert process.returncode == 0, error
        assert "none of the" in text
    assert files(tmp_path) == []
