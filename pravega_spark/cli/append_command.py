"""``pravega-spark stream append``: lines, JSON, CSV, Parquet and Arrow as events.

With a writer id the input is written exactly once. The note of the id names the input and the
number of the last event before it, so that a run after a crash skips what is in the stream.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import click

from pravega_spark.cli.input_records import FORMATS, InputRecord, check_format, read_records
from pravega_spark.cli.output import output_option, show_done
from pravega_spark.cli.root_option import open_root, root_option
from pravega_spark.errors import InvalidInput
from pravega_spark.event_writer import EventStreamWriter

_OPEN_WRITES = 10_000
"""Writes whose outcome is still unknown, at most: the errors of earlier ones end the command."""


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
@click.option("--writer-id", metavar="ID", help="Write exactly once: go on where a run stopped.")
@click.option(
    "--source",
    metavar="NAME",
    help="With --writer-id: what this input is called.  [default: the names of the files]",
)
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
    source: str | None,
    root: str | None,
    output: str,
) -> None:
    r"""Write the records of files, or of standard input, to SCOPE/STREAM, one event each.

    JSON lines, CSV rows, and rows of Parquet and Arrow become JSON objects, unless --event names
    the field to write. With --writer-id the same command after a crash writes only what is
    missing; the same input must have the same name.

    \b
    Examples: seq 5 | pravega-spark stream append nyc/numbers
              pravega-spark stream append nyc/flights flights.csv --key carrier --writer-id load-1
    """
    if source is not None and writer_id is None:
        raise click.UsageError("--source needs --writer-id.")
    for file in files:
        check_format(file, form, key_separator)
    if not files:
        check_format("-", form, key_separator)
    manager, _ = open_root(root)
    records = itertools.chain.from_iterable(
        read_records(file, form, key_field, key_separator, event_field) for file in files or ("-",)
    )
    with contextlib.ExitStack() as stack:
        writer = stack.enter_context(manager.create_writer(name, writer_id=writer_id))
        skipped = 0
        if writer_id is not None:
            skipped = _begin(writer, source or " ".join(files) or "standard input")
            found = sum(1 for _ in itertools.islice(records, skipped))
            if found < skipped:
                raise InvalidInput(
                    f"the input has {found:,} records, but writer {writer_id} wrote {skipped:,} of "
                    "it already: is it another input? Then name it with --source."
                )
        written = _write(writer, _shown(records, stack))
    text = f"Wrote {written:,} events to stream {name}."
    if skipped:
        text += f" {skipped:,} had been written before."
    show_done({"stream": name, "written": written, "skipped": skipped}, text, output)


def _begin(writer: EventStreamWriter, source: str) -> int:
    """Return how many records of the input are in the stream; note a new input."""
    with contextlib.suppress(ValueError, TypeError, KeyError):
        note = json.loads(writer.last_note or "null")
        if note["source"] == source:
            after: int = note["after"]
            return writer.last_event_number - after
    writer.flush(note=json.dumps({"source": source, "after": writer.last_event_number}))
    return 0


def _write(writer: EventStreamWriter, records: Iterator[InputRecord]) -> int:
    """Write all records; raise the error of the first one that fails."""
    open_writes: deque[Future[Any]] = deque()
    written = 0
    for key, event in records:
        open_writes.append(writer.write_event(event, routing_key=key))
        written += 1
        while open_writes and (open_writes[0].done() or len(open_writes) > _OPEN_WRITES):
            open_writes.popleft().result()
    writer.flush()
    for write in open_writes:
        write.result()
    return written


def _shown(records: Iterator[InputRecord], stack: contextlib.ExitStack) -> Iterator[InputRecord]:
    """Pass records on, and show their number on a terminal that they do not come from."""
    if not sys.stderr.isatty() or sys.stdin.isatty():
        return records
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn

    columns = (SpinnerColumn(), TextColumn("{task.completed:,} events, {task.speed:,.0f}/s"))
    progress = stack.enter_context(Progress(*columns, console=Console(stderr=True), transient=True))
    return iter(progress.track(records, description="writing"))
