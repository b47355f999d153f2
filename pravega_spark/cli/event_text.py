"""An event as a line: JSON, its payload alone, or a format with ``%`` as kcat has it."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from typing import Any

import click

from pravega_spark.cli.exact_json import json_text, parse_json
from pravega_spark.model import Event, RowEvent, segment_text
from pravega_spark.printable import printable_json
from pravega_spark.schemas.row_json import plain_value, row_text

_ESCAPES = {r"\n": "\n", r"\t": "\t", r"\0": "\0", r"\\": "\\"}
_FIELD = re.compile(r"%(.)|\\[nt0\\]")
_FIELDS: dict[str, Callable[[Event], str]] = {
    "%": lambda event: "%",
    "k": lambda event: "" if event.routing_key is None else event.routing_key,
    "v": lambda event: row_text(event.data) if _is_row(event) else _text(event.data),
    "s": lambda event: segment_text(event.segment_id),
    "o": lambda event: str(event.offset),
    "p": lambda event: str(event.pointer),
    "t": lambda event: event.timestamp.isoformat(),
    "S": lambda event: str(event.size_bytes),
}


def event_writer(form: str) -> Callable[[Event], bytes]:
    """Return what makes a line of an event; UsageError for an unknown field of a format."""
    if form == "json":
        return _json_line
    if form == "raw":
        return _raw_line
    unknown = [name for name in _FIELD.findall(form) if name and name not in _FIELDS]
    if unknown:
        raise click.UsageError(
            f"--format has no field %{unknown[0]}: there are {' '.join('%' + f for f in _FIELDS)}."
        )

    def line(event: Event) -> bytes:
        def value(match: re.Match[str]) -> str:
            return _FIELDS[match[1]](event) if match[1] else _ESCAPES[match[0]]

        return _FIELD.sub(value, form).encode(errors="surrogateescape")

    return line


def _json_line(event: Event) -> bytes:
    record: dict[str, Any] = {
        "pointer": str(event.pointer),
        "segment": segment_text(event.segment_id),
        "offset": event.offset,
        "timestamp": event.timestamp.isoformat(),
        "routing_key": event.routing_key,
    }
    if _is_row(event):
        record["event"] = plain_value(event.data)
    else:
        try:
            record["event"] = event.data.decode()
        except UnicodeDecodeError:
            record["event_base64"] = base64.b64encode(event.data).decode()
    return printable_json(json.dumps(record, ensure_ascii=False)).encode() + b"\n"


def parsed(line: Callable[[Event], bytes]) -> Callable[[Event], bytes]:
    """Return what makes JSON lines whose ``event`` is the parsed payload where that is JSON."""

    def parsed_line(event: Event) -> bytes:
        plain = line(event)
        record = json.loads(plain)
        text = record.get("event")
        if not isinstance(text, str):  # bytes, or a typed stream's row
            return plain
        try:
            record["event"] = parse_json(text)
            return printable_json(json_text(record)).encode() + b"\n"
        except (ValueError, RecursionError):
            return plain

    return parsed_line


def _raw_line(event: Event) -> bytes:
    data = row_text(event.data).encode() if _is_row(event) else bytes(event.data)
    return data + b"\n"


def _is_row(event: Event) -> bool:
    return isinstance(event, RowEvent)


def _text(data: bytes) -> str:
    return data.decode(errors="surrogateescape")
