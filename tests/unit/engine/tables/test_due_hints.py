"""Due hints: what is looked at, what that costs, and that a wrong hint only costs work."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pravega_spark.engine.store import Store
from pravega_spark.engine.tables.due_hints import DUE_FOLDER, DueHints, drop_hints
from pravega_spark.limits import DUE_CHECKED_MS, DUE_LATEST_MS, DUE_SHARD_STREAMS
from pravega_spark.model import MaintenanceKind
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.spy_store import Spy

RETENTION, SWEEPING = MaintenanceKind.RETENTION, MaintenanceKind.SWEEPING
BOTH = (RETENTION, SWEEPING)
NOW, MINUTE, HOUR = 1_700_000_000_000, 60_000, 3_600_000
LATER = NOW + 20 * HOUR


@pytest.fixture
def store() -> Spy:
    return Spy(memory(FakeRuntime()))


def hints_of(store: Store, *names: str, basis: str = "b") -> DueHints:
    """The hints as another process has them."""
    return DueHints(store, "s/streams", names or ("t",), lambda name: f"s/{name}/events", basis)


def commit(store: Store, version: int, name: str = "t") -> None:
    store.put(f"s/{name}/events/_delta_log/{version:020d}.json", b"{}")


def noted(store: Store, version: int = 3, due_ms: int = LATER, now_ms: int = NOW) -> None:
    """Look at the stream at a version, and write the hint down."""
    commit(store, version)
    hints = hints_of(store)
    for kind in BOTH:
        hints.note("t", kind, version, due_ms, now_ms)
    hints.save()


def test_stream_without_a_hint_is_looked_at_without_a_call_for_it(store: Spy) -> None:
    hints = hints_of(store, "t", "u")
    hints.read()
    store.calls.clear()
    assert hints.due(BOTH, NOW) == {"t": BOTH, "u": BOTH}
    assert store.calls == []


def test_idle_stream_costs_one_call_until_it_is_due_or_has_news(store: Spy) -> None:
    noted(store)
    hints = hints_of(store)
    hints.read()
    store.calls.clear()
    assert hints.due(BOTH, NOW + MINUTE) == {}
    assert [operation for operation, _ in store.calls] == ["exists"]
    assert hints.due(BOTH, LATER) == {"t": BOTH}
    commit(store, 4)
    assert hints_of(store).due(BOTH, NOW + MINUTE) == {"t": BOTH}


def test_kind_that_saw_an_older_version_is_due_and_the_others_are_not(store: Spy) -> None:
    noted(store)
    commit(store, 4)
    hints = hints_of(store)
    hints.read()
    hints.note("t", SWEEPING, 4, LATER, NOW + MINUTE)
    hints.save()
    assert hints_of(store).due(BOTH, NOW + 2 * MINUTE) == {"t": [RETENTION]}
    assert hints_of(store).due((SWEEPING,), NOW + 2 * MINUTE) == {}


def test_news_that_was_committed_and_cleaned_away_since_is_found(store: Spy) -> None:
    noted(store)
    store.delete(["s/t/events/_delta_log/00000000000000000003.json"])
    commit(store, 90)
    assert hints_of(store).due(BOTH, NOW + DUE_CHECKED_MS + 1) == {"t": BOTH}


def test_time_of_the_check_is_renewed_so_that_one_call_stays_enough(store: Spy) -> None:
    noted(store)
    for minutes in range(20, 200, 20):
        hints = hints_of(store)
        hints.read()
        store.calls.clear()
        assert hints.due(BOTH, NOW + minutes * MINUTE) == {}
        assert store.count("exists") == 1
        hints.save()
        assert store.count("put") == 1, "the shard"


@pytest.mark.parametrize(
    "harm",
    [
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: data.replace(b'"retention":[3', b'"retention":[9'),
        lambda data: b"null\n" + data.partition(b"\n")[2],
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


def test_streams_share_objects_and_those_that_are_gone_leave_them(store: Spy) -> None:
    names = [f"t{number}" for number in range(3 * DUE_SHARD_STREAMS)]
    hints = hints_of(store, *names)
    for name in names:
        commit(store, 0, name)
        hints.note(name, RETENTION, 0, LATER, NOW)
    hints.save()
    assert len(store.list(DUE_FOLDER)) == 4
    assert hints_of(store, *names).due((RETENTION,), NOW) == {}
    fewer = hints_of(store, *names[:9])
    assert fewer.due((RETENTION,), NOW) == dict.fromkeys(names[:9], (RETENTION,))
    fewer.note("t1", RETENTION, 0, LATER, NOW)
    fewer.note("unknown", RETENTION, 0, LATER, NOW)
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
