from __future__ import annotations

from pravega_spark.engine.log.actions import Commit
from pravega_spark.scaling.rates import Traffic, traffic_by_segment
from tests.harness.fake_runtime import NOW_MS
from tests.harness.loads import commit


def test_only_segments_whose_record_the_commit_changes_have_traffic() -> None:
    append = commit(1, NOW_MS, {"0#0": 5, "1#0": 7}, {"0#0": 50, "1#0": 70})
    found = {number: traffic.appends for number, traffic in traffic_by_segment(append).items()}
    assert found == {0: Traffic(5, 50), 1: Traffic(7, 70)}
    rewritten = Commit(1, "t", NOW_MS, "COMPACT", append.info, {})
    assert traffic_by_segment(rewritten) == {}
    assert traffic_by_segment(Commit(1, "t", NOW_MS, "SWEEP", {}, {})) == {}


def test_duplicate_of_a_segment_counts_as_the_segment() -> None:
    found = traffic_by_segment(commit(1, NOW_MS, {"3#1": 5, "3#4": 2}))
    assert list(found) == [3]
    assert found[3].appends.events == 7


def test_each_transaction_has_its_own_traffic() -> None:
    transactions = [
        {
            "id": f"t{n}",
            "created": n,
            "rowsBySegment": {"0#0": n},
            "bytesBySegment": {"0#0": 10 * n},
        }
        for n in (1, 2)
    ]
    rolled = commit(1, NOW_MS, {"0#0": 3}, {"0#0": 30}, transactions=transactions)
    (found,) = traffic_by_segment(rolled).values()
    assert found.appends == Traffic()
    assert [(t.created_ms, t.traffic) for t in found.transactions] == [
        (1, Traffic(1, 10)),
        (2, Traffic(2, 20)),
    ]
    assert traffic_by_segment(commit(1, NOW_MS, transactions=[])) == {}
