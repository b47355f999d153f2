"""The JSON of our own API: times are in ms since 1970, sizes in bytes, rates a second."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field


class StreamRow(BaseModel):
    """A stream of a list; of a damaged one all is null but its name, its state and the problem."""

    scope: str
    stream: str
    state: str
    problem: str | None = Field(default=None, description="Why it cannot be read; else null.")
    tags: list[str]
    segments: int | None
    epoch: int | None
    events: int | None
    """The readable events: from the head to the tail."""
    size_bytes: int | None
    events_per_second: float | None = Field(
        description="Over the last minute; null where it is unknown."
    )
    bytes_per_second: float | None
    series: list[float | None] = Field(
        description="Events a second in each minute of the last hour; null where it is unknown, "
        "or before the stream existed."
    )
    version: int | None
    created_ms: int | None
    updated_ms: int | None
    future_ms: int | None = Field(
        description="The time of the newest commit if it lies in the future; else null."
    )


class StreamTraffic(BaseModel):
    """The traffic of a stream up to each time; null where it is unknown, or none existed."""

    created_ms: int = Field(description="When the stream was created: before, all is null.")
    times_ms: list[int]
    events_per_second: list[float | None]
    bytes_per_second: list[float | None]
    commits_per_second: list[float | None]
    size_bytes: list[int | None] = Field(description="Of the readable events, at each time.")
    is_reading: bool = Field(description="Whether the next answers know more of the past.")


class StreamsPage(BaseModel):
    """A page of streams, by name."""

    streams: list[StreamRow]
    total: int = Field(description="The streams that match, on all pages.")
    next: str | None = Field(default=None, description="Give it as ``after`` for the next page.")


class MaintenanceRow(BaseModel):
    """The last run of a kind of maintenance over all streams."""

    kind: str
    is_overdue: bool = Field(
        description="Whether something needs it and no run came in time, as far as was looked at."
    )
    finished_ms: int | None
    by: str | None
    streams: int
    failed: int
    claimed_by: str | None


class RootOverview(BaseModel):
    """The root as a whole."""

    root: str
    version: str
    allow_changes: bool
    poll_seconds: float
    scopes: list[str]
    streams: int
    reader_groups: int
    tables: int
    maintenance: list[MaintenanceRow]


class SegmentLoadRow(BaseModel):
    """An active segment and its traffic over the last minute."""

    segment: str
    low: float
    high: float
    events: int
    size_bytes: int
    events_per_second: float | None = Field(description="Null where it is unknown.")
    bytes_per_second: float | None


class StreamDetails(BaseModel):
    """A stream: its row, its configuration, its cuts and its files."""

    row: StreamRow
    life: int
    scaling: dict[str, Any]
    retention: str
    settings: dict[str, str]
    encryption_key: str | None
    head: str
    tail: str
    truncated_ms: int | None
    truncated_by: str | None
    files: int
    file_bytes: int
    segments: list[SegmentLoadRow]


class PictureSegment(BaseModel):
    """A segment as a box: its keys by the time in which it was open."""

    segment: str
    low: float
    high: float
    start_ms: int
    end_ms: int | None = Field(description="Null while it is open.")
    events: int | None = Field(description="Null if a truncation dropped its record.")
    size_bytes: int | None
    readable_events: int | None = Field(description="Those that retention has kept.")
    events_per_second: float | None = Field(description="Over its whole life.")
    is_active: bool


class PictureEpoch(BaseModel):
    """An epoch: when it began, and by how many splits and merges."""

    epoch: int
    created_ms: int
    splits: int
    merges: int
    segments: int


class SegmentPicture(BaseModel):
    """The segments of a stream over time."""

    now_ms: int
    start_ms: int
    epochs: list[PictureEpoch]
    segments: list[PictureSegment]
    omitted_epochs: int = Field(description="Older epochs that the answer leaves out.")


class RetentionHolder(BaseModel):
    """Who keeps data from truncation, and how much."""

    holder: str
    cut: str
    events: int
    size_bytes: int
    seconds: float


class RetentionAnswer(BaseModel):
    """What a run of retention would delete now, what stays, and for whom."""

    policy: str
    decision: str
    goes_events: int
    goes_bytes: int
    stays_events: int
    stays_bytes: int
    stays_seconds: float
    holders: list[RetentionHolder]
    loses: list[str] = Field(description="Subscribers that would lose unread data.")
    idle: list[str] = Field(description="Subscribers that expire.")
    overdue: str


class TransactionRow(BaseModel):
    """A transaction of a stream."""

    transaction: str
    status: str
    writer: str | None
    created_ms: int
    ended_ms: int | None
    events: int
    size_bytes: int
    reason: str | None


class TransactionsPage(BaseModel):
    """The open transactions, and the newest completed ones."""

    open: list[TransactionRow]
    completed: list[TransactionRow]
    total_completed: int


class WatermarkRow(BaseModel):
    """A watermark, or what a writer noted last; times in microseconds since 1970."""

    kind: str = Field(description="recorded, present or writer.")
    writer: str | None
    is_alive: bool | None
    lower_us: int
    upper_us: int
    cut: str
    events: int = Field(description="From the cut to the tail.")


class WatermarksPage(BaseModel):
    """The newest watermarks, and the marks of the writers."""

    watermarks: list[WatermarkRow]
    writers: list[WatermarkRow]


class StorageRow(BaseModel):
    """The stored objects of a kind."""

    kind: str
    files: int
    size_bytes: int
    reason: str
    deletable_ms: int | None


class StorageAnswer(BaseModel):
    """What a stream stores, and why."""

    parts: list[StorageRow]
    files: int
    size_bytes: int


class CommitRow(BaseModel):
    """A commit of the log, or several appends in a row."""

    version: int
    first_version: int
    time_ms: int
    operation: str
    commits: int
    events: int
    size_bytes: int
    parameters: dict[str, Any]
    user: str | None


class HistoryPage(BaseModel):
    """Commits, the newest first."""

    commits: list[CommitRow]
    next: int | None = Field(description="Give it as ``before`` for older ones.")
