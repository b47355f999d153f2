"""The JSON of reader groups: times are in ms since 1970, rates a second."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field


class ReaderRow(BaseModel):
    """Whoever reads a stream: a reader group, or a plain subscriber."""

    name: str
    kind: str = Field(description="reader group, or subscriber.")
    state: str
    readers: list[str]
    retention: str = Field(description="none, automatic or manual: whether it holds data.")
    lag_events: int | None
    lag_bytes: int | None
    lag_seconds: float | None
    cut: str | None
    published_ms: int | None


class StreamReaders(BaseModel):
    """All that read a stream, as far as the groups of the root were looked at."""

    readers: list[ReaderRow]
    unlooked: int = Field(description="Groups that were not looked at yet; some may read it, too.")


class CheckpointWait(BaseModel):
    """A checkpoint that waits for readers, since the server first saw it, or longer."""

    name: str
    readers: list[str]
    seconds: float


class Pace(BaseModel):
    """How fast a group, a reader of it or a segment is read and written; null is unknown."""

    read_per_second: float | None
    written_per_second: float | None
    catch_up_seconds: float | None = Field(
        description="Null if that is not known, if it keeps up, and if it never catches up."
    )
    never_catches_up: bool = Field(description="Whether it does not at these rates.")


class GroupRow(Pace):
    """A reader group of a list; null is unknown."""

    scope: str
    group: str
    state: str = Field(description="ACTIVE or CHANGING; DAMAGED, or UNKNOWN before the first look.")
    status: str = Field(
        description="up to date, behind, catching up, falling behind, not reading, no reader, "
        "finished, changing, stream missing, damaged, unreadable, unknown, or not looked at."
    )
    problem: str = Field(description="Why it could not be read; empty if it was.")
    generation: int | None
    retention: str | None
    streams: list[str]
    readers: list[str]
    live_readers: int | None = Field(description="Those whose lease has not run out.")
    segments: int | None
    unassigned: int | None
    lag_events: int | None
    lag_bytes: int | None = Field(description="Of a group whose page is open.")
    lag_seconds: float | None = Field(
        description="Of a group whose page is open; null also if nothing is unread."
    )
    waits: list[CheckpointWait]
    last_checkpoint: str | None
    updated_ms: int | None
    looked_ms: int | None = Field(description="When the oldest of these values was read.")


class GroupsPage(BaseModel):
    """A page of reader groups."""

    groups: list[GroupRow]
    total: int
    looked: int = Field(description="How many of all groups of the root were looked at.")
    next: str | None = Field(description="Give it as ``after`` for the next page.")


class GroupSegmentRow(Pace):
    """A segment of a group, and what is unread of it."""

    stream: str
    segment: str
    state: str
    reader: str | None
    current_offset: int | None
    head_offset: int | None
    next_offset: int | None
    lag: int | None
    lag_bytes: int | None
    lag_seconds: float | None


class GroupReaderRow(Pace):
    """A reader of a group: its segments, what is unread of them, and how fast it reads."""

    reader: str
    silent_seconds: float | None = Field(description="Since its last heartbeat, after its lease.")
    segments: int
    lag_events: int | None
    lag_seconds: float | None


class CurveLine(BaseModel):
    """One line of a curve; null is a gap, of which the server knows nothing."""

    name: str
    values: list[float | None]


class Curve(BaseModel):
    """Values over time."""

    times_ms: list[int]
    lines: list[CurveLine]


class StreamLagRow(BaseModel):
    """What a group has not read of one stream."""

    stream: str
    lag_events: int | None
    lag_seconds: float | None
    lost_events: int = Field(description="Deleted at the head before the group read them.")
    has_lost_more: bool = Field(description="Whether more was lost, which the log cannot count.")
    problem: str = Field(description="deleted, or why the stream cannot be read; else empty.")


class GroupDetails(BaseModel):
    """A reader group with its streams, readers and segments, and what was unread over time."""

    row: GroupRow
    configuration: dict[str, Any]
    streams: list[StreamLagRow]
    readers: list[GroupReaderRow]
    segments: list[GroupSegmentRow]
    total_segments: int
    lag: Curve = Field(description="events and seconds.")
    rates: Curve = Field(description="Events a second: read and written.")
    reader_lags: Curve = Field(description="Unread events of the readers furthest behind.")
    segment_lags: Curve = Field(description="Unread events of the segments furthest behind.")
