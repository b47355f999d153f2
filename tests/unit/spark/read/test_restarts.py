"""Streaming queries that are started again with other options, or over streams that were away."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pravega_spark.engine.store.root_marker import MARKER_KEY
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.errors import (
    InvalidOption,
    NoSuchStream,
    PravegaSparkError,
    RootChanged,
    StaleIdentity,
    TruncatedData,
)
from pravega_spark.manager import StreamManager
from pravega_spark.spark.read.micro_batch import PravegaStreamReader
from pravega_spark.spark.source import PravegaDataSource
from pravega_spark.spark.source_offsets import decode, encode, present
from pravega_spark.spark.versions import ReadAllAvailable
from pravega_spark.values.segments import make_segment_id
from tests.harness.folder_state import remove
from tests.harness.releases import run_release
from tests.harness.small_streams import created, scale
from tests.harness.spark_reading import batch_reader, events, fill, rows, stream_reader
from tests.harness.truncating import truncate
from tests.harness.warm_children import FORKED

Offset = dict[str, Any]


class Query:
    """A query with a checkpoint, of which each run has a reader of its own."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.batches: list[Offset] = []
        self.found: list[int] = []

    def reader(self, **options: str) -> PravegaStreamReader:
        return stream_reader(self.root, path="", **options)

    def run(self, **options: str) -> list[int]:
        """Read what there is, as a run with these options; return it."""
        reader, found = self.reader(**options), list[int]()
        at = self.batches[-1] if self.batches else reader.initialOffset()
        while (end := reader.latestOffset(at, ReadAllAvailable())) != at:
            found += events(rows(reader, reader.partitions(at, end)))
            self.batches.append(end)
            at = end
        self.found += found
        return found

    def repeat(self, **options: str) -> list[int]:
        """Read the last batch again, as a run with these options after a crash does."""
        reader = self.reader(**options)
        before = self.batches[-2] if len(self.batches) > 1 else reader.initialOffset()
        return events(rows(reader, reader.partitions(before, self.batches[-1])))

    def offset(self) -> Any:
        return decode(self.batches[-1])["s/a"]


def assign(*segments: object) -> dict[str, str]:
    return {"assign": json.dumps({"s/a": segments})}


WHOLE = {"stream": "s/a"}


@pytest.fixture
def query(root: str) -> Query:
    return Query(root)


def by_segment(root: str) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    reader = batch_reader(root)
    for row in rows(reader, reader.partitions()):
        found.setdefault(row["segment_id"], []).append(int(row["event"]))
    return found


@pytest.mark.parametrize("first", [WHOLE, assign(0, 1)])
def test_narrower_assign_is_refused_before_it_passes_events(
    root: str, query: Query, first: dict[str, str]
) -> None:
    stream = created(root, segments=2)
    fill(stream, 0, 20, keys=20)
    assert len(query.run(**first)) == 20
    fill(stream, 20, 40, keys=20)
    with pytest.raises(InvalidOption, match=r"segment 1#0 of stream s/a, which is not read to"):
        query.run(**assign(0))
    query.run(**first)
    assert sorted(query.found) == list(range(40))


def test_narrower_assign_warns_once_where_loss_is_allowed(
    root: str, query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    stream = created(root, segments=2)
    fill(stream, 0, 20, keys=20)
    query.run(**WHOLE)
    fill(stream, 20, 40, keys=20)
    lost = [n for n in by_segment(root)[1] if n >= 20]
    query.run(**assign(0), failondataloss="false")
    assert sorted([*query.found, *lost]) == list(range(40))
    assert caplog.text.count("these events would never be read") == 1
    with pytest.raises(InvalidOption, match=r"did not read segment 1#0 of stream s/a before"):
        query.run(**WHOLE)


@pytest.mark.parametrize("second", [WHOLE, assign(0, 1)])
def test_wider_assign_is_refused_if_the_cut_has_passed_events(
    root: str, query: Query, second: dict[str, str]
) -> None:
    fill(created(root, segments=2), 0, 20, keys=20)
    assert query.run(**assign(0)) == by_segment(root)[0]
    with pytest.raises(InvalidOption, match=r'Go on with assign {"s/a": \["0#0"\]}; or start'):
        query.run(**second)
    assert query.run(**assign(0)) == []


def test_segment_is_added_where_nothing_of_it_was_passed(
    root: str, query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    stream = created(root, segments=2)
    fill(stream, 0, 20, keys=20)
    query.batches = [query.reader(**assign(0), startingoffsets="latest").initialOffset()]
    fill(stream, 20, 40, keys=20)
    assert sorted(query.run(**WHOLE)) == list(range(20, 40))
    assert "1#0 from offset" in caplog.text


def test_successors_follow_a_split_directly_and_not_after_a_run_in_between(
    root: str, caplog: pytest.LogCaptureFixture
) -> None:
    stream = created(root)
    fill(stream, 0, 10)
    direct, late = Query(root), Query(root)
    for query in (direct, late):
        assert query.run(**assign(0)) == list(range(10))
    scale(stream, [0], [(0.0, 0.5), (0.5, 1.0)])
    fill(stream, 10, 20)
    assert sorted(direct.run(**assign("1#1", "2#1"))) == list(range(10, 20))
    assert caplog.text == ""
    assert late.run(**assign(0)) == []
    assert "segment 0#0 of stream s/a is sealed and read to the end" in caplog.text
    assert "passes events of 1#1, 2#1" in caplog.text
    with pytest.raises(
        InvalidOption, match="did not read segments 1#1, 2#1 of stream s/a before"
    ) as found:
        late.run(**assign("1#1", "2#1"))
    assert "Go on with" not in str(found.value)
    assert "this assign and startingOffsets=earliest" in str(found.value)
    new = Query(root).run(**assign("1#1", "2#1"), startingoffsets="earliest")
    assert sorted(new) == list(range(10, 20))
    assert sorted(direct.repeat(**assign("1#1", "2#1"))) == list(range(10, 20))
    fill(stream, 20, 30)
    assert sorted(direct.run(**assign(0, "1#1", "2#1"))) == list(range(20, 30)), "0 is finished"
    assert direct.run(**WHOLE) == []


def test_segment_that_never_was_is_refused_at_a_restart(root: str, query: Query) -> None:
    stream = created(root)
    fill(stream, 0, 10)
    query.run(**assign(0))
    for lax in ({}, {"failondataloss": "false"}):
        with pytest.raises(InvalidOption, match="no segment 7#0"):
            query.run(**assign(0, 7), **lax)
    scale(stream, [0], [(0.0, 1.0)])
    fill(stream, 10, 20)
    assert query.run(**assign(0, "1#1")) == list(range(10, 20))
    truncate(stream, {make_segment_id(1, 1): 0})
    assert not stream.view().has_segment(0)
    fill(stream, 20, 30)
    assert query.run(**assign(0, "1#1")) == list(range(20, 30)), "0 is truncated, and was read"
    whole = Query(root)
    fill(stream, 30, 31)
    whole.run(**WHOLE)
    assert whole.run(**assign(0, "1#1")) == [], "0 was truncated"
    with pytest.raises(InvalidOption, match="no segment 7#0"):
        whole.run(**assign(7, "1#1"))


def test_batch_that_is_repeated_reads_what_it_was_planned_to_read(root: str, query: Query) -> None:
    fill(created(root, segments=2), 0, 20, keys=20)
    query.run(**WHOLE)
    with pytest.raises(InvalidOption, match=r"option assign: .* segment 1#0 of stream s/a"):
        query.repeat(**assign(0))
    assert len(query.repeat(**assign(0), failondataloss="false")) == 20


def test_truncation_of_other_segments_does_not_concern_a_query(root: str, query: Query) -> None:
    stream = created(root, segments=2)
    fill(stream, 0, 20, keys=20)
    query.batches = [query.reader(**assign(0)).initialOffset()]
    truncate(stream, {0: 0, 1: 3})
    assert query.run(**assign(0)) == by_segment(root)[0]
    truncate(stream, {0: 2, 1: 3})
    with pytest.raises(TruncatedData, match=r"segment 0#0 \[0, 2\)"):
        query.repeat(**assign(0))


def test_other_routing_keys_are_said_once(
    root: str, query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    stream = created(root)
    fill(stream, 0, 10)
    query.run(**WHOLE, routingkeys="k1,k2")
    assert query.run(**WHOLE, routingkeys="k2,k1") == []
    assert "routingKeys has changed" not in caplog.text
    fill(stream, 10, 20)
    assert query.run(**WHOLE, routingkeys="k2,k3") == [12, 13, 17, 18]
    assert caplog.text.count("routingKeys has changed") == 1
    assert query.run(**WHOLE, routingkeys="k2,k3") == []
    query.run(**WHOLE)
    assert caplog.text.count("routingKeys has changed") == 2


EARLIER = """
import json, sys
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pravega_spark.spark.source import PravegaDataSource
source = PravegaDataSource(json.loads(sys.argv[1]))
reader = source.streamReader(source.schema())
start = json.loads(sys.argv[2]) if sys.argv[2] else reader.initialOffset()
end = json.loads(sys.argv[3]) if sys.argv[3:] else reader.latestOffset(start, ReadAllAvailable())
parts = reader.partitions(start, end)
found = [int(e) for p in parts for b in reader.read(p) for e in b.column("event").to_pylist()]
print(json.dumps([end, found]))
"""


@pytest.mark.medium
def test_release_010_goes_on_from_offsets_of_this_one_and_the_other_way_round(
    root: str, query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    def earlier(start: Offset | None) -> list[int]:
        options = json.dumps({"root": root, "startingOffsets": "earliest", **assign(0)})
        given = json.dumps(start) if start else ""
        end, found = json.loads(run_release("0.1.0", EARLIER, options, given))
        query.batches.append(end)
        return [*found]

    stream = created(root, segments=2)
    fill(stream, 0, 20, keys=20)
    mine = by_segment(root)[0]
    assert earlier(None) == mine
    assert query.offset().reads is None
    fill(stream, 20, 30, keys=20)
    assert sorted(query.run(**WHOLE)) == list(range(20, 30)), "the offset of 0.1.0 says nothing"
    fill(stream, 30, 40, keys=20)
    left = [n for n in by_segment(root)[0] if n >= 30]
    assert earlier(query.batches[-1]) == left
    assert query.offset().reads is None
    away = decode(query.batches[-1]) | {"s/b": decode(_away(root))["s/b"]}
    end = json.loads(
        run_release(
            "0.1.0",
            EARLIER,
            json.dumps({"root": root, "subscribe": "s/a,s/b"}),
            json.dumps(encode(away)),
        )
    )
    assert end[1] == [3, 4], "0.1.0 takes a stream that was away where it was left"


def _away(root: str) -> Offset:
    """Return an offset in which s/b was left after 3 of 5 events."""
    stream = created(root, "s/b")
    fill(stream, 0, 3)
    both = Query(root)
    both.run(subscribe="s/a,s/b")
    fill(stream, 3, 5)
    both.run(subscribe="s/a", failondataloss="false")
    assert decode(both.batches[-1])["s/b"].is_away
    return both.batches[-1]


def test_stream_that_is_left_out_for_one_run_is_read_on_where_it_was(
    root: str, query: Query
) -> None:
    a, b = created(root), created(root, "s/b")
    fill(a, 0, 3)
    fill(b, 10, 13)
    assert sorted(query.run(subscribe="s/a,s/b")) == [0, 1, 2, 10, 11, 12]
    fill(a, 3, 5)
    fill(b, 13, 15)
    assert query.run(subscribe="s/a", failondataloss="false") == [3, 4]
    assert [*present(decode(query.batches[-1]))] == ["s/a"]
    assert query.run(subscribe="s/a") == [], "it was left before, and nothing is left now"
    assert query.run(subscribe="s/a,s/b") == [13, 14]


def test_stream_that_was_left_and_deleted_is_dropped(root: str, query: Query) -> None:
    fill(created(root), 0, 3)
    fill(created(root, "s/b"), 10, 13)
    query.run(subscribe="s/a,s/b")
    query.run(subscribe="s/a", failondataloss="false")
    manager = StreamManager(root)
    manager.seal_stream("s/b")
    manager.delete_stream("s/b")
    assert query.run(subscribe="s/a") == []
    assert [*decode(query.batches[-1])] == ["s/a"]


@pytest.mark.medium
@pytest.mark.parametrize("lax", [{}, {"failondataloss": "false"}])
@pytest.mark.parametrize("named", [{"subscribe": "s/a,s/b"}, {"subscribePattern": "s/.*"}])
def test_root_that_is_an_empty_folder_for_one_run_is_an_error(
    root: str, query: Query, lax: dict[str, str], named: dict[str, str]
) -> None:
    stream = created(root)
    fill(stream, 0, 3)
    fill(created(root, "s/b"), 10, 13)
    query.run(**named)
    fill(stream, 3, 5)
    query.run(**named)
    unmounted = Path(f"{root}-elsewhere")
    Path(root).rename(unmounted)
    Path(root).mkdir()
    options = {"root": root, **named, **lax}
    with pytest.raises(RootChanged, match=r"removed, moved,? (or )?unmounted"):
        query.run(**named, **lax)
    with pytest.raises(RootChanged, match=r"removed, moved,? (or )?unmounted"):
        query.repeat(**named, **lax)
    other = _in_a_process(options, query.batches[-1])
    assert "RootChanged" in other
    assert "is no longer a root" in other
    Path(root).rmdir()
    unmounted.rename(root)
    assert query.run(**named, **lax) == []


def _in_a_process(options: dict[str, str], *batches: Offset) -> str:
    """Return the error of a run in a process of its own, which has not opened the root before.

    It goes on at a batch's end, or repeats the batch between two.
    """
    ours, theirs = FORKED.Pipe()
    process = FORKED.Process(target=_tell_the_error, args=(theirs, options, batches))
    process.start()
    theirs.close()
    error: str = ours.recv()
    process.join(60)
    return error


def _tell_the_error(told: Any, options: dict[str, str], batches: tuple[Offset, ...]) -> None:
    source = PravegaDataSource(options)
    try:
        reader = source.streamReader(source.schema())
        start, *ends = batches
        end = ends[0] if ends else reader.latestOffset(start, ReadAllAvailable())
        for part in reader.partitions(start, end):
            list(reader.read(part))
        told.send("")
    except PravegaSparkError as error:
        told.send(f"{type(error).__name__}: {error}")


@pytest.mark.parametrize("lost", ["saved cut", "time", "segment"])
def test_start_option_that_is_gone_stops_a_new_query_and_not_one_after_a_crash(
    root: str, query: Query, lost: str
) -> None:
    stream = created(root)
    manager = StreamManager(root)
    fill(stream, 0, 5)
    manager.save_cut("s/a", "begin", manager.tail("s/a"))
    start = {
        "saved cut": {"startingstreamcut": "begin"},
        "time": {"startingtimestamp": "1970-01-02"},
        "segment": {"startingoffsets": '{"s/a": {"0#0": 5}}'},
    }[lost]
    fill(stream, 5, 10)
    planned = query.run(**WHOLE, **start)
    fill(stream, 10, 15)
    if lost == "saved cut":
        manager.delete_cut("s/a", "begin")
    elif lost == "time":
        start = {"startingtimestamp": "2999-01-01"}
    else:
        start = {"startingoffsets": '{"s/a": {"7#0": 5}}'}
    assert query.repeat(**WHOLE, **start) == planned
    assert query.run(**WHOLE, **start) == list(range(10, 15))
    with pytest.raises(Exception, match=r"begin|no event at or after|7#0"):
        Query(root).run(**WHOLE, **start)


def test_new_query_over_a_missing_stream_fails_at_once(root: str) -> None:
    reader = stream_reader(root)
    with pytest.raises(NoSuchStream, match="or create it"):
        reader.latestOffset(reader.initialOffset(), ReadAllAvailable())


def test_query_that_has_read_everything_is_at_the_latest_offset_that_it_reports(
    root: str, query: Query
) -> None:
    stream = created(root, segments=2)
    fill(stream, 0, 20, keys=20)
    reader = query.reader(**assign(0), startingoffsets="latest")
    start = reader.initialOffset()
    fill(stream, 20, 40, keys=20)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert reader.reportLatestOffset() == end != start
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    assert json.dumps(reader.reportLatestOffset()) == json.dumps(end)
    again = query.reader(**assign(0))
    assert again.latestOffset(json.loads(json.dumps(end)), ReadAllAvailable()) == end
    assert again.reportLatestOffset() == end
    fill(stream, 40, 50, keys=20)
    assert again.latestOffset(end, ReadAllAvailable()) == again.reportLatestOffset() != end


def test_first_batch_whose_segments_are_all_forgotten_is_not_taken_for_an_empty_one(
    root: str, query: Query
) -> None:
    stream = created(root)
    scale(stream, [0], [(0.0, 1.0)])
    fill(stream, 0, 4)
    scale(stream, [make_segment_id(1, 1)], [(0.0, 1.0)])
    query.run(**WHOLE)
    truncate(stream, {make_segment_id(2, 2): 0})
    with pytest.raises(TruncatedData, match="failOnDataLoss"):
        query.repeat(**WHOLE)


def test_segment_that_was_passed_and_truncated_is_not_added_in_silence(
    root: str, query: Query
) -> None:
    stream = created(root, segments=2)
    fill(stream, 0, 20, keys=20)
    scale(stream, [0, 1], [(0.0, 1.0)])
    query.run(**assign(0, "2#1"))
    truncate(stream, {make_segment_id(2, 1): 0})
    with pytest.raises(InvalidOption, match="did not read segment 1#0 of stream s/a before"):
        query.run(**WHOLE)
    assert query.run(**assign("2#1")) == []


@pytest.mark.parametrize("late", [0, 4])
def test_query_that_caught_up_goes_on_after_a_truncation_at_exactly_a_scale(
    root: str, query: Query, late: int
) -> None:
    stream = created(root)
    fill(stream, 0, 10)
    assert len(query.run(**WHOLE)) == 10
    scale(stream, [0], [(0.0, 1.0)])
    fill(stream, 10, 10 + late)
    if late:
        scale(stream, [make_segment_id(1, 1)], [(0.0, 1.0)])
    truncate(stream, dict(stream.view().tail.positions))
    fill(stream, 20, 25)
    if late:
        with pytest.raises(TruncatedData, match=r"1#1 \[0, 4\)"):
            query.run(**WHOLE)
        assert query.run(**WHOLE, failondataloss="false") == list(range(20, 25))
    else:
        assert query.run(**WHOLE) == list(range(20, 25))


def moved_away(root: str) -> Path:
    """Move a root away, as an unmounted disk is; return where it is."""
    elsewhere = Path(f"{root}-elsewhere")
    Path(root).rename(elsewhere)
    return elsewhere


def back(root: str, elsewhere: Path) -> None:
    remove(root)
    elsewhere.rename(root)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("made", "named", "lax"),
    [
        ("s/a", WHOLE, {"failondataloss": "false"}),
        ("s/a", WHOLE, {}),
        ("s/other", {"subscribePattern": "s/.*"}, {"failondataloss": "false"}),
    ],
)
def test_root_that_start_up_code_made_anew_for_one_run_is_an_error(
    root: str, query: Query, made: str, named: dict[str, str], lax: dict[str, str]
) -> None:
    stream = created(root)
    created(root, "s/b")
    fill(stream, 0, 3)
    query.run(**named)
    fill(stream, 3, 5)
    query.run(**named)
    elsewhere = moved_away(root)
    options = {"root": root, **named, **lax}
    StreamManager(root).create_scope("s")
    fill(created(root, made), 0, 2)
    for batches in ([query.batches[-1]], query.batches[-2:]):
        error = _in_a_process(options, *batches)
        assert "RootChanged" in error
        assert "is another root than the one where the query has read s/a" in error
    back(root, elsewhere)
    assert query.run(**named, **lax) == []
    fill(stream, 5, 6)
    assert query.run(**named, **lax) == [5]


def test_root_whose_marker_was_written_anew_is_read_on(root: str, query: Query) -> None:
    fill(created(root), 0, 3)
    query.run(**WHOLE)
    first = query.batches[-1]["rootId"]
    elsewhere = moved_away(root)
    (elsewhere / MARKER_KEY).unlink()
    query.root = str(elsewhere)
    StreamManager(elsewhere).create_scope("again")
    fill(open_stream(str(elsewhere), "s/a"), 3, 5)
    assert query.run(**WHOLE) == [3, 4]
    assert query.batches[-1]["rootId"] != first


def test_copy_of_a_root_that_was_restored_is_read_on_where_loss_is_allowed(
    root: str, query: Query
) -> None:
    fill(created(root), 0, 3)
    query.run(**WHOLE)
    query.root = f"{root}-copy"
    StreamManager(root).backup(query.root)
    StreamManager(query.root).restore()
    with pytest.raises(StaleIdentity):
        query.run(**WHOLE)
    assert query.run(**WHOLE, failondataloss="false") == [0, 1, 2], "at the head"


def test_offset_that_does_not_say_its_root_goes_on_as_before(root: str, query: Query) -> None:
    stream = created(root)
    fill(stream, 0, 3)
    query.run(**WHOLE)
    del query.batches[-1]["rootId"]
    assert query.run(**WHOLE) == []
    fill(stream, 3, 4)
    assert query.run(**WHOLE) == [3]
    assert "rootId" in query.batches[-1]


@pytest.mark.parametrize("lax", [{}, {"failondataloss": "false"}])
@pytest.mark.parametrize("call", ["available now", "first batch", "new"])
def test_run_without_its_root_is_told_so(
    root: str, query: Query, lax: dict[str, str], call: str
) -> None:
    fill(created(root), 0, 3)
    query.run(**WHOLE)
    moved_away(root)
    reader = stream_reader(f"{root}", path="", **WHOLE, **lax)
    if call == "available now":
        reader.prepareForTriggerAvailableNow()
        with pytest.raises(RootChanged):
            reader.latestOffset(query.batches[-1], ReadAllAvailable())
    elif call == "first batch":
        with pytest.raises(RootChanged):
            reader.partitions(reader.initialOffset(), query.batches[0])
    else:
        with pytest.raises(
            NoSuchStream, match=r"is not a root now\. If it was one, mount or restore"
        ):
            reader.latestOffset(reader.initialOffset(), ReadAllAvailable())


@pytest.mark.medium
@pytest.mark.parametrize("parts", [{}, {"minpartitions": "9"}])
def test_a_batch_that_release_010_planned_has_the_same_rows_here_and_the_other_way_round(
    root: str, query: Query, parts: dict[str, str]
) -> None:
    """Whatever shares a task, a batch that ended with a crash is what its offsets say."""
    stream = created(root, segments=3)
    for name in ("s/b", "s/c"):
        fill(created(root, name), 100, 110)
    fill(stream, 0, 40, keys=20)
    given = {"subscribe": "s/a,s/b,s/c", "startingoffsets": "earliest", **parts}
    options = json.dumps({"root": root, **given})
    planned, theirs = json.loads(run_release("0.1.0", EARLIER, options, ""))
    scale(stream, [0], [(0.0, 1 / 6), (1 / 6, 1 / 3)])
    fill(stream, 40, 60, keys=20)
    reader = query.reader(**given)
    start = reader.initialOffset()
    assert sorted(events(rows(reader, reader.partitions(start, planned)))) == sorted(theirs)
    end = reader.latestOffset(start, ReadAllAvailable())
    mine = events(rows(reader, reader.partitions(start, end)))
    again = run_release("0.1.0", EARLIER, options, json.dumps(start), json.dumps(end))
    assert sorted(json.loads(again)[1]) == sorted(mine)
