"""Each line of the log says where it belongs, in fields that formatters of JSON write."""

from __future__ import annotations

import ast
import io
import json
import logging
import re
import uuid
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import pravega_spark
from pravega_spark.engine.runtime.log_fields import log_fields
from pravega_spark.manager import StreamManager

PACKAGE = Path(pravega_spark.__file__).parent
_CALLS = {"critical", "debug", "error", "exception", "info", "log", "warning"}
_OF_RECORDS = logging.makeLogRecord({}).__dict__.keys() | {"message", "asctime"}

_NAMED = re.compile(rb"\b(logger|logging|log_fields|own_logger)\b")


@cache
def _calls() -> list[tuple[Path, ast.Call]]:
    """The calls of ``logger``, ``logging``, and of what makes loggers and fields."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_bytes()
        if not _NAMED.search(text):
            continue
        for node in ast.walk(ast.parse(text)):
            match node:
                case (
                    ast.Call(func=ast.Attribute(value=ast.Name(id="logger" | "logging")))
                    | ast.Call(func=ast.Name(id="log_fields" | "own_logger"))
                ):
                    found.append((path, node))
    return found


def _calls_of(name: str) -> Iterator[tuple[Path, ast.Call, str]]:
    """The calls of a function, "", or of methods of an object of this name, with theirs."""
    for path, call in _calls():
        match call.func:
            case ast.Name(id=found) if found == name:
                yield path, call, ""
            case ast.Attribute(value=ast.Name(id=found), attr=method) if found == name:
                yield path, call, method


@pytest.mark.medium
def test_every_line_has_fields() -> None:
    found = [(path, call) for path, call, method in _calls_of("logger") if method in _CALLS]
    assert len(found) > 60
    for path, call in found:
        where = f"{path.relative_to(PACKAGE)}:{call.lineno}"
        extra = next((word.value for word in call.keywords if word.arg == "extra"), None)
        if isinstance(extra, ast.Name):  # made in the line before
            assert extra.id == "fields", where
            continue
        assert isinstance(extra, ast.Call), where
        assert ast.unparse(extra.func) == "log_fields", where


@pytest.mark.medium
def test_no_field_hides_an_attribute_of_records() -> None:
    found = list(_calls_of("log_fields"))
    assert len(found) > 60
    for path, call, _ in found:
        assert not {word.arg for word in call.keywords} & _OF_RECORDS, path


_LOGGERS = {
    "log_fields.py": "logging.getLogger(name)",  # that of own_logger
    "supplier_log.py": "logging.getLogger('botocore.credentials')",  # it takes that one's records
}


@pytest.mark.medium
def test_every_logger_is_one_whose_lines_are_printable() -> None:
    for path, call, method in _calls_of("logging"):
        assert method not in _CALLS, path
        if method == "getLogger" and path.parts[-2] != "serve":
            assert ast.unparse(call) == _LOGGERS.get(path.name), path
    found = list(_calls_of("own_logger"))
    assert len(found) > 20
    for path, call, _ in found:
        assert ast.unparse(call) == "own_logger(__name__)", path


@pytest.mark.parametrize(
    ("path", "group", "scope", "stream"),
    [
        ("nyc/flights", "", "nyc", "flights"),
        ("nyc/flights/events", "", "nyc", "flights"),
        ("nyc/flights/metadata", "", "nyc", "flights"),
        ("nyc/_kv_tables/seats", "", "nyc", "_kv_tables/seats"),
        ("nyc/_kv_tables/seats/events", "", "nyc", "_kv_tables/seats"),
        ("nyc/_scope", "", "nyc", ""),
        ("nyc/_reader_groups/g", "", "nyc", ""),
        ("_settings", "", "", ""),
        ("", "nyc/g", "nyc", ""),
        ("other/s", "nyc/g", "other", "s"),
    ],
)
def test_scope_and_stream_are_those_of_the_table_or_the_group(
    path: str, group: str, scope: str, stream: str
) -> None:
    fields = log_fields("append", path, 7, group=group, lost=2)
    expected = {"operation": "append", "scope": scope, "stream": stream, "version": 7, "lost": 2}
    assert fields == (expected | {"group": group} if group else expected)
    assert log_fields("append")["version"] is None


class _JsonFormatter(logging.Formatter):
    """What applications do: the message, and every attribute that records do not have anyway."""

    def format(self, record: logging.LogRecord) -> str:
        more = {k: v for k, v in record.__dict__.items() if k not in _OF_RECORDS}
        return json.dumps({"message": record.getMessage(), **more}, default=str)


def test_lines_become_json_with_scope_stream_version_and_operation() -> None:
    text, logger = io.StringIO(), logging.getLogger("pravega_spark")
    handler = logging.StreamHandler(text)
    handler.setFormatter(_JsonFormatter())
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        manager = StreamManager(f"memory://{uuid.uuid4().hex}")
        manager.create_scope("s")
        manager.create_stream("s/a")
        manager.seal_stream("s/a")
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    lines = [json.loads(line) for line in text.getvalue().splitlines()]
    found = [(line["operation"], line["scope"], line["stream"], line["version"]) for line in lines]
    assert found == [
        ("probe", "", "", None),
        ("CREATE SCOPE", "s", "", 0),
        ("CREATE STREAM", "s", "a", 0),
        ("SEAL STREAM", "s", "a", 1),
    ]
    assert lines[2]["parameters"]["life"] == 1
