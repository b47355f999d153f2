"""Runs of the jobs of import and export in the tests' own Spark session."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.sql import SparkSession

from pravega_spark import StreamManager
from pravega_spark.jobs import copy_runner, export_stream, import_stream


class Copies:
    """Runs both jobs in the tests' session, each as a process of its own would."""

    def __init__(
        self, spark: SparkSession, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.spark, self.folder, self.root, self.capsys = spark, folder, folder / "root", capsys
        StreamManager(self.root).create_scope("s")

    def import_(self, *words: object, stream: str = "s/in") -> dict[str, object]:
        given = [*(["--stream", stream] if stream else []), *map(str, words)]
        arguments = import_stream.parse(self._given(given, "import"))
        return self._run("import_stream", arguments, import_stream.import_of(arguments))

    def export(self, *words: object, stream: str = "s/in") -> dict[str, object]:
        given = ["--stream", stream, *map(str, words)]
        arguments = export_stream.parse(self._given(given, "export"))
        return self._run("export_stream", arguments, export_stream.export_of(arguments))

    def _given(self, words: list[str], job: str) -> list[str]:
        checkpoint = [] if "--checkpoint" in words else ["--checkpoint", str(self.folder / job)]
        return ["--root", str(self.root), *checkpoint, *words]

    def _run(
        self, prog: str, arguments: SimpleNamespace, copy: copy_runner.Copy
    ) -> dict[str, object]:
        status = copy_runner.copy_rows(prog, arguments, copy, self.spark)
        found = self.capsys.readouterr()
        record = json.loads((found.out.splitlines() or ["{}"])[-1])
        assert isinstance(record, dict)
        return {**record, "status": status, "output": found.out + found.err}

    def events(self, stream: str = "s/in") -> list[tuple[str | None, str]]:
        return [(e.routing_key, e.data.decode()) for e in StreamManager(self.root).read(stream)]
