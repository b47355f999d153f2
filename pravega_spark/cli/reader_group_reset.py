"""``pravega-spark reader-group reset``: move a group, in the forms of Kafka's command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from pravega_spark.cli import reset_targets
from pravega_spark.cli.output import (
    TABLE,
    TableColumn,
    examples,
    output_option,
    say,
    show_records,
    show_value,
)
from pravega_spark.cli.reset_targets import ResetSource
from pravega_spark.cli.root_option import check_begun, open_root, root_option
from pravega_spark.errors import IllegalState
from pravega_spark.model import END, NOT_REACHED, StreamCut, segment_text
from pravega_spark.reader_groups.group_description import get_group
from pravega_spark.reader_groups.group_lifecycle import open_group
from pravega_spark.reader_groups.group_reset import ResetTarget, preview_reset, reset_group

_TARGETS: Mapping[str, Callable[[ResetSource, Any], dict[str, StreamCut]]] = {
    "to_earliest": reset_targets.earliest,
    "to_latest": reset_targets.latest,
    "to_current": reset_targets.current,
    "to_checkpoint": reset_targets.checkpoint,
    "to_datetime": reset_targets.at_time,
    "by_duration": reset_targets.ago,
    "to_offset": reset_targets.at_offsets,
    "shift_by": reset_targets.shifted,
    "to_group": reset_targets.of_group,
    "from_file": reset_targets.of_file,
}
_WORDS = {END: "end", NOT_REACHED: "future"}
_COLUMNS = (
    TableColumn("STREAM", "stream"),
    TableColumn("SEGMENT", "segment"),
    TableColumn("OLD-OFFSET", "old_offset"),
    TableColumn("NEW-OFFSET", "new_offset"),
    TableColumn("EVENTS", "events", lambda events: f"{events:+,}" if events else "0"),
)


@click.command(
    epilog=examples(
        "reader-group reset nyc/dashboards --to-datetime 2026-03-01T12:00:00Z",
        "reader-group reset nyc/dashboards --to-earliest --execute",
        "reader-group reset nyc/dashboards --to-current --export > positions.txt",
    )
)
@click.argument("group")
@click.option("--to-earliest", is_flag=True, help="To the head of each stream.")
@click.option("--to-latest", is_flag=True, help="To the tail of each stream.")
@click.option("--to-current", is_flag=True, help="To the last reported positions.")
@click.option("--to-checkpoint", is_flag=True, help="To the last completed checkpoint.")
@click.option("--to-datetime", metavar="TIME", help="To a time, such as 2026-03-01T12:00:00Z.")
@click.option("--by-duration", metavar="TIME", help="To a time ago, such as PT1H30M or '90 min'.")
@click.option(
    "--to-offset",
    multiple=True,
    metavar="CUT",
    help="To a stream cut; may be repeated, one for each stream. Or to the cuts that the streams "
    "saved under a name, or to this number as the offset in each segment.",
)
@click.option(
    "--shift-by",
    type=int,
    metavar="N",
    help="By N events in each segment, backward if N is below 0; stops at the ends of a segment.",
)
@click.option("--to-group", metavar="GROUP", help="To the positions of another group.")
@click.option("--from-file", metavar="FILE", help="To what --export printed; - is the input.")
@click.option("--stream", "streams", multiple=True, help="Only this stream; may be repeated.")
@click.option("--dry-run", is_flag=True, help="Show the move and change nothing.  [default]")
@click.option("--execute", is_flag=True, help="Move the group: its readers have to join again.")
@click.option("--force", is_flag=True, help="Also while a reader is alive.")
@click.option("--export", is_flag=True, help="Print the new positions for --from-file.")
@root_option
@output_option
def reset(
    group: str,
    streams: tuple[str, ...],
    dry_run: bool,
    execute: bool,
    force: bool,
    export: bool,
    root: str | None,
    output: str,
    **targets: Any,
) -> None:
    """Move the positions of GROUP; without --execute, show where it would move.

    A position is one of the options --to..., --by-duration, --shift-by and --from-file. EVENTS are
    those that are skipped (+) or read again (-). Streams that are not reset stay where they are.
    """
    if dry_run and execute:
        raise click.UsageError("--dry-run and --execute exclude each other.")
    if export and output != TABLE:
        raise click.UsageError("--export prints lines for --from-file: leave out --output.")
    name, value = _target(targets)
    _, store = open_root(root)
    found = get_group(store, group).state
    source = ResetSource.of(store, found, streams)
    check_begun(store, source.streams)
    cuts = _TARGETS[name](source, value)
    to: ResetTarget = None if name == "to_checkpoint" and not streams else cuts
    lifecycle = open_group(store, group)
    after = preview_reset(lifecycle, found, to)
    living = lifecycle.leases.living(found)
    rows = [_record(row) for row in reset_targets.moves(source, source.state, after.cuts())]
    if execute:
        _check_idle(group, living, force)
        generation = reset_group(lifecycle, to)
    if export:
        for stream in source.streams:
            click.echo(str(after.cut(stream)))
    elif output != TABLE:
        record = {"group": group, "executed": execute, "live_readers": living, "positions": rows}
        cut_texts = {stream: str(after.cut(stream)) for stream in source.streams}
        show_value({**record, "cuts": cut_texts}, output)
    else:
        show_records(rows, _COLUMNS, output)
    if execute and output == TABLE:
        say(f"Reset reader group {group}: generation {generation}.", err=True)
    elif output == TABLE:
        _advise(group, living)


def _target(given: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the one option that names a position. Raises UsageError for none or several."""
    absent = (None, False, ())
    chosen = {name: value for name, value in given.items() if all(value is not a for a in absent)}
    if len(chosen) != 1:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in chosen or _TARGETS)
        raise click.UsageError(
            f"Only one of {options} can be given." if chosen else f"Give one of {options}."
        )
    return next(iter(chosen.items()))


def _check_idle(group: str, living: list[str], force: bool) -> None:
    if living and not force:
        raise IllegalState(
            f"reader group {group} is read by {', '.join(living)}, which would have to start "
            "again: stop them first, or reset it with --force."
        )


def _advise(group: str, living: list[str]) -> None:
    if living:
        say(f"Readers of {group} are alive: {', '.join(living)}.", err=True)
    click.echo("Nothing was changed: --execute moves the group.", err=True)


def _record(row: Mapping[str, Any]) -> dict[str, object]:
    return {
        "stream": row["stream"],
        "segment": segment_text(row["segment_id"]),
        "old_offset": _WORDS.get(row["old"], row["old"]),
        "new_offset": _WORDS.get(row["new"], row["new"]),
        "events": row["events"],
    }
