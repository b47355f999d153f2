"""Every reader sees the same events, at every version (invariant 7; I17)."""

from __future__ import annotations

import pytest

from tests.openness import engines
from tests.openness.story import Story
from pyspark.sql import SparkSession


def test_all(story: Story, spark: SparkSession) -> None:
    import time
    print(story.operations, story.checkpoints)
    for snapshot in engines.snapshots(story):
        v = snapshot.version
        t=[time.time()]
        a = engines.ours(story, snapshot); t.append(time.time())
        b = engines.deltalake_rows(story.table, v); t.append(time.time())
        c = engines.duckdb_rows(story.table, v); t.append(time.time())
        d = engines.spark_rows(spark, story.table, v); t.append(time.time())
        print(v, len(a), [round(y-x,2) for x,y in zip(t,t[1:])])
        assert a==b==c==d
        if v in story.rows:
            from collections import Counter
            assert Counter((r[0],r[1],r[2],r[4]) for r in a.elements()) == story.rows[v]
