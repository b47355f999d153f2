"""Due hints: what is looked at, what that costs, and that a wrong hint only costs work."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import xxhash

from pravega_spark.config.descriptions import MaintenanceKind
from pravega_spark.engine.log.reader import LogReader
from pravega_spark.engine.state.due_hints import DUE_FOLDER, DueHints, drop_hints
from pravega_spark.engine.store import Store
from pravega_spark.values.limits import DUE_CHECKED_MS, DUE_LATEST_MS, DUE_SHARD_STREAMS
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.spy_store import Spy

RETENTION, SWEEPING = MaintenanceKind.RETENTION, MaintenanceKind.SWEEPING
BOTH = (RETENTION, SWEEPING)
NOW, MINUTE, HOUR = 1_700_000_000_000, 60_000, 3_600_000
LATER = NOW + 20 * HOUR


@pytest.fixture
def store() -> Spy:
    return Spy(memory(FakeRuntime()))


def path_of(name: str) -> str:
    return f"s/{name}/events"


def hints_of(store: Store, *names: str, basis: str = "b") -> DueHints:
    """The hints as another process has them."""
    return DueHints(store, "s/streams", names or ("t",), path_of, basis)


def commit(store: Store, version: int, name: str = "t") -> None:
    store.put(f"s/{name}/events/_delta_log/{version:020d}.json", b"{}")


def written_ms(store: Store, version: int, name: str = "t") -> int:
    return LogReader(store, f"s/{name}/events").written_ms(version)


def noted(store: Store, version: int = 3, due_ms: int = LATER, now_ms: int = NOW) -> None:
    """Look at the stream at a version, and write the hint down."""
    commit(store, version)
    hints = hints_of(store)
    for kind in BOTH:
        hints.note("t", kind, version, written_ms(store, version), due_ms, now_ms)
    hints.save()


def signed(line: bytes) -> bytes:
    return b"%b\n%b\n" % (line, xxhash.xxh3_128_hexdigest(line).encode())


def test_stream_without_a_hint_is_looked_at_without_a_call_for_it(store: Spy) -> None:
    hints = hints_of(store, "t", "u")
    hints.read()
    store.calls.clear()
    assert hints.due(BOTH, NOW) == {"t": BOTH, "u": BOTH}
    assert store.calls == []


def test_idle_stream_costs_one_call_until_it_is_due_or_has_news() -> None:
    store = Spy(memory(FakeRuntime()))
    noted(store)
    hints = hints_of(store)
    hints.read()
    store.calls.clear()
    assert hints.due(BOTH, NOW + MINUTE) == {}
    assert [operation for operation, _ in store.calls] == ["exists"]
    assert hints.due(BOTH, LATER) == {"t": BOTH}
    commit(store, 4)
    assert hints_of(store).due(BOTH, NOW + MINUTE) == {"t": BOTH}


@pytest.mark.parametrize(("seen", "calls"), [(4, 0), (3, 1)])
def test_process_that_has_seen_a_newer_version_asks_nobody(
    store: Spy, seen: int, calls: int
) -> None:
    noted(store)
    commit(store, 4)
    hints = DueHints(store, "s/streams", ("t",), path_of, "b", known=lambda name: seen)
    hints.read()
    store.calls.clear()
    assert hints.due(BOTH, NOW + MINUTE) == {"t": BOTH}
    assert len(store.calls) == calls


def test_kind_that_saw_an_older_version_is_due_and_the_others_are_not(store: Spy) -> None:
    noted(store)
    commit(store, 4)
    hints = hints_of(store)
    hints.read()
    hints.note("t", SWEEPING, 4, written_ms(store, 4), LATER, NOW + MINUTE)
    hints.save()
    assert hints_of(store).due(BOTH, NOW + 2 * MINUTE) == {"t": [RETENTION]}
    assert hints_of(store).due((SWEEPING,), NOW + 2 * MINUTE) == {}


def test_news_that_was_committed_and_cleaned_away_since_is_found() -> None:
    store = Spy(memory(FakeRuntime()))
    noted(store)
    store.delete(["s/t/events/_delta_log/00000000000000000003.json"])
    commit(store, 90)
    assert hints_of(store).due(BOTH, NOW + DUE_CHECKED_MS + 1) == {"t": BOTH}


def test_commit_of_a_hint_is_checked_once_in_ten_minutes() -> None:
    store = Spy(memory(FakeRuntime()))
    noted(store)
    checks, writes = 0, 0
    for minutes in range(5, 205, 5):
        hints = hints_of(store)
        hints.read()
        store.calls.clear()
        assert hints.due(BOTH, NOW + minutes * MINUTE) == {}
        hints.save()
        assert store.count("exists") == 1
        checks += store.count("modified_ms")
        writes += store.count("put")
    assert (checks, writes) == (13, 13), "of 40 rounds, each 5 minutes later"


@pytest.mark.parametrize("version", [0, 2, 3])
def test_log_that_fell_back_or_was_made_again_is_looked_at(version: int) -> None:
    clock = FakeRuntime()
    store = Spy(memory(clock))
    noted(store)
    store.delete([entry.key for entry in store.list("s/t")])
    clock.sleep(1)
    commit(store, version)
    hints = hints_of(store)
    assert hints.due(BOTH, NOW + DUE_CHECKED_MS + 1) == {"t": BOTH}
    hints.note("t", SWEEPING, version, written_ms(store, version), LATER, NOW + DUE_CHECKED_MS + 1)
    hints.save()
    assert hints_of(store).due(BOTH, NOW + DUE_CHECKED_MS + MINUTE) == {"t": [RETENTION]}


@pytest.mark.parametrize(("version", "written"), [(10**9, -1), (10**9, NOW), (-7, NOW), (-7, -1)])
def test_hint_of_a_version_that_never_was_is_not_used(
    store: Spy, version: int, written: int
) -> None:
    commit(store, 3)
    hints = hints_of(store)
    hints.note("t", RETENTION, version, written, LATER, NOW)
    hints.save()
    assert hints_of(store).due((RETENTION,), NOW + DUE_CHECKED_MS + 1) == {"t": (RETENTION,)}


@pytest.mark.parametrize(
    "harm",
    [
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: data.replace(b'"retention":[3', b'"retention":[9'),
        lambda data: b"null\n" + data.partition(b"\n")[2],
        lambda data: signed(b"[" * 100_000),
        lambda data: signed(b"null"),
        lambda data: signed(data.partition(b"\n")[0].replace(b"]}]", b",9]}]")),
    ],
)
def test_damaged_hints_are_not_used(store: Spy, harm: Callable[[bytes], bytes]) -> None:
    noted(store)
    (entry,) = store.list(DUE_FOLDER)
    harmed = harm(store.get(entry.key))
    assert harmed != store.get(entry.key)
    store.put(entry.key, harmed)
    assert hints_of(store).due(BOTH, NOW) == {"t": BOTH}


def test_hints_of_other_settings_or_of_a_clock_that_was_ahead_are_not_used(store: Spy) -> None:
    noted(store)
    assert hints_of(store, basis="other").due(BOTH, NOW) == {"t": BOTH}
    assert hints_of(store).due(BOTH, NOW - HOUR) == {"t": BOTH}
    assert hints_of(store).due(BOTH, NOW) == {}


def test_every_stream_is_looked_at_within_a_day(store: Spy) -> None:
    noted(store, due_ms=1 << 62)
    assert hints_of(store).due(BOTH, NOW + DUE_LATEST_MS // 2) == {}
    assert hints_of(store).due(BOTH, NOW + DUE_LATEST_MS) == {"t": BOTH}


@pytest.mark.medium
def test_streams_share_objects_and_those_that_are_gone_leave_them(store: Spy) -> None:
    names = [f"t{number}" for number in range(3 * DUE_SHARD_STREAMS)]
    hints = hints_of(store, *names)
    for name in names:
        commit(store, 0, name)
        hints.note(name, RETENTION, 0, written_ms(store, 0, name), LATER, NOW)
    hints.save()
    assert len(store.list(DUE_FOLDER)) == 4
    assert hints_of(store, *names).due((RETENTION,), NOW) == {}
    fewer = hints_of(store, *names[:9])
    assert fewer.due((RETENTION,), NOW) == dict.fromkeys(names[:9], (RETENTION,))
    fewer.note("t1", RETENTION, 0, NOW, LATER, NOW)
    fewer.note("unknown", RETENTION, 0, NOW, LATER, NOW)
    fewer.save()
    drop_hints(store, fewer.keys())
    (entry,) = store.list(DUE_FOLDER)
    assert b'"t1"' in store.get(entry.key)
    assert b'"t20"' not in store.get(entry.key)
    assert b"unknown" not in store.get(entry.key)


def test_dropped_hint_is_looked_at_again(store: Spy) -> None:
    noted(store)
    hints = hints_of(store)
    hints.read()
    hints.drop("t")
    hints.save()
    assert hints_of(store).due(BOTH, NOW) == {"t": BOTH}
