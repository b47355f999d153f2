"""The configuration of a stream: its scaling and retention policies, its tags and its key."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, cast

from pravega_spark.config.encryption import EncryptionPolicy
from pravega_spark.config.root_settings import StreamSettings, decode_given
from pravega_spark.config.stream_schema import StreamSchema
from pravega_spark.errors import InvalidConfiguration
from pravega_spark.values.checks import is_number, is_whole, shown
from pravega_spark.values.limits import MAX_SEGMENTS, MIN_COOLDOWN_MS
from pravega_spark.values.tags import check_tags
from pravega_spark.values.units import parse_duration_ms, parse_size_bytes, unit_of

_WHOLE_LIMIT: Final = 1 << 63
"""Stored numbers are below it: Spark, Pravega's API and Delta have whole numbers of 64 bits."""


def _positive(what: str, value: object) -> int:
    if not is_whole(value) or cast("int", value) <= 0:
        raise InvalidConfiguration(f"{what} must be a whole number above 0, got {shown(value)}.")
    return _in_64_bits(what, cast("int", value))


def _in_64_bits(what: str, value: int) -> int:
    if value >= _WHOLE_LIMIT:
        raise InvalidConfiguration(
            f"{what} must be below {_WHOLE_LIMIT} (2**63), got {shown(value)}."
        )
    return value


class ScalingType(enum.Enum):
    """The measure by which segments are split and merged."""

    FIXED = "fixed"
    EVENT_RATE = "event_rate"
    DATA_RATE = "data_rate"


@dataclass(frozen=True, slots=True)
class ScalingPolicy:
    """The number of segments of a stream: fixed, or by the rate of its events or bytes."""

    type: ScalingType
    minimum: int
    target: int = 0
    factor: int = 0

    def __post_init__(self) -> None:
        """Check that all numbers are above 0, as in Pravega, and below 2**63."""
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
        """Always keep ``segments`` segments."""
        return cls(ScalingType.FIXED, segments)

    @classmethod
    def by_event_rate(cls, target: int, factor: int = 2, minimum: int = 1) -> ScalingPolicy:
        """Scale towards ``target`` events/s per segment; split into at most ``factor`` segments."""
        return cls(ScalingType.EVENT_RATE, minimum=minimum, target=target, factor=factor)

    @classmethod
    def by_data_rate(cls, target: int, factor: int = 2, minimum: int = 1) -> ScalingPolicy:
        """Scale towards ``target`` KiB/s per segment; split into at most ``factor`` segments."""
        return cls(ScalingType.DATA_RATE, minimum=minimum, target=target, factor=factor)

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
            minimum=record["minimum"],
            target=record.get("target", 0),
            factor=record.get("factor", 0),
        )


_WINDOWS: Final = 4
_MAY_BE_ZERO: Final = ("report_ms", "cooldown_ms", "mute_ms")


@dataclass(frozen=True, slots=True)
class ScalingPace:
    """The times of automatic scaling in ms, by default Pravega's; :meth:`scaled` changes them all.

    ``windows_ms`` are the windows of the four moving averages, and the least age of a segment for
    each to count. ``tick_ms`` is the interval at which the averages are updated. A segment is
    judged at writes at most every ``report_ms``, never before it is ``cooldown_ms`` old, and not
    for ``mute_ms`` after a scale event. An event counts, and a segment stays cold, for
    ``cold_ms``; a segment that was not written for ``idle_ms`` is cold until it is sealed.
    ``history_ms`` is how far back the log is read if no rates are stored.
    """

    tick_ms: float = 5_000.0
    windows_ms: tuple[float, float, float, float] = (120_000.0, 300_000.0, 600_000.0, 1_200_000.0)
    report_ms: float = 120_000.0
    cooldown_ms: float = 600_000.0
    mute_ms: float = 600_000.0
    cold_ms: float = 600_000.0
    idle_ms: float = 1_200_000.0
    history_ms: float = 3_600_000.0

    def __post_init__(self) -> None:
        """Raise InvalidConfiguration for a time that is not a number, or too small."""
        windows = self.windows_ms
        if not isinstance(windows, tuple) or len(windows) != _WINDOWS:
            raise InvalidConfiguration(
                f"windows_ms of a pace must be a tuple of {_WINDOWS} numbers, got {shown(windows)}."
            )
        for name, value in asdict(self).items():
            least = "at least" if name in _MAY_BE_ZERO else "above"
            for time_ms in value if isinstance(value, tuple) else (value,):
                if not is_number(time_ms) or time_ms < 0 or (time_ms == 0 and least == "above"):
                    raise InvalidConfiguration(
                        f"{name} of a pace must be a number of ms {least} 0, got {shown(time_ms)}."
                    )

    def scaled(self, factor: float) -> ScalingPace:
        """Return the pace with every time multiplied by ``factor``, which is above 0."""
        if not is_number(factor) or factor <= 0:
            raise InvalidConfiguration(
                f"the factor of a pace must be above 0, got {shown(factor)}."
            )
        times: dict[str, Any] = {
            name: tuple(t * factor for t in value) if isinstance(value, tuple) else value * factor
            for name, value in asdict(self).items()
        }
        return ScalingPace(**times)

    @classmethod
    def of_cooldown(cls, cooldown: str | float) -> ScalingPace:
        """Return the pace with this cool-down, and all other times in proportion."""
        standard = cls()
        cooldown_ms = parse_duration_ms("the cool-down", cooldown)
        if cooldown_ms < MIN_COOLDOWN_MS:
            raise InvalidConfiguration(
                f"the cool-down must be at least {MIN_COOLDOWN_MS / 1_000:g} s, got "
                f"{shown(cooldown)}."
            )
        return standard.scaled(cooldown_ms / standard.cooldown_ms)


class RetentionType(enum.Enum):
    """The measure by which a stream's events are kept."""

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
    """How much a stream keeps: at least ``minimum``, at most ``maximum`` (None: no limit)."""

    type: RetentionType
    unit: LimitUnit
    minimum: int = 0
    maximum: int | None = None

    def __post_init__(self) -> None:
        """Check the kinds of the values, and that the limits are in order."""
        if not (isinstance(self.type, RetentionType) and isinstance(self.unit, LimitUnit)):
            raise InvalidConfiguration(
                f"a retention policy needs a RetentionType and a LimitUnit, got {shown(self.type)} "
                f"and {shown(self.unit)}; use by_time, by_size or by_consumption."
            )
        if not is_whole(self.minimum) or self.minimum < 0:
            raise InvalidConfiguration(
                "the minimum to keep must be a whole number of at least 0, got "
                f"{shown(self.minimum)}."
            )
        if self.maximum is not None and not is_whole(self.maximum):
            raise InvalidConfiguration(
                f"the maximum to keep must be a whole number or None, got {shown(self.maximum)}."
            )
        if self.maximum is not None and self.maximum < max(1, self.minimum):
            raise InvalidConfiguration(
                f"the maximum to keep ({self.maximum}) is below the minimum ({self.minimum}) or 0; "
                "give a larger one, or None."
            )
        _in_64_bits("the minimum to keep", self.minimum)
        _in_64_bits("the maximum to keep", self.maximum or 0)

    @property
    def waits_for_subscribers(self) -> bool:
        """Whether the policy keeps events that subscribers have not consumed."""
        return self.type is RetentionType.CONSUMPTION

    @classmethod
    def by_time(cls, minimum: str | float, maximum: str | float | None = None) -> RetentionPolicy:
        """Keep events younger than ``minimum``; older ones are deleted, subscribers or not.

        As in Pravega's API, a ``maximum`` is accepted. It has no effect: nothing that is older than
        the minimum stays. Only :meth:`by_consumption` waits for subscribers.
        """
        return cls(RetentionType.TIME, LimitUnit.TIME_MS, *_times(minimum, maximum))

    @classmethod
    def by_size(cls, minimum: str | int, maximum: str | int | None = None) -> RetentionPolicy:
        """Keep the newest ``minimum`` bytes; older events are deleted, subscribers or not.

        Where whole commits would keep more than ``maximum``, the deletion is exact to the event.
        Only :meth:`by_consumption` waits for subscribers.
        """
        return cls(RetentionType.SIZE, LimitUnit.SIZE_BYTES, *_sizes(minimum, maximum))

    @classmethod
    def by_consumption(
        cls,
        minimum: str | float | None = None,
        maximum: str | float | None = None,
    ) -> RetentionPolicy:
        """Keep events until all subscribers have consumed them, within limits of one unit.

        Events within ``minimum`` stay even if they are consumed. Events beyond ``maximum`` are
        deleted even if a subscriber needs them. Without a subscriber, only the maximum deletes.
        """
        given = {"minimum": minimum, "maximum": maximum}
        units = {name: _unit_of(name, value) for name, value in given.items() if value is not None}
        if len(set(units.values())) > 1:
            raise InvalidConfiguration(
                f"the limits mix units: minimum {shown(minimum)} is a {units['minimum'].value} and "
                f"maximum {shown(maximum)} a {units['maximum'].value}; use one unit for both."
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
    kind = unit_of(value) if isinstance(value, str) else None
    if kind is not None:
        return LimitUnit.TIME_MS if kind == "time" else LimitUnit.SIZE_BYTES
    raise InvalidConfiguration(
        f"the {name} {shown(value)} names no clear unit: write '1 hour', '7 days', '10 GB' or '500 "
        "MB'."
    )


class Unchanged(enum.Enum):
    """The default for a field that an update does not name: None is a value of some fields."""

    UNCHANGED = "unchanged"


UNCHANGED: Final = Unchanged.UNCHANGED


@dataclass(frozen=True, slots=True, init=False)
class StreamConfiguration:
    """The configuration of a stream; equality ignores the tags, as in Pravega."""

    scaling: ScalingPolicy
    retention: RetentionPolicy | None
    tags: frozenset[str] = field(compare=False)
    settings: StreamSettings
    encryption: EncryptionPolicy | None
    schema: StreamSchema | None

    def __init__(
        self,
        scaling: ScalingPolicy | None = None,
        retention: RetentionPolicy | None = None,
        tags: Iterable[str] = (),
        settings: Mapping[str, Any] | None = None,
        encryption: EncryptionPolicy | None = None,
        schema: Any = None,
    ) -> None:
        """Default to one fixed segment; at most 128 tags of at most 256 characters.

        ``settings`` hold for this stream instead of the root's, such as ``{"grace": "2 hours"}``.
        With ``encryption``, events and routing keys are encrypted for the stream's whole life. With
        a ``schema``, events are rows of typed columns: a StreamSchema, or what ``StreamSchema.of``
        takes. Raises InvalidConfiguration, InvalidSchema.
        """
        scaling = ScalingPolicy.fixed(1) if scaling is None else scaling
        if not isinstance(scaling, ScalingPolicy):
            raise InvalidConfiguration(f"scaling must be a ScalingPolicy, got {shown(scaling)}.")
        if not isinstance(retention, RetentionPolicy | None):
            raise InvalidConfiguration(
                f"retention must be a RetentionPolicy or None, got {shown(retention)}."
            )
        if not isinstance(encryption, EncryptionPolicy | None):
            raise InvalidConfiguration(
                f"encryption must be an EncryptionPolicy or None, got {shown(encryption)}."
            )
        object.__setattr__(self, "scaling", scaling)
        object.__setattr__(self, "retention", retention)
        object.__setattr__(self, "tags", check_tags(tags))
        object.__setattr__(self, "settings", StreamSettings.of(settings or {}))
        object.__setattr__(self, "encryption", encryption)
        object.__setattr__(self, "schema", None if schema is None else StreamSchema.of(schema))

    def to_json(self) -> dict[str, Any]:
        """Encode as JSON values."""
        record = self.without_schema()
        if self.schema is not None:
            record["schema"] = json.loads(self.schema.to_json())
        return record

    def without_schema(self) -> dict[str, Any]:
        """Encode all but the schema as JSON values."""
        record: dict[str, Any] = {
            "scaling": self.scaling.to_json(),
            "retention": self.retention.to_json() if self.retention else None,
            "tags": sorted(self.tags),
        }
        if self.settings:
            record["settings"] = dict(self.settings)
        if self.encryption is not None:
            record["encryption"] = self.encryption.to_json()
        return record

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> StreamConfiguration:
        """Decode what :meth:`to_json` wrote."""
        retention, encryption = record["retention"], record.get("encryption")
        schema = record.get("schema")
        return cls(
            scaling=ScalingPolicy.from_json(record["scaling"]),
            retention=RetentionPolicy.from_json(retention) if retention else None,
            tags=frozenset(record["tags"]),
            settings=StreamSettings(decode_given(record.get("settings", {}).items())),
            encryption=None if encryption is None else EncryptionPolicy(encryption["key"]),
            schema=None if schema is None else StreamSchema.from_json(schema),
        )


def check_configuration(configuration: object) -> StreamConfiguration:
    """Return a StreamConfiguration; raise InvalidConfiguration for anything else."""
    if not isinstance(configuration, StreamConfiguration):
        raise InvalidConfiguration(f"a StreamConfiguration is needed, got {shown(configuration)}.")
    return configuration
