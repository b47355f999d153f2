"""Updates of a configuration: fields decided in the commit, and the version that one expects."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from pravega_spark.config.policies import RetentionPolicy, ScalingPolicy, StreamConfiguration
from pravega_spark.engine.stream.records import STREAM_DOMAIN, StreamRecord, decode_stream
from pravega_spark.errors import (
    ConfigurationConflict,
    IllegalState,
    InvalidConfiguration,
    InvalidInput,
    StreamSealed,
)
from pravega_spark.manager import StreamManager, manager_over, root_of
from pravega_spark.values.limits import MAX_TAGS
from tests.harness.drawn_lives import DRAWN
from tests.harness.failpoints import at_failpoint
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.simulated_kills import Killed, kill
from tests.harness.spy_store import Spy
from tests.harness.warm_children import FORKED

S = "s/t"
TAG: dict[str, Any] = {"add_tags": ["x"]}
DAY, WEEK = RetentionPolicy.by_time("1 day"), RetentionPolicy.by_time("7 days")
RATE = ScalingPolicy.by_event_rate(100)


def manager_of(store: Any) -> StreamManager:
    """A manager as another process has it, without any state in memory."""
    return manager_over(store, FakeRuntime())


@pytest.fixture
def store() -> Spy:
    return Spy(memory(FakeRuntime()))


@pytest.fixture
def manager(store: Spy) -> StreamManager:
    made = manager_of(store)
    made.create_scope("s")
    made.create_stream(S, StreamConfiguration(retention=DAY, tags={"eu"}))
    return made


def configuration(manager: StreamManager) -> StreamConfiguration:
    return manager.stream_info(S).configuration


def version(manager: StreamManager) -> int:
    return manager.stream_info(S).configuration_version


# ------------------------------------------------------------------------------ single fields


def test_each_field_changes_alone(manager: StreamManager) -> None:
    assert manager.update_stream(S, scaling=RATE)
    assert (configuration(manager).scaling, configuration(manager).retention) == (RATE, DAY)
    assert manager.update_stream(S, retention=WEEK, add_tags=["gdpr"])
    assert (configuration(manager).scaling, configuration(manager).retention) == (RATE, WEEK)
    assert manager.tags(S) == {"eu", "gdpr"}
    assert manager.update_stream(S, retention=None, remove_tags={"eu"})
    assert configuration(manager).retention is None
    assert manager.tags(S) == {"gdpr"}
    assert manager.list_streams("s", tag="gdpr") == [S]
    assert manager.list_streams("s", tag="eu") == []
    assert manager.stream(S).update(scaling=ScalingPolicy.fixed(3))
    assert len(manager.segments(S)) == 3


def test_update_that_changes_nothing_commits_nothing(manager: StreamManager) -> None:
    before = manager.stream_info(S)
    assert not manager.update_stream(S, retention=DAY, scaling=ScalingPolicy.fixed(1))
    assert not manager.update_stream(S, add_tags=["eu"], remove_tags=["never there"])
    assert not manager.update_stream(S, add_tags=[])
    assert not manager.update_stream(S, StreamConfiguration(retention=DAY, tags={"eu"}))
    assert manager.stream_info(S) == before


def test_concurrent_updates_of_different_fields_lose_nothing(store: Spy) -> None:
    manager = manager_of(store)
    manager.create_scope("s")
    manager.create_stream(S, StreamConfiguration(retention=DAY))
    calls: list[Callable[[StreamManager], bool]] = [
        lambda m: m.update_stream(S, retention=WEEK),
        lambda m: m.update_stream(S, scaling=RATE),
        *(lambda m, n=n: m.update_stream(S, add_tags=[f"tag{n}"]) for n in range(6)),
    ]
    start, results = threading.Barrier(len(calls)), list[bool]()

    def run(call: Callable[[StreamManager], bool]) -> None:
        mine = manager_of(store)
        mine.stream_info(S)
        start.wait()
        results.append(call(mine))

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * len(calls)
    found = configuration(manager_of(store))
    assert (found.scaling, found.retention) == (RATE, WEEK)
    assert found.tags == {f"tag{n}" for n in range(6)}


def _tag(root: str, number: int, start: Any) -> None:
    manager = StreamManager(root)
    manager.stream_info(S)
    start.wait()
    for n in range(5):
        manager.update_stream(S, add_tags=[f"p{number}-{n}"], remove_tags=[f"p{number}-{n - 1}"])


def test_concurrent_updates_of_processes_lose_nothing(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    manager.create_stream(S, StreamConfiguration(retention=DAY))
    start = FORKED.Barrier(4)
    processes = [
        FORKED.Process(target=_tag, args=(str(tmp_path), number, start)) for number in range(3)
    ]
    for process in processes:
        process.start()
    start.wait()
    assert manager.update_stream(S, retention=WEEK)
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert configuration(manager) == StreamConfiguration(retention=WEEK)
    assert manager.tags(S) == {f"p{number}-4" for number in range(3)}
    assert manager.list_streams("s", tag="p2-4") == [S]


def test_update_of_a_field_that_loses_the_race_keeps_the_winners_fields(
    manager: StreamManager, store: Spy
) -> None:
    other = manager_of(store)
    with at_failpoint("commit.before", lambda: other.update_stream(S, scaling=RATE)) as race:
        assert manager.update_stream(S, retention=WEEK, add_tags=["late"])
    assert race.hits >= 2, "the first attempt lost"
    assert (configuration(manager).scaling, configuration(manager).retention) == (RATE, WEEK)
    assert manager.tags(S) == {"eu", "late"}


def test_sealed_stream_takes_fields_except_the_scaling(manager: StreamManager) -> None:
    manager.seal_stream(S)
    assert manager.update_stream(S, retention=WEEK, add_tags=["old"])
    assert not manager.update_stream(S, scaling=ScalingPolicy.fixed(1))
    with pytest.raises(StreamSealed, match="scaling policy cannot be updated"):
        manager.update_stream(S, scaling=RATE, add_tags=["not there"])
    assert manager.tags(S) == {"eu", "old"}


def test_stream_that_is_being_sealed_takes_no_update(manager: StreamManager) -> None:
    manager.create_transactional_writer(S).begin_transaction()
    with at_failpoint("seal.sealing", kill), pytest.raises(Killed):
        manager.seal_stream(S)
    before = version(manager)
    changes: list[dict[str, Any]] = [
        {"retention": WEEK},
        {"add_tags": ["eu"]},
        {"expected_version": 0, **TAG},
    ]
    for change in changes:
        with pytest.raises(IllegalState, match="is being sealed"):
            manager.update_stream(S, **change)
    assert version(manager) == before


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "names nothing to change"),
        ({"expected_version": 0}, "names nothing to change"),
        ({"configuration": StreamConfiguration(), "retention": None}, "also retention; give one"),
        ({"configuration": StreamConfiguration(), **TAG}, "also add_tags; give one"),
        ({"configuration": 7}, "StreamConfiguration is needed, got 7"),
        ({"scaling": None}, "scaling of stream s/t must be a ScalingPolicy, got None"),
        ({"retention": "7 days"}, "retention of stream s/t must be a RetentionPolicy, or None"),
        ({"add_tags": "gdpr"}, "tags must be a set of texts, got 'gdpr'"),
        ({"remove_tags": [7]}, "a tag must be a text"),
        ({"add_tags": ["a", "b"], "remove_tags": ["b"]}, "adds and removes the tag 'b'"),
        ({**TAG, "expected_version": -1}, "version that the update of s/t expects must be"),
        ({**TAG, "expected_version": True}, "got True"),
        ({**TAG, "expected_version": "3"}, "got '3'"),
    ],
)
def test_bad_arguments_change_nothing(
    manager: StreamManager, given: dict[str, Any], text: str
) -> None:
    before = manager.stream_info(S)
    with pytest.raises(InvalidInput, match=text):
        manager.update_stream(S, **given)
    assert manager.stream_info(S) == before


def test_tags_are_limited_on_the_snapshot_that_is_committed(
    manager: StreamManager, store: Spy
) -> None:
    full = [f"tag{n}" for n in range(MAX_TAGS - 1)]
    other = manager_of(store)
    with (
        at_failpoint("commit.before", lambda: other.update_stream(S, add_tags=full)),
        pytest.raises(InvalidConfiguration, match=r"s/t has 128 tags and would have 129"),
    ):
        manager.update_stream(S, add_tags=["one too many"])
    assert manager.tags(S) == {"eu", *full}
    assert manager.update_stream(S, add_tags=["one too many"], remove_tags=["eu"])


# ------------------------------------------------------------------------------ expected version


def test_update_that_expects_the_version_it_read_succeeds_whatever_was_written(
    manager: StreamManager,
) -> None:
    read = version(manager)
    with manager.create_writer(S) as writer:
        writer.write_event(b"moves the log's version").result()
    manager.scale_stream(S, [0], [(0, 0.5), (0.5, 1)])
    manager.truncate_stream(S, manager.tail(S))
    assert version(manager) == read
    assert manager.update_stream(S, retention=WEEK, expected_version=read)
    now = manager.stream_info(S)
    assert read < now.configuration_version == now.version


def test_conflict_names_both_versions_and_what_differs(manager: StreamManager, store: Spy) -> None:
    read = version(manager)
    manager_of(store).update_stream(S, retention=WEEK)
    before = manager.stream_info(S)
    wanted = StreamConfiguration(retention=None, tags={"mine"})
    with pytest.raises(ConfigurationConflict) as refused:
        manager.update_stream(S, wanted, expected_version=read)
    error = refused.value
    assert (error.stream, error.expected_version) == (S, read)
    assert (error.current_version, error.configuration) == (
        before.configuration_version,
        before.configuration,
    )
    assert error.wanted == wanted
    text = str(error)
    assert f"configuration of version {before.configuration_version}" in text
    assert f"expects that of version {read}" in text
    assert '"maximum":null} (wanted: null), tags ["eu"] (wanted: ["mine"])' in text
    assert '"minimum":604800000' in text
    assert "scaling" not in text, "it is the same in both"
    assert manager.stream_info(S) == before
    with pytest.raises(ConfigurationConflict):
        manager.update_stream(S, **TAG, expected_version=read)
    assert manager.stream_info(S) == before


def test_conflict_is_found_in_the_commit(manager: StreamManager, store: Spy) -> None:
    read, other = version(manager), manager_of(store)
    with (
        at_failpoint("commit.before", lambda: other.update_stream(S, add_tags=["first"])),
        pytest.raises(ConfigurationConflict),
    ):
        manager.update_stream(S, retention=WEEK, expected_version=read)
    assert configuration(manager).retention == DAY
    assert manager.tags(S) == {"eu", "first"}
    with at_failpoint("commit.before", lambda: other.create_writer(S).close()) as race:
        assert manager.update_stream(S, retention=WEEK, expected_version=version(manager))
    assert race.hits >= 2, "an append that wins the race is no conflict"


def test_of_many_updates_that_expect_one_version_one_succeeds(store: Spy) -> None:
    manager = manager_of(store)
    manager.create_scope("s")
    manager.create_stream(S)
    read, start = version(manager), threading.Barrier(8)
    results = list[str]()

    def run(number: int) -> None:
        mine = manager_of(store)
        start.wait()
        try:
            mine.update_stream(S, add_tags=[f"tag{number}"], expected_version=read)
            results.append("changed")
        except ConfigurationConflict:
            results.append("refused")

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == ["changed", *["refused"] * 7]
    assert len(manager_of(store).tags(S)) == 1


def test_repeated_call_of_a_killed_process_is_no_conflict(
    manager: StreamManager, store: Spy
) -> None:
    read = version(manager)
    with at_failpoint("update.row", kill), pytest.raises(Killed):
        manager.update_stream(S, **TAG, expected_version=read)
    assert manager_of(store).list_streams("s", tag="x") == []
    assert not manager_of(store).update_stream(S, **TAG, expected_version=read)
    assert manager_of(store).list_streams("s", tag="x") == [S]


def test_version_of_an_earlier_life_is_never_expected_by_chance(manager: StreamManager) -> None:
    versions = {version(manager)}
    for _ in range(2):
        manager.seal_stream(S)
        manager.delete_stream(S)
        manager.create_stream(S)
        assert manager.stream_info(S).life > DRAWN
        versions.add(version(manager))
    assert len(versions) == 3
    for old in versions - {version(manager)}:
        with pytest.raises(ConfigurationConflict):
            manager.update_stream(S, **TAG, expected_version=old)


def test_stream_of_an_early_version_of_the_package_has_version_0_until_its_update(
    store: Spy,
) -> None:
    encode = StreamRecord.encode

    def early(record: StreamRecord) -> str:
        fields = json.loads(encode(record))
        del fields["configurationVersion"]
        return json.dumps(fields)

    manager = manager_of(store)
    manager.create_scope("s")
    with patch.object(StreamRecord, "encode", early):
        manager.create_stream(S)
        manager.update_stream(S, retention=DAY)
    assert manager_of(store).stream_info(S).configuration_version == 0
    later = manager_of(store)
    with pytest.raises(ConfigurationConflict):
        later.update_stream(S, **TAG, expected_version=1)
    assert later.update_stream(S, **TAG, expected_version=0)
    assert version(manager_of(store)) == later.stream_info(S).version == 2
    assert configuration(later).retention == DAY


def test_record_without_a_configuration_version_is_read(manager: StreamManager) -> None:
    text = root_of(manager).stream(S).view().snapshot.domains[STREAM_DOMAIN]
    early = json.loads(text)
    early["configurationVersion"] = 7
    assert decode_stream(json.dumps(early)).configuration_version == 7
    del early["configurationVersion"]
    assert decode_stream(json.dumps(early)).configuration_version == 0


def test_any_number_of_tags_can_be_removed(manager: StreamManager) -> None:
    names = [f"t{n}" for n in range(MAX_TAGS + 1)]
    assert manager.update_stream(S, add_tags=names[:3])
    assert manager.update_stream(S, remove_tags=names)
    assert not manager.update_stream(S, remove_tags=names)
    with pytest.raises(InvalidConfiguration, match=f"at most {MAX_TAGS} tags"):
        manager.update_stream(S, add_tags=names)


@pytest.mark.parametrize("name", ["add_tags", "remove_tags", "settings"])
@pytest.mark.parametrize("wrong", [0, False, "", 5, "abc"])
def test_empty_value_of_a_wrong_kind_is_refused_like_any_other(
    manager: StreamManager, name: str, wrong: Any
) -> None:
    change: dict[str, Any] = {name: wrong}
    with pytest.raises(InvalidConfiguration):
        manager.update_stream(S, **change)
