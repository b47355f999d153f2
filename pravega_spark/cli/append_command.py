"""``pravega-spark stream append``: lines, JSON, CSV, Parquet and Arrow as events.

With a writer id the input is written exactly once. The notes of the id hold a digest of the records
so far, by which a repeated run tells that its input is the one that the id has written.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import click

from pravega_spark.cli.input_records import FORMATS, check_format, read_records
from pravega_spark.cli.output import output_option, show_done
from pravega_spark.cli.root_option import open_root, root_option
from pravega_spark.errors import InvalidInput, SchemaMismatch
from pravega_spark.event_writer import EventStreamWriter

_Record = tuple[str | None, Any]
"""A routing key, and the bytes of an event or the row of a typed stream."""
_OPEN_WRITES = 10_000
"""Writes whose outcome is still unknown, at most: the errors of earlier ones end the command."""
_NOTE_RECORDS = 50_000
"""Records between two notes of a writer id; the first one comes with the first record."""


@click.command()
@click.argument("name", metavar="SCOPE/STREAM")
@click.argument("files", nargs=-1, metavar="[FILE]...")
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    help="Of all files.  [default: by their suffix; lines for standard input]",
)
@click.option("--key", "key_field", metavar="FIELD", help="The field that is the routing key.")
@click.option("--key-separator", metavar="TEXT", help="With lines: KEY<TEXT>EVENT, as kcat -K.")
@click.option(
    "--event", "event_field", metavar="FIELD", help="The field that is the event.  [default: all]"
)
@click.option(
    "--writer-id",
    metavar="ID",
    help="Write exactly once: go on where a run stopped. An id of its own for each input.",
)
@click.option("--large-events", is_flag=True, help="Also write events of 8 MiB to 1 GiB.")
@root_option
@output_option
def append(
    name: str,
    files: Sequence[str],
    form: str | None,
    key_field: str | None,
    key_separator: str | None,
    event_field: str | None,
    writer_id: str | None,
    large_events: bool,
    root: str | None,
    output: str,
) -> None:
    r"""Write the records of files, or of standard input, to SCOPE/STREAM, one event each.

    JSON lines, CSV rows, and rows of Parquet and Arrow become JSON objects, unless --event names
    the field to write; on a typed stream, rows of its columns. With --writer-id the same command
    after a crash writes only what is missing, and an input that begins with other records is
    refused.

    \b
    Examples: seq 5 | pravega-spark stream append nyc/numbers
              pravega-spark stream append nyc/flights flights.csv --key carrier --writer-id load-1
    """
    for file in files or ("-",):
        check_format(file, form, key_separator)
    manager, _ = open_root(root)
    schema = manager.stream_info(name).configuration.schema

    def records_of(file: str) -> Iterator[_Record]:
        if schema is None:
            return read_records(file, form, key_field, key_separator, event_field)
        from pravega_spark.cli.typed_input import read_typed

        return read_typed(file, form, key_field, event_field, schema)

    records = itertools.chain.from_iterable(map(records_of, files or ("-",)))
    run = _Append(writer_id)
    try:
        with contextlib.ExitStack() as stack:
            writer = stack.enter_context(
                manager.create_writer(name, writer_id=writer_id, large_events=large_events)
            )
            run.skip(writer, records)
            run.write(writer, _shown(records, stack))
    except InvalidInput as error:
        problem = str(error)
        if isinstance(error, SchemaMismatch):  # of the writer, which has one row at a time
            number = run.skipped + run.written + 1
            problem = f"record {number:,} of the input: {problem.replace('row 0, ', '', 1)}"
        if run.written:
            way_on = "" if writer_id is None else " Mend it, and repeat the command."
            problem += f" The {run.written:,} events before it were written.{way_on}"
        raise InvalidInput(problem) from error
    text = f"Wrote {run.written:,} events to stream {name}."
    if run.skipped:
        text += f" {run.skipped:,} had been written before."
    show_done({"stream": name, "written": run.written, "skipped": run.skipped}, text, output)


class _Append:
    """One run: what an earlier one had written, what this one writes, and the digest of both."""

    def __init__(self, writer_id: str | None) -> None:
        self._id = writer_id
        self._digest = hashlib.sha256()
        self.skipped = 0
        self.written = 0

    def skip(self, writer: EventStreamWriter, records: Iterator[_Record]) -> None:
        """Skip the records that the id has written; raise InvalidInput if they are others."""
        if self._id is None:
            return
        if not writer.last_event_number:
            self._note(writer)
            return
        noted, digest = self._last_note(writer)
        for record in itertools.islice(records, writer.last_event_number):
            self._add(record)
            self.skipped += 1
            if self.skipped == noted and self._digest.hexdigest() != digest:
                raise self._other_input(f"its first {noted:,} records are others")
        if self.skipped < writer.last_event_number:
            raise self._other_input(f"it has {self.skipped:,} records")

    def _last_note(self, writer: EventStreamWriter) -> tuple[int, str]:
        try:
            note = json.loads(writer.last_note or "")
            return int(note["records"]), str(note["digest"])
        except (ValueError, TypeError, KeyError):
            raise self._other_input("the id is not one of `stream append`") from None

    def _other_input(self, reason: str) -> InvalidInput:
        return InvalidInput(
            f"writer {self._id} has written another input: {reason}. Nothing was written. Give "
            "each input a --writer-id of its own."
        )

    def write(self, writer: EventStreamWriter, records: Iterator[_Record]) -> None:
        """Write the records; raise the error of the first one that fails."""
        open_writes: deque[Future[Any]] = deque()
        for record in records:
            key, event = record
            open_writes.append(writer.write_event(event, routing_key=key))
            self.written += 1
            if self._id is not None:
                self._add(record)
                if self.skipped + self.written == 1 or self.written % _NOTE_RECORDS == 0:
                    self._note(writer)
            while open_writes and (open_writes[0].done() or len(open_writes) > _OPEN_WRITES):
                open_writes.popleft().result()
        if self._id is not None and self.written:
            self._note(writer)
        writer.flush()
        for write in open_writes:
            write.result()

    def _add(self, record: _Record) -> None:
        key, event = record
        if isinstance(event, dict):
            from pravega_spark.cli.typed_input import row_bytes

            event = row_bytes(event)
        part = b"" if key is None else key.encode(errors="surrogatepass")
        self._digest.update(b"%d:%d:" % (-1 if key is None else len(part), len(event)))
        self._digest.update(part + event)

    def _note(self, writer: EventStreamWriter) -> None:
        records = self.skipped + self.written
        writer.flush(note=json.dumps({"records": records, "digest": self._digest.hexdigest()}))


def _shown(records: Iterator[_Record], stack: contextlib.ExitStack) -> Iterator[_Record]:
    """Pass records on, and show their number on a terminal that they do not come from."""
    if not sys.stderr.isatty() or sys.stdin.isatty():
        return records
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn

    columns = (SpinnerColumn(), TextColumn("{task.completed:,} events, {task.speed:,.0f}/s"))
    progress = stack.enter_context(Progress(*columns, console=Console(stderr=True), transient=True))
    return iter(progress.track(records, description="writing"))
