"""``pravega-spark reader-group ls | describe``: groups, their readers, positions and lag."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from time import sleep
from typing import Any

import click

from pravega_spark.cli.many_names import look_at_each
from pravega_spark.cli.output import (
    TABLE,
    examples,
    output_option,
    say,
    show_block,
    show_table,
    show_value,
)
from pravega_spark.cli.root_option import open_root, root_option
from pravega_spark.engine.store import Store
from pravega_spark.engine.stream.backlog import oldest_seconds
from pravega_spark.engine.stream.overdue_maintenance import overdue_maintenance
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.errors import Damaged, NoSuchStream
from pravega_spark.manager import StreamManager, root_of
from pravega_spark.reader_groups.description import (
    GroupVersion,
    SegmentPosition,
    find_group,
    get_group,
    segment_positions,
    with_heartbeats,
)
from pravega_spark.reader_groups.subscriptions import Subscriptions
from pravega_spark.values.segments import segment_text
from pravega_spark.values.units import age_text, count_text, parse_duration_ms, size_text

_SHORTEST_PAUSE = 0.1


# -------------------------------------------------------------------------------------------- ls


@click.command("ls", epilog=examples("reader-group ls nyc", "reader-group ls -q"))
@click.argument("scope", required=False)
@click.option("-q", "--quiet", is_flag=True, help="Names only.")
@root_option
@output_option
def list_groups(scope: str | None, quiet: bool, root: str | None, output: str) -> None:
    """List the groups of SCOPE, or of all scopes."""
    manager, store = open_root(root)
    listed = manager.list_reader_groups
    names = root_of(manager).in_scopes(listed, None if scope is None else [scope])
    if quiet:
        _show_names(names, output)
        return
    headings = ("GROUP", "STATE", "GENERATION", "RETENTION", "MEMBERS", "STREAMS")
    with look_at_each(partial(find_group, store), names, "groups") as found:
        if output != TABLE:
            show_value([_summary(group) for group in found], output)
        else:
            show_table(headings, [list(_cells(group).values()) for group in found])


def _show_names(names: Sequence[str], output: str) -> None:
    if output != TABLE:
        show_value(names, output)
    else:
        for name in names:
            say(name)


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
        "pending_checkpoints": state.awaited,
    }


def _cells(found: GroupVersion) -> dict[str, object]:
    """Return a group as table cells, without its checkpoints."""
    summary = _summary(found)
    del summary["last_checkpoint"], summary["pending_checkpoints"]
    return {**summary, "readers": len(summary["readers"]), "streams": ",".join(summary["streams"])}


# -------------------------------------------------------------------------------------- describe

_SEGMENT_HEADINGS = (
    *("STREAM", "SEGMENT", "CURRENT-OFFSET", "HEAD", "TAIL"),
    *("LAG", "LAG-BYTES", "LAG-TIME", "OWNER"),
)


@click.command(
    epilog=examples(
        "reader-group describe nyc/dashboards",
        "reader-group describe --regex 'nyc/.*' --summary --watch 5s",
    )
)
@click.argument("groups", nargs=-1, required=True, metavar="GROUP...")
@click.option("-r", "--regex", is_flag=True, help="GROUP is a pattern of whole names.")
@click.option("-s", "--summary", is_flag=True, help="Omit the segments.")
@click.option(
    "--watch",
    is_flag=False,
    flag_value="2 s",
    metavar="[TIME]",
    help="Repeat every TIME until an interrupt.  [without TIME: 2 s]",
)
@root_option
@output_option
def describe(
    groups: Sequence[str],
    regex: bool,
    summary: bool,
    watch: str | None,
    root: str | None,
    output: str,
) -> None:
    """Show the state of each GROUP (scope/group) and its lag by segment."""
    pause = None if watch is None else parse_duration_ms("--watch", watch) / 1_000
    manager, store = open_root(root)

    def show() -> None:
        _describe(store, _matching(manager, groups) if regex else groups, summary, output)

    if pause is None:
        show()
    else:
        _repeat(show, max(pause, _SHORTEST_PAUSE))


def _matching(manager: StreamManager, patterns: Sequence[str]) -> list[str]:
    """Return the groups of all scopes that match. Raises UsageError if there is none."""
    try:
        compiled = [re.compile(pattern) for pattern in patterns]
    except re.error as error:
        raise click.UsageError(
            f"{error.pattern!r} is not a valid regular expression: {error}."
        ) from None
    known = root_of(manager).in_scopes(manager.list_reader_groups)
    found = [name for name in known if any(pattern.fullmatch(name) for pattern in compiled)]
    if not found:
        raise click.UsageError(f"No reader group matches {', '.join(patterns)}.")
    return found


def _repeat(show: Callable[[], None], pause: float) -> None:
    """Call a function until an interrupt, on a terminal on a cleared screen."""
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            if sys.stdout.isatty():
                click.clear()
            show()
            sleep(pause)


def _describe(store: Store, groups: Sequence[str], summary: bool, output: str) -> None:
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


def _expired(store: Store, found: GroupVersion) -> list[str]:
    """Return the streams that keep nothing for a group any more, though it holds data."""
    return Subscriptions(partial(open_stream, store)).expired(found.state)


def _total(segments: Iterable[SegmentPosition]) -> tuple[int, int, float]:
    """Return events, bytes and seconds behind, over the segments whose lag is known."""
    known = [s for s in segments if s.events is not None]
    return (
        sum(s.events or 0 for s in known),
        sum(s.size_bytes or 0 for s in known),
        oldest_seconds(s.seconds or 0.0 for s in known),
    )


def _as_json(
    store: Store, found: GroupVersion, segments: Sequence[SegmentPosition], summary: bool
) -> dict[str, Any]:
    names = ("lag", "lag_bytes", "lag_seconds")
    record = {**_summary(found), **dict(zip(names, _total(segments), strict=True))}
    record["overdue"] = _overdue(store, found)
    record["expired"] = _expired(store, found)
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
            *(
                ("PENDING", f"{name} waits for reader {', '.join(readers)}")
                for name, readers in _summary(found)["pending_checkpoints"].items()
            ),
            *(
                ("EXPIRED", f"{name} keeps nothing for the group any more")
                for name in _expired(store, found)
            ),
            (
                "TOTAL-LAG",
                f"{count_text(events, 'event')}, {size_text(size_bytes)}, {age_text(seconds)}",
            ),
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
        None if segment.seconds is None else age_text(segment.seconds),
        segment.reader,
    ]
