"""Scopes and the rows of their streams and reader groups."""

from __future__ import annotations

import threading

import pytest

from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.engine.kinds import GROUP
from pravega_spark.engine.state.scopes import ACTIVE, DELETED, DELETING, Scope, row_configuration
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.errors import InvalidName, NoSuchScope, ScopeNotEmpty
from tests.harness.fake_runtime import FakeRuntime

ONE = StreamConfiguration(tags=frozenset({"a"}))
TWO = StreamConfiguration(ScalingPolicy.fixed(2), tags=frozenset({"b"}))


def scope(store: MemoryStore, name: str = "s") -> Scope:
    made = Scope(store, name, FakeRuntime())
    made.table.log.maintain = None
    return made


def made() -> tuple[MemoryStore, Scope]:
    store = MemoryStore()
    first = scope(store)
    assert first.create()
    return store, first


def test_scope_is_created_once_and_again_after_its_deletion() -> None:
    store, first = made()
    assert not scope(store).create()
    assert first.state() == ACTIVE
    assert first.delete(1)
    assert not scope(store).delete(1)
    assert scope(store).state() == DELETED == scope(store, "never").state()
    assert scope(store).create()
    assert scope(store).rows() == {}


def test_one_of_many_concurrent_creators_creates() -> None:
    store = MemoryStore()
    results: list[bool] = []
    threads = [
        threading.Thread(target=lambda: results.append(scope(store).create())) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [False] * 7 + [True]


@pytest.mark.parametrize("name", ["", "a_b", "ä", "a/b", ".", "..", "x" * 256, 7, None])
def test_bad_name_is_refused_with_the_rule(name: object) -> None:
    with pytest.raises(InvalidName, match="scope name"):
        Scope(MemoryStore(), name)  # type: ignore[arg-type]


def test_first_row_of_a_life_sets_its_configuration() -> None:
    store, first = made()
    claimed, row = first.claim("t", 1, ONE)
    assert (claimed, row_configuration(row)) == (True, ONE)
    assert scope(store).claim("t", 1, TWO) == (False, row)
    assert row_configuration(row).tags == frozenset({"a"})
    assert scope(store).claim("t", 2, TWO)[0]
    claimed, row = scope(store).claim("t", 1, ONE)
    assert (claimed, [row]) == (False, list(first.rows().values()))
    assert (row["life"], row["tags"], row_configuration(row)) == (2, ["b"], TWO)


def test_tags_of_an_older_version_or_life_never_replace_newer_ones() -> None:
    _, first = made()
    first.claim("t", 2, ONE)
    first.retag("t", 2, 5, TWO)
    for life, version in ((2, 4), (2, 5), (1, 9), (3, 9)):
        first.retag("t", life, version, ONE)
    assert first.rows()["t"]["tags"] == ["b"]
    first.retag("deleted", 1, 1, ONE)  # an update that arrives after the deletion
    assert list(first.rows()) == ["t"]


def test_row_is_removed_only_with_its_life() -> None:
    _, first = made()
    first.claim("t", 2, ONE)
    first.drop_row("t", 1)
    assert list(first.rows()) == ["t"]
    first.drop_row("t", 2)
    first.drop_row("t", 2)
    assert first.rows() == {}


def test_scope_with_streams_is_not_deleted_and_the_error_names_some() -> None:
    _, first = made()
    for name in "cab":
        first.claim(name, 1, ONE)
    with pytest.raises(ScopeNotEmpty, match=r"s still holds 3 streams \(a, b, c\).*recursive=True"):
        first.delete(1)
    assert first.state() == ACTIVE


def test_missing_or_fenced_scope_accepts_no_new_stream_and_no_new_life() -> None:
    store, first = made()
    with pytest.raises(NoSuchScope, match="never does not exist"):
        scope(store, "never").claim("t", 1, ONE)
    first.claim("t", 1, ONE)
    first.fence(1)
    first.fence(1)
    assert first.state() == DELETING
    for name, life in (("new", 1), ("t", 2)):
        with pytest.raises(NoSuchScope, match="is being deleted"):
            scope(store).claim(name, life, ONE)
    claimed, row = scope(store).claim("t", 1, TWO)  # this creation had begun
    assert (claimed, row_configuration(row)) == (False, ONE)
    assert not scope(store).create()
    first.drop_row("t", 1)
    assert first.delete(1)
    with pytest.raises(NoSuchScope, match="does not exist"):
        first.rows()


def test_claim_that_races_the_deletion_of_its_scope_fails_or_prevents_it() -> None:
    store, first = made()
    other = scope(store)
    other.table.read()
    first.claim("t", 1, ONE)
    with pytest.raises(ScopeNotEmpty):  # decided again on the newest state
        other.delete(1)
    first.drop_row("t", 1)
    other.table.read()
    assert first.delete(1)
    with pytest.raises(NoSuchScope):
        other.claim("t", 1, ONE)


def test_stream_and_group_of_one_name_have_rows_of_their_own() -> None:
    store, first = made()
    first.claim("t", 3, ONE)
    assert first.claim_object(GROUP, "t", 0, {"streams": ["s/t"]}) == (True, {"streams": ["s/t"]})
    assert scope(store).claim_object(GROUP, "t", 0, {}) == (False, {"streams": ["s/t"]})
    assert (list(first.rows()), list(first.rows(GROUP))) == (["t"], ["t"])
    row = first.row(GROUP, "t")
    assert row is not None
    assert (row["name"], row["kind"], row["life"]) == ("_reader_groups/t", "group", 0)
    with pytest.raises(ScopeNotEmpty, match=r"holds 1 stream \(t\), 1 group \(t\)\. Delete"):
        first.delete(1)
    first.drop_row("t", 3)
    assert (first.rows(), list(first.rows(GROUP))) == ({}, ["t"])
    first.fence(1)
    assert first.claim_object(GROUP, "t", 0, {}) == (False, {"streams": ["s/t"]})
    for name, generation in (("t", 1), ("u", 0)):
        with pytest.raises(NoSuchScope, match="accepts no new group"):
            first.claim_object(GROUP, name, generation, {})
    first.drop_row("t", 0, GROUP)
    assert first.delete(1)
    assert scope(store).row(GROUP, "t") is None is scope(store, "never").row(GROUP, "t")
