from __future__ import annotations

import logging

import pyspark
import pytest

from pravega_spark.spark import kept_plans
from tests.harness.small_streams import created
from tests.harness.spark_reading import batch_reader, events, fill, rows


class Task:
    """What a task sees of its action."""

    execution: str | None = "1"

    def getLocalProperty(self, name: str) -> str | None:
        assert name == "spark.sql.execution.id"
        return self.execution


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Task:
    task = Task()
    monkeypatch.setattr(pyspark.TaskContext, "get", staticmethod(lambda: task))
    monkeypatch.setattr(kept_plans, "_first_reads", {})
    return task


def test_plan_that_is_read_again_after_a_commit_is_said_once(
    root: str, task: Task, caplog: pytest.LogCaptureFixture
) -> None:
    stream = created(root, segments=2)
    fill(stream, 0, 5)
    reader = batch_reader(root, minpartitions="2")
    planned = reader.partitions()
    assert len(planned) == 2
    for _ in range(2):
        assert sorted(events(rows(reader, planned))) == list(range(5))
    task.execution = "2"
    rows(reader, planned)
    assert not caplog.records, "nothing has been written since"
    fill(stream, 5, 8)
    for task.execution in ("1", "2", "3"):
        with caplog.at_level(logging.WARNING):
            assert sorted(events(rows(reader, planned))) == list(range(5))
    (record,) = caplog.records
    assert "is read at version 1, which the first action on this frame planned" in record.message
    assert "is at version 2 now" in record.message


def test_read_with_an_end_and_read_outside_of_an_action_say_nothing(
    root: str, task: Task, caplog: pytest.LogCaptureFixture
) -> None:
    stream = created(root)
    fill(stream, 0, 5)
    bounded, whole = batch_reader(root, endingoffsets='{"s/a": {"0": 5}}'), batch_reader(root)
    kept, planned = bounded.partitions(), whole.partitions()
    fill(stream, 5, 8)
    for task.execution in ("1", "2"):
        rows(bounded, kept)
    for task.execution in (None, None):
        rows(whole, planned)
    assert not caplog.records
