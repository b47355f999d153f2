"""What streams, transactions, subscribers and maintenance are described by. Frozen values."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Final

from pravega_spark.config.policies import StreamConfiguration
from pravega_spark.values.segments import Segment, StreamCut
from pravega_spark.values.units import count_text, size_text, time_text

_UTC_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


class TransactionStatus(enum.Enum):
    """The states of a transaction; the last two are final."""

    OPEN = "OPEN"
    PREPARED = "PREPARED"
    COMMITTING = "COMMITTING"
    ABORTING = "ABORTING"
    COMMITTED = "COMMITTED"
    ABORTED = "ABORTED"


@dataclass(frozen=True, slots=True)
class TransactionInfo:
    """A transaction in the stream's log: times in ms since 1970, ``ended_ms`` 0 if open.

    ``reason`` is why it was aborted; ``events`` and ``size_bytes`` count its committed events.
    """

    transaction_id: str
    status: TransactionStatus
    created_ms: int
    ended_ms: int = 0
    version: int = 0
    events: int = 0
    size_bytes: int = 0
    writer_id: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class SubscriberInfo:
    """A subscriber, for which a policy by consumption keeps events: times in ms since 1970.

    ``name`` is ``scope/group`` for a reader group; a plain subscriber's name has no slash. It needs
    nothing before ``cut``, and holds nothing if that is None. ``published_ms`` is None until it
    publishes its first cut; before that, ``cut`` is its starting point.
    """

    name: str
    generation: int
    cut: StreamCut | None
    published_ms: int | None
    since_ms: int


def _utc(time_us: int | None) -> datetime | None:
    """Return microseconds since 1970 as a datetime; None where that is None or has no datetime."""
    try:
        return None if time_us is None else _UTC_EPOCH + timedelta(microseconds=time_us)
    except OverflowError:
        return None


@dataclass(frozen=True, slots=True)
class WriterMark:
    """What a writer noted last: all that it writes after ``cut`` is of ``time_us`` or later.

    ``version`` is the version of the log that holds the note. A writer that is not ``is_alive`` has
    left: its mark is used once more, and then dropped.
    """

    writer_id: str
    time_us: int
    """In microseconds since 1970."""
    cut: StreamCut
    version: int
    is_alive: bool = True

    @property
    def time(self) -> datetime | None:
        """The noted time, in UTC; None if it is beyond the years 1 to 9999."""
        return _utc(self.time_us)


@dataclass(frozen=True, slots=True)
class Watermark:
    """How far the writers' times were at a cut of the stream, in microseconds since 1970.

    Every event whose time was noted as earlier than ``lower_us`` lies before ``cut``. ``upper_us``
    is the latest time that a writer had noted. ``version`` is the version of the log that holds
    the watermark, None if none does yet.
    """

    lower_us: int
    upper_us: int
    cut: StreamCut
    version: int | None = None

    @property
    def lower(self) -> datetime | None:
        """The lower bound, in UTC; None if it is beyond the years 1 to 9999."""
        return _utc(self.lower_us)

    @property
    def upper(self) -> datetime | None:
        """The upper bound, in UTC; None if it is beyond the years 1 to 9999."""
        return _utc(self.upper_us)


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """The times between which a reader is, by the writers' notes: in microseconds since 1970.

    Unread events are of ``lower_us`` or later: None before the first watermark.
    ``upper_us`` is the upper bound of the first watermark that is ahead of the whole position:
    None near the tail.
    """

    lower_us: int | None = None
    upper_us: int | None = None

    @property
    def lower(self) -> datetime | None:
        """The lower bound, in UTC, or None."""
        return _utc(self.lower_us)

    @property
    def upper(self) -> datetime | None:
        """The upper bound, in UTC, or None."""
        return _utc(self.upper_us)


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A stream at one version: configuration, layout, head and tail.

    ``configuration_version`` is the version that set the configuration: an update that expects it
    is refused if another one came first.
    """

    stream: str
    life: int
    state: str
    version: int
    configuration: StreamConfiguration
    epoch: int
    segments: tuple[Segment, ...]
    head: StreamCut
    tail: StreamCut
    events: int
    size_bytes: int
    created_ms: int
    configuration_version: int
    files: FileTotals
    """The chunks of the newest version; ``Stream.storage`` also has what else is stored."""
    watermark: Watermark | None = None
    """As far as the notes of the newest version show it; None if no writer notes times."""


@dataclass(frozen=True, slots=True)
class FileTotals:
    """A number of files, and their size as stored."""

    files: int = 0
    size_bytes: int = 0

    def __add__(self, other: FileTotals) -> FileTotals:
        return FileTotals(self.files + other.files, self.size_bytes + other.size_bytes)

    def __sub__(self, other: FileTotals) -> FileTotals:
        return FileTotals(self.files - other.files, self.size_bytes - other.size_bytes)

    def __str__(self) -> str:
        return f"{count_text(self.files, 'file')}, {size_text(self.size_bytes)}"


class MaintenanceKind(enum.Enum):
    """The work that keeps the streams of a root in order.

    The job ``maintenance`` does all kinds. Transactions, scaling, retention and compaction are also
    names of jobs.
    """

    RETENTION = "retention"
    SCALING = "scaling"
    TRANSACTIONS = "transactions"
    COMPACTION = "compaction"
    SWEEPING = "sweeping"
    WATERMARKS = "watermarks"
    FOLDING = "folding"


@dataclass(frozen=True, slots=True)
class MaintenanceInfo:
    """The last finished run of a kind over all streams of a root, or of a scope.

    Times are in ms since 1970 by the storage's clock, and None without a run or a claim.
    """

    kind: MaintenanceKind
    scope: str | None
    """None for a run over all scopes."""
    interval_seconds: float
    """The root's setting: a run is due when the last one is older."""
    is_overdue: bool
    """Whether the last run, or without one the root, is older than several intervals."""
    finished_ms: int | None = None
    age_seconds: float | None = None
    by: str | None = None
    """The job or process that finished the run: ``job on host-1, process 4711``."""
    started_ms: int | None = None
    streams: int = 0
    """The streams of that run, failed ones included."""
    failed: int = 0
    failures: Mapping[str, str] = field(default_factory=dict)
    """Some of what failed, with the error of each."""
    claimed_by: str | None = None
    """The job or process at work now; another one begins when it or its claim has ended."""
    claimed_until_ms: int | None = None
    streams_so_far: int = 0
    """The streams that a run in several shares has done; the next share continues there."""

    def __str__(self) -> str:
        what = self.kind.value if self.scope is None else f"{self.kind.value} of {self.scope}"
        if self.age_seconds is None:
            return f"{what}: no run is recorded"
        counts = f"{count_text(self.streams, 'stream')}, {self.failed:,} failed"
        return f"{what}: {counts}, {time_text(self.age_seconds)} ago by {self.by}"
