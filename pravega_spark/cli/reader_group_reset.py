"""``pravega-spark reader-group reset``: move a group, in the forms of Kafka's command line."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

from pravega_spark.cli.output import (
    TABLE,
    TableColumn,
    examples,
    output_option,
    say,
    show_records,
    show_value,
)
from pravega_spark.cli.root_option import check_begun, open_root, root_option
from pravega_spark.engine.layout.located_cut import LocatedCut, locate
from pravega_spark.engine.store import Store
from pravega_spark.engine.stream.positions import TimeSearch
from pravega_spark.engine.stream.saved_cuts import saved_cut
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import IllegalState, InvalidInput, InvalidStreamCut, StaleIdentity
from pravega_spark.reader_groups.changes import ResetTarget, preview_reset, reset_group
from pravega_spark.reader_groups.description import get_group, with_heartbeats
from pravega_spark.reader_groups.lifecycle import open_group
from pravega_spark.reader_groups.state import GroupState
from pravega_spark.values.checks import shown
from pravega_spark.values.names import is_cut_name
from pravega_spark.values.segments import END, NOT_REACHED, StreamCut, segment_text
from pravega_spark.values.times import Timestamp, parse_timestamp
from pravega_spark.values.units import parse_duration_ms

_ISO_DURATION = re.compile(
    r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class ResetSource:
    """A group with the cuts that its readers last reported, and the streams to reset."""

    store: Store
    state: GroupState
    streams: tuple[str, ...]

    @classmethod
    def of(cls, store: Store, state: GroupState, streams: Iterable[str]) -> ResetSource:
        """Take some streams of a group, or without any all of them. Raises UsageError."""
        known = tuple(sorted(state.lives))
        chosen = tuple(dict.fromkeys(streams)) or known
        for name in chosen:
            if name not in state.lives:
                raise click.UsageError(
                    f"Reader group {state.group} does not read {name}; it reads {', '.join(known)}."
                )
        return cls(store, with_heartbeats(store, state), chosen)

    def each(self, cut_of: Callable[[str, StreamView], StreamCut]) -> dict[str, StreamCut]:
        """Return a cut of the newest view of each stream."""
        found = {}
        for name in self.streams:
            found[name] = open_stream(self.store, name).on_newest(partial(cut_of, name))
        return found

    def position(self, name: str, view: StreamView) -> LocatedCut:
        """Return the present position in a stream, at the head where it is below.

        Raises StaleIdentity if the stream was created again since.
        """
        view.check_life(self.state.lives[name])
        return locate(view, self.state.cut(name)).raised_to_head()


def earliest(source: ResetSource, _: bool) -> dict[str, StreamCut]:
    """Return the heads."""
    return source.each(lambda _, view: view.head)


def latest(source: ResetSource, _: bool) -> dict[str, StreamCut]:
    """Return the tails."""
    return source.each(lambda _, view: view.tail)


def current(source: ResetSource, _: bool) -> dict[str, StreamCut]:
    """Return the positions that the readers reported last."""
    return source.each(lambda name, view: source.position(name, view).cut)


def checkpoint(source: ResetSource, _: bool) -> dict[str, StreamCut]:
    """Return the cuts of the last completed checkpoint. Raises InvalidInput without one."""
    last = source.state.last_checkpoint
    if last is None:
        raise InvalidInput(
            f"reader group {source.state.group} has no completed checkpoint in this generation; "
            "name another position, such as --to-earliest."
        )
    cuts = source.state.cuts_of(last.positions)
    return {name: cuts[name] for name in source.streams}


def at_time(source: ResetSource, text: str) -> dict[str, StreamCut]:
    """Return the cuts before the first events at or after a time, the tail if there are none."""
    return _at_us(source, parse_timestamp("--to-datetime", text).resolve_us())


def ago(source: ResetSource, text: str) -> dict[str, StreamCut]:
    """Return the cuts of a time ago, given as ``90 min``, or as Kafka writes it: ``PT1H30M``."""
    return _at_us(source, Timestamp(ago_ms=_duration_ms(text)).resolve_us())


def _at_us(source: ResetSource, time_us: int) -> dict[str, StreamCut]:
    def cut_of(name: str, view: StreamView) -> StreamCut:
        return TimeSearch(open_stream(source.store, name), time_us).cut(view).cut

    return source.each(cut_of)


def _duration_ms(text: str) -> int:
    match = _ISO_DURATION.fullmatch(text.strip())
    if match is None or not any(match.groups()):
        return parse_duration_ms("--by-duration", text)
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return round(1_000 * (86_400 * days + 3_600 * hours + 60 * minutes + seconds))


def shifted(source: ResetSource, by: int) -> dict[str, StreamCut]:
    """Return the present positions with every offset moved by a number of events.

    As Kafka does, an offset stops at the first or the last event of its segment.
    """
    return _moved(source, lambda offset: offset + by)


def _moved(source: ResetSource, move: Callable[[int], int]) -> dict[str, StreamCut]:
    def cut_of(name: str, view: StreamView) -> StreamCut:
        positions = {}
        for segment_id, offset in source.position(name, view).cut:
            tail = view.segment(segment_id).next_offset
            moved = move(tail if offset == END else offset)
            within = min(max(moved, view.head_offset(segment_id)), tail)
            is_same = offset == NOT_REACHED or (offset == END and within == tail)
            positions[segment_id] = offset if is_same else within
        return StreamCut(name, view.life, positions)

    return source.each(cut_of)


def at_offsets(source: ResetSource, texts: Iterable[str]) -> dict[str, StreamCut]:
    """Return the cuts of texts, or those that the streams saved under a name.

    A number is that offset in each segment of the present position.
    """
    given = list(texts)
    if len(given) == 1 and given[0].isdecimal():
        return _moved(source, lambda offset: int(given[0]))
    if len(given) == 1 and is_cut_name(given[0]):
        return source.each(lambda _, view: saved_cut(view, given[0]).cut)
    return _checked(source, given)


def of_file(source: ResetSource, path: str) -> dict[str, StreamCut]:
    """Return the cuts of a file that ``--export`` printed; ``-`` is the standard input.

    Raises InvalidInput for a file that cannot be read, and for one that has no cuts.
    """
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        text = data.decode()
    except UnicodeDecodeError:
        raise InvalidInput(
            f"{path} is not a text file; give a file that --export printed."
        ) from None
    except OSError as error:
        raise InvalidInput(f"--from-file {path} cannot be read: {error.strerror}.") from None
    lines = (line.strip() for line in text.splitlines())
    return _checked(source, [line for line in lines if line and not line.startswith("#")])


def _checked(source: ResetSource, texts: Iterable[str]) -> dict[str, StreamCut]:
    cuts = [StreamCut.parse(text) for text in texts]
    if not cuts:
        raise InvalidInput("no stream cut was given; --export prints one for each stream.")
    for cut in cuts:
        if cut.is_bound and cut.stream not in source.streams:
            raise InvalidStreamCut(
                f"{shown(str(cut))} is a cut of {cut.stream}, which is not one of the streams to "
                f"reset: {', '.join(source.streams)}."
            )
    if any(not cut.is_bound for cut in cuts):
        raise InvalidStreamCut("'earliest' and 'latest' have options: --to-earliest, --to-latest.")
    by_stream = {cut.stream: cut for cut in cuts}
    if len(by_stream) < len(cuts):
        raise InvalidStreamCut("two cuts of one stream were given; name each stream once.")
    return by_stream


def of_group(source: ResetSource, name: str) -> dict[str, StreamCut]:
    """Return the positions of another group in the streams that it reads, too."""
    other = with_heartbeats(source.store, get_group(source.store, name).state)
    common = [stream for stream in source.streams if stream in other.lives]
    if not common:
        raise InvalidInput(
            f"reader group {name} reads {', '.join(sorted(other.lives))}, and none of the streams "
            f"to reset: {', '.join(source.streams)}."
        )
    return {stream: other.cut(stream) for stream in common}


def moves(
    source: ResetSource, before: GroupState, after: Mapping[str, StreamCut]
) -> list[dict[str, object]]:
    """Return the old and the new position by segment, and the events between them.

    ``events`` is above 0 where events are skipped, and below where they are read again. The old
    position is None in a stream that was created again.
    """
    rows: list[dict[str, object]] = []
    for name in source.streams:
        moved = partial(_moves_in, before=before.cut(name), after=after[name])
        rows += open_stream(source.store, name).on_newest(moved)
    return rows


def _moves_in(view: StreamView, before: StreamCut, after: StreamCut) -> list[dict[str, object]]:
    new = locate(view, after).raised_to_head()
    old = None
    try:
        view.check_life(before.life)
        old = locate(view, before).raised_to_head()
    except StaleIdentity:
        pass
    named = {*before.positions, *after.positions, *new.cut.positions}
    if old is not None:
        first, last = (old, new) if new.is_at_or_after(old) else (new, old)
        with_events = first.segments_to(last) if last.is_at_or_after(first) else []
        named |= {segment.segment_id for segment in with_events}
    return [
        {
            "stream": view.stream,
            "segment_id": segment_id,
            "old": None if old is None else _offset(view, old, segment_id),
            "new": _offset(view, new, segment_id),
            "events": None if old is None else _between(view, old, new, segment_id),
        }
        for segment_id in sorted(named)
        if view.has_segment(segment_id)
    ]


def _offset(view: StreamView, cut: LocatedCut, segment_id: int) -> int:
    return cut.offset_in(view.lineage.find(segment_id))


def _between(view: StreamView, old: LocatedCut, new: LocatedCut, segment_id: int) -> int:
    tail, head = view.segment(segment_id).next_offset, view.head_offset(segment_id)

    def events(cut: LocatedCut) -> int:
        offset = _offset(view, cut, segment_id)
        return tail if offset == END else max(offset, head)

    return events(new) - events(old)


_TARGETS: Mapping[str, Callable[[ResetSource, Any], dict[str, StreamCut]]] = {
    "to_earliest": earliest,
    "to_latest": latest,
    "to_current": current,
    "to_checkpoint": checkpoint,
    "to_datetime": at_time,
    "by_duration": ago,
    "to_offset": at_offsets,
    "shift_by": shifted,
    "to_group": of_group,
    "from_file": of_file,
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
@click.option(
    "--from-file",
    metavar="FILE",
    help="To the positions in a file that --export printed; - is the input.",
)
@click.option("--stream", "streams", multiple=True, help="Only this stream; may be repeated.")
@click.option("--dry-run", is_flag=True, help="Show the move and change nothing.  [default]")
@click.option("--execute", is_flag=True, help="Move the group: its readers have to join again.")
@click.option("--force", is_flag=True, help="Even while a reader is alive.")
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
    rows = [_record(row) for row in moves(source, source.state, after.cuts())]
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
