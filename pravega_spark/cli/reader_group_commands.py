"""``pravega-spark reader-group``: list and describe groups."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import click

from pravega_spark.cli.output import (
    TABLE,
    output_option,
    show_block,
    show_table,
    show_value,
)
from pravega_spark.cli.reader_group_sync import sync
from pravega_spark.cli.root_option import open_root, root_option
from pravega_spark.engine.store import Store
from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.engine.stream.overdue_maintenance import overdue_maintenance
from pravega_spark.errors import Damaged, NoSuchStream
from pravega_spark.model import segment_text
from pravega_spark.reader_groups.group_description import (
    GroupVersion,
    SegmentPosition,
    find_group,
    get_group,
    segment_positions,
    with_heartbeats,
)
from pravega_spark.units import size_text, time_text


@click.group("reader-group")
def reader_group() -> None:
    """Reader groups: their streams, readers, positions and lag."""


reader_group.add_command(sync)

# -------------------------------------------------------------------------------------------- ls


@reader_group.command("ls")
@click.argument("scope", required=False)
@click.option("-q", "--quiet", is_flag=True, help="Names only.")
@root_option
@output_option
def list_groups(scope: str | None, quiet: bool, root: str | None, output: str) -> None:
    """List the groups of SCOPE, or of all scopes."""
    manager, store = open_root(root)
    scopes = manager.list_scopes() if scope is None else [scope]
    names = [name for found in scopes for name in manager.list_reader_groups(found)]
    if quiet:
        _show_names(names, output)
        return
    found = [group for name in names if (group := find_group(store, name)) is not None]
    if output != TABLE:
        show_value([_summary(group) for group in found], output)
        return
    headings = ("GROUP", "STATE", "GENERATION", "RETENTION", "MEMBERS", "STREAMS")
    show_table(headings, [list(_cells(group).values()) for group in found])


def _show_names(names: Sequence[str], output: str) -> None:
    if output != TABLE:
        show_value(names, output)
    else:
        for name in names:
            click.echo(name)


def _summary(found: GroupVersion) -> dict[str, Any]:
    """Return a group as JSON, with the names of the metadata frame ReaderGroups."""
    state = found.state
    return {
        "group": state.group,
        "state": state.phase.value,
        "generation": state.generation,
        "retention": state.configuration.retention.value,
        "readers": sorted(state.readers),
        "streams": sorted(state.lives),
        "last_checkpoint": None if state.last_checkpoint is None else state.last_checkpoint.name,
    }


def _cells(found: GroupVersion) -> dict[str, object]:
    """Return a group as table cells, without its checkpoint."""
    summary = _summary(found)
    del summary["last_checkpoint"]
    return {**summary, "readers": len(summary["readers"]), "streams": ",".join(summary["streams"])}


# -------------------------------------------------------------------------------------- describe

_SEGMENT_HEADINGS = (
    *("STREAM", "SEGMENT", "CURRENT-OFFSET", "HEAD", "TAIL"),
    *("LAG", "LAG-BYTES", "LAG-TIME", "OWNER"),
)


@reader_group.command()
@click.argument("groups", nargs=-1, required=True, metavar="GROUP...")
@click.option("-s", "--summary", is_flag=True, help="Omit the segments.")
@root_option
@output_option
def describe(groups: Sequence[str], summary: bool, root: str | None, output: str) -> None:
    """Show the state of each GROUP (scope/group) and its lag by segment."""
    _, store = open_root(root)
    found = [_described(store, group) for group in groups]
    if output != TABLE:
        records = [_as_json(store, group, segments, summary) for group, segments in found]
        show_value(records, output)
        return
    for number, (group, segments) in enumerate(found):
        if number:
            click.echo()
        _show(store, group, segments, summary)


def _described(store: Store, name: str) -> tuple[GroupVersion, list[SegmentPosition]]:
    found = get_group(store, name)
    opened = partial(open_stream, store)
    state = with_heartbeats(store, found.state)
    return found, [
        s for name in sorted(state.lives) for s in segment_positions(state, name, opened)
    ]


def _overdue(store: Store, found: GroupVersion) -> dict[str, list[str]]:
    """Return which maintenance is overdue, by stream of a group."""
    overdue: dict[str, list[str]] = {}
    for name in sorted(found.state.lives):
        with contextlib.suppress(NoSuchStream, Damaged):
            stream = open_stream(store, name)
            texts = overdue_maintenance(stream, stream.view())
            overdue |= {name: list(texts.values())} if texts else {}
    return overdue


def _total(segments: Iterable[SegmentPosition]) -> tuple[int, int, float]:
    """Return events, bytes and seconds behind, over the segments whose lag is known."""
    known = [s for s in segments if s.events is not None]
    return (
        sum(s.events or 0 for s in known),
        sum(s.size_bytes or 0 for s in known),
        max((s.seconds or 0.0 for s in known), default=0.0),
    )


def _as_json(
    store: Store, found: GroupVersion, segments: Sequence[SegmentPosition], summary: bool
) -> dict[str, Any]:
    names = ("lag", "lag_bytes", "lag_seconds")
    record = {**_summary(found), **dict(zip(names, _total(segments), strict=True))}
    record["overdue"] = _overdue(store, found)
    if not summary:
        record["segments"] = [{"stream": s.stream, **s.to_record()} for s in segments]
    return record


def _show(
    store: Store, found: GroupVersion, segments: Sequence[SegmentPosition], summary: bool
) -> None:
    events, size_bytes, seconds = _total(segments)
    headings = ("GROUP", "STATE", "GENERATION", "RETENTION", "MEMBERS", "STREAMS")
    last = found.state.last_checkpoint
    show_block(
        [
            *zip(headings, _cells(found).values(), strict=True),
            ("CHECKPOINT", None if last is None else last.name),
            ("TOTAL-LAG", f"{events:,} events, {size_text(size_bytes)}, {time_text(seconds)}"),
            *(
                ("OVERDUE", f"{stream}: {'; '.join(texts)}")
                for stream, texts in _overdue(store, found).items()
            ),
        ]
    )
    if not summary:
        click.echo()
        show_table(_SEGMENT_HEADINGS, [_segment_cells(segment) for segment in segments])


def _segment_cells(segment: SegmentPosition) -> list[object]:
    return [
        segment.stream,
        segment_text(segment.segment_id),
        segment.offset,
        segment.head,
        segment.tail,
        segment.events,
        None if segment.size_bytes is None else size_text(segment.size_bytes),
        None if segment.seconds is None else time_text(segment.seconds),
        segment.reader,
    ]
