"""How many storage calls a server makes: bounded for each poll, whatever the root holds.

The state files that the writers of the test owe are awaited, since they are written in the
background, and their calls would count.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from pravega_spark import StreamConfiguration
from pravega_spark.engine.log import checkpoint
from pravega_spark.serve import call_budget
from pravega_spark.serve.attention import LOOKS
from pravega_spark.serve.call_budget import GET_CALLS, POLL_CALLS
from pravega_spark.serve.group_watch import HEARTBEATS
from tests.harness.counted_store import CountedRoot
from tests.harness.tiers import sized
from tests.harness.web_world import web_client

SIZES = ((sized(10, 30), sized(20, 50)), (sized(20, 300), sized(190, 500)))
"""Groups and streams of two roots: a poll looks at all of the small one, at a part of the other."""
assert sum(SIZES[0]) < LOOKS < sum(SIZES[1])
LISTS = ("/api/groups?limit=200", "/api/streams", "/api/overview")


def make(groups: int, streams: int) -> CountedRoot:
    root = CountedRoot()
    for number in range(streams):
        root.manager.create_stream(f"nyc/s{number:04}")
        with root.manager.create_writer(f"nyc/s{number:04}") as writer:
            writer.write_event(b"x", routing_key="k")
    for number in range(groups):
        root.manager.create_reader_group(f"nyc/g{number:04}", [f"nyc/s{number % streams:04}"])
    settle(root)
    return root


def settle(root: CountedRoot) -> None:
    """Wait for what the writers left to the background, and count from here on."""
    worker = checkpoint._workers.get(os.getpid())
    if worker is not None:
        worker.submit(lambda: None).result()
    root.store.taken()


def poll(client: Any, root: CountedRoot) -> dict[str, Any]:
    root.runtime.sleep(3)
    found: dict[str, Any] = client.get("/api/attention").json()
    return found


def looked(found: dict[str, Any]) -> int:
    return int(found["streams"]["looked"]) + int(found["groups"]["looked"])


@pytest.mark.medium
@pytest.mark.long(slow=False)
@pytest.mark.parametrize(("groups", "streams"), SIZES, ids=["small", "large"])
def test_polls_and_lists_stay_within_their_budgets_at_any_size(groups: int, streams: int) -> None:
    root = make(groups, streams)
    with web_client(root.manager) as client:
        first: list[int] = []
        lists: list[int] = []
        found = poll(client, root)
        while looked(found) < groups + streams:
            first.append(root.store.taken())
            for path in LISTS:
                assert client.get(path).status_code == 200
            lists.append(root.store.taken())
            found = poll(client, root)
        first.append(root.store.taken())
        assert max(first) <= POLL_CALLS
        assert max(lists, default=0) <= GET_CALLS
        assert len(first) <= 3 + (groups + streams) // 60  # all are looked at soon

        idle = []
        for _ in range(5):
            poll(client, root)
            idle.append(root.store.taken())
            for path in LISTS:
                client.get(path)
            lists.append(root.store.taken())
        print(f"{groups} groups, {streams} streams: first {first}, lists {lists}, idle {idle}")
        assert max(lists) <= GET_CALLS
    # The poll has looked at all that a list shows, or else at a part: a call for each other row.
    assert lists[-1] <= (0 if groups + streams <= LOOKS else 100)
    others = 8  # the listing, the index of the scope, the settings, the record of maintenance
    assert max(idle) <= min(2 * LOOKS, groups + streams) + others


@pytest.mark.medium
def test_lists_share_a_budget_in_the_time_of_a_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_budget, "POLL_CALLS", 40)  # polls look at few streams
    monkeypatch.setattr(call_budget, "GET_CALLS", 20)
    root = make(1, 50)
    others = 16  # the listings
    with web_client(root.manager) as client:
        for _ in range(2):
            poll(client, root)
            root.store.taken()
            spent = []
            for _ in range(3):
                assert client.get("/api/streams").status_code == 200
                spent.append(root.store.taken())
            assert 0 < spent[0] <= 40 + 20 + others  # it polls, too
            assert spent[1:] == [0, 0]


@pytest.mark.medium
def test_nobody_who_looks_costs_no_call_and_a_live_page_only_reads() -> None:
    root = make(2, 2)
    root.manager.update_settings(maintain="auto")
    root.manager.update_stream("nyc/s0000", StreamConfiguration(tags={"changed"}))
    settle(root)
    before = set(threading.enumerate())
    with web_client(root.manager) as client:
        root.runtime.sleep(3_600)
        assert root.store.taken() == 0
        root.store.kinds.clear()
        for _ in range(20):
            poll(client, root)
            for path in (*LISTS, "/api/groups/nyc/g0000"):
                assert client.get(path).status_code == 200
            root.runtime.sleep(600)
            root.runtime.run_later()
        assert root.store.kinds["put"] == root.store.kinds["delete"] == 0
        assert root.store.kinds["get"] > 0
    maintaining = [t.name for t in set(threading.enumerate()) - before if "maint" in t.name]
    assert maintaining == []


@pytest.mark.medium
def test_a_log_with_more_new_commits_than_a_poll_may_read_is_read_on_by_the_next_ones() -> None:
    root = make(1, 3)
    with web_client(root.manager) as client:
        poll(client, root)
        with root.manager.create_writer("nyc/s0000") as writer:
            for _ in range(POLL_CALLS + 200):
                writer.write_event(b"x", routing_key="k").result()
        settle(root)
        lags, calls = [], []
        for _ in range(6):
            poll(client, root)
            calls.append(root.store.taken())
            lags.append(client.get("/api/groups").json()["groups"][0]["lag_events"])
            root.store.taken()
    assert max(calls) <= POLL_CALLS
    assert lags[-1] == POLL_CALLS + 201


@pytest.mark.medium
def test_a_poll_is_charged_for_the_histories_that_tell_what_groups_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count, scales, most = 8, 6, 40
    root = make(count, count)
    for number in range(count):
        name = f"nyc/s{number:04}"
        for sealed in range(scales):
            root.manager.scale_stream(name, seal=[f"{sealed}#{sealed}"], key_ranges=[(0.0, 1.0)])
        root.manager.truncate_stream(name, root.manager.tail(name))
    settle(root)
    monkeypatch.setattr(call_budget, "POLL_CALLS", most)
    with web_client(root.manager) as client:
        calls = []
        found = poll(client, root)
        while looked(found) < 2 * count:
            calls.append(root.store.taken())
            found = poll(client, root)
        calls.append(root.store.taken())
        lost = [f["number"] for f in found["findings"] if f["kind"] == "group_lost_events"]
        for _ in range(4):
            poll(client, root)
        idle = root.store.taken() / 4
    assert max(calls) <= most
    assert lost == [1] * count
    assert idle <= 2 * count + 4, "a history is read once"


@pytest.mark.medium
def test_a_group_of_many_readers_is_read_by_and_by_and_not_judged_before() -> None:
    root = make(1, 1)
    handle = root.manager.reader_group("nyc/g0000")
    count = 2 * HEARTBEATS + 4
    readers = [handle.create_reader(f"r{number:02}") for number in range(count)]
    with web_client(root.manager) as client:
        root.store.taken()
        states, calls = [], []
        for _ in range(5):
            found = poll(client, root)
            calls.append(root.store.taken())
            states.append((found["groups"]["looked"], found["quiet"]))
        (row,) = client.get("/api/groups").json()["groups"]
        for reader in readers:
            reader.close()
    assert states[0] == (0, False)
    assert states[-1][0] == 1
    assert row["live_readers"] == count
    assert max(calls[1:]) <= HEARTBEATS + 10


def test_the_page_of_a_group_that_is_live_costs_no_call_beside_the_poll() -> None:
    root = make(3, 3)
    with web_client(root.manager) as client:
        poll(client, root)
        assert client.get("/api/groups/nyc/g0001").status_code == 200
        root.store.taken()
        for _ in range(3):  # within the time of a poll
            assert client.get("/api/groups/nyc/g0001").json()["row"]["lag_events"] == 1
        assert root.store.taken() == 0
