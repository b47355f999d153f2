"""What the page shows of reader groups: the list, one group with its curves, a stream's readers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query

from pravega_spark.config.descriptions import SubscriberInfo
from pravega_spark.engine.layout.located_cut import locate
from pravega_spark.engine.stream import subscribers
from pravega_spark.engine.stream.backlog import known_backlog, oldest_seconds
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import InvalidName, InvalidStreamCut, NoSuchReaderGroup, PravegaSparkError
from pravega_spark.reader_groups.description import SegmentPosition
from pravega_spark.reader_groups.state import SegmentKey
from pravega_spark.serve.attention import Attention, GroupFound, GroupProblem
from pravega_spark.serve.call_budget import BudgetSpent
from pravega_spark.serve.group_models import (
    CheckpointWait,
    Curve,
    CurveLine,
    GroupDetails,
    GroupReaderRow,
    GroupRow,
    GroupSegmentRow,
    GroupsPage,
    ReaderRow,
    StreamLagRow,
    StreamReaders,
)
from pravega_spark.serve.group_watch import GroupSeen, GroupWatch
from pravega_spark.serve.lags import LagCurve, LagPoint, Progress, catch_up
from pravega_spark.serve.rest import NOT_FOUND
from pravega_spark.serve.watch import RootWatch
from pravega_spark.values.names import split_group

SHOWN_LINES: Final = 8
"""The most readers or segments that a curve has a line of."""
AGED_READERS: Final = 20
"""The most groups of a stream's page whose unread events have an age."""
Search = Annotated[str | None, Query(max_length=200)]
Name = Annotated[str | None, Query(max_length=600)]
PageSize = Annotated[int, Query(ge=1, le=200)]
Offset = Annotated[int, Query(ge=0, le=1_000_000)]
Order = Literal["name", "status", "lag", "readers", "changed"]

STATUSES: Final = (
    *("damaged", "not reading", "no reader", "falling behind", "stream missing", "unreadable"),
    *("changing", "behind", "catching up", "unknown", "not looked at", "up to date", "finished"),
)
"""The states of groups, those that need somebody first."""


# ---------------------------------------------------------------------------------------- rows


def group_row(name: str, found: GroupFound | None) -> GroupRow:
    """Return a group as a row; None if it was not looked at yet."""
    scope, _, group = name.partition("/")
    if isinstance(found, GroupSeen) and found.looked_ms > 0:
        return _seen_row(scope, group, found)
    row = _unknown_row(scope, group)
    if isinstance(found, GroupSeen):  # some heartbeats were not read yet
        state = found.state
        row.state, row.streams, row.readers = state.phase.value, sorted(state.lives), []
    if isinstance(found, GroupProblem):
        row.state = "DAMAGED" if found.is_damaged else "UNKNOWN"
        row.status = "damaged" if found.is_damaged else "unreadable"
        row.problem, row.looked_ms = found.text, found.looked_ms
    return row


def _unknown_row(scope: str, group: str) -> GroupRow:
    return GroupRow(
        scope=scope,
        group=group,
        state="UNKNOWN",
        status="not looked at",
        problem="",
        generation=None,
        retention=None,
        streams=[],
        readers=[],
        live_readers=None,
        segments=None,
        unassigned=None,
        lag_events=None,
        lag_bytes=None,
        lag_seconds=None,
        read_per_second=None,
        written_per_second=None,
        catch_up_seconds=None,
        never_catches_up=False,
        waits=[],
        last_checkpoint=None,
        updated_ms=None,
        looked_ms=None,
    )


def _seen_row(scope: str, group: str, seen: GroupSeen) -> GroupRow:
    state, events = seen.state, seen.events
    return GroupRow(
        scope=scope,
        group=group,
        state=state.phase.value,
        status=seen.status,
        problem="",
        generation=state.generation,
        retention=state.configuration.retention.value,
        streams=sorted(state.lives),
        readers=sorted(state.readers),
        live_readers=len(seen.readers_alive),
        segments=len(state.assigned) + len(state.unassigned),
        unassigned=len(state.unassigned),
        lag_events=events,
        lag_bytes=seen.size_bytes,
        lag_seconds=seen.seconds if events else None,
        waits=[
            CheckpointWait(name=w.name, readers=list(w.readers), seconds=w.seconds)
            for w in seen.waits
        ],
        last_checkpoint=None if state.last_checkpoint is None else state.last_checkpoint.name,
        updated_ms=seen.updated_ms,
        looked_ms=seen.looked_ms,
        **_rates(seen.progress, events, seen),
    )


def _rates(progress: Progress | None, events: int | None, seen: GroupSeen) -> dict[str, Any]:
    seconds, is_never = catch_up(events or 0, progress, seen.pause_seconds)
    return {
        "read_per_second": None if progress is None else round(progress.read, 3),
        "written_per_second": None if progress is None else round(progress.written, 3),
        "catch_up_seconds": None if seconds is None else round(seconds, 1),
        "never_catches_up": is_never,
    }


# -------------------------------------------------------------------------------------- curves


def lag_curve(curve: LagCurve) -> Curve:
    """Return unread events and the age of the oldest one over time."""
    rows: list[list[float | None]] = [
        [float(point.events), point.seconds] for point in curve.points
    ]
    return _with_gaps(curve.points, ("events", "seconds"), rows)


def rate_curve(curve: LagCurve) -> Curve:
    """Return the events a second that were read and written, as means of the time before."""
    rows: list[list[float | None]] = [
        [None, None] if mean is None else [round(mean.read, 3), round(mean.written, 3)]
        for mean in curve.rates()
    ]
    return _with_gaps(curve.points, ("read", "written"), rows)


def _with_gaps(
    points: Sequence[LagPoint], names: Sequence[str], rows: Sequence[list[float | None]]
) -> Curve:
    """Return lines over time; a time without values stands where nobody looked."""
    found: dict[int, list[float | None]] = {}
    before_ms: int | None = None
    for point, row in zip(points, rows, strict=True):
        if before_ms is not None and not (point.is_joined and point.is_watched):
            found[(before_ms + point.time_ms) // 2] = [None] * len(names)
        found[point.time_ms], before_ms = row, point.time_ms
    lines = [
        CurveLine(name=name, values=[row[at] for row in found.values()])
        for at, name in enumerate(names)
    ]
    return Curve(times_ms=list(found), lines=lines)


def part_curves(parts: Mapping[str, LagCurve]) -> Curve:
    """Return the unread events of several readers or segments, those furthest behind."""

    def last(curve: LagCurve) -> int:
        return curve.points[-1].events if curve.points else 0

    names = sorted(parts, key=lambda name: (-last(parts[name]), name))[:SHOWN_LINES]
    found: dict[str, dict[int, float | None]] = {}
    for name in names:
        points = parts[name].points
        curve = _with_gaps(points, [name], [[float(point.events)] for point in points])
        found[name] = dict(zip(curve.times_ms, curve.lines[0].values, strict=True))
    times = sorted({time_ms for values in found.values() for time_ms in values})
    return Curve(
        times_ms=times,
        lines=[CurveLine(name=n, values=[found[n].get(t) for t in times]) for n in names],
    )


# -------------------------------------------------------------------------------------- details


def group_details(
    name: str, seen: GroupSeen, watch: GroupWatch, offset: int, limit: int
) -> GroupDetails:
    """Return a group, its segments from ``offset`` on, the furthest behind first."""
    positions = [p for found in seen.positions.values() for p in found]
    positions.sort(key=lambda p: (-(p.events or 0), p.stream, p.segment_id))
    segments = {
        f"{key.stream} {name_of}": curve
        for key, curve in watch.segments.items()
        for name_of in [
            SegmentPosition(key.stream, key.segment_id, "", None, None).to_record()["segment"]
        ]
    }
    return GroupDetails(
        row=group_row(name, seen),
        configuration=seen.state.configuration.to_json(),
        streams=[
            StreamLagRow(
                stream=lag.stream,
                lag_events=lag.events,
                lag_seconds=lag.seconds,
                lost_events=lag.lost,
                has_lost_more=lag.has_lost_more,
                problem=lag.problem,
            )
            for lag in seen.lags.values()
        ],
        readers=_reader_rows(seen, watch, positions),
        segments=[_segment_row(p, watch, seen) for p in positions[offset : offset + limit]],
        total_segments=len(positions),
        lag=lag_curve(watch.curve),
        rates=rate_curve(watch.curve),
        reader_lags=part_curves(watch.readers),
        segment_lags=part_curves(segments),
    )


def _segment_row(found: SegmentPosition, watch: GroupWatch, seen: GroupSeen) -> GroupSegmentRow:
    curve = watch.segments.get(SegmentKey(found.stream, found.segment_id))
    progress = None if curve is None else curve.progress(seen.now_ms)
    record = {"stream": found.stream, **found.to_record(), **_rates(progress, found.events, seen)}
    if seen.lags[found.stream].seconds is None:  # its bytes and ages are not known
        record |= {"lag_bytes": None, "lag_seconds": None}
    if not found.events:
        record["lag_seconds"] = None
    return GroupSegmentRow.model_validate(record)


def _reader_rows(
    seen: GroupSeen, watch: GroupWatch, positions: Iterable[SegmentPosition]
) -> list[GroupReaderRow]:
    owned: dict[str, list[SegmentPosition]] = {reader: [] for reader in seen.state.readers}
    for found in positions:
        if found.reader is not None:
            owned.setdefault(found.reader, []).append(found)
    rows = []
    for reader, parts in owned.items():
        curve = watch.readers.get(reader)
        progress = None if curve is None else curve.progress(seen.now_ms)
        known = [part.events for part in parts if part.events is not None]
        events = sum(known) if len(known) == len(parts) else None
        is_aged = all(seen.lags[part.stream].seconds is not None for part in parts)
        seconds = oldest_seconds(part.seconds or 0.0 for part in parts)
        rows.append(
            GroupReaderRow(
                reader=reader,
                silent_seconds=seen.silent.get(reader),
                segments=len(parts),
                lag_events=events,
                lag_seconds=seconds if is_aged and events else None,
                **_rates(progress, events, seen),
            )
        )
    return sorted(rows, key=lambda row: (-(row.lag_events or 0), row.reader))


# --------------------------------------------------------------------------- a stream's readers


class StreamReadersOf:
    """Who reads a stream, from what the looks know of the groups."""

    def __init__(self, attention: Attention, watch: RootWatch) -> None:
        self._attention, self._budget = attention, watch.budget
        self._root = attention.root

    def answer(self, view: StreamView, groups: Sequence[str]) -> StreamReaders:
        """Return all groups and plain subscribers of a stream, the furthest behind first.

        Groups that were not looked at yet are looked at, as far as the budget of lists allows.
        """
        unlooked = self._attention.look_at_new(groups, self._budget.of_gets())
        known = {s.name: s for s in subscribers.listed(view)}
        found = self._attention.groups
        seen = [found[name] for name in groups if name in found]
        reading = [g for g in seen if isinstance(g, GroupSeen) and view.stream in g.state.lives]
        reading.sort(key=lambda g: (-(g.lags[view.stream].events or 0), g.state.group))
        rows = [
            self._reader(group, view, known.get(group.state.group), is_aged=number < AGED_READERS)
            for number, group in enumerate(reading)
        ]
        rows += [_subscriber(view, info) for name, info in known.items() if "/" not in name]
        rows.sort(key=lambda row: (-(row.lag_events or 0), row.name))
        return StreamReaders(readers=rows, unlooked=unlooked)

    def _reader(
        self,
        group: GroupSeen,
        view: StreamView,
        subscriber: SubscriberInfo | None,
        *,
        is_aged: bool,
    ) -> ReaderRow:
        state, lag = group.state, group.lags[view.stream]
        size_bytes, seconds = lag.size_bytes, lag.seconds
        if is_aged and seconds is None and not lag.problem:
            cut, end = state.cut(view.stream), state.ends.get(view.stream)
            with contextlib.suppress(PravegaSparkError, BudgetSpent):
                with self._budget.of_gets().applied():
                    unread = known_backlog(self._root.log(view.stream), view, cut, end)
                size_bytes = sum(part.size_bytes for part in unread)
                seconds = oldest_seconds(part.seconds for part in unread)
        return ReaderRow(
            name=state.group,
            kind="reader group",
            state=state.phase.value,
            readers=sorted(state.readers),
            retention=state.configuration.retention.value,
            lag_events=lag.events,
            lag_bytes=size_bytes,
            lag_seconds=seconds,
            cut=None if subscriber is None or subscriber.cut is None else str(subscriber.cut),
            published_ms=None if subscriber is None else subscriber.published_ms,
        )


def _subscriber(view: StreamView, info: SubscriberInfo) -> ReaderRow:
    events = None
    with contextlib.suppress(InvalidStreamCut):
        if info.cut is not None:
            events = locate(view, info.cut).above_head().events_to(view.located_tail)
    return ReaderRow(
        name=info.name,
        kind="subscriber",
        state="ACTIVE",
        readers=[],
        retention="manual",
        lag_events=events,
        lag_bytes=None,
        lag_seconds=None,
        cut=None if info.cut is None else str(info.cut),
        published_ms=info.published_ms,
    )


# --------------------------------------------------------------------------------------- routes


def group_routes(watch: RootWatch, attention: Attention) -> APIRouter:
    """Return the routes of groups; a list costs no storage call while a page is live."""
    routes = APIRouter(prefix="/api/groups", tags=["Page"])

    @routes.get("", operation_id="pageOfGroups")
    def list_groups(
        search: Search = None,
        after: Name = None,
        limit: PageSize = 100,
        sort: Order = "name",
        down: bool = False,
    ) -> GroupsPage:
        """Return reader groups, and how far behind each is, as the last looks found them."""
        attention.refresh()
        names = [n for n in watch.names().groups if not search or search.lower() in n.lower()]
        found = attention.groups
        rows = {name: group_row(name, found.get(name)) for name in names}
        ordered = _ordered(rows, sort, down=down)
        start = ordered.index(after) + 1 if after in rows else _after(ordered, after, sort)
        page = ordered[start : start + limit]
        return GroupsPage(
            groups=[rows[name] for name in page],
            total=len(names),
            looked=attention.answer().groups.looked,
            next=page[-1] if len(ordered) > start + limit else None,
        )

    @routes.get("/{scope}/{group}", operation_id="groupDetails", responses=NOT_FOUND)
    def details(scope: str, group: str, offset: Offset = 0, limit: PageSize = 200) -> GroupDetails:
        """Return a group: readers, segments from ``offset`` on, and what was unread over time."""
        name = f"{scope}/{group}"
        with contextlib.suppress(InvalidName):
            split_group(name)
            seen = attention.open_group(name)
            if seen is not None:
                return group_details(name, seen, attention.watch_of(name), offset, limit)
        raise NoSuchReaderGroup(
            f"reader group {name[:600]} does not exist; create it first.", group=name
        )

    return routes


def _after(ordered: Sequence[str], after: str | None, sort: Order) -> int:
    """Return where a page begins behind a name that is not there any more."""
    if after is None or sort != "name":
        return 0
    return sum(name <= after for name in ordered)


def _ordered(rows: Mapping[str, GroupRow], sort: Order, *, down: bool) -> list[str]:
    places = {status: place for place, status in enumerate(STATUSES)}

    def key(name: str) -> tuple[float, str]:
        row = rows[name]
        values: dict[str, float] = {
            "name": 0.0,
            "status": places[row.status],
            "lag": -1.0 if row.lag_events is None else row.lag_events,
            "readers": -1.0 if row.live_readers is None else row.live_readers,
            "changed": row.updated_ms or 0.0,
        }
        return (-values[sort] if down else values[sort]), name

    return sorted(rows, key=key, reverse=down and sort == "name")
