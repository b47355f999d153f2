"""Policies and options beside their defaults and limits; units are the last word of a name."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pravega_spark.errors import InvalidConfiguration
from pravega_spark.names import has_utf8

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

MAX_EVENT_BYTES = 8 * MIB
MAX_ATOMIC_WRITE_BYTES = 2 * (MAX_EVENT_BYTES + 8)
MAX_TAGS = 128
MAX_TAG_LENGTH = 256
MAX_SEGMENTS = 10_000

WRITER_BUFFER_BYTES = 64 * MIB
WRITER_BATCH_BYTES = 32 * MIB
WRITER_BATCH_EVENTS = 262_144
WRITER_EVENT_BYTES = 16
"""What a writer's buffer counts for an event besides its bytes, so that empty ones are bounded."""
WRITER_EXIT_SECONDS = 10.0
"""A process that ends waits at most so long for what its open writers have not committed."""
MAX_NOTE_LENGTH = 64 * KIB

CHUNK_BYTES = 64 * MIB
"""Most bytes of payload in one chunk; larger batches become several chunks of one commit."""
CHUNK_EVENTS = 1_000_000
ROW_GROUP_EVENTS = 131_072
ROW_GROUP_BYTES = 16 * MIB
COMPRESSION = "zstd"

STORAGE_THREADS = 8
"""So many chunks of one batch are written at once: their waits for the disk overlap."""

COPY_PAGE_FILES = 256
COPY_PAGE_BYTES = 64 << 20
"""A backup holds at most so many files, or so many bytes of them and one file, at a time."""
KEEP_PIN = "7 days"
"""A backup that dies keeps what it was copying from being swept for so long."""

RECENT_FILES = 4_096
"""An open log forgets the list of its newest files, and reads it anew, after about so many."""

DECODED_TEXT = 8 * 1024 * 1024
"""A process keeps the records of one kind that it read, made from so many characters of JSON."""

STATE_FILE_COMMITS = 256
"""A light state file is written about every so many commits."""
CHECKPOINT_COMMITS = 1_024
"""The first checkpoint; later ones at geometrically growing distances."""
CHECKPOINT_GROWTH = 8
"""A checkpoint when the commits since the last reach the number of files divided by this."""

MIN_LEASE_MS, MAX_LEASE_MS = 10_000, 600_000
"""Bounds of a transaction's lease, as in Pravega."""
DEFAULT_LEASE = "60 s"
MAX_EXECUTION_LEASES = 1_000
MAX_EXECUTION_MS = 86_400_000
"""A transaction ends after so many leases, or after a day, whatever is less, unless told."""
PREPARED_LIMIT = "7 days"
"""A prepared transaction is aborted when nobody has decided it for so long."""
KEEP_COMPLETED = "24 hours"
"""How long the outcome of a transaction can be asked for, as in Pravega."""
TEND_SECONDS = 30.0
"""A writer looks for abandoned transactions of others at most this often."""

COMMIT_ATTEMPTS = 10_000
COMMIT_DEADLINE_SECONDS = 60.0
STALE_HEAD_SECONDS = 1_800.0
"""After so long since the head was last seen, a commit looks whether its log was cleaned."""
CLEANUP_WAIT_SECONDS = 3_600.0
"""Elapsed time between the commit of a clean-up mark and the first deletion below it."""

CLOCK_FAR_MS = 5_000
"""So far from the storage's clock a host's clock is wrong: dates are rounded to a second."""
CLOCK_STEP_MS = 60_000
"""A larger step of the clock within one start of the machine is not followed."""
MAX_CLOCK_JUMP = "7 days"
"""So far the clock may have gone since it was last believed, where no boot clock explains it."""
CLOCK_RECORD_MS = 60_000
"""How often a root's clock record is renewed at most."""

RATES_COMMITS = 65_536
"""A decision on scaling reads at most about so many commits of a stream's log."""
SPLIT_SAMPLE_EVENTS = 65_536
"""Newest events of a segment whose keys a split by keys looks at."""
MIN_COOLDOWN_MS = 1_000
"""A shorter cool-down of automatic scaling is no pace: ticks would be shorter than commits."""
SAMPLE_FREQUENCY = "30 minutes"
"""The retention set gets an entry when the newest one is older, as in Pravega."""
MAX_SAMPLES = 2_000
"""So many entries the retention set has; then every second one of its older half goes."""
RETENTION_ATTEMPTS = 10
"""So often a run of retention decides anew because subscribers or the head moved meanwhile."""
STREAM_LIMIT = "10 minutes"
"""A stream on which the job of retention works for longer fails, and the others go on."""
STREAMS_OF_TASK = 50
"""Streams that one task of a job works on, one after the other."""

POLL_LOCAL_SECONDS = (0.001, 0.050)
POLL_REMOTE_SECONDS = (0.250, 2.0)
"""Shortest and longest pause between two looks for new commits while following a tail."""
POLL_IDLE_SHARE = 0.125
"""In between, the pause is this part of the time since the last news: so late it is at most."""

DELTA_PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"

_DURATION = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*", re.IGNORECASE | re.ASCII)
_DURATION_UNITS_MS = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1_000),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000),
    **dict.fromkeys(("w", "week", "weeks"), 604_800_000),
}
_SIZE_UNITS = {
    "": 1, "b": 1, "byte": 1, "bytes": 1,
    "k": KIB, "kb": KIB, "kib": KIB, "m": MIB, "mb": MIB, "mib": MIB,
    "g": GIB, "gb": GIB, "gib": GIB, "t": GIB * KIB, "tb": GIB * KIB, "tib": GIB * KIB,
}  # fmt: skip


def parse_duration_ms(what: str, value: str | float) -> int:
    """Read ``"90 s"``, ``"1 hour"``, ``"7d"`` or a number of seconds as milliseconds."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        number, unit = float(value), "s"
    else:
        match = _DURATION.fullmatch(value) if isinstance(value, str) else None
        if match is None or match[2].lower() not in _DURATION_UNITS_MS:
            raise InvalidConfiguration(
                f"{what} {value!r} is no duration: write '90 s', '5 minutes', '1 hour' or '7 days'."
            )
        number, unit = float(match[1]), match[2].lower()
    if not 0 <= number < math.inf:
        raise InvalidConfiguration(f"{what} must be a time from 0 on, got {value!r}.")
    return round(number * _DURATION_UNITS_MS[unit])


def parse_size_bytes(what: str, value: str | int) -> int:
    """Read ``"256m"``, ``"1 GB"`` (binary multiples) or a number of bytes."""
    if isinstance(value, int) and not isinstance(value, bool):
        number, unit = float(value), ""
    else:
        match = _DURATION.fullmatch(value) if isinstance(value, str) else None
        if match is None or match[2].lower() not in _SIZE_UNITS:
            raise InvalidConfiguration(
                f"{what} {value!r} is no size: write '256m', '10 GB' or a number of bytes."
            )
        number, unit = float(match[1]), match[2].lower()
    if number < 0:
        raise InvalidConfiguration(f"{what} must not be negative, got {value!r}.")
    return int(number * _SIZE_UNITS[unit])


def _positive(what: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise InvalidConfiguration(f"{what} must be a whole number above 0, got {value!r}.")
    return value


class ScalingType(enum.Enum):
    """What the number of segments follows."""

    FIXED = "fixed"
    EVENT_RATE = "event_rate"
    DATA_RATE = "data_rate"


@dataclass(frozen=True, slots=True)
class ScalingPolicy:
    """How many segments a stream has: fixed, or following the rate of its events or bytes."""

    type: ScalingType
    minimum: int
    target: int = 0
    factor: int = 0

    def __post_init__(self) -> None:
        """Check the numbers: all above 0, as in Pravega."""
        _positive("the number of segments", self.minimum)
        if self.minimum > MAX_SEGMENTS:
            raise InvalidConfiguration(
                f"a stream has at most {MAX_SEGMENTS} segments, got {self.minimum}."
            )
        if self.type is not ScalingType.FIXED:
            _positive("the target rate", self.target)
            _positive("the split factor", self.factor)

    @classmethod
    def fixed(cls, segments: int) -> ScalingPolicy:
        """Keep ``segments`` segments, always."""
        return cls(ScalingType.FIXED, segments)

    @classmethod
    def by_event_rate(cls, target: int, factor: int = 2, minimum: int = 1) -> ScalingPolicy:
        """Aim at ``target`` events a second in each segment; split into at most ``factor``."""
        return cls(ScalingType.EVENT_RATE, minimum, target, factor)

    @classmethod
    def by_data_rate(cls, target: int, factor: int = 2, minimum: int = 1) -> ScalingPolicy:
        """Aim at ``target`` KiB a second in each segment; split into at most ``factor``."""
        return cls(ScalingType.DATA_RATE, minimum, target, factor)

    def to_json(self) -> dict[str, Any]:
        """Encode as JSON values."""
        record: dict[str, Any] = {"type": self.type.value, "minimum": self.minimum}
        if self.type is not ScalingType.FIXED:
            record |= {"target": self.target, "factor": self.factor}
        return record

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> ScalingPolicy:
        """Decode what :meth:`to_json` wrote."""
        return cls(
            ScalingType(record["type"]),
            record["minimum"],
            record.get("target", 0),
            record.get("factor", 0),
        )


@dataclass(frozen=True, slots=True)
class ScalingPace:
    """Times of automatic scaling in ms, all of Pravega's; :meth:`scaled` makes them all shorter.

    ``windows_ms`` are those of the four moving averages, and the least ages of a segment for
    these to count. ``tick_ms`` is how often the averages move. A segment is judged at writes at
    most every ``report_ms``, never before it is ``cooldown_ms`` old, and after a scale event not
    again for ``mute_ms``. An event counts, and a segment stays cold, for ``cold_ms``; one that was
    not written for ``idle_ms`` is cold until it is sealed. ``history_ms`` is how far the log is
    read back where nothing is remembered.
    """

    tick_ms: float = 5_000.0
    windows_ms: tuple[float, float, float, float] = (120_000.0, 300_000.0, 600_000.0, 1_200_000.0)
    report_ms: float = 120_000.0
    cooldown_ms: float = 600_000.0
    mute_ms: float = 600_000.0
    cold_ms: float = 600_000.0
    idle_ms: float = 1_200_000.0
    history_ms: float = 3_600_000.0

    def scaled(self, factor: float) -> ScalingPace:
        """Return the pace with every time multiplied by ``factor``, which is above 0."""
        if not 0.0 < factor < math.inf:
            raise InvalidConfiguration(f"a pace is scaled by a number above 0, got {factor!r}.")
        times: dict[str, Any] = {
            name: tuple(t * factor for t in value) if isinstance(value, tuple) else value * factor
            for name, value in asdict(self).items()
        }
        return ScalingPace(**times)

    @classmethod
    def of_cooldown(cls, cooldown: str | float) -> ScalingPace:
        """Return the pace with this cool-down, all other times in proportion to it."""
        standard = cls()
        cooldown_ms = parse_duration_ms("the cool-down", cooldown)
        if cooldown_ms < MIN_COOLDOWN_MS:
            raise InvalidConfiguration(
                f"the cool-down is at least {MIN_COOLDOWN_MS / 1_000:g} s, got {cooldown!r}."
            )
        return standard.scaled(cooldown_ms / standard.cooldown_ms)


class RetentionType(enum.Enum):
    """What decides how much of a stream is kept."""

    TIME = "time"
    SIZE = "size"
    CONSUMPTION = "consumption"


class LimitUnit(enum.Enum):
    """The unit of a retention policy's limits."""

    NONE = "none"
    TIME_MS = "time_ms"
    SIZE_BYTES = "size_bytes"


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """What a stream keeps: at least ``minimum``, at most ``maximum`` (None: no limit)."""

    type: RetentionType
    unit: LimitUnit
    minimum: int = 0
    maximum: int | None = None

    def __post_init__(self) -> None:
        """Check that the limits are in order."""
        if self.minimum < 0:
            raise InvalidConfiguration(f"the minimum to keep is negative: {self.minimum}.")
        if self.maximum is not None and self.maximum < max(1, self.minimum):
            raise InvalidConfiguration(
                f"the maximum to keep ({self.maximum}) is below the minimum ({self.minimum}) or 0."
            )

    @classmethod
    def by_time(cls, minimum: str | float, maximum: str | float | None = None) -> RetentionPolicy:
        """Keep what is younger than ``minimum``; ``maximum`` beats slow subscribers."""
        return cls(RetentionType.TIME, LimitUnit.TIME_MS, *_times(minimum, maximum))

    @classmethod
    def by_size(cls, minimum: str | int, maximum: str | int | None = None) -> RetentionPolicy:
        """Keep at least the newest ``minimum`` bytes; ``maximum`` beats slow subscribers."""
        return cls(RetentionType.SIZE, LimitUnit.SIZE_BYTES, *_sizes(minimum, maximum))

    @classmethod
    def by_consumption(
        cls,
        minimum: str | float | None = None,
        maximum: str | float | None = None,
    ) -> RetentionPolicy:
        """Keep what subscribers have not consumed, within limits of one unit (time or size)."""
        given = {"minimum": minimum, "maximum": maximum}
        units = {name: _unit_of(name, value) for name, value in given.items() if value is not None}
        if len(set(units.values())) > 1:
            raise InvalidConfiguration(
                f"the limits mix units: minimum {minimum!r} is a {units['minimum'].value} and "
                f"maximum {maximum!r} a {units['maximum'].value}; use one unit for both."
            )
        if not units:
            return cls(RetentionType.CONSUMPTION, LimitUnit.NONE)
        unit = next(iter(units.values()))
        reader = _times if unit is LimitUnit.TIME_MS else _sizes
        return cls(RetentionType.CONSUMPTION, unit, *reader(minimum or 0, maximum))  # type: ignore[arg-type]

    def to_json(self) -> dict[str, Any]:
        """Encode as JSON values."""
        record: dict[str, Any] = {"type": self.type.value, "unit": self.unit.value}
        record |= {"minimum": self.minimum, "maximum": self.maximum}
        return record

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> RetentionPolicy:
        """Decode what :meth:`to_json` wrote."""
        return cls(
            RetentionType(record["type"]),
            LimitUnit(record["unit"]),
            record["minimum"],
            record["maximum"],
        )


def _times(minimum: str | float, maximum: str | float | None) -> tuple[int, int | None]:
    low = parse_duration_ms("the minimum to keep", minimum)
    return low, None if maximum is None else parse_duration_ms("the maximum to keep", maximum)


def _sizes(minimum: str | int, maximum: str | int | None) -> tuple[int, int | None]:
    low = parse_size_bytes("the minimum to keep", minimum)
    return low, None if maximum is None else parse_size_bytes("the maximum to keep", maximum)


def _unit_of(name: str, value: str | float) -> LimitUnit:
    if isinstance(value, str):
        match = _DURATION.fullmatch(value)
        unit = match[2].lower() if match else ""
        if unit in _DURATION_UNITS_MS and unit != "m":
            return LimitUnit.TIME_MS
        if unit in _SIZE_UNITS and unit != "m" and unit:
            return LimitUnit.SIZE_BYTES
    raise InvalidConfiguration(
        f"the {name} {value!r} names no clear unit: write '1 hour', '7 days', '10 GB' or '500 MB'."
    )


@dataclass(frozen=True, slots=True, init=False)
class StreamConfiguration:
    """What a stream is created with; tags do not take part in equality, as in Pravega."""

    scaling: ScalingPolicy
    retention: RetentionPolicy | None
    tags: frozenset[str] = field(compare=False)

    def __init__(
        self,
        scaling: ScalingPolicy | None = None,
        retention: RetentionPolicy | None = None,
        tags: Iterable[str] = (),
    ) -> None:
        """Take one fixed segment unless told; at most 128 tags of at most 256 characters."""
        scaling = ScalingPolicy.fixed(1) if scaling is None else scaling
        if not isinstance(scaling, ScalingPolicy):
            raise InvalidConfiguration(f"scaling is a ScalingPolicy, got {scaling!r}.")
        if not isinstance(retention, RetentionPolicy | None):
            raise InvalidConfiguration(
                f"retention is a RetentionPolicy or None, got {retention!r}."
            )
        object.__setattr__(self, "scaling", scaling)
        object.__setattr__(self, "retention", retention)
        object.__setattr__(self, "tags", check_tags(tags))

    def to_json(self) -> dict[str, Any]:
        """Encode as JSON values."""
        return {
            "scaling": self.scaling.to_json(),
            "retention": self.retention.to_json() if self.retention else None,
            "tags": sorted(self.tags),
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> StreamConfiguration:
        """Decode what :meth:`to_json` wrote."""
        retention = record["retention"]
        return cls(
            ScalingPolicy.from_json(record["scaling"]),
            RetentionPolicy.from_json(retention) if retention else None,
            frozenset(record["tags"]),
        )


def check_tags(tags: Iterable[str]) -> frozenset[str]:
    """Return the tags as a set if they are within the limits."""
    if isinstance(tags, (str, Mapping)) or not isinstance(tags, Iterable):
        raise InvalidConfiguration(f"tags are a set of texts, got {tags!r}.")
    given = list(tags)
    for tag in given:
        if not isinstance(tag, str) or not 0 < len(tag) <= MAX_TAG_LENGTH:
            raise InvalidConfiguration(
                f"a tag is a text of 1 to {MAX_TAG_LENGTH} characters, got {tag!r}."
            )
        if not has_utf8(tag):
            raise InvalidConfiguration(
                f"the tag {tag!r} has no UTF-8 form: replace the lone surrogates in it."
            )
    found = frozenset(given)
    if len(found) > MAX_TAGS:
        raise InvalidConfiguration(f"a stream has at most {MAX_TAGS} tags, got {len(found)}.")
    return found
