"""The past of a stream, looked up in its log, against all of its versions one by one."""

from __future__ import annotations

import pytest

from pravega_spark.engine.log.checkpointing import maintain
from pravega_spark.engine.log.version_ages import VersionAges
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.truncation import truncate
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.limits import STATE_FILE_COMMITS
from pravega_spark.model import make_segment_id
from pravega_spark.policies import RetentionPolicy, StreamConfiguration
from pravega_spark.retention import retention_set as past_module
from pravega_spark.retention.retention_run import RetentionOptions, act
from pravega_spark.retention.retention_set import RetentionHistory
from pravega_spark.retention.truncation_decision import RetentionEntry
from tests.harness.engine import FakeRuntime, Spy, again, clean, make_stream, memory, scale, write


def grown(commits: int = 40, store: Spy | None = None) -> StreamLog:
    """A stream with a commit a second, scaled once on the way."""
    runtime = FakeRuntime()
    stream = make_stream(store or memory(runtime), runtime)
    for n in range(commits):
        runtime.sleep(1)
        if n == commits // 2:
            scale(stream, [0], [(0.0, 0.5), (0.5, 1.0)])
        write(stream, [(f"key{n}", b"x" * (n % 7)), (f"{n}", b"yy")])
    return stream


def every(stream: StreamLog) -> list[RetentionEntry]:
    """The entry of each version of this life, by replaying the log."""
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
            told = snapshot.timestamp_ms, view.total_bytes, view.tail, sizes
            found.append(RetentionEntry(version, *told))
    return found


@pytest.mark.parametrize("states", [(), (10, 20, 30), (7, 8, 39)])
def test_any_version_is_found_by_time_and_by_size(states: tuple[int, ...]) -> None:
    stream = grown()
    for version in states:
        maintain(stream.log.reader, version)
    known = every(stream)
    past = RetentionHistory(stream, stream.view(), VersionAges.read(stream.log))
    for n, entry in enumerate(known):
        following = known[n + 1] if n + 1 < len(known) else None
        assert past.around(lambda e, t=entry.time_ms: e.time_ms <= t) == (entry, following)
        assert past.around(lambda e, v=entry.version: e.version <= v) == (entry, following)
    assert past.around(lambda e: False) == (None, known[0])


def test_between_samples_the_commits_alone_tell(monkeypatch: pytest.MonkeyPatch) -> None:
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
            act(stream, RetentionOptions(sample_every_ms=0, sweep=False))
    assert len(stream.view().samples) == 6
    known = {entry.version: entry for entry in every(stream)}
    past = RetentionHistory(stream, stream.view(), VersionAges.read(stream.log))
    for version in range(stream.view().version):
        before, after = past.around(lambda e, v=version: e.version <= v)
        for entry, wanted in ((before, version), (after, version + 1)):
            assert entry is not None
            assert entry.version == wanted
            assert entry.cut == known[wanted].cut
            assert entry.size_bytes == known[wanted].size_bytes
            assert set(entry.sizes.values()) - {0} == set(known[wanted].sizes.values()) - {0}


def test_few_of_many_commits_between_samples_are_laid_out(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = FakeRuntime()
    stream = make_stream(memory(runtime), runtime, segments=3)
    lifecycle.update(stream, StreamConfiguration(retention=RetentionPolicy.by_time("10 days")))
    write(stream, [("key", b"x")])
    act(stream, RetentionOptions(sample_every_ms=0, sweep=False))
    for n in range(30):
        write(stream, [(f"key{n}", b"x")])
    past, made = RetentionHistory(stream, stream.view(), VersionAges.read(stream.log)), []
    monkeypatch.setattr(
        past_module, "RetentionEntry", lambda *told: made.append(told) or RetentionEntry(*told)
    )
    middle = stream.view().version - 15
    before, after = past.around(lambda e: e.version <= middle)
    assert before is not None
    assert after is not None
    assert (before.version, after.version) == (middle, middle + 1)
    assert len(made) <= 12, "a search by halves, and what it has found"


def test_versions_of_an_earlier_life_do_not_count() -> None:
    stream = grown(5)
    configuration = stream.view().record.configuration
    lifecycle.seal(stream)
    lifecycle.delete(stream)
    lifecycle.create(stream, 2, configuration)
    write(stream, [("a", b"1")])
    known = every(stream)
    past = RetentionHistory(stream, stream.view(), VersionAges.read(stream.log))
    assert past.around(lambda e: e.version <= known[0].version) == (known[0], known[1])
    assert past.around(lambda e: False) == (None, known[0])


def test_where_commits_were_cleaned_away_only_the_rest_is_known() -> None:
    stream = grown(30)
    known = every(stream)
    clean(stream.log, stream.runtime, 20)  # type: ignore[arg-type]
    stream = again(stream)
    mark = stream.view().snapshot.cleanup
    past = RetentionHistory(stream, stream.view(), VersionAges.read(stream.log))
    assert past.around(lambda e: e.version <= 25)[0] == known[25]
    assert past.around(lambda e: e.version <= 5) == (None, known[mark])


def test_a_damaged_state_file_costs_time_only() -> None:
    stream = grown()
    maintain(stream.log.reader, 20)
    stream.store.put(f"{stream.path}/_pravega/state/{20:020d}.json", b"torn")
    known = every(stream)
    assert (
        RetentionHistory(stream, stream.view(), VersionAges.read(stream.log)).around(
            lambda e: e.version <= 22
        )[0]
        == known[22]
    )


def test_sizes_outlive_truncation() -> None:
    stream = grown()
    left, right = make_segment_id(1, 1), make_segment_id(2, 1)
    known = every(stream)[25]
    truncate(stream, known.cut)
    assert not stream.view().has_segment(0)
    assert {left, right} <= set(known.cut.positions)
    past = RetentionHistory(stream, stream.view(), VersionAges.read(stream.log))
    found, _ = past.around(lambda e: e.size_bytes <= known.size_bytes)
    assert found is not None
    assert found.size_bytes == known.size_bytes


def test_a_look_reads_few_commits_however_long_the_log_is() -> None:
    spy = Spy()
    stream = grown(4 * STATE_FILE_COMMITS, spy)
    for n in range(1, 5):
        maintain(stream.log.reader, n * STATE_FILE_COMMITS)
    view = stream.view()
    spy.calls.clear()
    RetentionHistory(stream, view, VersionAges.read(stream.log)).around(
        lambda e: e.version <= STATE_FILE_COMMITS + 100
    )
    assert spy.count("get", "_delta_log") <= STATE_FILE_COMMITS + 20
