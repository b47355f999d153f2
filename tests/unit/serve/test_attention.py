"""What the first page says of a root, by the web application over a root in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from starlette.testclient import TestClient

from pravega_spark import RetentionPolicy, ScalingPolicy, StreamConfiguration
from pravega_spark.config.descriptions import MaintenanceKind
from pravega_spark.engine.state.maintenance_table import FinishedRun, open_maintenance
from pravega_spark.reader_groups.leases import ReaderLeases
from pravega_spark.reader_groups.table import group_path
from pravega_spark.serve.findings import READERLESS_SECONDS, WAITING_SECONDS
from tests.harness.counted_store import CountedRoot
from tests.harness.tiers import sized
from tests.harness.two_readers import two_readers
from tests.harness.web_world import web_client

HOUR = 3_600.0


@pytest.fixture
def root() -> CountedRoot:
    return CountedRoot()


@contextmanager
def page(root: CountedRoot) -> Iterator[TestClient]:
    with web_client(root.manager) as client:
        yield client


def write(root: CountedRoot, stream: str, events: int, size: int = 1) -> None:
    with root.manager.create_writer(stream) as writer:
        writer.write_events([b"x" * size] * events, routing_key="k")


def look(client: TestClient, root: CountedRoot, seconds: float = 3.0) -> dict[str, Any]:
    """Return what needs attention, by a new poll."""
    root.runtime.sleep(seconds)
    answer = client.get("/api/attention")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def only(found: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return the one finding of a kind."""
    named = [f for f in found["findings"] if f["kind"] == kind]
    assert len(named) == 1, found["findings"]
    one: dict[str, Any] = named[0]
    return one


def kinds(found: dict[str, Any]) -> list[str]:
    return [f["kind"] for f in found["findings"]]


def group(client: TestClient, name: str) -> dict[str, Any]:
    answer = client.get(f"/api/groups/{name}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


# --------------------------------------------------------------------------------- all is well


def test_a_root_without_trouble_is_quiet_and_says_what_was_looked_at(root: CountedRoot) -> None:
    root.manager.create_stream("nyc/f")
    root.manager.create_reader_group("nyc/g", ["nyc/f"])
    write(root, "nyc/f", 3)
    with page(root) as client, root.manager.reader_group("nyc/g").create_reader("r") as reader:
        while reader.read_next_event(timeout=0).event is not None:
            pass
        reader.read_next_event(timeout=0)
        root.runtime.sleep(30)
        reader.read_next_event(timeout=0)
        found = look(client, root)
    assert (found["quiet"], found["findings"], found["total"]) == (True, [], 0)
    assert found["streams"] == {"total": 1, "looked": 1, "oldest_ms": found["now_ms"]}
    assert found["groups"]["looked"] == found["groups"]["total"] == 1


def test_an_overview_that_has_not_looked_at_all_is_never_quiet(
    root: CountedRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pravega_spark.serve import attention

    monkeypatch.setattr(attention, "LOOKS", 2)
    for number in range(4):
        root.manager.create_stream(f"nyc/s{number}")
        root.manager.create_reader_group(f"nyc/g{number}", [f"nyc/s{number}"])
    with page(root) as client:
        looked = []
        for _ in range(4):
            found = look(client, root)
            looked.append(found["streams"]["looked"] + found["groups"]["looked"])
            assert found["quiet"] is (looked[-1] == 8)
        assert looked == [2, 4, 6, 8]
        rows = client.get("/api/groups").json()
    assert rows["looked"] == 4


def test_a_young_root_is_not_told_that_its_maintenance_is_overdue(root: CountedRoot) -> None:
    root.manager.create_stream(
        "nyc/f", StreamConfiguration(retention=RetentionPolicy.by_time("1 day"))
    )
    with page(root) as client:
        assert look(client, root, 15)["quiet"]
        found = look(client, root, 24 * HOUR)
    overdue = [f for f in found["findings"] if f["kind"] == "maintenance_overdue"]
    assert {f["text"].rpartition(" ")[2] for f in overdue} == {"retention", "sweeping"}
    assert all(24 * HOUR < f["number"] < 25 * HOUR for f in overdue)


# --------------------------------------------------------------------------------------- groups


def test_a_group_that_holds_data_without_a_reader_is_critical_after_a_minute(
    root: CountedRoot,
) -> None:
    root.manager.create_stream(
        "nyc/f", StreamConfiguration(retention=RetentionPolicy.by_consumption("1 s"))
    )
    root.manager.create_reader_group("nyc/held", ["nyc/f"], retention="automatic")
    root.manager.create_reader_group("nyc/loose", ["nyc/f"])
    write(root, "nyc/f", 7)
    with page(root) as client:
        assert "group_without_reader" not in kinds(look(client, root))
        found = look(client, root, READERLESS_SECONDS)
        rows = {f["name"]: f for f in found["findings"] if f["kind"] == "group_without_reader"}
        assert {name: (f["severity"], f["number"]) for name, f in rows.items()} == {
            "nyc/held": ("critical", 7.0),
            "nyc/loose": ("warning", 7.0),
        }
        assert found["findings"][0]["name"] == "nyc/held"  # the worst first
        assert rows["nyc/held"]["text"].endswith("; the streams keep them for it")
        assert "keep" not in rows["nyc/loose"]["text"]
        listed = {r["group"]: r for r in client.get("/api/groups").json()["groups"]}
    assert {name: row["status"] for name, row in listed.items()} == {
        "held": "no reader",
        "loose": "no reader",
    }


def test_a_reader_whose_lease_ran_out_is_no_reader(root: CountedRoot) -> None:
    root.manager.create_stream("nyc/f")
    root.manager.create_reader_group("nyc/g", ["nyc/f"])
    with page(root) as client:
        reader = root.manager.reader_group("nyc/g").create_reader("worker-1", lease="10 s")
        reader.read_next_event(timeout=0)
        write(root, "nyc/f", 4)
        assert "group_without_reader" not in kinds(look(client, root))
        finding = only(look(client, root, 30), "group_without_reader")
        (row,) = client.get("/api/groups").json()["groups"]
        reader.close()
    assert finding["number"] == 4
    assert "worker-1 is silent for" in finding["text"]
    assert (row["readers"], row["live_readers"], row["status"]) == (["worker-1"], 0, "no reader")


@contextmanager
def follow(
    client: TestClient, root: CountedRoot, written: int, read: int, rounds: int, seconds: float = 10
) -> Iterator[dict[str, Any]]:
    """Write and read so many events each few seconds, while somebody looks; yield the row."""
    handle = root.manager.reader_group("nyc/g")
    with handle.create_reader("r") as reader:
        for _ in range(rounds):
            if written:
                write(root, "nyc/f", written)
            for _ in range(read):
                reader.read_next_event(timeout=0)
            look(client, root, seconds)
        yield group(client, "nyc/g")["row"]


def stay(root: CountedRoot, reader: str) -> None:
    """Extend the lease of a reader of ``nyc/g``, as its process does while it makes no call."""
    leases = ReaderLeases(root.store, group_path("nyc/g"), root.runtime)
    last = leases.heartbeat(reader)
    assert last is not None
    leases.extend(reader, last)


def make_group(root: CountedRoot) -> None:
    root.manager.create_stream("nyc/f")
    root.manager.create_reader_group("nyc/g", ["nyc/f"])


@pytest.mark.medium
def test_a_group_that_reads_less_than_is_written_falls_behind_and_then_catches_up(
    root: CountedRoot,
) -> None:
    make_group(root)
    with page(root) as client:
        with follow(client, root, written=100, read=20, rounds=14) as row:
            assert row["status"] == "falling behind"
            assert row["read_per_second"] == pytest.approx(2.0, rel=0.3)
            assert row["written_per_second"] == pytest.approx(10.0, rel=0.1)
            assert row["catch_up_seconds"] is None
            finding = only(look(client, root, 0), "group_falling_behind")
            assert finding["number"] == row["lag_events"] > 1_000
        with follow(client, root, written=5, read=70, rounds=14) as row:
            assert row["status"] == "catching up"
            assert "group_falling_behind" not in kinds(look(client, root, 0))


def test_each_reader_and_each_segment_has_its_rates_and_its_time_to_catch_up(
    root: CountedRoot,
) -> None:
    with page(root) as client:

        def look_at_group() -> None:
            look(client, root, 10)
            group(client, "nyc/g")

        with two_readers(root, look_at_group):
            found = group(client, "nyc/g")
    readers = {row["reader"]: row for row in found["readers"]}
    segments = {row["reader"]: row for row in found["segments"]}
    assert set(readers) == set(segments) == {"quick", "slow"}
    for of in (readers, segments):
        quick, slow = of["quick"], of["slow"]
        assert quick["written_per_second"] == pytest.approx(2, rel=0.1)
        assert quick["read_per_second"] == pytest.approx(6, rel=0.3)
        assert not quick["never_catches_up"]
        assert slow["written_per_second"] == pytest.approx(5, rel=0.1)
        assert slow["read_per_second"] == pytest.approx(1, rel=0.3)
        assert (slow["never_catches_up"], slow["catch_up_seconds"]) == (True, None)
    for row in (readers["quick"], segments["quick"]):
        unread = row.get("lag_events", row.get("lag"))
        gain = row["read_per_second"] - row["written_per_second"]
        assert row["catch_up_seconds"] == pytest.approx(unread / gain, rel=0.01)
    lags = {name: lines(found[name]) for name in ("reader_lags", "segment_lags")}
    assert set(lags["reader_lags"]) == {"quick", "slow"}
    for name, row in readers.items():
        curve = lags["reader_lags"][name]
        assert curve[-1] == row["lag_events"]
        assert len([value for value in curve if value is not None]) > 10


def test_the_time_to_catch_up_is_that_of_the_rates(root: CountedRoot) -> None:
    make_group(root)
    write(root, "nyc/f", 4_000)
    with page(root) as client, follow(client, root, written=0, read=100, rounds=14) as row:
        pass
    assert row["status"] == "catching up"
    assert row["read_per_second"] == pytest.approx(10, rel=0.2)
    assert row["written_per_second"] == 0
    assert row["catch_up_seconds"] == pytest.approx(
        row["lag_events"] / row["read_per_second"], rel=0.01
    )


def test_readers_that_are_there_and_read_nothing_are_critical(root: CountedRoot) -> None:
    make_group(root)
    with page(root) as client, root.manager.reader_group("nyc/g").create_reader("r") as reader:
        reader.read_next_event(timeout=0)
        write(root, "nyc/f", 500)
        found: dict[str, Any] = {}
        for _ in range(14):
            stay(root, "r")
            found = look(client, root, 10)
        finding = only(found, "group_not_reading")
        (row,) = client.get("/api/groups").json()["groups"]
    assert (finding["severity"], finding["number"]) == ("critical", 500)
    assert (row["status"], row["live_readers"]) == ("not reading", 1)


@pytest.mark.medium
def test_a_checkpoint_that_waits_says_for_whom_and_how_long(root: CountedRoot) -> None:
    make_group(root)
    handle = root.manager.reader_group("nyc/g")
    with page(root) as client, handle.create_reader("slow-reader") as reader:
        reader.read_next_event(timeout=0)
        handle.initiate_checkpoint("nightly")
        assert "checkpoint_waits" not in kinds(look(client, root))
        for _ in range(8):
            stay(root, "slow-reader")
            found = look(client, root, 10)
        finding = only(found, "checkpoint_waits")
        (row,) = client.get("/api/groups").json()["groups"]
    assert finding["number"] >= WAITING_SECONDS
    assert "checkpoint nightly waits for slow-reader" in finding["text"]
    assert [(w["name"], w["readers"]) for w in row["waits"]] == [("nightly", ["slow-reader"])]


def test_how_long_a_checkpoint_waits_does_not_begin_anew_with_the_server(
    root: CountedRoot,
) -> None:
    make_group(root)
    handle = root.manager.reader_group("nyc/g")
    with handle.create_reader("slow-reader") as reader:
        reader.read_next_event(timeout=0)
        handle.initiate_checkpoint("nightly")
        root.runtime.sleep(HOUR)
        with page(root) as client:
            finding = only(look(client, root), "checkpoint_waits")
    assert HOUR <= finding["number"] <= HOUR + 10
    assert finding["text"].startswith("or longer: checkpoint nightly waits for slow-reader")


def test_a_group_keeps_what_it_reads_of_other_streams_when_one_is_deleted(
    root: CountedRoot,
) -> None:
    for stream in ("nyc/a", "nyc/b"):
        root.manager.create_stream(stream)
    root.manager.create_reader_group("nyc/g", ["nyc/a", "nyc/b"])
    write(root, "nyc/a", 5)
    root.manager.seal_stream("nyc/b")
    root.manager.delete_stream("nyc/b")
    with page(root) as client:
        found = look(client, root, 120)
        missing = only(found, "group_stream_missing")
        assert (missing["number"], missing["unit"]) == (1, "streams")
        assert missing["text"].startswith("of the group was deleted")  # 1 stream of the group ...
        assert "nyc/b" in missing["text"]
        details = group(client, "nyc/g")
    assert details["row"]["lag_events"] == 5
    assert {s["stream"]: (s["lag_events"], s["problem"]) for s in details["streams"]} == {
        "nyc/a": (5, ""),
        "nyc/b": (None, "deleted"),
    }


def test_a_deleted_group_leaves_the_list_and_its_page_is_404(root: CountedRoot) -> None:
    make_group(root)
    with page(root) as client:
        look(client, root)
        assert client.get("/api/groups/nyc/g").status_code == 200
        root.manager.delete_reader_group("nyc/g")
        look(client, root, 12)
        assert client.get("/api/groups").json()["groups"] == []
        assert client.get("/api/groups/nyc/g").status_code == 404


def test_a_damaged_group_is_a_row_and_a_finding_and_hides_no_other(root: CountedRoot) -> None:
    make_group(root)
    root.manager.create_reader_group("nyc/torn", ["nyc/f"])
    root.store.put("nyc/_reader_groups/torn/_delta_log/00000000000000000000.json", b"torn")
    with page(root) as client:
        found = look(client, root)
        rows = {r["group"]: r for r in client.get("/api/groups").json()["groups"]}
        answer = client.get("/api/groups/nyc/torn")
    finding = only(found, "group_damaged")
    assert (finding["severity"], finding["name"]) == ("critical", "nyc/torn")
    assert (rows["torn"]["status"], rows["torn"]["lag_events"]) == ("damaged", None)
    assert rows["g"]["lag_events"] == 0
    assert (answer.status_code, answer.json()["error"]["type"]) == (500, "CorruptLog")


def test_a_group_whose_commit_lies_in_the_future_has_no_invented_age(root: CountedRoot) -> None:
    root.manager.create_stream("nyc/f")
    write(root, "nyc/f", 2)
    root.runtime.wall_ms += 4 * HOUR * 1_000
    root.manager.create_reader_group("nyc/g", ["nyc/f"])
    root.runtime.wall_ms -= 4 * HOUR * 1_000
    with page(root) as client:
        found = look(client, root)
        ahead = only(found, "clock_ahead")
        assert (ahead["name"], round(ahead["number"] / HOUR, 1)) == ("nyc/g", 4.0)
        assert "group_without_reader" not in kinds(found)  # it was seen for a moment only
        assert "group_without_reader" in kinds(look(client, root, 61))


# -------------------------------------------------------------------------------------- streams


def test_a_transaction_near_the_end_of_its_lease_and_one_after_it(root: CountedRoot) -> None:
    root.manager.create_stream("nyc/f")
    with page(root) as client:
        writer = root.manager.create_transactional_writer("nyc/f", "billing")
        transaction = writer.begin_transaction(lease="100 s")
        assert kinds(look(client, root)) == []
        near = only(look(client, root, 82), "transaction_lease")
        assert near["text"] == "left of the lease of a transaction of writer billing"
        assert 10 < near["number"] < 20
        ended = only(look(client, root, 60), "transaction_expired")
        assert 40 < ended["number"] < 50
        transaction.abort()
        assert kinds(look(client, root)) == []
        writer.close()


@pytest.mark.parametrize(
    "policy",
    [
        RetentionPolicy.by_consumption("10 B", "10 KB"),
        RetentionPolicy.by_consumption("1 s", "1000 s"),
    ],
    ids=["size", "time"],
)
def test_a_stream_near_the_maximum_of_its_retention_names_who_has_not_read(
    root: CountedRoot, policy: RetentionPolicy
) -> None:
    root.manager.create_stream("nyc/f", StreamConfiguration(retention=policy))
    root.manager.create_reader_group("nyc/slow", ["nyc/f"], retention="automatic")
    root.manager.create_stream("nyc/read", StreamConfiguration(retention=policy))
    for stream in ("nyc/f", "nyc/read"):  # nobody waits for the second one
        write(root, stream, 100, size=90)
    root.runtime.sleep(1)
    for stream in ("nyc/f", "nyc/read"):
        root.manager.retention(stream).run()
    with page(root) as client:
        found = look(client, root, 900)
        finding = only(found, "retention_maximum")
        assert (finding["name"], finding["severity"]) == ("nyc/f", "warning")
        assert 0.85 < finding["number"] < 1
        assert "nyc/slow" in finding["text"]
        write(root, "nyc/f", 20, size=90)
        assert only(look(client, root, 200), "retention_maximum")["severity"] == "critical"


def test_a_commit_in_the_future_is_found_and_says_how_far(root: CountedRoot) -> None:
    root.manager.create_stream("nyc/f")
    root.runtime.wall_ms += 2 * HOUR * 1_000
    write(root, "nyc/f", 1)
    root.runtime.wall_ms -= 2 * HOUR * 1_000
    with page(root) as client:
        finding = only(look(client, root), "clock_ahead")
    assert (finding["subject"], finding["name"]) == ("stream", "nyc/f")
    assert round(finding["number"] / HOUR, 1) == 2.0
    assert finding["text"].startswith("ahead of now is the newest commit")  # 2 h ahead of now ...


def test_a_commit_of_a_clock_that_is_behind_is_found_and_says_how_far(root: CountedRoot) -> None:
    root.manager.create_stream("nyc/f")
    root.manager.create_stream("nyc/right")
    with page(root) as client:
        assert "clock_behind" not in kinds(look(client, root))
        write(root, "nyc/right", 1)
        root.runtime.wall_ms -= 2 * HOUR * 1_000
        write(root, "nyc/f", 1)
        root.runtime.wall_ms += 2 * HOUR * 1_000
        finding = only(look(client, root), "clock_behind")
        assert (finding["subject"], finding["name"]) == ("stream", "nyc/f")
        assert round(finding["number"] / HOUR, 1) == 2.0
        assert finding["text"].startswith("older than what was there")
        root.runtime.sleep(HOUR / 2)
        assert "clock_behind" not in kinds(look(client, root))


def test_a_damaged_stream_and_a_damaged_scope_hide_nothing_else(root: CountedRoot) -> None:
    make_group(root)
    root.manager.create_stream("nyc/torn")
    root.manager.create_scope("lost")
    root.manager.create_stream("lost/f")
    first = "_delta_log/00000000000000000000.json"
    root.store.put(f"nyc/torn/events/{first}", b"torn")
    root.store.put(f"lost/_scope/{first}", b"torn")
    with page(root) as client:
        found = look(client, root)
        torn = only(found, "stream_damaged")
        assert (torn["name"], torn["number"], torn["unit"]) == ("nyc/torn", 1, "streams")
        assert torn["text"].startswith("cannot be read: ")  # 1 stream cannot be read: ...
        assert only(found, "scope_damaged")["name"] == "lost"
        assert (found["critical"], found["quiet"]) == (2, False)
        assert client.get("/api/streams").json()["total"] == 2
        assert [r["status"] for r in client.get("/api/groups").json()["groups"]] == ["no reader"]


def test_a_stream_that_the_storage_refuses_is_told_and_the_others_are_looked_at(
    root: CountedRoot,
) -> None:
    for stream in ("nyc/a", "nyc/b"):
        root.manager.create_stream(stream)
    with page(root) as client:
        root.store.fails = "nyc/a/events"
        found = look(client, root)
        assert only(found, "stream_unreadable")["name"] == "nyc/a"
        assert (found["streams"]["looked"], found["quiet"]) == (2, False)
        root.store.fails = ""
        assert look(client, root)["quiet"]


# ---------------------------------------------------------------------------------- maintenance


def test_runs_that_failed_say_at_how_many_streams_and_where(root: CountedRoot) -> None:
    root.manager.create_stream("nyc/f")
    record = open_maintenance(root.store, root.runtime)
    now_ms = root.runtime.now_ms()
    run = FinishedRun("job", now_ms, now_ms, 3, 1, {"stream nyc/f": "StoreError: full"})
    record.finish(MaintenanceKind.RETENTION, [None], run)
    with page(root) as client:
        finding = only(look(client, root), "maintenance_failed")
    assert (finding["number"], finding["unit"]) == (1, "streams")
    assert "stream nyc/f: StoreError: full" in finding["text"]


def test_the_overview_says_of_no_other_kind_that_it_is_overdue_than_the_findings(
    root: CountedRoot,
) -> None:
    root.manager.create_stream("nyc/f")
    with page(root) as client:
        for hours, expected in ((0.01, set()), (24, {"sweeping"})):
            found = look(client, root, hours * HOUR)["findings"]
            told = {
                f["text"].rpartition(" ")[2] for f in found if f["kind"] == "maintenance_overdue"
            }
            rows = client.get("/api/overview").json()["maintenance"]
            late = {row["kind"] for row in rows if row["is_overdue"]}
            assert late == told == expected


# --------------------------------------------------------------------------- a group's curves


def lines(curve: dict[str, Any]) -> dict[str, list[float | None]]:
    return {line["name"]: line["values"] for line in curve["lines"]}


@pytest.mark.medium
@pytest.mark.long(slow=False)
def test_the_rates_of_a_steady_group_are_steady_whenever_somebody_looks(root: CountedRoot) -> None:
    """Events come each second, positions each 20 s, and looks at any time, also at once."""
    make_group(root)
    handle = root.manager.reader_group("nyc/g")
    pauses = [0.3, 2.9, 0.2, 3.1, 4.9, 0.1, 3.3]
    with page(root) as client, handle.create_reader("r") as reader:
        next_ms, waits = 0.0, 0.0
        for number in range(sized(75, 150)):
            write(root, "nyc/f", 10)
            while reader.read_next_event(timeout=0).event is not None:
                pass
            for _ in range(2):
                root.runtime.sleep(0.45)
                waits += 0.45
                if waits >= next_ms:
                    client.get("/api/attention")
                    found = group(client, "nyc/g")
                    next_ms = waits + pauses[number % len(pauses)]
            root.runtime.sleep(0.1)
            waits += 0.1
            assert not found["row"]["never_catches_up"], found["row"]
            assert found["row"]["status"] in ("up to date", "unknown"), found["row"]
            assert found["row"]["catch_up_seconds"] is None
    rates = lines(found["rates"])
    read, written = (
        [value for value in rates[name] if value is not None] for name in ("read", "written")
    )
    assert len(written) > sized(8, 20)
    assert min(written) > 9
    assert max(written) < 11
    assert min(read) > 8
    assert max(read) < 12
    assert rates["read"][-1] == found["row"]["read_per_second"]
    assert rates["written"][-1] == found["row"]["written_per_second"]


def test_a_curve_has_a_gap_where_nobody_looked_for_a_minute(root: CountedRoot) -> None:
    make_group(root)
    with page(root) as client:
        for pause in (5, 5, 5, 65, 5, 5):
            write(root, "nyc/f", 2)
            look(client, root, pause)
            found = group(client, "nyc/g")
    for name in ("lag", "segment_lags"):
        for line in lines(found[name]).values():
            known = [value is not None for value in line]
            if any(known):
                assert known == [True, True, True, False, True, True, True], (name, line)


def test_a_group_that_was_just_opened_has_no_state_that_is_made_up(root: CountedRoot) -> None:
    make_group(root)
    write(root, "nyc/f", 500)
    with page(root) as client, root.manager.reader_group("nyc/g").create_reader("r") as reader:
        reader.read_next_event(timeout=0)
        look(client, root)
        assert group(client, "nyc/g")["row"]["status"] == "unknown"


def test_a_group_that_reads_less_than_is_written_is_told_that_it_never_catches_up(
    root: CountedRoot,
) -> None:
    make_group(root)
    with page(root) as client, follow(client, root, written=100, read=20, rounds=14) as row:
        assert (row["never_catches_up"], row["catch_up_seconds"]) == (True, None)


# ------------------------------------------------------------------------ the oldest unread event

AGING = RetentionPolicy.by_consumption("1 min", "10 min")


def test_the_age_against_the_maximum_is_that_of_the_oldest_unread_event(root: CountedRoot) -> None:
    root.manager.create_stream("nyc/f", StreamConfiguration(retention=AGING))
    root.manager.create_reader_group("nyc/slow", ["nyc/f"], retention="automatic")
    write(root, "nyc/f", 15)
    root.runtime.sleep(100)
    write(root, "nyc/f", 3)
    root.manager.retention("nyc/f").run()
    with page(root) as client:
        finding = only(look(client, root, 400), "retention_maximum")
        assert (finding["number"], finding["severity"]) == (pytest.approx(0.833, 0.02), "warning")
        finding = only(look(client, root, 110), "retention_maximum")
        assert (finding["number"], finding["severity"]) == (pytest.approx(1.02, 0.01), "critical")
        assert "of the retention's maximum is unread by nyc/slow" in finding["text"]


def tear_chunks(root: CountedRoot, stream: str) -> None:
    for entry in root.store.list(f"{stream}/events"):
        if entry.key.endswith(".parquet") and "_delta_log" not in entry.key:
            root.store.put(entry.key, b"torn")


def test_the_oldest_unread_event_is_read_once_for_a_position(root: CountedRoot) -> None:
    root.manager.create_stream("nyc/f", StreamConfiguration(retention=AGING))
    root.manager.create_reader_group("nyc/slow", ["nyc/f"], retention="automatic")
    write(root, "nyc/f", 15)
    tear_chunks(root, "nyc/f")  # so that no cache has it
    with page(root) as client:
        calls = []
        for seconds in (400, 3, 140, 3, 3):  # from the third on the maximum may be near
            look(client, root, seconds)
            root.store.taken()
            root.runtime.sleep(3)
            client.get("/api/attention")
            calls.append(root.store.taken())
    assert calls[1] == calls[3] == calls[4]


def test_an_age_that_cannot_be_read_is_told_as_the_least_that_it_is(root: CountedRoot) -> None:
    root.manager.create_stream("nyc/f", StreamConfiguration(retention=AGING))
    root.manager.create_reader_group("nyc/slow", ["nyc/f"], retention="automatic")
    write(root, "nyc/f", 15)
    root.runtime.sleep(100)
    write(root, "nyc/f", 3)
    root.manager.retention("nyc/f").run()
    tear_chunks(root, "nyc/f")
    with page(root) as client:
        finding = only(look(client, root, 520), "retention_maximum")
    assert (finding["number"], finding["severity"]) == (pytest.approx(0.87, 0.02), "warning")
    assert "of the retention's maximum, or more, is unread by nyc/slow" in finding["text"]


# --------------------------------------------------------------------- what is kept, ended or lost


def test_a_stream_by_size_keeps_nothing_for_a_group_and_says_what_it_lost(
    root: CountedRoot,
) -> None:
    policy = RetentionPolicy.by_size("1 KB")
    root.manager.create_stream("nyc/f", StreamConfiguration(retention=policy))
    root.manager.create_reader_group("nyc/held", ["nyc/f"], retention="automatic")
    write(root, "nyc/f", 14, size=100)
    root.runtime.sleep(100)
    root.manager.retention("nyc/f").run()
    write(root, "nyc/f", 16, size=100)
    root.runtime.sleep(100)
    root.manager.retention("nyc/f").run()
    with page(root) as client:
        found = look(client, root, 100)
        lost = only(found, "group_lost_events")
        unread = only(found, "group_without_reader")
        (stream,) = group(client, "nyc/held")["streams"]
    assert lost["number"] == 30 - unread["number"] == stream["lost_events"] > 0
    assert lost["text"].startswith("lost in nyc/f: deleted")
    assert unread["severity"] == "warning"
    assert "keep" not in unread["text"]


@pytest.mark.parametrize("is_remembered", [True, False])
def test_events_that_were_lost_in_forgotten_segments_are_counted_or_said(
    root: CountedRoot, is_remembered: bool
) -> None:
    make_group(root)
    write(root, "nyc/f", 5)
    for seal in ("0#0", "1#1"):
        root.manager.scale_stream("nyc/f", seal=[seal], key_ranges=[(0.0, 1.0)])
        write(root, "nyc/f", 4)
    root.manager.truncate_stream("nyc/f", root.manager.tail("nyc/f"))
    if not is_remembered:
        root.store.delete([entry.key for entry in root.store.list("nyc/f/metadata")])
    with page(root) as client:
        lost = only(look(client, root), "group_lost_events")
        (stream,) = group(client, "nyc/g")["streams"]
        root.store.taken()
        group(client, "nyc/g")
        look(client, root)
        assert root.store.taken() < 12, "the history is read once"
    if is_remembered:
        assert (lost["number"], lost["unit"]) == (13, "events")
        assert (stream["lost_events"], stream["has_lost_more"]) == (13, False)
    else:
        assert stream["has_lost_more"]
        assert "its log no longer counts" in lost["text"]


def test_a_history_that_the_storage_refused_once_is_read_by_the_next_look(
    root: CountedRoot,
) -> None:
    make_group(root)
    write(root, "nyc/f", 5)
    root.manager.scale_stream("nyc/f", seal=["0#0"], key_ranges=[(0.0, 1.0)])
    root.manager.truncate_stream("nyc/f", root.manager.tail("nyc/f"))
    with page(root) as client:
        root.store.fails = "nyc/f/metadata"
        assert "group_lost_events" not in kinds(look(client, root))
        root.store.fails = ""
        assert only(look(client, root), "group_lost_events")["number"] == 5


def test_a_transaction_past_its_end_is_told_when_the_run_that_ends_it_is_overdue(
    root: CountedRoot,
) -> None:
    root.manager.create_stream("nyc/f")
    record = open_maintenance(root.store, root.runtime)

    def run(age_ms: int) -> None:
        ended_ms = root.runtime.now_ms() - age_ms
        done = FinishedRun("job", ended_ms, ended_ms, 1, 0, {})
        record.finish(MaintenanceKind.TRANSACTIONS, [None], done)

    with page(root) as client:
        writer = root.manager.create_transactional_writer("nyc/f", "dying")
        transaction = writer.begin_transaction(lease="30 s")
        run(0)
        assert "transaction_expired" not in kinds(look(client, root, 34))
        ended = only(look(client, root, 400), "transaction_expired")
        assert ended["text"].endswith("the next run of transactions is overdue")
        run(0)
        ended = only(look(client, root, 15), "transaction_expired")
        assert ended["text"].endswith("the last run of transactions did not end it")
        transaction.abort()
        writer.close()


def test_what_has_nothing_unread_has_no_age(root: CountedRoot) -> None:
    root.manager.create_stream("nyc/f", StreamConfiguration(ScalingPolicy.fixed(2)))
    root.manager.create_reader_group("nyc/g", ["nyc/f"])
    with page(root) as client, root.manager.reader_group("nyc/g").create_reader("r") as reader:
        reader.read_next_event(timeout=0)
        empty = group(client, "nyc/g")
        assert empty["row"]["lag_seconds"] is None
        assert [row["lag_seconds"] for row in empty["readers"]] == [None]
        write(root, "nyc/f", 3)
        root.runtime.sleep(20)
        found = group(client, "nyc/g")
    assert sorted((row["lag"], row["lag_seconds"] is None) for row in found["segments"]) == [
        (0, True),
        (3, False),
    ]
    assert found["row"]["lag_seconds"] == pytest.approx(20, abs=1)
