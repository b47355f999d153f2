from __future__ import annotations

import pickle
from functools import partial
from pathlib import Path

import pytest

from pravega_spark.engine.stream import stream_log
from pravega_spark.errors import (
    CorruptLog,
    InvalidInput,
    InvalidName,
    NoSuchScope,
    NoSuchStream,
    StoreRefused,
)
from pravega_spark.jobs import stream_tasks
from pravega_spark.jobs.stream_tasks import Task, find_streams
from pravega_spark.manager import StreamManager


@pytest.fixture
def root(tmp_path: Path) -> str:
    manager = StreamManager(tmp_path)
    for scope, names in {"a": "yx", "b": "z", "c": ""}.items():
        manager.create_scope(scope)
        for name in names:
            manager.create_stream(f"{scope}/{name}")
    return str(tmp_path)


def test_all_streams_are_found_or_those_of_scopes_or_named_ones(root: str) -> None:
    assert find_streams(root)[1] == ["a/x", "a/y", "b/z"]
    assert find_streams(root, ["a"])[1] == ["a/x", "a/y"]
    assert find_streams(root, ["a", "c"])[1] == ["a/x", "a/y"]
    assert find_streams(root, [], ["a/y"])[1] == ["a/y"]
    assert find_streams(root, ["b"], ["a/y", "a/y"])[1] == ["a/y", "b/z"]
    assert find_streams(root, ["c"])[1] == []


def test_root_is_made_absolute_for_the_executors(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(root).parent)
    found, _ = find_streams(Path(root).name)
    assert found == StreamManager(root).root
    assert find_streams(found)[1]


def test_error_names_what_does_not_exist(root: str, tmp_path: Path) -> None:
    with pytest.raises(NoSuchScope, match="scope d does not exist"):
        find_streams(root, ["d"])
    with pytest.raises(NoSuchStream, match="stream a/z does not exist"):
        find_streams(root, [], ["a/x", "a/z"])
    with pytest.raises(InvalidName):
        find_streams(root, [], ["a"])
    with pytest.raises(InvalidInput, match="holds no scope"):
        find_streams(str(tmp_path / "other"))
    with pytest.raises(InvalidInput, match="in the memory of this process"):
        find_streams("memory://here")
    with pytest.raises(StoreRefused):
        find_streams("nonsense://here")


def test_what_was_deleted_since_it_was_found_is_left_out(root: str) -> None:
    found = partial(find_streams, root, must_exist=False)
    assert found(["a", "d"], ["a/z", "b/z"])[1] == ["a/x", "a/y", "b/z"]
    assert found(["d"])[1] == [], "not those of other scopes"
    assert found([], ["d/z"])[1] == []


def test_broken_stream_is_found(root: str) -> None:
    for commit in Path(root, "a/x/events/_delta_log").glob("*.json"):
        commit.write_bytes(commit.read_bytes()[:-30])
    stream_log._open.reset()  # as in another process
    with pytest.raises(CorruptLog):
        StreamManager(root).stream_exists("a/x")
    assert find_streams(root, [], ["a/x"])[1] == ["a/x"]
    assert find_streams(root)[1] == ["a/x", "a/y", "b/z"]


def work(root: str, name: str, *, number: int) -> list[dict[str, object]]:
    if name == "s/bad":
        raise ValueError("no luck")
    if name == "s/gone":
        raise NoSuchStream("gone")
    return [{"number": number}, {"number": number + 1}]


def test_failing_stream_has_one_row_with_its_error_and_a_deleted_one_has_none() -> None:
    task = pickle.loads(pickle.dumps(partial(work, number=4)))
    assert stream_tasks._rows("root", Task("s/good"), task) == [{"number": 4}, {"number": 5}]
    assert stream_tasks._rows("root", Task("s/bad"), task) == [{"error": "ValueError: no luck"}]
    assert stream_tasks._rows("root", Task("s/gone"), task) == []
