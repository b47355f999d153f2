"""Batches that share commits: of several writers of a process, and of several processes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from pravega_spark.config.policies import StreamConfiguration
from pravega_spark.engine.log.actions import REQUEST, Body, Commit
from pravega_spark.engine.log.retained import raise_horizon
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.watermarks import TimeNote, marks_of
from pravega_spark.engine.writing import group_commit as writing_group
from pravega_spark.engine.writing.append import AppendResult, StagedBatch
from pravega_spark.engine.writing.batch import WriteBatch
from pravega_spark.engine.writing.committer import BatchCommitter
from pravega_spark.engine.writing.group_commit import (
    LOCAL,
    MISSED_COMMITS,
    VERB_COMMITS,
    AppendGroup,
    Contention,
    MustOffer,
    group_of,
)
from pravega_spark.engine.writing.identity import SessionBatch, open_session
from pravega_spark.errors import (
    CommitUnknown,
    SegmentSealed,
    StagedTooLate,
    StoreError,
    StoreFull,
    StreamSealed,
    WriterFenced,
)
from pravega_spark.values.limits import OFFER_VERSIONS
from tests.harness.failpoints import at_failpoint
from tests.harness.fake_runtime import FakeRuntime
from tests.harness.fault_plans import Rule
from tests.harness.faulty_store import Fault
from tests.harness.offering import commit_offers, contended, offer
from tests.harness.small_streams import (
    all_events,
    events_of,
    make_stream,
    reopen,
    scale,
    staged,
    write,
)
from tests.harness.small_tables import commit
from tests.harness.spy_store import Spy

WAIT = 60.0


class Killed(BaseException):
    """Ends a call as the end of its process would."""


def kill() -> None:
    raise Killed


def of(n: int, key: str = "k") -> list[tuple[str | None, bytes]]:
    return [(key, b"%d" % n)]


def data(stream: StreamLog) -> list[bytes]:
    return [event for _, event in all_events(reopen(stream))]


def batch_of(events: list[tuple[str | None, bytes]]) -> WriteBatch:
    batch = WriteBatch()
    batch.events = [event for _, event in events]
    batch.keys = [key for key, _ in events]
    batch.times_ns = [0] * len(events)
    return batch


def plain(stream: StreamLog, n: int, identity: SessionBatch) -> StagedBatch:
    """Return a batch whose chunks have plain names."""
    version = stream.view(refresh=False).version
    return StagedBatch(1, version, tuple(staged(stream, of(n), version)), identity)


def commits(stream: StreamLog) -> list[Commit]:
    return list(stream.log.reader.span(0, stream.view().version))


# ---------------------------------------------------------------------------------- alone


def test_lone_writer_makes_two_puts_for_a_batch_and_lists_nothing() -> None:
    store = Spy()
    stream = make_stream(store)
    committer = BatchCommitter(stream, "w")
    committer.commit(batch_of(of(0)))
    threads = set(threading.enumerate())
    store.calls.clear()
    for n in range(1, 30):
        committer.commit(batch_of(of(n)))
    assert {op for op, _ in store.calls} == {"put", "put_if_absent"}
    assert len(store.calls) == 2 * 29
    assert all("/o0" not in key for _, key in store.calls), "the chunks have short names"
    assert set(threading.enumerate()) <= threads  # those of earlier tests may end meanwhile


def test_one_lost_race_is_no_contention_and_two_in_a_short_time_are() -> None:
    stream = make_stream(runtime=FakeRuntime())
    other = reopen(stream)
    committer = BatchCommitter(stream, "w")
    group = group_of(stream)
    for n in range(3):
        write(other, of(n))
        committer.commit(batch_of(of(10 + n)))
        assert group.offers is (n > 0)
    stream.runtime.sleep(60)
    assert not group.offers


# ------------------------------------------------------------------- several in one process


class Held:
    """Holds the commits of a store until it is released."""

    def __init__(self, store: Spy) -> None:
        self.reached, self.go = threading.Event(), threading.Event()
        self.store = store
        store.hook = self._hook

    def _hook(self, operation: str, key: str) -> None:
        if operation == "put_if_absent":
            self.reached.set()
            assert self.go.wait(WAIT)

    def release(self) -> None:
        self.store.hook = None
        self.go.set()


def wait_until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(60_000):
        if condition():
            return
        pause.wait(0.001)
    raise AssertionError("the condition did not become true")


def appended_together(
    group: AppendGroup, store: Spy, batches: list[StagedBatch]
) -> list[Future[Any]]:
    """Append the first batch alone, and the others while its commit is held."""
    held = Held(store)
    with ThreadPoolExecutor(len(batches)) as pool:
        futures = [pool.submit(group.append, batches[0])]
        assert held.reached.wait(WAIT)
        futures += [pool.submit(group.append, batch) for batch in batches[1:]]
        wait_until(lambda: len(group._waiting) == len(batches))
        held.release()
    return futures


def test_batches_that_wait_during_a_commit_share_the_next_one() -> None:
    store = Spy()
    stream = make_stream(store)
    sessions = [open_session(stream, 1, f"w{n}").session for n in range(5)]
    batches = [plain(stream, n, SessionBatch(f"w{n}", sessions[n], 0, 1)) for n in range(5)]
    futures = appended_together(group_of(stream), store, batches)

    versions = [future.result().version for future in futures]
    assert versions == [6, 7, 7, 7, 7]
    ranges = [future.result().ranges[0] for future in futures]
    assert sorted(found.base_offset for found in ranges) == [*range(5)]
    events = data(stream)
    assert [events[found.base_offset] for found in ranges] == [b"%d" % n for n in range(5)]


def test_error_of_one_batch_is_no_error_of_the_others() -> None:
    store = Spy()
    stream = make_stream(store)
    sessions = [open_session(stream, 1, f"w{n}").session for n in range(3)]
    open_session(stream, 1, "w1")
    batches = [plain(stream, n, SessionBatch(f"w{n}", sessions[n], 0, 1)) for n in range(3)]
    first, fenced, last = appended_together(group_of(stream), store, batches)
    assert not first.result().duplicate
    assert not last.result().duplicate
    with pytest.raises(WriterFenced):
        fenced.result()
    assert data(stream) == [b"0", b"2"]


def test_refused_commit_fails_the_batches_in_it_and_the_next_ones_are_committed() -> None:
    store = Spy()
    stream = make_stream(store)
    sessions = [open_session(stream, 1, f"w{n}").session for n in range(3)]
    batches = [plain(stream, n, SessionBatch(f"w{n}", sessions[n], 0, 1)) for n in range(3)]
    store.rules.add(Rule(StoreFull("full"), "put_if_absent", nth=2))
    first, *others = appended_together(group_of(stream), store, batches)
    assert first.result().version == 4
    for future in others:
        with pytest.raises(StoreFull):
            future.result()
    assert not group_of(stream).append(batches[1]).duplicate
    assert data(stream) == [b"0", b"1"]


# --------------------------------------------------------------------- several processes


def test_committer_commits_the_offers_of_others_and_their_owners_find_their_offsets() -> None:
    store = Spy()
    stream = make_stream(store, segments=2)
    owners = [reopen(stream) for _ in range(3)]
    batches = [
        offer(owner, [(f"k{i}", b"%d/%d" % (n, i)) for i in range(6)])
        for n, owner in enumerate(owners)
    ]
    commit_offers(stream)
    assert stream.view().version == 1
    store.calls.clear()
    for owner, batch in zip(owners, batches, strict=True):
        contended(owner)
        found = group_of(owner).append(batch)
        assert (found.version, found.duplicate) == (1, False)
        assert [r.segment_id for r in found.ranges] == [c.segment_id for c in batch.chunks]
        for segment_id, base, rows, _ in found.ranges:
            mine = [event for _, event in events_of(owner, segment_id)][base : base + rows]
            assert {event[:1] for event in mine} == {b"%d" % owners.index(owner)}
    assert store.count("put_if_absent") == store.count("put") == 0
    assert len(data(stream)) == len(set(data(stream))) == 18


def test_owner_that_read_on_finds_its_offsets_in_the_commit_that_holds_its_chunks() -> None:
    stream = make_stream(segments=2)
    owners = [reopen(stream) for _ in range(3)]
    batches = [
        offer(owner, [(f"k{i}", b"%d/%d" % (n, i)) for i in range(6)])
        for n, owner in enumerate(owners)
    ]
    commit_offers(stream)
    for n in range(5):
        write(stream, of(n))
    for n, (owner, batch) in enumerate(zip(owners, batches, strict=True)):
        owner.view()
        found = contended(owner).append(batch)
        assert (found.version, found.duplicate) == (1, False)
        for segment_id, base, rows, _ in found.ranges:
            mine = [event for _, event in events_of(owner, segment_id)][base : base + rows]
            assert {event[:2] for event in mine} == {b"%d/" % n}


def test_owner_needs_one_look_and_no_listing_once_its_batch_was_taken() -> None:
    store = Spy()
    stream = make_stream(store)
    owner = reopen(stream)
    batch = offer(owner, of(1))
    commit_offers(stream)
    contended(owner)
    store.calls.clear()
    group_of(owner).append(batch)
    assert store.count("get", "_delta_log") == 1
    assert store.count("list") == 0
    assert store.count("make_durable", "_delta_log") == 1, "it is acknowledged only then"


def test_owner_commits_itself_and_for_others_when_its_patience_is_over() -> None:
    stream = make_stream(runtime=FakeRuntime())
    other = offer(reopen(stream), of(1))
    batch = offer(stream, of(2))
    contended(stream)
    before = stream.runtime.monotonic()
    assert not group_of(stream).append(batch).duplicate
    assert 0.01 < stream.runtime.monotonic() - before < 1.0
    assert stream.view().version == 1
    assert sorted(data(stream)) == [b"1", b"2"]
    assert not group_of(reopen(stream)).append(other).duplicate
    assert len(data(stream)) == 2


def test_batch_that_cannot_be_offered_waits_for_nobody() -> None:
    stream = make_stream(runtime=FakeRuntime())
    contended(stream)
    before = stream.runtime.monotonic()
    identity = SessionBatch("w", open_session(stream, 1, "w").session, 0, 1, note="noted")
    own = replace(plain(stream, 1, identity), can_be_offered=False)
    assert not group_of(stream).append(own).duplicate
    assert stream.runtime.monotonic() - before < LOCAL.patience


def test_owner_draws_its_patience_once_and_not_at_each_look() -> None:
    runtime = FakeRuntime()
    draws = iter([0.9])
    runtime.random = lambda: next(draws, 0.0)  # type: ignore[method-assign]
    stream = make_stream(runtime=runtime)
    batch = offer(stream, of(1))
    contended(stream)
    before = runtime.monotonic()
    group_of(stream).append(batch)
    assert runtime.monotonic() - before > 1.8 * 4 * LOCAL.interval


def test_owner_whose_offer_is_passed_over_commits_itself_after_a_few_commits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = make_stream()
    other = reopen(stream)
    batch = offer(stream, of(1))
    contended(stream)
    read_next = stream.log.read_next
    passed: list[AppendResult] = []

    def pass_over() -> bytes | None:
        passed.append(write(other, of(100 + len(passed))))
        return read_next()

    monkeypatch.setattr(stream.log, "read_next", pass_over)
    found = group_of(stream).append(batch)
    assert not found.duplicate
    assert len(passed) == MISSED_COMMITS


def test_owner_does_not_wait_for_many_commits_of_verbs_which_take_no_offers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = make_stream()
    other = reopen(stream)
    batch = offer(stream, of(1))
    contended(stream)
    read_next = stream.log.read_next
    passed = 0

    def pass_over() -> bytes | None:
        nonlocal passed
        passed += 1
        commit(other.log, lambda snapshot: Body("UPDATE STREAM", domains={"test.verb": "1"}))
        return read_next()

    monkeypatch.setattr(stream.log, "read_next", pass_over)
    assert not group_of(stream).append(batch).duplicate
    assert passed * VERB_COMMITS >= MISSED_COMMITS > (passed - 1) * VERB_COMMITS


def test_owner_that_lost_a_race_to_a_verb_takes_again_at_once() -> None:
    store = Spy()
    stream = make_stream(store, FakeRuntime())
    other = reopen(stream, store.inner)
    batch = offer(stream, of(1))
    lost_at = 0.0

    def race(operation: str, key: str) -> None:
        nonlocal lost_at
        if operation == "put_if_absent":
            store.hook = None
            commit(other.log, lambda snapshot: Body("UPDATE STREAM", domains={"test.verb": "1"}))
            lost_at = stream.runtime.monotonic()

    store.hook = race
    contended(stream)
    assert group_of(stream).append(batch).version == 2
    assert stream.runtime.monotonic() - lost_at < LOCAL.patience


def test_local_owner_does_not_look_for_the_next_commit_at_once() -> None:
    store = Spy()
    stream = make_stream(store, FakeRuntime())
    other = reopen(stream, store.inner)
    batch = offer(stream, of(1))
    looks: list[float] = []

    def look(operation: str, key: str) -> None:
        if operation == "get" and "_delta_log" in key:
            looks.append(stream.runtime.monotonic())
            if len(looks) == 3:
                write(other, of(2))

    store.hook = look
    contended(stream)
    group_of(stream).append(batch)
    assert looks[3] - looks[2] >= LOCAL.interval / 2 * 0.99


def test_owner_of_an_offer_that_nobody_took_in_time_takes_the_other_old_ones_too() -> None:
    stream = make_stream(runtime=FakeRuntime())
    batches = [offer(reopen(stream), of(n)) for n in range(5)]
    other = reopen(stream)
    for n in range(OFFER_VERSIONS + 5):
        write(other, of(100 + n))
    version = stream.view().version
    commit_offers(other)
    assert other.view().version == version, "others list the offers of the last versions only"
    contended(stream)
    assert group_of(stream).append(batches[0]).version == version + 1
    for batch in batches[1:]:
        assert group_of(reopen(stream)).append(batch).version == version + 1


def test_owner_that_lost_a_race_as_a_committer_leaves_the_next_commits_to_the_winner() -> None:
    store = Spy()
    stream = make_stream(store, runtime=FakeRuntime())
    winner = reopen(stream, store.inner)
    batch = offer(stream, of(1))

    def race(operation: str, key: str) -> None:
        if operation == "put_if_absent":
            store.calls.clear()
            write(winner, of(2))
            store.hook = follow

    def follow(operation: str, key: str) -> None:
        if store.count("get", "_delta_log") > 3:
            store.hook = None
            assert store.count("list") == store.count("put_if_absent") == 0
            commit_offers(winner)

    store.hook = race
    contended(stream)
    assert group_of(stream).append(batch).version == 2
    assert store.count("list", "/data/") == store.count("put_if_absent") == 0


@pytest.mark.parametrize("owners", [1, 3])
def test_owners_that_lose_every_race_get_their_turn_by_requests(owners: int) -> None:
    """A writer commits before each attempt of an append, and takes no offer."""
    store = Spy()
    stream = make_stream(store, FakeRuntime())
    steady = reopen(stream, store.inner)
    streams = [reopen(stream) for _ in range(owners)]
    batches = [offer(owner, of(n)) for n, owner in enumerate(streams)]
    before = stream.view().version

    def commit(operation: str, key: str) -> None:
        is_append = operation == "put_if_absent" and b'"APPEND"' in store.sent[-1][1]
        if is_append and steady.view() and steady.log._follower.request is None:
            write(steady, of(1_000 + steady.view().version))

    store.hook = commit
    for owner, batch in zip(streams, batches, strict=True):
        contended(owner)
        version = group_of(owner).append(batch).version
        assert version - before <= 16
    assert data(stream)[0].startswith(b"1")
    operations = [commit.operation for commit in commits(stream)]
    assert operations.count(REQUEST) == 1, "the first one commits for the others, too"


def test_process_that_commits_during_each_listing_does_not_win_every_race() -> None:
    store = Spy()
    stream = make_stream(store)
    steady = reopen(stream, store.inner)
    batch = offer(stream, of(1))
    contended(stream).committer.serves_others = True
    won = 0

    def commit(operation: str, key: str) -> None:
        nonlocal won
        if operation == "list" and "/data/" in key and won < 50:
            won += 1
            write(steady, of(100 + won))

    store.hook = commit
    assert not group_of(stream).append(batch).duplicate
    assert won == 2, "one race lost by the owner, and one in the background after that"


def test_committer_whose_offers_were_taken_by_others_does_not_chase_the_newest_version() -> None:
    store = Spy()
    stream = make_stream(store)
    other = reopen(stream, store.inner)
    offer(stream, of(1))
    commit_offers(other)
    commits = 0

    def commit(operation: str, key: str) -> None:
        nonlocal commits
        if operation == "get" and "_delta_log" in key and commits < 50:
            commits += 1
            write(other, of(100 + commits))

    group = group_of(stream)
    stream.log.read_next()
    store.hook = commit
    store.calls.clear()
    group.committer.commit_with_offers([])
    assert commits == 0


def test_offer_of_a_dead_owner_is_taken_once_by_many_committers() -> None:
    stream = make_stream()
    offer(reopen(stream), of(1))
    others = [reopen(stream) for _ in range(3)]
    for other in others:
        other.view()
    for other in others:
        commit_offers(other)
        commit_offers(other)
    assert data(stream) == [b"1"]
    assert stream.view().version == 1


def test_offers_of_two_committers_that_race_are_committed_once() -> None:
    store = Spy()
    stream = make_stream(store)
    first, second = reopen(stream), reopen(stream)
    for n in range(3):
        offer(stream, of(n))
    second.view()

    def race(operation: str, key: str) -> None:
        if operation == "put_if_absent":
            store.hook = None
            commit_offers(second)

    store.hook = race
    commit_offers(first)
    assert sorted(data(stream)) == [b"0", b"1", b"2"]
    assert stream.view().version == 1


def test_committer_that_dies_between_its_commit_and_the_answer_leaves_it_to_the_owners() -> None:
    stream = make_stream()
    owner, other = reopen(stream), reopen(stream)
    batch = offer(owner, of(1))
    with at_failpoint("commit.applied", kill), pytest.raises(Killed):
        commit_offers(other)
    contended(owner)
    assert group_of(owner).append(batch).version == 1
    assert data(stream) == [b"1"]


def test_committer_that_dies_before_its_commit_leaves_the_offers_to_another() -> None:
    stream = make_stream(runtime=FakeRuntime())
    owner, other = reopen(stream), reopen(stream)
    batch = offer(owner, of(1))
    with at_failpoint("commit.before", kill), pytest.raises(Killed):
        commit_offers(other)
    contended(owner)
    assert group_of(owner).append(batch).version == 1
    assert data(stream) == [b"1"]


@pytest.mark.parametrize("fault", [Fault.STALE_LIST, Fault.PARTIAL_LIST])
def test_offers_that_a_listing_lacks_are_taken_later(fault: Fault) -> None:
    store = Spy()
    stream = make_stream(store, segments=2)
    batches = [offer(stream, [("k1", b"%d" % n), ("k2", b"x%d" % n)]) for n in range(2)]
    store.rules.add(Rule(fault, "list", nth=1))
    other = reopen(stream)
    commit_offers(other)
    commit_offers(other)
    events = data(stream)
    assert len(events) == len(set(events)) == 4
    for batch in batches:
        assert not group_of(reopen(stream)).append(batch).duplicate


def test_commit_holds_a_bounded_number_of_chunks_and_the_next_one_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writing_group, "OFFERS_PER_COMMIT", 2)
    stream = make_stream()
    for n in range(5):
        offer(stream, of(n))
    other = reopen(stream)
    for _ in range(3):
        commit_offers(other)
    assert [len(one.adds) for one in commits(stream)] == [2, 2, 1]
    assert sorted(data(stream)) == [b"0", b"1", b"2", b"3", b"4"]


def test_gap_is_left_lying_until_the_batch_before_it_is_there() -> None:
    stream = make_stream()
    session = open_session(stream, 1, "w").session
    other = reopen(stream)
    offer(stream, of(2), SessionBatch("w", session, 1, 2))
    commit_offers(other)
    assert data(stream) == []
    offer(stream, of(1), SessionBatch("w", session, 0, 1))
    commit_offers(other)
    assert data(stream) == [b"1", b"2"]
    assert other.view().version == 2, "one commit for both"


@pytest.mark.parametrize("change", ["session", "life", "horizon"])
def test_void_offers_are_never_taken(change: str) -> None:
    stream = make_stream()
    session = open_session(stream, 1, "w").session
    offer(stream, of(1), SessionBatch("w", session, 0, 1))
    if change == "session":
        open_session(stream, 1, "w")
    elif change == "life":
        lifecycle.seal(stream)
        lifecycle.delete(stream)
        lifecycle.create(stream, 2, StreamConfiguration())
    else:
        write(stream, of(9))
        raise_horizon(stream.log, 2)
    before = data(stream)
    commit_offers(reopen(stream))
    commit_offers(stream)
    assert data(stream) == before


def test_of_offers_of_two_lives_sessions_and_epochs_only_the_present_ones_are_taken() -> None:
    stream = make_stream()
    offer(stream, of(1))  # of an earlier life
    lifecycle.seal(stream)
    lifecycle.delete(stream)
    lifecycle.create(stream, 2, StreamConfiguration())
    first = open_session(stream, 2, "w").session
    offer(stream, of(2), SessionBatch("w", first, 0, 1))  # of an earlier session
    second = open_session(stream, 2, "w").session
    sealed = offer(stream, of(3))  # of an earlier epoch
    scale(stream, [stream.view().active.segments[0].segment_id], [(0, 0.5), (0.5, 1)])
    offer(stream, of(4), SessionBatch("w", second, 0, 1))
    offer(stream, of(5))
    commit_offers(reopen(stream))
    commit_offers(stream)
    assert sorted(data(stream)) == [b"4", b"5"]
    with pytest.raises(SegmentSealed):
        contended(stream).append(sealed)
    assert sorted(data(stream)) == [b"4", b"5"]


@pytest.mark.parametrize("days", [-1, 1])
def test_committer_whose_clock_is_wrong_by_a_day_takes_what_others_offer(days: int) -> None:
    store = MemoryStore()
    stream = make_stream(store, FakeRuntime())
    wrong = FakeRuntime()
    wrong.wall_ms += days * 86_400_000
    other = StreamLog(store, stream.name, wrong)
    other.log.maintain = None
    for n in range(3):
        batch = offer(stream, of(n))
        other.log.refresh()
        commit_offers(other)
        contended(stream)
        assert not group_of(stream).append(batch).duplicate
        late = offer(other, of(10 + n))
        commit_offers(stream)
        assert not contended(other).append(late).duplicate
    assert sorted(data(stream)) == sorted(b"%d" % n for n in (0, 1, 2, 10, 11, 12))
    times = [commit.timestamp_ms for commit in commits(stream)]
    assert times == sorted(set(times)), "the times of commits rise whatever the clocks show"


def test_committer_that_stalls_after_its_listing_doubles_nothing_when_it_goes_on() -> None:
    stream = make_stream()
    owners = [reopen(stream) for _ in range(3)]
    batches = [offer(owner, of(n)) for n, owner in enumerate(owners)]
    stalled, other = reopen(stream), reopen(stream)
    stalled.view()

    def stall() -> None:
        """Others take the offers in the meantime, write more, and offer more."""
        commit_offers(other)
        write(other, of(7))
        offer(other, of(8))

    with at_failpoint("append.listed", stall):
        commit_offers(stalled)
    for _ in range(2):  # the loser of a race waits for the winner's next commit first
        commit_offers(stalled)
    for owner, batch in zip(owners, batches, strict=True):
        assert contended(owner).append(batch).version == 1
    assert sorted(data(stream)) == [b"0", b"1", b"2", b"7", b"8"]


# ----------------------------------------------------------- scales, seals, horizon, errors


@pytest.mark.parametrize("change", [SegmentSealed, StagedTooLate, StreamSealed, WriterFenced])
def test_owner_learns_that_its_offer_can_no_longer_be_committed(change: type[Exception]) -> None:
    stream = make_stream()
    session = open_session(stream, 1, "w").session
    owner = reopen(stream)
    owner.view()
    batch = offer(owner, of(1), SessionBatch("w", session, 0, 1))
    if change is SegmentSealed:
        scale(stream, [0], [(0, 0.5), (0.5, 1)])
    elif change is StagedTooLate:
        write(stream, of(9))
        raise_horizon(stream.log, 2)
    elif change is StreamSealed:
        lifecycle.seal(stream)
    else:
        open_session(stream, 1, "w")
    contended(owner)
    with pytest.raises(change):
        group_of(owner).append(batch)
    assert b"1" not in data(stream)


@pytest.mark.parametrize("newer_writes", [0, 40])
def test_batch_that_others_committed_before_its_writer_was_fenced_is_acknowledged(
    newer_writes: int,
) -> None:
    """Its owner reads both commits at once, so it sees the record of the newer session alone."""
    stream = make_stream()
    session = open_session(stream, 1, "w").session
    owner = reopen(stream)
    owner.view()
    identity = SessionBatch("w", session, 0, 1)
    batch = offer(owner, of(1), identity)
    commit_offers(stream)
    newer = BatchCommitter(stream, "w")
    for n in range(newer_writes):
        newer.commit(batch_of(of(10 + n)))
    owner.view()
    found = contended(owner).append(batch)
    assert (found.version, found.duplicate) == (2, False)
    assert [r.base_offset for r in found.ranges] == [0]
    with pytest.raises(WriterFenced):
        group_of(owner).append(offer(owner, of(2), replace(identity, previous=1, last=2)))
    assert data(stream).count(b"1") == 1
    assert b"2" not in data(stream)


def test_batch_whose_numbers_a_newer_session_took_is_refused() -> None:
    stream = make_stream()
    session = open_session(stream, 1, "w").session
    owner = reopen(stream)
    owner.view()
    batch = offer(owner, of(1), SessionBatch("w", session, 0, 1))
    newer = BatchCommitter(stream, "w")
    for n in range(3):
        newer.commit(batch_of(of(10 + n)))
    with pytest.raises(WriterFenced):
        contended(owner).append(batch)
    assert b"1" not in data(stream)


def test_fenced_batch_whose_commits_are_gone_is_of_unknown_outcome() -> None:
    stream = make_stream()
    session = open_session(stream, 1, "w").session
    owner = reopen(stream)
    owner.view()
    batch = offer(owner, of(1), SessionBatch("w", session, 0, 1))
    commit_offers(stream)
    BatchCommitter(stream, "w").commit(batch_of(of(2)))
    owner.view()
    stream.store.delete([stream.log.reader.key(2)])
    with pytest.raises(CommitUnknown, match=r"were offered to other writers.*commit 2 of stream"):
        contended(owner).append(batch)


def test_writer_routes_its_offer_again_after_a_scale_and_writes_it_once() -> None:
    store = Spy()
    stream = make_stream(store)
    committer = BatchCommitter(stream, "w")
    contended(stream)
    other = reopen(stream, store.inner)
    events: list[tuple[str | None, bytes]] = [(f"k{n}", b"%d" % n) for n in range(8)]

    def scale_once(operation: str, key: str) -> None:
        if operation == "put" and "/o0" in key:
            store.hook = None
            scale(other, [0], [(0, 0.5), (0.5, 1)])

    store.hook = scale_once
    positions = committer.commit(batch_of(events))
    assert sorted(data(stream)) == sorted(event for _, event in events)
    commit_offers(other)
    assert len(data(stream)) == 8
    segments = {positions.pointer(row).segment_id for row in range(8)}
    assert 0 not in segments
    assert len(segments) == 2


def test_plain_batch_that_lost_races_is_offered_instead() -> None:
    stream = make_stream()
    other = reopen(stream)
    identity = SessionBatch("w", open_session(stream, 1, "w").session, 0, 1)
    batch = plain(stream, 1, identity)
    write(other, of(8))
    group_of(stream).committer._contention.lost_race(stream.runtime.monotonic())
    with pytest.raises(MustOffer):
        group_of(stream).append(batch)
    write(other, of(9))
    noted = replace(batch, can_be_offered=False)
    assert not group_of(stream).append(noted).duplicate
    assert sorted(data(stream)) == [b"1", b"8", b"9"]


def test_storage_error_after_an_offer_is_an_unknown_outcome() -> None:
    store = Spy()
    stream = make_stream(store)
    batch = offer(stream, of(1))
    contended(stream)
    store.rules.add(Rule(StoreError("down"), "get"))
    store.rules.add(Rule(StoreError("down"), "list"))
    with pytest.raises(CommitUnknown, match=r"events 1 to 1 were offered.*Open the writer again"):
        group_of(stream).append(batch)
    commit_offers(reopen(stream, store.inner))
    assert data(reopen(stream, store.inner)) == [b"1"]


def test_reads_that_fail_for_a_while_fail_no_offered_batch() -> None:
    store = Spy()
    stream = make_stream(store)
    batch = offer(stream, of(1))
    contended(stream)
    for nth in (1, 2, 3):
        store.rules.add(Rule(StoreError("down"), "get", nth=nth))
    with at_failpoint("append.staged", lambda: commit_offers(reopen(stream, store.inner))):
        assert not group_of(stream).append(batch).duplicate
    assert store.count("get", "_delta_log") >= 3


def test_lost_answer_when_an_offer_is_stored_is_an_unknown_outcome_and_a_full_disk_not() -> None:
    store = Spy()
    stream = make_stream(store)
    committer = BatchCommitter(stream, "w")
    contended(stream)
    store.rules.add(Rule(Fault.LOSE_ANSWER, "put", "*/o0*", nth=1))
    with pytest.raises(CommitUnknown):
        committer.commit(batch_of(of(1)))
    commit_offers(reopen(stream))
    assert data(stream) == [b"1"]
    again = BatchCommitter(stream, "w")
    assert again.last == 1
    store.rules.add(Rule(StoreFull("full"), "put", "*/o0*", nth=1))
    with pytest.raises(StoreFull):
        again.commit(batch_of(of(2)))


def test_reopened_writer_knows_what_was_taken_and_fences_the_rest() -> None:
    stream = make_stream()
    first = BatchCommitter(stream, "w")
    identity = SessionBatch("w", first._session, 0, 1)
    offer(stream, of(1), identity)
    offer(stream, of(2), replace(identity, previous=1, last=2))
    commit_offers(reopen(stream))
    offer(stream, of(3), replace(identity, previous=2, last=3))
    assert BatchCommitter(stream, "w").last == 2
    commit_offers(reopen(stream))
    assert data(stream) == [b"1", b"2"]


def test_batch_is_offered_only_once_all_before_it_are_in_the_log() -> None:
    stream = make_stream()
    committer = BatchCommitter(stream, "w")
    contended(stream)
    first, second = (committer.prepare(batch_of(of(n))) for n in range(2))
    assert first.staged is not None
    assert first.staged.is_offered
    assert second.staged is not None
    assert not second.staged.is_offered, "another process could only leave it lying"
    committer.commit(first.batch, first)
    committer.commit(second.batch, second)
    assert data(stream) == [b"0", b"1"]


@pytest.mark.parametrize("kind", ["note", "time"])
def test_what_has_no_place_in_a_name_is_not_offered_and_not_lost(kind: str) -> None:
    stream = make_stream()
    committer = BatchCommitter(stream, "w")
    contended(stream)
    batch = batch_of(of(1))
    if kind == "note":
        batch.note = "noted"
    else:
        batch.time_note = TimeNote("w", 7)
    prepared = committer.prepare(batch)
    assert prepared.staged is not None
    assert not prepared.staged.is_offered
    committer.commit(batch, prepared)
    view = reopen(stream).view()
    record = view.writer("w")
    assert record is not None
    noted = record.note, [mark.time_us for mark in marks_of(view)]
    assert noted == (("noted", []) if kind == "note" else (None, [7]))


def test_idle_writer_whose_record_was_swept_writes_on_if_it_has_offered_nothing() -> None:
    stream = make_stream()
    committer = BatchCommitter(stream, None)
    committer.commit(batch_of(of(1)))
    write(reopen(stream), of(2))
    record = f"pravega.writer.{committer.writer_id}"
    raise_horizon(stream.log, 1, drop=lambda snapshot: [record])
    stream.view()
    contended(stream)
    committer.commit(batch_of(of(3)))
    assert sorted(data(stream)) == [b"1", b"2", b"3"]


def test_process_whose_own_writers_are_idle_stops_to_commit_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writing_group, "_COMMITS_FOR_OTHERS", 3)
    stream = make_stream()
    other = reopen(stream)
    committer = contended(other).committer
    taken = 0
    while taken < 10:
        offer(stream, of(taken))
        committer.commit_with_offers([])
        taken += 1
        if not committer.goes_on:
            break
    assert taken == 3


def test_idle_writer_whose_record_was_swept_does_not_renew_its_id_after_an_offer() -> None:
    stream = make_stream()
    committer = BatchCommitter(stream, None)
    committer.commit(batch_of(of(1)))
    contended(stream)
    record = f"pravega.writer.{committer.writer_id}"
    other = reopen(stream)

    def sweep() -> None:
        commit_offers(other)
        raise_horizon(other.log, other.view().version, drop=lambda snapshot: [record])
        stream.log.refresh()  # as after a long pause

    with at_failpoint("append.staged", sweep), pytest.raises(CommitUnknown):
        committer.commit(batch_of(of(2)))
    assert data(stream) == [b"1", b"2"]


@pytest.mark.parametrize(("owners", "at_once"), [(4, 4), (64, 12), (512, 96)])
def test_most_of_many_owners_stay_patient_until_the_first_of_them_has_committed(
    owners: int, at_once: int
) -> None:
    contention = Contention(is_local=False)
    contention.record_offers(owners)
    contention.commit(10.0, is_foreign=True)
    randoms = [owner / owners for owner in range(owners)]

    def over(now: float, missed: int) -> int:
        return sum(contention.is_patience_over(now, 0.0, missed, random) for random in randoms)

    first, commit_seconds = 10.0 + 4 * contention.interval, 4 * contention.interval
    assert over(first, 0) == 0
    assert 1 <= over(first + commit_seconds, 0) <= at_once
    assert 1 <= over(10.0, MISSED_COMMITS) <= 2 * at_once
    assert over(10.0, MISSED_COMMITS + 8) == over(10.0 + 10 * commit_seconds, 0) == owners


def test_local_owners_and_few_of_them_know_one_patience() -> None:
    for is_local in (False, True):
        contention = Contention(is_local=is_local)
        contention.record_offers(512 if is_local else 8)
        assert contention.is_patience_over(0.0, 0.0, MISSED_COMMITS, 0.99)
        assert contention.is_patience_over(0.5, 0.0, 0, 0.99)


def test_known_number_of_owners_fades_when_fewer_offer() -> None:
    contention = Contention(is_local=False)
    contention.record_offers(512)
    for _ in range(50):
        contention.record_offers(2)
    assert contention.is_patience_over(0.0, 0.0, MISSED_COMMITS, 0.99)


@pytest.mark.parametrize(
    ("interval", "look", "is_local", "early"),
    [
        (0.060, 0.030, False, 0.0),  # commits as fast as calls allow: the next look begins at once
        (0.200, 0.030, False, 0.140),
        (0.200, 0.090, False, 0.020),
        (2.000, 0.030, False, 0.250),
        (0.020, 0.000, True, 0.010),
        (0.020, 0.005, True, 0.005),
        (0.500, 0.000, True, 0.050),
    ],
)
def test_look_for_a_commit_begins_a_little_before_it_is_due(
    interval: float, look: float, is_local: bool, early: float
) -> None:
    contention = Contention(is_local=is_local)
    contention.commit(10.0, is_foreign=True)
    contention.interval, contention.look_seconds = interval, look
    assert contention.early(10.0) == pytest.approx(early)
    assert contention.early(10.0 + early) == pytest.approx(0, abs=1e-9)
    pause = max(interval / 8, 0.001) if is_local else max(interval / 3, 0.002)
    assert contention.pause == pytest.approx(min(pause, 0.050 if is_local else 0.250))
