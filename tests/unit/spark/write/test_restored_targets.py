"""Queries and applications whose target was restored from a copy that lacks batches of them."""

from __future__ import annotations

import logging
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pravega_spark.config.policies import StreamConfiguration
from pravega_spark.errors import InvalidOption, StaleIdentity
from pravega_spark.manager import StreamManager
from pravega_spark.spark.option_values import life_list
from tests.harness.folder_state import remove
from tests.harness.query_checkpoints import Query, table_query
from tests.harness.spark_writing import TEXT, read, rows


@pytest.fixture
def query(tmp_path: Path) -> Query:
    query = Query(tmp_path / "root", tmp_path / "checkpoint")
    manager = StreamManager(query.root)
    manager.create_scope("s")
    manager.create_stream("s/a")
    return query


def batch(query: Query, number: int) -> None:
    query.plan(number, {"end": number})
    query.write(number, rows(number, number + 1))


def restored(query: Query, copy: Path) -> Query:
    """Return the query, started again after its root was replaced by a copy of it."""
    remove(query.root)
    shutil.copytree(copy, query.root)
    StreamManager(query.root).restore()
    return Query(**{**query.__dict__, "run": "run-2"})


def copied(query: Query) -> Path:
    return Path(shutil.copytree(query.root, query.root.with_name("copy")))


def life(query: Query, name: str = "s/a") -> int:
    return StreamManager(query.root).stream_info(name).life


def saying(query: Query, lives: int) -> Query:
    """Return the query with the option that says that nothing is missing."""
    options = {**query.options, "restoredlives": str(lives)}
    return Query(**{**query.__dict__, "options": options})


def test_batches_without_rows_since_the_copy_are_accepted_by_the_option_for_one_restore(
    query: Query,
) -> None:
    batch(query, 0)
    again = restored(query, copied(query))
    with pytest.raises(StaleIdentity) as caught:
        batch(again, 3)
    text = str(caught.value)
    assert (
        "its batches up to 0, and this is batch 3. If there were rows for this stream under 1 to 2"
        in text
    )
    assert f"restoredLives={life(query)}" in text
    with pytest.raises(StaleIdentity):
        batch(saying(again, life(query) + 1), 3)
    said = saying(again, life(query))
    batch(said, 3)
    batch(said, 7)
    assert read(query.root) == [0, 3, 7]
    remove(query.root.with_name("copy"))
    before = life(query)
    later = restored(said, copied(query))
    with pytest.raises(StaleIdentity, match=f"restoredLives={before},{life(query)}: "):
        batch(later, 9)


def test_version_of_a_scheduler_is_accepted_by_the_option(query: Query) -> None:
    query.save(0, rows(0, 1), txnversion="20261127")
    again = restored(query, copied(query))
    with pytest.raises(StaleIdentity):
        again.save(0, rows(1, 2), txnversion="20261129")
    again.save(0, rows(1, 2), txnversion="20261129", restoredlives=f"{life(query)}, 77")
    assert read(query.root) == [0, 1]


@pytest.mark.parametrize("how", ["query", "foreachBatch"])
def test_query_older_than_the_restore_that_the_copy_does_not_know_is_refused(
    query: Query, how: str
) -> None:
    copy = copied(query)
    query.plan(0, {"end": 0})
    os.utime(query.checkpoint / "metadata", (1_000, 1_000))
    again = restored(query, copy)
    again.plan(3, {"end": 3})

    def write(given: Query) -> Any:
        if how == "query":
            return given.write(3, rows(3, 4))
        return given.save(3, rows(3, 4), knows_checkpoint=True)

    with pytest.raises(
        StaleIdentity, match=r"none of its batches, and this is batch 3\. .* under 0 to 2"
    ):
        write(again)
    write(saying(again, life(query)))
    assert read(query.root) == [3]


def test_error_of_a_second_restored_stream_names_the_lives_of_both(query: Query) -> None:
    StreamManager(query.root).create_stream("s/b")
    query.columns = {"stream": "string", **TEXT}
    query.options = {"scope": "s"}

    def write(given: Query, number: int) -> None:
        names = pa.array(["a", "b"], pa.string())
        given.plan(number, {"end": number})
        given.write(number, rows(number, number + 2).add_column(0, "stream", names))

    write(query, 0)
    again = restored(query, copied(query))
    for _ in range(2):
        with pytest.raises(StaleIdentity) as caught:
            write(again, 3)
        (lives,) = re.findall("restoredLives=([0-9,]+):", str(caught.value))
        again.options = {**query.options, "restoredlives": lives}
    assert lives == f"{life(query)},{life(query, 's/b')}"
    write(again, 3)
    assert (read(query.root), read(query.root, "s/b")) == ([0, 3], [1, 4])


@pytest.mark.parametrize("text", ["1;2", "1 2", "1,x", "0", ","])
def test_lives_are_separated_by_commas(text: str) -> None:
    with pytest.raises(InvalidOption, match="restoredLives is a list of lives, separated by comma"):
        life_list("restoredLives", text)


def test_query_that_began_after_the_restore_and_batch_0_are_new(query: Query) -> None:
    again = restored(query, copied(query))
    batch(again, 0)
    new = Query(**{**again.__dict__, "query_id": "q-2", "checkpoint": query.root / "../new"})
    batch(new, 2)
    assert read(query.root) == [0, 2]


def test_unknown_application_of_a_restored_stream_warns_once(
    query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    again = restored(query, copied(query))
    with caplog.at_level(logging.WARNING):
        again.save(4, rows(0, 1))
        again.save(5, rows(1, 2))
    assert caplog.text.count("stream s/a was restored from a copy, and has no batch of") == 1


def test_restored_table_refuses_an_older_query(tmp_path: Path) -> None:
    query = table_query(tmp_path)
    puts = pa.record_batch([[b"a"], [b"b"]], names=["key", "value"])
    copy = copied(query)
    query.plan(0, {"end": 0})
    os.utime(query.checkpoint / "metadata", (1_000, 1_000))
    again = restored(query, copy)
    again.plan(1, {"end": 1})
    with pytest.raises(StaleIdentity, match="restoredLives=") as caught:
        again.write(1, puts)
    assert caught.value.current_life is not None
    saying(again, caught.value.current_life).write(1, puts)
    assert StreamManager(query.root).key_value_table("s/t").get(b"a") is not None


def test_target_that_the_restored_root_lacks_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    query = Query(tmp_path / "root", tmp_path / "checkpoint")
    StreamManager(query.root).create_scope("s")
    copy = copied(query)
    query.plan(0, {"end": 0})
    os.utime(query.checkpoint / "metadata", (1_000, 1_000))
    again = restored(query, copy)
    again.plan(1, {"end": 1})
    with pytest.raises(
        StaleIdentity,
        match="from a copy, and this stream has been created since",
    ):
        again.write(1, rows(1, 2))
    new = Query(**{**again.__dict__, "query_id": "q-2", "checkpoint": tmp_path / "new"})
    batch(new, 1)
    saying(again, life(query)).write(1, rows(0, 1))
    assert read(query.root) == [1, 0]


def test_dead_letters_do_not_hide_that_their_stream_lacks_batches(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path / "root")
    manager.create_scope("s")
    manager.create_stream("s/a", StreamConfiguration(schema=pa.schema([("n", pa.int16())])))
    query = Query(
        tmp_path / "root",
        tmp_path / "checkpoint",
        columns={"n": "long"},
        options={"path": "s/a", "badrecords": "dlq"},
    )
    good, bad = ([pa.record_batch([[n]], names=["n"])] for n in (1, 2**40))
    query.plan(0, {"end": 0})
    query.write(0, *good)
    again = restored(query, copied(query))
    again.plan(2, {"end": 2})
    with pytest.raises(StaleIdentity, match=r"stream s/a: .* under 1, they are missing"):
        again.write(2, *bad)
