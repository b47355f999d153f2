"""Entries found in the log by a search, against those of all versions one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pravega_spark.config.policies import RetentionPolicy, StreamConfiguration
from pravega_spark.engine.log import checkpoint
from pravega_spark.engine.log.checkpoint import maintain
from pravega_spark.engine.log.retained import VersionAges
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.truncation import truncate
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.retention import retention_set
from pravega_spark.retention.decision import RetentionEntry
from pravega_spark.retention.plan import plan_retention
from pravega_spark.retention.retention_set import COMMITS_PAGE, LogRetentionSet
from pravega_spark.retention.run import parse_options, run_retention
from pravega_spark.values.limits import STATE_FILE_COMMITS
from pravega_spark.values.segments import make_segment_id
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.small_streams import make_stream, reopen, scale, write
from tests.harness.small_tables import clean
from tests.harness.spy_store import Spy
from tests.harness.tiers import sized


def grown(commits: int = 40, store: Spy | None = None) -> StreamLog:
    """Return a stream with a commit a second that was scaled once."""
    runtime = FakeRuntime()
    stream = make_stream(store or memory(runtime), runtime)
    for n in range(commits):
        runtime.sleep(1)
        if n == commits // 2:
            scale(stream, [0], [(0.0, 0.5), (0.5, 1.0)])
        write(stream, [(f"key{n}", b"x" * (n % 7)), (f"{n}", b"yy")])
    return stream


def every(stream: StreamLog) -> list[RetentionEntry]:
    """Return the entry of each version of the stream's life, from a replay of the log."""
    reader, found = stream.log.reader, []
    opened = reader.open(below=1)
    assert opened is not None
    snapshot = opened[0]
    life = stream.view().life
    for version in range(stream.view().version + 1):
        if version:
            (commit,) = reader.span(version - 1, version)
            snapshot = snapshot.apply(commit)
        view = StreamView(snapshot)
        if view.life == life:
            sizes = {s: view.segment(s).size_bytes for s in view.active.segment_ids}
            found.append(
                RetentionEntry(version, snapshot.timestamp_ms, view.total_bytes, view.tail, sizes)
            )
    return found


def until_version(version: int) -> Callable[[RetentionEntry], bool]:
    return lambda entry: entry.version <= version


def until_time(time_ms: int) -> Callable[[RetentionEntry], bool]:
    return lambda entry: entry.time_ms <= time_ms


@pytest.mark.parametrize("states", [(), (10, 20, 30), (7, 8, 39)])
def test_each_version_is_found_by_time_and_by_version(states: tuple[int, ...]) -> None:
    stream = grown()
    for version in states:
        maintain(stream.log.reader, version)
    known = every(stream)
    entries = LogRetentionSet(stream, stream.view(), VersionAges.read(stream.log))
    for n, entry in enumerate(known):
        following = known[n + 1] if n + 1 < len(known) else None
        assert entries.partition(until_time(entry.time_ms)) == (entry, following)
        assert entries.partition(until_version(entry.version)) == (entry, following)
    assert entries.partition(lambda e: False) == (None, known[0])


def test_versions_between_samples_are_found_from_commits_alone() -> None:
    runtime = FakeRuntime()
    stream = make_stream(memory(runtime), runtime)
    policy = RetentionPolicy.by_time("10 days")
    lifecycle.update(stream, StreamConfiguration(retention=policy))
    for n in range(30):
        runtime.sleep(1)
        if n == 17:
            scale(stream, [0], [(0.0, 0.5), (0.5, 1.0)])
        write(stream, [(f"key{n}", b"x" * (n % 7))])
        if n % 5 == 2:
            run_retention(stream, parse_options(sample_every=0, sweep=False))
    assert len(stream.view().samples) == 6
    known = {entry.version: entry for entry in every(stream)}
    entries = LogRetentionSet(stream, stream.view(), VersionAges.read(stream.log))
    for version in range(stream.view().version):
        before, after = entries.partition(until_version(version))
        for entry, wanted in ((before, version), (after, version + 1)):
            assert entry is not None
            assert entry.version == wanted
            assert entry.cut == known[wanted].cut
            assert entry.size_bytes == known[wanted].size_bytes
            assert set(entry.sizes.values()) - {0} == set(known[wanted].sizes.values()) - {0}


def test_search_between_samples_makes_few_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = FakeRuntime()
    stream = make_stream(memory(runtime), runtime, segments=3)
    lifecycle.update(stream, StreamConfiguration(retention=RetentionPolicy.by_time("10 days")))
    write(stream, [("key", b"x")])
    run_retention(stream, parse_options(sample_every=0, sweep=False))
    for n in range(30):
        write(stream, [(f"key{n}", b"x")])
    entries = LogRetentionSet(stream, stream.view(), VersionAges.read(stream.log))
    made = list[RetentionEntry]()

    def counted(**fields: Any) -> RetentionEntry:
        made.append(RetentionEntry(**fields))
        return made[-1]

    monkeypatch.setattr(retention_set, "RetentionEntry", counted)
    middle = stream.view().version - 15
    before, after = entries.partition(lambda e: e.version <= middle)
    assert before is not None
    assert after is not None
    assert (before.version, after.version) == (middle, middle + 1)
    assert len(made) <= 12, "a bisection, and its result"


def test_versions_of_an_earlier_life_are_no_entries() -> None:
    stream = grown(5)
    configuration = stream.view().record.configuration
    lifecycle.seal(stream)
    lifecycle.delete(stream)
    lifecycle.create(stream, 2, configuration)
    write(stream, [("a", b"1")])
    known = every(stream)
    entries = LogRetentionSet(stream, stream.view(), VersionAges.read(stream.log))
    assert entries.partition(lambda e: e.version <= known[0].version) == (known[0], known[1])
    assert entries.partition(lambda e: False) == (None, known[0])


def test_only_retained_versions_are_entries() -> None:
    stream = grown(30)
    known = every(stream)
    assert isinstance(stream.runtime, FakeRuntime)
    clean(stream.log, stream.runtime, 20)
    stream = reopen(stream)
    mark = stream.view().snapshot.commit_deletion_mark
    entries = LogRetentionSet(stream, stream.view(), VersionAges.read(stream.log))
    assert entries.partition(lambda e: e.version <= 25)[0] == known[25]
    assert entries.partition(lambda e: e.version <= 5) == (None, known[mark])


def test_damaged_state_file_costs_only_time() -> None:
    stream = grown()
    maintain(stream.log.reader, 20)
    stream.store.put(f"{stream.path}/_pravega/state/{20:020d}.json", b"torn")
    known = every(stream)
    assert (
        LogRetentionSet(stream, stream.view(), VersionAges.read(stream.log)).partition(
            lambda e: e.version <= 22
        )[0]
        == known[22]
    )


def test_sizes_of_entries_below_the_head_are_known() -> None:
    stream = grown()
    left, right = make_segment_id(1, 1), make_segment_id(2, 1)
    known = every(stream)[25]
    truncate(stream, known.cut)
    assert not stream.view().has_segment(0)
    assert {left, right} <= set(known.cut.positions)
    entries = LogRetentionSet(stream, stream.view(), VersionAges.read(stream.log))
    found, _ = entries.partition(lambda e: e.size_bytes <= known.size_bytes)
    assert found is not None
    assert found.size_bytes == known.size_bytes


@pytest.mark.medium
@pytest.mark.long(slow=False)
@pytest.mark.parametrize("is_large", [False, True])
def test_search_reads_few_commits_of_a_long_log(
    is_large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_large:  # then the first one is a state file, and the others are parts
        monkeypatch.setattr(checkpoint, "_DOMAINS_A_COMMIT", 0.001)
    spy = Spy()
    states = sized(2, 4)
    stream = grown(states * STATE_FILE_COMMITS, spy)
    for n in range(1, states + 1):
        maintain(stream.log.reader, n * STATE_FILE_COMMITS)
    assert bool(stream.log.reader.spans()) == is_large
    view = stream.view()
    spy.calls.clear()
    LogRetentionSet(stream, view, VersionAges.read(stream.log)).partition(
        lambda e: e.version <= (states - 1) * STATE_FILE_COMMITS + 100
    )
    assert spy.count("get", "_delta_log") <= 20
    assert spy.count("get_many", "_delta_log") <= 100 + COMMITS_PAGE + 4


def test_second_search_after_one_sample_reads_no_commit_again() -> None:
    runtime = FakeRuntime()
    stream = make_stream(spy := Spy(), runtime, segments=3)
    lifecycle.update(stream, StreamConfiguration(retention=RetentionPolicy.by_time("10 days")))
    write(stream, [("key", b"x")])
    run_retention(stream, parse_options(sample_every=0, sweep=False))
    for n in range(3 * COMMITS_PAGE):
        write(stream, [(f"key{n}", b"x")])
    known = {entry.version: entry for entry in every(stream)}
    entries = LogRetentionSet(stream, stream.view(), VersionAges.read(stream.log))
    first = min(known) + 10
    later = first + 2 * COMMITS_PAGE
    reads = []
    for version in (first, later, first, later):
        spy.calls.clear()
        before, after = entries.partition(until_version(version))
        assert before is not None
        assert after is not None
        assert (before.cut, after.cut) == (known[version].cut, known[version + 1].cut)
        reads.append(spy.count("get_many", "_delta_log") > 0)
    assert reads == [True, True, False, False]


@pytest.mark.medium
def test_decision_reads_no_commit_between_two_states_twice() -> None:
    """It and its explanation ask for the age at the head, for the new head, and for both ages."""
    stream = grown(3 * STATE_FILE_COMMITS, spy := Spy())
    for n in range(1, 4):
        maintain(stream.log.reader, n * STATE_FILE_COMMITS)
    middle = every(stream)[STATE_FILE_COMMITS // 2]
    truncate(stream, middle.cut)
    lifecycle.update(stream, StreamConfiguration(retention=RetentionPolicy.by_size(500)))
    view, ages = stream.view(), VersionAges.read(stream.log)
    spy.calls.clear()
    explained = plan_retention(stream, view, ages, None).explanation
    assert explained.cut is not None
    assert explained.goes.seconds > explained.stays.seconds > 0
    read = [key for operation, key in spy.calls if operation == "get_many" and "_delta_log" in key]
    of_states = {stream.log.reader.key(n * STATE_FILE_COMMITS) for n in range(1, 4)}
    commits = [key for key in read if key not in of_states]
    assert 0 < len(commits) == len(set(commits))
