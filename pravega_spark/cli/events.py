"""``pravega-spark stream read`` and ``stream tail``: events as lines."""

from __future__ import annotations

import base64
import heapq
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from pravega_spark.cli.exact_json import json_text, parse_json
from pravega_spark.cli.output import examples
from pravega_spark.cli.positions import parse_position
from pravega_spark.cli.root_option import check_begun, open_root, root_option
from pravega_spark.engine.stream.positions import newest_ranges
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.primitives.printable import printable_json
from pravega_spark.schemas.row_json import plain_value, row_text
from pravega_spark.values.events import Event, RowEvent
from pravega_spark.values.segments import StreamCut, segment_text
from pravega_spark.values.units import parse_duration_ms

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


_Command = TypeVar("_Command", bound=Callable[..., Any])


def _format_options(command: _Command) -> _Command:
    options = (
        click.option(
            "-f",
            "--format",
            "form",
            default="json",
            show_default=True,
            help=r"json, raw, or a format such as '%k %v\n': %k key, %v event, %s segment, "
            "%o offset, %t time, %p pointer, %S size.",
        ),
        click.option(
            "--parse",
            "is_parsed",
            is_flag=True,
            help="With json: put events that are JSON into the line as JSON, for jq.",
        ),
        click.option("--key", help="Only events with this routing key."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _line(form: str, is_parsed: bool) -> Callable[[Event], bytes]:
    if is_parsed and form != "json":
        raise click.UsageError("--parse needs --format json.")
    return parsed(event_writer(form)) if is_parsed else event_writer(form)


@click.command(
    epilog=examples(
        "stream read nyc/flights -o @-1h --parse | jq .event.delay",
        r"stream read nyc/flights -n 10 -f '%k %v\n'",
    )
)
@click.argument("name", metavar="SCOPE/STREAM")
@click.option("-o", "--offset", "start", default="start", show_default=True, metavar="POSITION")
@click.option("--end", default="end", show_default=True, metavar="POSITION")
@click.option("-n", "--num", type=click.IntRange(1), help="At most this many events.")
@_format_options
@root_option
def read(
    name: str,
    start: str,
    end: str,
    num: int | None,
    form: str,
    is_parsed: bool,
    key: str | None,
    root: str | None,
) -> None:
    """Print the events of SCOPE/STREAM between two positions, in order by routing key.

    A POSITION is start, end, +N or -N (N events after the head or before the end, in each
    segment), @TIME (@2026-11-01T12:00:00, @1793534400000, @-2h), or a stream cut.
    """
    line = _line(form, is_parsed)
    manager, store = open_root(root)
    check_begun(store, [name])
    first, last = parse_position(manager, name, start), parse_position(manager, name, end)
    events: Iterable[Event] = manager.read(name, first, last)
    _print(itertools.islice(_with_key(events, key), num), line)


@click.command()
@click.argument("name", metavar="SCOPE/STREAM")
@click.option("-n", "--num", type=click.IntRange(0), default=10, show_default=True)
@click.option("-f", "--follow", is_flag=True, help="Wait for new events and print them, too.")
@click.option(
    "--timeout", metavar="TIME", help="With -f: stop when no event has come for this time."
)
@click.option("--format", "form", default="json", show_default=True, help="As of `stream read`.")
@click.option("--parse", "is_parsed", is_flag=True, help="As of `stream read`.")
@click.option("--key", help="Only events with this routing key.")
@root_option
def tail(
    name: str,
    num: int,
    follow: bool,
    timeout: str | None,
    form: str,
    is_parsed: bool,
    key: str | None,
    root: str | None,
) -> None:
    """Print the last events of SCOPE/STREAM, by time, and with -f new ones as they come.

    Example: pravega-spark stream tail -f nyc/flights --parse | jq .event
    """
    if timeout is not None and not follow:
        raise click.UsageError("--timeout needs --follow.")
    line = _line(form, is_parsed)
    seconds = None if timeout is None else parse_duration_ms("--timeout", timeout) / 1_000
    manager, store = open_root(root)
    check_begun(store, [name])
    log, reader = open_stream(store, name), manager.create_reader(name)

    def last(view: StreamView) -> tuple[StreamCut, list[Event]]:
        if key is not None:
            return view.tail, _newest(num, _with_key(manager.read(name, end=view.tail), key))
        ranges = newest_ranges(log, view, num) if num else []
        return view.tail, _newest(num, (e for rng in ranges for e in reader.read_range(rng)))

    end, found = log.on_newest(last)
    _print(found, line)
    if follow:
        _print(_with_key(manager.follow(name, end, timeout=seconds), key), line, live=True)


def _newest(num: int, events: Iterable[Event]) -> list[Event]:
    """Return the last events by time; those of one time keep their order."""
    latest = heapq.nlargest(
        num, enumerate(events), key=lambda item: (item[1].timestamp_us, item[0])
    )
    return [event for _, event in reversed(latest)]


def _with_key(events: Iterable[Event], key: str | None) -> Iterable[Event]:
    return events if key is None else (event for event in events if event.routing_key == key)


def _print(events: Iterable[Event], line: Callable[[Event], bytes], *, live: bool = False) -> None:
    """Write lines to standard output; each at once if they are live."""
    output = sys.stdout.buffer
    for event in events:
        output.write(line(event))
        if live:
            output.flush()
    output.flush()
