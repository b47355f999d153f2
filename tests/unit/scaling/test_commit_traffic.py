from __future__ import annotations

from pravega_spark.engine.log.actions import Commit
from pravega_spark.scaling.commit_traffic import SegmentTraffic, traffic_of
from tests.harness.engine import NOW_MS
from tests.harness.loads import commit


def test_only_segments_whose_record_the_commit_moves_on_are_written() -> None:
    plain = commit(1, NOW_MS, {"0#0": 5, "1#0": 7}, {"0#0": 50, "1#0": 70})
    assert {n: (w.plain.events, w.plain.size_bytes) for n, w in traffic_of(plain).items()} == {
        0: (5, 50),
        1: (7, 70),
    }
    rewritten = Commit(1, "t", NOW_MS, "COMPACT", plain.info, {})
    assert traffic_of(rewritten) == {}
    assert traffic_of(Commit(1, "t", NOW_MS, "SWEEP", {}, {})) == {}


def test_a_segment_that_a_rolling_transaction_repeats_goes_on() -> None:
    written = traffic_of(commit(1, NOW_MS, {"3#1": 5, "3#4": 2}))
    assert list(written) == [3]
    assert written[3].plain.events == 7


def test_transactions_are_told_apart_and_an_aborted_one_brings_nothing() -> None:
    told = [
        {
            "id": f"t{n}",
            "created": n,
            "rowsBySegment": {"0#0": n},
            "bytesBySegment": {"0#0": 10 * n},
        }
        for n in (1, 2)
    ]
    (written,) = traffic_of(commit(1, NOW_MS, {"0#0": 3}, {"0#0": 30}, transactions=told)).values()
    assert written.plain == SegmentTraffic()
    assert [(m.created_ms, m.amount) for m in written.merged] == [
        (1, SegmentTraffic(1, 10)),
        (2, SegmentTraffic(2, 20)),
    ]
    assert traffic_of(commit(1, NOW_MS, transactions=[])) == {}
