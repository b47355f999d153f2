"""A query's checkpoint as Spark writes it, and the calls of sinks as Spark makes them.

No Spark runs: the writers are pickled to tasks and back, and the tasks' local properties are given.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
from pyspark import SparkFiles
from pyspark.sql.types import StructType

from pravega_spark.manager import StreamManager
from pravega_spark.spark.key_value.source import KeyValueDataSource
from pravega_spark.spark.source import PravegaDataSource
from pravega_spark.spark.write.task_run import TaskRun
from tests.harness.spark_writing import TEXT, schema


@dataclass
class Query:
    """One run of a query on a checkpoint; another run, or a copy, is another object."""

    root: Path
    checkpoint: Path
    run: str = "run-1"
    query_id: str | None = "q-1"
    """None: a plain script, whose run is a job group."""
    application: str = "app-1"
    columns: dict[str, str] = field(default_factory=lambda: dict(TEXT))
    options: dict[str, str] = field(default_factory=lambda: {"path": "s/a"})
    kind: str = "pravega"
    execution: str | None = None
    """What tells an attempt of a batch from others, unless the run and the number."""
    is_in_thread: bool = False
    """Whether ``foreachBatch`` writes in a thread of its own, whose tasks see no properties."""
    location: str | None = None
    """The checkpoint as the option names it, unless by its path."""

    def plan(self, number: int, *ends: object) -> None:
        """Write ``offsets/N``, unless it is there, as a restarted query finds it."""
        for folder in ("offsets", "commits"):
            (self.checkpoint / folder).mkdir(parents=True, exist_ok=True)
        metadata = self.checkpoint / "metadata"
        if not metadata.exists():
            metadata.write_text(json.dumps({"id": self.query_id}))
        file = self.checkpoint / f"offsets/{number}"
        if not file.exists():
            lines = ["v1", json.dumps({"batchWatermarkMs": 0}), *map(json.dumps, ends)]
            file.write_text("\n".join(lines))

    def write(self, number: int, *parts: pa.RecordBatch) -> list[Any]:
        """Write a micro-batch by the streaming sink."""
        source = self._source(self._located(self.options))
        frame: StructType = schema(**self.columns)
        messages = self._stage(source.streamWriter(frame, False), number, parts)
        source.streamWriter(frame, False).commit(messages, number)
        return messages

    def save(
        self, number: int, *parts: pa.RecordBatch, knows_checkpoint: bool = False, **options: str
    ) -> list[Any]:
        """Write a frame in ``foreachBatch``, with a number unless the options have one."""
        given = {"txnappid": "app", "txnversion": str(number), **self.options, **options}
        if knows_checkpoint:
            given = self._located(given)
        folder = f"/tmp/spark-1/userFiles-{self.application}"
        with mock.patch.multiple(SparkFiles, _is_running_on_worker=True, _root_directory=folder):
            writer = self._source(given).writer(schema(**self.columns), False)
        messages = self._stage(writer, number, parts)
        writer.commit(messages)
        return messages

    def _located(self, options: dict[str, str]) -> dict[str, str]:
        return {**options, "checkpointlocation": self.location or str(self.checkpoint)}

    def _source(self, options: dict[str, str]) -> Any:
        kind = PravegaDataSource if self.kind == "pravega" else KeyValueDataSource
        return kind({"root": str(self.root), **options})

    def _stage(self, writer: Any, number: int, parts: Iterable[pa.RecordBatch]) -> list[Any]:
        of_task = pickle.loads(pickle.dumps(writer))
        task = TaskRun(run=self.run)
        if self.is_in_thread:
            task = TaskRun()
        elif self.query_id is not None:
            execution = self.execution or f"{self.run}.{number}"
            task = TaskRun(self.query_id, self.run, number, attempt=execution)
        with mock.patch.object(TaskRun, "current", return_value=task):
            messages = [of_task.write(iter([part])) for part in parts]
            for message in messages:
                message.task = task
        return list(pickle.loads(pickle.dumps(messages)))


def table_query(folder: Path) -> Query:
    """Return a query into the new key-value table s/t of a new root."""
    manager = StreamManager(folder / "root")
    manager.create_scope("s")
    manager.create_key_value_table("s/t")
    return Query(
        folder / "root",
        folder / "checkpoint",
        kind="pravega_kvt",
        columns={"key": "binary", "value": "binary"},
        options={"path": "s/t"},
    )
