"""The commit protocol of one table's log: unknown outcomes, lost races, and damaged commits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from pravega_spark.engine.log.actions import Body, parse_commit
from pravega_spark.engine.log.checkpoint import maintain
from pravega_spark.engine.log.commit import Log
from pravega_spark.engine.log.snapshot import PROTOCOL, Snapshot
from pravega_spark.engine.store.local import LocalStore
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.errors import (
    CommitUnknown,
    CorruptLog,
    ForeignTable,
    ForkedProcess,
    InvalidInput,
    StoreError,
    StoreFull,
    TooBusy,
)
from pravega_spark.values.limits import COMMIT_DEADLINE_SECONDS
from tests.harness.fake_runtime import FakeRuntime
from tests.harness.fault_plans import Rule
from tests.harness.faulty_store import Fault
from tests.harness.small_streams import make_stream
from tests.harness.small_tables import commit, event_add, put, table_log, versions
from tests.harness.spy_store import Spy

COMMITS = "*/_delta_log/*"


def values(log: Log) -> list[str]:
    """The values that the commits of the log set, in order."""
    found = [log.reader.commit(version, light=True) for version in versions(log)]
    return [str(commit.domains["test"]) for commit in found if commit and commit.domains]


# ------------------------------------------------------------------------ resolve N before N+1


@pytest.mark.parametrize(
    "fault", [Fault.LOSE_ANSWER, Fault.RESEND, Fault.LOSE_REQUEST, Fault.DELAY]
)
def test_lost_put_response_is_not_a_second_commit(fault: Fault) -> None:
    store = Spy()
    log = table_log(store)
    store.rules.add(Rule(fault, "put_if_absent", nth=1))

    assert put(log, "a") == 1
    assert put(log, "b") == 2
    assert store.fired["put_if_absent", fault] == 1
    store.deliver()
    assert values(log) == ["a", "b"]


def test_version_that_is_absent_after_an_unknown_outcome_gets_the_same_bytes_again() -> None:
    store = Spy()
    log = table_log(store)
    store.sent.clear()
    for nth in (1, 2, 3):
        store.rules.add(Rule(Fault.LOSE_REQUEST, "put_if_absent", nth=nth))

    put(log, "a")

    assert len(store.sent) > 3
    assert len(set(store.sent)) == 1


def test_commit_without_an_answer_is_found_behind_that_of_another_process() -> None:
    store = Spy()
    log, other = table_log(store), table_log(store)
    store.rules.add(Rule(Fault.LOSE_ANSWER, "put_if_absent", nth=1))
    store.hook = lambda operation, _: put_by_other() if operation == "get" else None

    def put_by_other() -> None:
        store.hook = None
        put(other, "theirs")

    assert put(log, "ours") == 1
    assert values(log) == ["ours", "theirs"]


def test_late_put_that_arrives_after_its_version_was_taken_changes_nothing() -> None:
    store = Spy()
    log, other = table_log(store), table_log(store)
    store.rules.add(Rule(Fault.DELAY, "put_if_absent", nth=1))
    store.hook = lambda operation, _: put_by_other() if operation == "get" else None

    def put_by_other() -> None:
        store.hook = None
        put(other, "theirs")

    assert put(log, "ours") == 2
    store.deliver()
    assert values(log) == ["theirs", "ours"]


def test_refused_first_attempt_raises_and_nothing_is_committed() -> None:
    store = Spy()
    log = table_log(store)
    store.rules.add(Rule(StoreFull("no space left."), "put_if_absent", nth=1))

    with pytest.raises(StoreFull, match="no space left"):
        put(log, "a")
    assert versions(log) == [0]
    assert put(log, "b") == 1


def test_refusal_after_an_unknown_outcome_is_retried_until_the_answer_is_clear() -> None:
    store = Spy()
    log = table_log(store)
    store.rules.add(Rule(Fault.LOSE_ANSWER, "put_if_absent", nth=1))
    store.rules.add(Rule(StoreFull("full"), "get", keys=COMMITS, nth=1))

    assert put(log, "a") == 1
    assert values(log) == ["a"]


def test_no_clear_answer_until_the_deadline_is_commit_unknown() -> None:
    store = Spy()
    runtime = FakeRuntime()
    log = table_log(store, runtime)
    store.rules.add(Rule(Fault.LOSE_REQUEST, "put_if_absent"))
    began = runtime.elapsed

    with pytest.raises(CommitUnknown, match=r"version 1 .*Staged files are kept.*again"):
        put(log, "a")
    assert COMMIT_DEADLINE_SECONDS <= runtime.elapsed - began < 2 * COMMIT_DEADLINE_SECONDS
    store.rules.clear()
    assert put(table_log(store), "b") == 1


def test_refusals_after_an_unknown_outcome_are_commit_unknown_at_the_deadline() -> None:
    store = Spy()
    log = table_log(store)
    store.rules.add(Rule(Fault.LOSE_ANSWER, "put_if_absent", nth=1))
    store.rules.add(Rule(StoreError("down"), "get", keys=COMMITS))

    with pytest.raises(CommitUnknown):
        put(log, "a")
    store.rules.clear()
    assert values(log) == ["a"]


def test_unknown_commit_that_landed_is_made_durable_before_it_is_acknowledged() -> None:
    store = Spy()
    log = table_log(store)
    store.rules.add(Rule(Fault.LOSE_ANSWER, "put_if_absent", nth=1))

    put(log, "a")

    assert store.calls[-1] == ("make_durable", log.reader.folder)


def test_unknown_commit_that_cannot_be_made_durable_is_not_acknowledged() -> None:
    store = Spy()
    log = table_log(store)
    store.rules.add(Rule(Fault.LOSE_ANSWER, "put_if_absent", nth=1))
    store.rules.add(Rule(StoreError("fsync failed"), "make_durable"))

    with pytest.raises(CommitUnknown):
        put(log, "a")


# ---------------------------------------------------------------------------------- lost races


def test_lost_race_decides_again_on_the_winners_snapshot_with_a_new_body() -> None:
    store = Spy()
    log, other = table_log(store), table_log(store)
    put(other, "1")
    put(other, "2")
    seen: list[tuple[int, Any]] = []
    store.sent.clear()

    def increment(snapshot: Snapshot | None) -> Body:
        assert snapshot is not None
        value = snapshot.get("test")
        seen.append((snapshot.version, value))
        return Body("TEST", domains={"test": str((value or 0) + 1)})

    assert commit(log, increment).get("test") == 3
    assert seen == [(0, None), (2, 2)]
    bodies = [data for _, data in store.sent]
    assert len({parse_commit(1, data, "").token for data in bodies}) == len(bodies) == 2


def test_error_of_decide_counts_only_on_the_newest_snapshot() -> None:
    store = Spy()
    log, other = table_log(store), table_log(store)
    put(other, "open")
    store.calls.clear()

    def decide(snapshot: Snapshot | None) -> Body:
        assert snapshot is not None
        if snapshot.domains.get("test") != "open":
            raise InvalidInput("not open")
        return Body("TEST", domains={"test": "done"})

    assert commit(log, decide).version == 2
    with pytest.raises(InvalidInput, match="not open"):
        commit(log, decide)


def test_empty_proposal_counts_only_on_the_newest_snapshot_which_is_made_durable() -> None:
    store = Spy()
    log, other = table_log(store), table_log(store)
    put(other, "theirs")

    def decide(snapshot: Snapshot | None) -> Body | None:
        assert snapshot is not None
        return None if snapshot.version == 0 or "test" in snapshot.domains else Body("TEST")

    assert commit(log, decide).version == 1
    assert store.calls[-1] == ("make_durable", log.reader.folder)


def test_endless_lost_races_are_too_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pravega_spark.engine.log.commit.COMMIT_ATTEMPTS", 5)
    store = Spy()
    log, other = table_log(store), table_log(store)

    def decide(snapshot: Snapshot | None) -> Body:
        put(other, "theirs")
        return Body("TEST", domains={"test": "ours"})

    with pytest.raises(TooBusy, match="5 races"):
        commit(log, decide)
    assert values(log) == ["theirs"] * 5


def test_timestamps_rise_when_the_clock_goes_backwards() -> None:
    runtime = FakeRuntime()
    log = table_log(MemoryStore(), runtime)
    times = [commit(log, lambda s: Body("TEST")).timestamp_ms]
    for step in (-3_600_000, 0, -5, 10_000_000, -1):
        runtime.wall_ms += step
        times.append(commit(log, lambda s: Body("TEST")).timestamp_ms)
    other = table_log(log.store, FakeRuntime())
    times.append(commit(other, lambda s: Body("TEST")).timestamp_ms)

    assert times == sorted(set(times))


def test_log_of_a_parent_process_is_refused_in_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    log = table_log(MemoryStore())
    monkeypatch.setattr("os.getpid", lambda: -1)

    for call in (log.refresh, lambda: commit(log, lambda s: None), lambda: log.files().__enter__()):
        with pytest.raises(ForkedProcess, match="Create it in the child"):
            call()


# ----------------------------------------------------------------- tables of others, and newer ones


def upgraded(log: Log, protocol: dict[str, Any]) -> None:
    """A later version of the package upgrades the table."""
    commit(log, lambda s: Body("UPGRADE", protocol=protocol))


@pytest.mark.parametrize(
    "change", [{"writerFeatures": [*PROTOCOL["writerFeatures"], "rowTracking"]},
               {"minReaderVersion": 3}, {"minWriterVersion": 8}]
)  # fmt: skip
def test_table_with_an_unknown_feature_is_never_changed(change: dict[str, Any]) -> None:
    store = MemoryStore()
    log, newer = table_log(store), table_log(store)
    put(newer, "before")
    with pytest.raises(ForeignTable):
        upgraded(newer, {**PROTOCOL, **change})

    for _ in range(3):  # a refusal leaves no state by which a later call would pass
        for opened in (log, newer, Log(store, log.path, FakeRuntime())):
            with pytest.raises(ForeignTable, match="Upgrade the package"):
                opened.refresh()
            with pytest.raises(ForeignTable, match="Upgrade the package"):
                put(opened, "after")
    assert versions(log) == [0, 1, 2]


def test_delta_table_of_another_writer_is_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "s" / "t" / "events"
    deltalake.write_deltalake(str(path), pa.table({"a": [1]}))
    before = sorted(str(p) for p in tmp_path.rglob("*"))

    with pytest.raises(ForeignTable, match=r"s/t/events is a Delta table.*Name another"):
        make_stream(LocalStore(str(tmp_path)), segments=1)
    assert sorted(str(p) for p in tmp_path.rglob("*")) == before


def test_commit_of_another_writer_is_an_error_that_names_it_and_is_never_built_upon(
    tmp_path: Path,
) -> None:
    store = LocalStore(str(tmp_path))
    log = table_log(store)
    deltalake.write_deltalake(str(tmp_path / "foreign"), pa.table({"a": [1]}))
    foreign = store.get("foreign/_delta_log/00000000000000000000.json")
    store.put_if_absent(log.reader.key(1), foreign)

    for call in (log.refresh, lambda: put(log, "a"), Log(store, log.path).refresh):
        with pytest.raises(CorruptLog, match=r"version 1 was written by 'delta-rs.*Restore"):
            call()
    assert versions(log) == [0, 1]


# --------------------------------------------------------------------- torn, corrupt, missing


def overwrite(log: Log, version: int, change: Any) -> None:
    key = log.reader.key(version)
    log.store.put(key, change(log.store.get(key)))


def flipped(data: bytes) -> bytes:
    """Change one digit of the state: the result is still JSON, and still a commit."""
    at = data.index(b'"base_offset":"') + len(b'"base_offset":"')
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


DAMAGES = {
    "torn": lambda data: data[: len(data) // 2],
    "torn at a line": lambda data: data[: data.index(b"\n") + 1],
    "empty": lambda data: b"",
    "one digit": flipped,
    "its time": lambda data: data.replace(b'"timestamp":1', b'"timestamp":2'),
    "not JSON": lambda data: b"hello\n" + data,
    "JSON of another kind": lambda data: b"[1]\n",
    "not UTF-8": lambda data: b"\xff\xfe\n",
    "much that is not UTF-8": lambda data: b'{"\xc3\x28' * 200,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_commit_is_an_error_that_names_it_and_is_never_built_upon(damage: str) -> None:
    store = MemoryStore()
    log = table_log(store)
    put(log, "a", [event_add("f", 0, 3, 5)])
    overwrite(log, 1, DAMAGES[damage])

    opened = Log(store, log.path, FakeRuntime())
    for _ in range(2):
        with pytest.raises(CorruptLog, match=r"s/t/events: version 1 .*from a copy") as raised:
            opened.refresh()
        message = str(raised.value)
        assert message.isprintable()
        assert "\\x" not in message
        assert len(message) < 250
    with pytest.raises(CorruptLog):
        put(opened, "b")
    assert versions(log) == [0, 1]


def test_damaged_commit_before_an_intact_state_file_is_not_read() -> None:
    store = MemoryStore()
    log = table_log(store)
    for n in range(6):
        put(log, str(n), [event_add(f"f{n}", 0, n, 1)])
    maintain(log.reader, 4, checkpoint=True)
    overwrite(log, 2, DAMAGES["torn"])

    opened = Log(store, log.path, FakeRuntime())
    assert put(opened, "more") == 7
    with opened.files() as files:
        assert [add.path for add in files.find(0, 0, 6)] == [f"f{n}" for n in range(6)]


@pytest.mark.parametrize("version", [0, 2])
def test_missing_commit_is_an_error_that_names_it(version: int, tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    log = table_log(store)
    for n in range(3):
        put(log, str(n), [event_add(f"f{n}", 0, n, 1)])
    store.delete([log.reader.key(version)])

    opened = Log(store, log.path, FakeRuntime())
    for call in (opened.refresh, lambda: put(opened, "more")):
        with pytest.raises(CorruptLog, match=rf"version {version} .*missing.*Restore it from a c"):
            call()
    assert len(versions(log)) == 3


@pytest.mark.parametrize("commits", [1, 3])
def test_log_that_others_create_while_it_is_opened_is_not_taken_for_a_damaged_one(
    commits: int,
) -> None:
    spy = Spy()

    def others_create(operation: str, key: str) -> None:
        if operation == "list":
            spy.hook = None
            other = table_log(spy)
            for n in range(commits - 1):
                put(other, str(n))

    spy.hook = others_create
    log = table_log(spy)
    assert spy.hook is None
    assert log.refresh() is not None
    assert versions(log) == list(range(commits))


def test_commit_has_a_digest_and_is_valid_delta(tmp_path: Path) -> None:
    log = table_log(LocalStore(str(tmp_path)))
    put(log, "a")
    line = json.loads(log.store.get(log.reader.key(1)).splitlines()[0])

    assert line["commitInfo"]["digest"]
    history = deltalake.DeltaTable(str(tmp_path / log.path)).history()
    assert [entry["operation"] for entry in history] == ["TEST", "CREATE"]
