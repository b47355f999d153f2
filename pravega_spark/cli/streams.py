"""``pravega-spark stream``: the verbs of streams; those on events are in ``events``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import click

from pravega_spark.cli.declare import read_schema, schema_option
from pravega_spark.cli.lazy_commands import LazyCommands
from pravega_spark.cli.output import (
    TABLE,
    confirm,
    examples,
    output_option,
    say,
    show_done,
    show_value,
    yes_option,
)
from pravega_spark.cli.root_option import check_begun, open_root, root_option
from pravega_spark.cli.settings_command import parse_settings
from pravega_spark.values.units import count_text

_Command = TypeVar("_Command", bound=Callable[..., Any])

_COMMANDS = {
    "append": ("append_command:append", "Write lines, JSON, CSV, Parquet or Arrow as events."),
    "compact": ("streams:compact", "Merge small files into large ones."),
    "create": ("streams:create", "Create a stream."),
    "delete": ("streams:delete", "Delete a sealed stream."),
    "describe": ("streams:describe", "Show configuration, segments, rates and readers."),
    "ls": ("streams:list_streams", "List streams."),
    "read": ("events:read", "Print the events between two positions."),
    "scale": ("streams:scale", "Split and merge segments, by hand."),
    "seal": ("streams:seal", "Seal a stream: no event can be written any more."),
    "tail": ("events:tail", "Print the last events, and with -f those that come."),
    "truncate": ("streams:truncate", "Delete the events before a position."),
    "update": ("streams:update", "Change the configuration."),
}


@click.group("stream", cls=LazyCommands, table=_COMMANDS)
def stream() -> None:
    """Streams: create, describe, read, write, scale, truncate."""


def configuration_options(command: _Command) -> _Command:
    """Add the options of a stream's configuration."""
    options = (
        click.option(
            "--scaling",
            metavar="POLICY",
            help="fixed:4, events:1000 or bytes:1MiB (a second and segment), ,factor=2,minimum=1.",
        ),
        click.option(
            "--retention",
            metavar="POLICY",
            help="none, time:7d, size:10GiB, consumption, or consumption:1h..7d.",
        ),
        click.option(
            "--setting",
            "settings",
            multiple=True,
            metavar="NAME=VALUE",
            help="A setting of this stream instead of the root's; may be repeated.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


# ---------------------------------------------------------------------------------------- create


@click.command()
@click.argument("name", metavar="SCOPE/STREAM")
@configuration_options
@click.option("-p", "--segments", type=int, help="Short for --scaling fixed:N.")
@click.option("--tag", "tags", multiple=True, help="May be repeated.")
@click.option("--encryption-key", metavar="KEY", help="Encrypt events with this key of the KMS.")
@schema_option("Type the stream by this JSON Schema, Avro schema or JSON of a Spark schema.")
@click.option(
    "--create-scope", is_flag=True, help="Create the scope and the root if they do not exist."
)
@root_option
@output_option
def create(
    name: str,
    scaling: str | None,
    retention: str | None,
    settings: Sequence[str],
    segments: int | None,
    tags: Sequence[str],
    encryption_key: str | None,
    schema_file: str | None,
    create_scope: bool,
    root: str | None,
    output: str,
) -> None:
    """Create the stream SCOPE/STREAM; nothing happens if it exists.

    Example: pravega-spark stream create nyc/flights -p 4 --retention consumption:1h..7d
    """
    from pravega_spark.cli.root_option import new_root
    from pravega_spark.config.encryption import EncryptionPolicy
    from pravega_spark.config.policies import StreamConfiguration
    from pravega_spark.config.policy_texts import parse_retention, parse_scaling
    from pravega_spark.values.names import split_stream

    if segments is not None and scaling is not None:
        raise click.UsageError("--segments and --scaling exclude each other.")
    policy = f"fixed:{segments}" if segments is not None else scaling
    configuration = StreamConfiguration(
        scaling=None if policy is None else parse_scaling(policy),
        retention=None if retention is None else parse_retention(retention),
        tags=tags,
        settings={key: value for key, value in parse_settings(settings).items() if value},
        encryption=None if encryption_key is None else EncryptionPolicy(encryption_key),
        schema=None if schema_file is None else read_schema(schema_file),
    )
    manager, _ = (new_root if create_scope else open_root)(root)
    if create_scope:
        manager.create_scope(split_stream(name)[0])
    created = manager.create_stream(name, configuration)
    text = f"Created stream {name}."
    if not created:
        text = f"Stream {name} exists; it is as it was."
        if manager.stream_info(name).configuration != configuration:
            text = (
                f"Stream {name} exists with another configuration, and is as it was: see "
                f"pravega-spark stream describe {name}, and stream update to change it."
            )
    show_done({"stream": name, "created": created}, text, output)


# ------------------------------------------------------------------------------- ls and describe


@click.command("ls")
@click.argument("scopes", nargs=-1, metavar="[SCOPE]...")
@click.option("--tag", help="Only streams with this tag.")
@click.option("-q", "--quiet", is_flag=True, help="Names only, which costs a call for each scope.")
@root_option
@output_option
def list_streams(
    scopes: Sequence[str], tag: str | None, quiet: bool, root: str | None, output: str
) -> None:
    """List the streams of each SCOPE, or of all."""
    from pravega_spark.manager import root_of

    manager, store = open_root(root)
    found = root_of(manager).in_scopes(partial(manager.list_streams, tag=tag), scopes or None)
    if quiet:
        if output == TABLE:
            for name in found:
                say(name)
        else:
            show_value(found, output)
        return
    from pravega_spark.cli.stream_description import show_summaries

    show_summaries(store, found, output)


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="SCOPE/STREAM...")
@root_option
@output_option
def describe(names: Sequence[str], root: str | None, output: str) -> None:
    """Show each stream: configuration, position, segments with their rates, and subscribers.

    Rates are those of the scaling job's last run; `-` where it never ran.
    """
    from pravega_spark.cli.stream_description import described, show_stream

    manager, store = open_root(root)
    check_begun(store, names)
    records = [described(manager, name) for name in names]
    if output != TABLE:
        show_value(records, output)
        return
    for number, record in enumerate(records):
        if number:
            click.echo()
        show_stream(record)


# ---------------------------------------------------------------------------------------- update


@click.command()
@click.argument("name", metavar="SCOPE/STREAM")
@configuration_options
@click.option("--add-tag", "add_tags", multiple=True)
@click.option("--remove-tag", "remove_tags", multiple=True)
@schema_option("The whole new schema of a typed stream: more nullable columns, other comments.")
@click.option(
    "--expected-version", type=int, help="Refuse unless the configuration has this version."
)
@root_option
@output_option
def update(
    name: str,
    scaling: str | None,
    retention: str | None,
    settings: Sequence[str],
    add_tags: Sequence[str],
    remove_tags: Sequence[str],
    schema_file: str | None,
    expected_version: int | None,
    root: str | None,
    output: str,
) -> None:
    """Change the named parts of the configuration of SCOPE/STREAM; the others stay.

    `--setting NAME=` makes the root's setting hold again.

    Example: pravega-spark stream update nyc/flights --retention time:30d --add-tag gold
    """
    from pravega_spark.config.policies import UNCHANGED
    from pravega_spark.config.policy_texts import parse_retention, parse_scaling

    manager, _ = open_root(root)
    changed = manager.update_stream(
        name,
        scaling=UNCHANGED if scaling is None else parse_scaling(scaling),
        retention=UNCHANGED if retention is None else parse_retention(retention),
        settings=parse_settings(settings) or None,
        add_tags=add_tags or None,
        remove_tags=remove_tags or None,
        schema=UNCHANGED if schema_file is None else read_schema(schema_file),
        expected_version=expected_version,
    )
    text = f"Updated stream {name}." if changed else f"Stream {name} was configured so already."
    show_done({"stream": name, "changed": changed}, text, output)


# ----------------------------------------------------------------------- seal, delete, truncate


@click.command()
@click.argument("name", metavar="SCOPE/STREAM")
@yes_option
@root_option
@output_option
def seal(name: str, yes: bool, root: str | None, output: str) -> None:
    """Seal SCOPE/STREAM for good: it can be read, but not written any more."""
    manager, _ = open_root(root)
    manager.head(name)  # an unknown stream is an error before the question
    confirm(f"Seal stream {name} for good?", yes=yes)
    sealed = manager.seal_stream(name)
    text = f"Sealed stream {name}." if sealed else f"Stream {name} was sealed before."
    show_done({"stream": name, "sealed": sealed}, text, output)


@click.command()
@click.argument("name", metavar="SCOPE/STREAM")
@click.option("--seal", "seal_first", is_flag=True, help="Seal it first, if it is open.")
@yes_option
@root_option
@output_option
def delete(name: str, seal_first: bool, yes: bool, root: str | None, output: str) -> None:
    """Delete SCOPE/STREAM, which must be sealed, and all its events.

    Example: pravega-spark stream delete nyc/flights --seal --yes
    """
    manager, _ = open_root(root)
    info = manager.stream_info(name)
    confirm(f"Delete stream {name} with {count_text(info.events, 'event')}?", yes=yes)
    if seal_first:
        manager.seal_stream(name)
    deleted = manager.delete_stream(name)
    text = f"Deleted stream {name}." if deleted else f"Stream {name} was deleted before."
    show_done({"stream": name, "deleted": deleted}, text, output)


@click.command()
@click.argument("name", metavar="SCOPE/STREAM")
@click.option("--before", "position", required=True, metavar="POSITION")
@click.option("--past-subscribers", is_flag=True, help="Also delete what subscribers still need.")
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, and delete nothing.")
@yes_option
@root_option
@output_option
def truncate(
    name: str,
    position: str,
    past_subscribers: bool,
    dry_run: bool,
    yes: bool,
    root: str | None,
    output: str,
) -> None:
    """Delete the events of SCOPE/STREAM before a POSITION.

    A position is a stream cut as text, `start`, `end`, a time (`@2026-11-01T12:00:00Z`, `@-7d`) or
    a number of events from the head (`+1000`).

    Example: pravega-spark stream truncate nyc/flights --before @-7d --dry-run
    """
    from pravega_spark.cli.positions import parse_position
    from pravega_spark.values.units import size_text

    manager, store = open_root(root)
    check_begun(store, [name])
    cut = parse_position(manager, name, position)
    events, size_bytes = manager.distance(name, manager.head(name), cut)
    record = {"stream": name, "head": str(cut), "events": events, "size_bytes": size_bytes}
    amount = f"{count_text(events, 'event')} ({size_text(size_bytes)}) of stream {name}"
    if dry_run:
        held = [
            found.name
            for found in manager.list_subscribers(name)
            if found.cut is not None and not _is_behind(manager, name, cut, found.cut)
        ]
        holders = f"; held by {', '.join(held)}" if held else ""
        text = f"Would delete {amount}{holders}."
        show_done({**record, "dry_run": True, "held_by": held}, text, output)
        return
    confirm(f"Delete {amount}?", yes=yes)
    result = manager.truncate_stream(name, cut, past_subscribers=past_subscribers)
    done = {**record, "dry_run": False, "passed": list(result.passed), "version": result.version}
    done |= {"head": str(result.head), "events": result.events}
    show_done(done, f"Deleted {count_text(result.events, 'event')} of stream {name}.", output)


def _is_behind(manager: Any, name: str, cut: Any, other: Any) -> bool:
    """Return True if the cut is at or before the other one everywhere."""
    from pravega_spark.errors import InvalidStreamCut, TruncatedData

    try:
        manager.distance(name, cut, other)
    except (InvalidStreamCut, TruncatedData):
        return False
    return True


# ------------------------------------------------------------------------------ scale and compact


@click.command(
    epilog=examples(
        "stream scale nyc/flights --split 0 --into 4",
        "stream scale nyc/flights --merge 1,2",
        "stream scale nyc/flights --seal 0 --range 0-0.1 --range 0.1-0.25",
    )
)
@click.argument("name", metavar="SCOPE/STREAM")
@click.option(
    "--seal",
    "sealed",
    multiple=True,
    metavar="SEGMENT",
    help="A segment to seal, such as 2 or 2#0; may be repeated.",
)
@click.option("--range", "ranges", multiple=True, metavar="LOW-HIGH", help="May be repeated.")
@click.option("--split", metavar="SEGMENT", help="Split a segment evenly.")
@click.option("--into", type=click.IntRange(2), default=2, show_default=True, help="With --split.")
@click.option("--merge", "merged", metavar="SEGMENT,SEGMENT...", help="Merge neighbours into one.")
@root_option
@output_option
def scale(
    name: str,
    sealed: Sequence[str],
    ranges: Sequence[str],
    split: str | None,
    into: int,
    merged: str | None,
    root: str | None,
    output: str,
) -> None:
    """Split or merge segments of SCOPE/STREAM in one commit; writers and readers continue."""
    from pravega_spark.cli.scale_request import scale_request

    manager, _ = open_root(root)
    request = scale_request(
        manager, name, sealed=sealed, ranges=ranges, split=split, into=into, merged=merged
    )
    epoch = manager.scale_stream(name, *request)
    segments = [str(segment) for segment in epoch.segments]
    text = f"Stream {name} is in epoch {epoch.number}: segments {', '.join(segments)}."
    show_done({"stream": name, "epoch": epoch.number, "segments": segments}, text, output)


@click.command()
@click.argument("name", metavar="SCOPE/STREAM")
@click.option("--target", metavar="SIZE", help="The size of the files to write, such as 128MiB.")
@click.option("--include-newest", is_flag=True, help="Also merge files of the last minute.")
@click.option(
    "--dry-run", is_flag=True, help="Show the files that would be merged, and merge none."
)
@root_option
@output_option
def compact(
    name: str,
    target: str | None,
    include_newest: bool,
    dry_run: bool,
    root: str | None,
    output: str,
) -> None:
    """Merge the small files of SCOPE/STREAM; no event, offset or cut changes."""
    manager, store = open_root(root)
    check_begun(store, [name])
    result = manager.compact_stream(
        name, target=target, include_newest=include_newest, dry_run=dry_run
    )
    record = {
        "stream": name,
        "dry_run": dry_run,
        "ranges": result.ranges,
        "events": result.events,
        "files_before": result.files_before,
        "files_after": result.files_after,
        "bytes_written": result.bytes_written,
        "damaged": [str(found) for found in result.damaged],
    }
    show_done(record, str(result), output)
