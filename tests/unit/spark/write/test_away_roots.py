"""A root that is an empty folder for one run of a query, as a disk that is not mounted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pravega_spark.config.policies import StreamConfiguration
from pravega_spark.errors import NoSuchStream, NoSuchTable, NotFound, RootChanged
from pravega_spark.manager import StreamManager
from pravega_spark.spark.key_value.source import KeyValueDataSource
from tests.harness.folder_state import wait_for_maintenance
from tests.harness.query_checkpoints import Query, table_query
from tests.harness.spark_writing import TEXT, read, rows

NAMED = {"stream": "string", **TEXT}
TYPED = {"routing_key": "string", "n": "long"}
KINDS: dict[str, dict[str, Any]] = {
    "one stream": {},
    "several streams": {"columns": NAMED, "options": {"scope": "s"}},
    "dead letters": {
        "columns": TYPED,
        "options": {"path": "s/a", "schema": "infer", "badrecords": "dlq"},
    },
}
NO_ROOT = r"is not a root now\. If it was one, mount or restore it, and create nothing"


def save_in_thread(query: Query, number: int, *parts: pa.RecordBatch) -> None:
    """Write in a thread of foreachBatch: the tasks see no query, and the write names it."""
    query.plan(number, number)
    query.is_in_thread = True
    query.save(number, *parts, knows_checkpoint=True)


WAYS = {"write": Query.write, "save": Query.save, "thread": save_in_thread}


@pytest.fixture(params=KINDS)
def query(request: pytest.FixtureRequest, tmp_path: Path) -> Query:
    return Query(tmp_path / "root", tmp_path / "checkpoint", **KINDS[request.param])


@pytest.fixture(params=WAYS)
def write(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Write a batch by the sink, or in foreachBatch."""
    return WAYS[request.param]


def batch(query: Query, first: int, last: int) -> pa.RecordBatch:
    found = rows(first, last)
    if query.columns == NAMED:
        return found.add_column(0, "stream", pa.array(["a"] * len(found), pa.string()))
    if query.columns == TYPED:
        return found.set_column(1, "n", found["event"].cast(pa.int64()))
    return found


def events(query: Query) -> list[int]:
    if query.columns != TYPED:
        return read(query.root)
    return [event.data["n"] for event in StreamManager(query.root).read("s/a")]


@contextmanager
def away(root: Path) -> Iterator[None]:
    """Make the root an empty folder, which it must still be in the end."""
    wait_for_maintenance()  # it works in the background
    other = root.rename(root.with_name("other"))
    root.mkdir()
    yield
    assert list(root.iterdir()) == []
    root.rmdir()
    other.rename(root)


def test_root_that_is_away_for_one_run_takes_no_batch_and_lacks_none(
    query: Query, write: Callable[..., Any]
) -> None:
    write(query, 0, batch(query, 0, 5), batch(query, 5, 10))
    with away(query.root), pytest.raises(RootChanged, match="Mount or restore it") as found:
        write(query, 1, batch(query, 10, 15))
    url = query.root.as_uri()
    assert f"root {url} has no marker, and this is batch 1 of query q-1" in str(found.value)
    assert f"stream create --root {url} --create-scope s/a" in str(found.value)
    write(query, 1, batch(query, 10, 15))
    write(query, 2, batch(query, 15, 20))
    assert events(query) == list(range(20))


def test_first_batch_makes_the_root_whether_it_has_rows_or_not(
    query: Query, write: Callable[..., Any]
) -> None:
    write(query, 0, batch(query, 0, 0), batch(query, 0, 0))
    write(query, 1, batch(query, 0, 5), batch(query, 5, 10))
    assert events(query) == list(range(10))


def test_stream_that_people_create_in_a_new_root_takes_a_later_batch(query: Query) -> None:
    StreamManager(query.root).create_scope("s")
    query.write(7, batch(query, 0, 5))
    assert events(query) == list(range(5))


@pytest.mark.parametrize("is_readable", [True, False])
def test_thread_takes_its_batch_from_the_checkpoint_and_else_from_the_number_of_the_write(
    query: Query, is_readable: bool
) -> None:
    """A checkpoint that the task cannot read is on the driver's disk, or Hadoop alone has it."""
    for number in (9, 10):
        query.plan(number, number)
    if not is_readable:
        query.location = str(query.checkpoint / "other")
    query.is_in_thread = True
    rest = batch(query, 0, 5)
    version = "0" if is_readable else "10"
    with pytest.raises(RootChanged, match=r"this is batch 10 of query (q-1|with the checkpoint)"):
        query.save(10, rest, knows_checkpoint=True, txnversion=version)
    assert not query.root.exists()


@pytest.mark.parametrize("options", [{}, {"badrecords": "dlq"}])
def test_typed_stream_whose_root_is_away_is_not_said_to_lack_its_schema(
    tmp_path: Path, write: Callable[..., Any], options: dict[str, str]
) -> None:
    query = Query(tmp_path / "root", tmp_path / "checkpoint", columns=TYPED)
    query.options |= options
    manager = StreamManager(query.root)
    manager.create_scope("s")
    manager.create_stream("s/a", StreamConfiguration(schema=pa.schema([("n", pa.int64())])))
    write(query, 0, batch(query, 0, 5))
    with away(query.root), pytest.raises(RootChanged):
        write(query, 1, batch(query, 5, 10))
    write(query, 1, batch(query, 5, 10))
    assert events(query) == list(range(10))


def test_table_whose_root_is_away_takes_no_batch_and_is_not_made(
    tmp_path: Path, write: Callable[..., Any]
) -> None:
    query = table_query(tmp_path)
    first, second = (pa.record_batch([[k], [k]], names=["key", "value"]) for k in (b"a", b"b"))
    write(query, 0, first)
    with away(query.root), pytest.raises(RootChanged, match="Mount or restore it") as found:
        write(query, 1, second)
    assert f"root {query.root.as_uri()} has no marker, and this is batch 1" in str(found.value)
    assert f"kvt create --root {query.root.as_uri()} s/t" in str(found.value)
    write(query, 1, second)
    table = StreamManager(query.root).key_value_table("s/t")
    assert [table.get(key) is not None for key in (b"a", b"b")] == [True, True]


def test_first_batch_for_a_table_without_a_root_is_told_that_there_is_none(
    tmp_path: Path, write: Callable[..., Any]
) -> None:
    query = table_query(tmp_path)
    puts = pa.record_batch([[b"a"], [b"a"]], names=["key", "value"])
    with away(query.root), pytest.raises(NoSuchTable, match=NO_ROOT):
        write(query, 0, puts)


@pytest.mark.parametrize("batch_number", [0, 1])
def test_stream_that_the_sink_may_not_create_is_said_to_have_no_root(
    tmp_path: Path, write: Callable[..., Any], batch_number: int
) -> None:
    query = Query(tmp_path / "root", tmp_path / "checkpoint")
    query.options["createifmissing"] = "false"
    StreamManager(query.root).create_scope("s")
    error: type[Exception] = RootChanged if batch_number else NoSuchStream
    with away(query.root), pytest.raises(error, match=r"[Mm]ount or restore it"):
        write(query, batch_number, batch(query, 0, 5))


READS: dict[str, Callable[[Path], Any]] = {
    "scope": lambda root: StreamManager(root).list_streams("s"),
    "stream": lambda root: StreamManager(root).stream_info("s/a"),
    "new stream": lambda root: StreamManager(root).create_stream("s/a"),
    "table": lambda root: StreamManager(root).key_value_table("s/t"),
    "group": lambda root: StreamManager(root).reader_group("s/g"),
    "entries": lambda root: KeyValueDataSource({"root": str(root), "path": "s/t"}).schema(),
}


@pytest.mark.parametrize("name", READS)
def test_what_is_missing_with_its_root_is_not_advised_to_be_created(
    tmp_path: Path, name: str
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with pytest.raises(NotFound, match=NO_ROOT) as found:
        READS[name](root)
    assert f"does not exist: {root.as_uri()} is not a root now" in str(found.value)
    assert "create it" not in str(found.value)
    StreamManager(root).create_scope("other")
    with pytest.raises(NotFound, match="create it"):
        READS[name](root)
