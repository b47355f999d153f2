"""``pravega-spark stream append``: lines, JSON, CSV, Parquet and Arrow as events.

With a writer id the input is written exactly once. Records are read ahead, and a note of the id has
the digest of all that were written and of those that follow, before they are written: so a repeated
run tells of each record whether it is the one that the id has written.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import click

from pravega_spark.cli.input import FORMATS, OldRecords, check_format, place_of, read_records
from pravega_spark.cli.open_writes import OpenWrites, say_durable, stopped_by_signals
from pravega_spark.cli.output import output_option, show_done, shown_as_it_is
from pravega_spark.cli.root_option import open_root, root_option
from pravega_spark.errors import InvalidInput
from pravega_spark.event_writer import EventStreamWriter
from pravega_spark.values.units import count_text

_Record = tuple[str | None, Any]
"""A routing key, and the bytes of an event or the row of a typed stream."""
_Marks = list[tuple[int, str | None]]
"""Numbers of records, each with the digest of the records up to there, or None if not known."""
_FIRST_AHEAD, _MOST_AHEAD, _AHEAD_BYTES = 1_000, 50_000, 16 << 20
"""How many records are read before a note of a writer id names them; more with each note."""
_UNWRITTEN = "Nothing was written; correct"
_NOTE_VERSION = 2
"""Notes without a version are of 0.1.0, whose digests are of JSON as it had rewritten it."""


@click.command(
    epilog=shown_as_it_is(
        "Examples:",
        "seq 5 | pravega-spark stream append nyc/numbers",
        "pravega-spark stream append nyc/flights flights.csv --key carrier --writer-id load-1",
    )
)
@click.argument("name", metavar="SCOPE/STREAM")
@click.argument("files", nargs=-1, metavar="[FILE|URL]...", type=click.Path(allow_dash=True))
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    help="The format of all files.  [default: by their suffix; lines for standard input]",
)
@click.option("--key", "key_field", metavar="FIELD", help="The field that is the routing key.")
@click.option("--key-separator", metavar="TEXT", help="With lines: KEY<TEXT>EVENT, as kcat -K.")
@click.option(
    "--event", "event_field", metavar="FIELD", help="The field that is the event.  [default: all]"
)
@click.option(
    "--writer-id",
    metavar="ID",
    help="Write exactly once: continue where a run stopped. Each input needs a separate id.",
)
@click.option("--csv-null", metavar="TEXT", help="With CSV: fields that are TEXT are null.")
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
    csv_null: str | None,
    large_events: bool,
    root: str | None,
    output: str,
) -> None:
    """Write the records of files, URLs or standard input to SCOPE/STREAM, one event each.

    JSON lines, CSV rows, and rows of Parquet and Arrow become JSON objects, unless --event names
    the field to write; on a typed stream, rows of its columns. With --writer-id the same command
    after a crash writes only the missing records, and refuses an input that begins with other
    records.
    """
    for file in files or ("-",):
        check_format(file, form, key_separator)
    manager, _ = open_root(root)
    schema = manager.stream_info(name).configuration.schema

    def records_of(file: str) -> Iterator[_Record]:
        if schema is None:
            return read_records(
                file,
                form,
                key_field=key_field,
                key_separator=key_separator,
                event_field=event_field,
                csv_null=csv_null,
                old=run.old,
            )
        from pravega_spark.cli.input import read_typed

        return read_typed(
            file,
            form,
            key_field=key_field,
            event_field=event_field,
            schema=schema,
            csv_null=csv_null,
        )

    run = _Append(writer_id, is_typed=schema is not None)
    records = run.read(files or ("-",), records_of)
    try:
        with stopped_by_signals(), contextlib.ExitStack() as stack:
            writer = stack.enter_context(
                manager.create_writer(name, writer_id=writer_id, large_events=large_events)
            )
            before = writer.last_event_number
            run.writes.counted = lambda: writer.last_event_number - before
            run.write(writer, _shown(run.skip(writer, records), stack))
    except BaseException as error:
        say_durable(f"stream {name}", run.durable_text(error), error)
        raise
    text = f"Wrote {count_text(run.writes.begun, 'event')} to stream {name}."
    if run.skipped:
        text += f" {run.skipped:,} had been written before."
    show_done({"stream": name, "written": run.writes.begun, "skipped": run.skipped}, text, output)


class _Append:
    """One run: what an earlier one had written, what this one writes, and the digest of both."""

    def __init__(self, writer_id: str | None, *, is_typed: bool) -> None:
        self._id = writer_id
        self._is_typed = is_typed
        self.old = OldRecords()
        self._stored_by_old = 0
        self._digest = hashlib.sha256()
        self.skipped = 0
        self.writes = OpenWrites()
        self._files: list[tuple[int, str]] = []

    def durable_text(self, error: BaseException) -> str:
        """Return what is known to be durable of this run, and the way on, once it has ended."""
        durable = self.writes.durable_text("event", error)
        if self._id is None or not durable:
            return durable
        if isinstance(error, InvalidInput):
            return f"{durable} Mend the record, and repeat the command."
        return f"{durable} Repeat the command, which writes what is missing."

    def read(
        self, files: Iterable[str], records_of: Callable[[str], Iterator[_Record]]
    ) -> Iterator[_Record]:
        """Yield the records of the files, one after another."""
        count = 0
        for file in files:
            self._files.append((count, file))
            for record in records_of(file):
                count += 1
                yield record

    def _next_place(self) -> str:
        """Return what errors call the record after those that were written."""
        number = self.skipped + self.writes.begun + 1
        before, file = next(each for each in reversed(self._files) if each[0] < number)
        return place_of(file, number - before)

    def skip(self, writer: EventStreamWriter, records: Iterator[_Record]) -> Iterator[_Record]:
        """Return the records that the id has not written; raise InvalidInput for another input."""
        before = writer.last_event_number
        if self._id is None or not before:
            return records
        noted, follow = self._last_note(writer)
        ahead: list[_Record] = []
        count, digest = 0, self._digest
        self.old.stored = self._stored_by_old > 0
        for end, expected in (*noted, *follow):
            for record in itertools.islice(records, end - count):
                count += 1
                _add(digest, record)
                if count <= before:
                    self.skipped += 1
                else:
                    ahead.append(record)
                if count == before:
                    digest = digest.copy()
                self.old.stored = count < self._stored_by_old
            if count < end:
                raise self._other_input(f"it has {count_text(count, 'record')}")
            if expected is not None and digest.hexdigest() != expected:
                others = "record is another" if end == 1 else f"{end:,} records are others"
                raise self._other_input(f"its first {others}")
        return itertools.chain(ahead, records)

    def _last_note(self, writer: EventStreamWriter) -> tuple[_Marks, _Marks]:
        """Return how many records are known by which digest: written ones, and those ahead.

        0.1.0 took no digest of what follows its note. Of typed rows it had the values that its own
        conversions made, which are not made again.
        """
        try:
            note = json.loads(writer.last_note or "")
            written = int(note["records"]), str(note["digest"])
            if note.get("version") != _NOTE_VERSION:
                before = writer.last_event_number
                self._stored_by_old = 0 if self._is_typed else before
                compared = 0 if self._is_typed else written[0]
                if compared < before:
                    click.echo(
                        f"writer {self._id} was begun by version 0.1.0: of its records "
                        f"{compared + 1:,} to {before:,} this input is taken for the same, "
                        "without comparing them.",
                        err=True,
                    )
                return [written] if compared else [], [(before, None)]
            self._stored_by_old = int(note["old"])
            ahead = int(note["ahead"]), str(note["aheadDigest"])
        except (ValueError, TypeError, KeyError):
            raise self._other_input("the id is not one of `stream append`") from None
        return [written], [ahead]

    def _other_input(self, reason: str) -> InvalidInput:
        return InvalidInput(
            f"writer {self._id} has written another input: {reason}. Nothing was written. Give "
            "each input a separate --writer-id."
        )

    def write(self, writer: EventStreamWriter, records: Iterator[_Record]) -> None:
        """Write the records; raise the error of the first one that fails."""
        if self._id is None:
            for record in records:
                self._write(writer, record)
        else:
            self._write_noted(writer, records)
        writer.flush()
        self.writes.end()

    def _write_noted(self, writer: EventStreamWriter, records: Iterator[_Record]) -> None:
        count = _FIRST_AHEAD
        while True:
            ahead, failure = _read_ahead(records, count)
            try:
                if ahead:
                    self._note(writer, ahead)
                for record in ahead:
                    self._write(writer, record)
                    _add(self._digest, record)
                if failure is not None:
                    raise failure
            except InvalidInput:
                self._note(writer, ())  # the record may be repaired, and those after it changed
                raise
            if not ahead:
                self._note(writer, ())
                return
            count = min(2 * count, _MOST_AHEAD)

    def _write(self, writer: EventStreamWriter, record: _Record) -> None:
        key, event = record
        try:
            write = writer.write_event(event, routing_key=key)
        except InvalidInput as error:  # the writer has one row at a time, and wrote those before
            problem = str(error).replace("row 0, ", "", 1).replace(_UNWRITTEN, "Correct", 1)
            raise InvalidInput(f"{self._next_place()}: {problem}") from error
        self.writes.add(write)

    def _note(self, writer: EventStreamWriter, ahead: Iterable[_Record]) -> None:
        records, digest = self.skipped + self.writes.begun, self._digest.copy()
        count = records
        for record in ahead:
            _add(digest, record)
            count += 1
        note = {
            "version": _NOTE_VERSION,
            "old": self._stored_by_old,
            "records": records,
            "digest": self._digest.hexdigest(),
            "ahead": count,
            "aheadDigest": digest.hexdigest(),
        }
        writer.flush(note=json.dumps(note))


def _read_ahead(
    records: Iterator[_Record], count: int
) -> tuple[list[_Record], InvalidInput | None]:
    """Return at most ``count`` records, and the error of the one after them."""
    found: list[_Record] = []
    size = 0
    try:
        for record in itertools.islice(records, count):
            found.append(record)
            size += len(record[1])
            if size >= _AHEAD_BYTES:
                break
    except InvalidInput as error:
        return found, error
    return found, None


def _add(digest: hashlib._Hash, record: _Record) -> None:
    key, event = record
    if isinstance(event, dict):
        from pravega_spark.cli.input import row_bytes

        event = row_bytes(event)
    part = b"" if key is None else key.encode(errors="surrogatepass")
    digest.update(b"%d:%d:" % (-1 if key is None else len(part), len(event)))
    digest.update(part + event)


def _shown(records: Iterator[_Record], stack: contextlib.ExitStack) -> Iterator[_Record]:
    """Pass records on, and show their number on a terminal that they do not come from."""
    if not sys.stderr.isatty() or sys.stdin.isatty():
        return records
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn

    columns = (SpinnerColumn(), TextColumn("{task.completed:,} events, {task.speed:,.0f}/s"))
    progress = stack.enter_context(Progress(*columns, console=Console(stderr=True), transient=True))
    return iter(progress.track(records, description="writing"))
