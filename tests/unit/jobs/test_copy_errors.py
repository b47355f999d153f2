"""What the copy jobs say of the errors of Spark, in its texts, and what they leave to others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pravega_spark import StreamManager
from pravega_spark.jobs import export_stream, import_stream
from pravega_spark.jobs.copy_runner import text_of

MALFORMED = (
    ": org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while reading "
    "file file:///in/a.csv.  SQLSTATE: KD001\n"
    "Caused by: org.apache.spark.SparkException: [MALFORMED_RECORD_IN_PARSING.WITHOUT_SUGGESTION] "
    "Malformed records are detected in record parsing: [3,c,null].\nParse Mode: FAILFAST. To"
)
HEADER = (
    "java.lang.IllegalArgumentException: CSV header does not conform to the schema.\n Header: name,"
    " id\n Schema: id, name\nExpected: id but found: name\nCSV file: file:///in/b.csv\n\tat org"
)
NO_TOPIC = (
    "[STREAM_FAILED] Query [id = 7b, runId = a8] terminated with exception: "
    "org.apache.kafka.common.errors.UnknownTopicOrPartitionException: This server does not host "
    "this topic-partition. SQLSTATE: XXKST\n=== Streaming Query ===\nIdentifier: x\n\nJVM stack"
)
NULLS = (
    "Traceback\npravega_spark.errors.InvalidInput: column value is null in 1 of 9 rows. Or set the "
    "option nullValues to skip or to empty.\n SQLSTATE: 38000"
)
NO_SQL = "\n[PARSE_SYNTAX_ERROR] Syntax error at or near 'not'. SQLSTATE: 42601 (line 1, pos 9)"
NO_TEXT = "terminated with exception: [INVALID_UTF8_STRING] Invalid UTF8 byte sequence: \\xFF."


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (MALFORMED, ["[3,c,null]", "file:///in/a.csv", "--option mode=PERMISSIVE"]),
        (HEADER, ["Expected: id but found: name", "b.csv", "--option enforceSchema=true"]),
        (NO_TOPIC, ["kafka shop to s/in", "a topic does not exist", "--topics"]),
        (NULLS, ["null in 1 of 9 rows", "--null-values"]),
        (NO_SQL, ["Syntax error at or near 'not'"]),
        (NO_TEXT, ["a key is not UTF-8", "--key 'hex(key)'"]),
    ],
)
def test_an_error_of_spark_becomes_its_cause_and_the_way_on_of_the_job(
    text: str, said: list[str]
) -> None:
    shown = text_of(RuntimeError(text), "import_stream", "kafka", "kafka shop to s/in")
    assert [word for word in said if word not in shown] == []
    assert "Identifier" not in shown
    assert "\tat " not in shown


def test_bytes_that_are_no_text_are_events_of_an_export() -> None:
    shown = text_of(RuntimeError(NO_TEXT), "export_stream", "json", "s/in to json /out")
    assert "--event-as base64" in shown


@pytest.mark.parametrize("job", [import_stream, export_stream])
def test_checkpoint_in_the_root_is_refused(
    job: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--root", str(tmp_path), "--stream", "s/a", "--path", "/in"]
    given += ["--from" if job is import_stream else "--to", "json"]
    job.parse([*given, "--checkpoint", "hdfs://host/checkpoints"])
    with pytest.raises(SystemExit, match="2"):
        job.parse([*given, "--checkpoint", str(tmp_path / "checkpoint")])
    assert "Name a folder outside of it" in capsys.readouterr().err


class Plan:
    """A session, its readers and its writers in one: keeps the options that it is given."""

    def __init__(self) -> None:
        self.given: dict[str, str] = {}

    def __getattr__(self, name: str) -> Plan:
        return self

    def __call__(self, *args: object, **given: str) -> Plan:
        self.given |= given
        return self


def test_an_export_maintains_no_root_whatever_the_setting_says(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path / "root")
    manager.create_scope("s")
    manager.create_stream("s/a")
    given = ["--root", manager.root, "--stream", "s/a", "--to", "kafka", "--topic", "t"]
    given += ["--servers", "host:9092", "--checkpoint", str(tmp_path / "checkpoint")]
    plan = Plan()
    export_stream.export_of(export_stream.parse(given)).writer(plan)  # type: ignore[arg-type]
    assert plan.given["root"] == manager.root
    assert plan.given["maintain"] == "off"
