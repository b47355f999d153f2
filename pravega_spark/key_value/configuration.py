"""The configuration of a key-value table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pravega_spark.config.policies import RetentionPolicy, ScalingPolicy, StreamConfiguration
from pravega_spark.errors import InvalidConfiguration
from pravega_spark.key_value.keys import KeyType
from pravega_spark.values.checks import is_whole, shown
from pravega_spark.values.limits import (
    MAX_TABLE_KEY_BYTES,
    MAX_TABLE_VALUE_BYTES,
    TABLE_STALENESS,
    TABLE_VALUE_BYTES,
)
from pravega_spark.values.tags import check_tags
from pravega_spark.values.units import duration_text, parse_duration_ms, parse_size_bytes


@dataclass(frozen=True, slots=True)
class KeyValueTableConfiguration:
    """What a table's keys and values are, and how it grows; never changed.

    ``key_type`` is "bytes", "string" or "long". With a ``primary_key_length`` all primary keys have
    this number of bytes; a ``secondary_key_length`` above 0 gives every key a second part of this
    length. ``partitions`` is the number of segments that the change log begins with, and keeps,
    unless a ``scaling`` policy is given. An entry is hidden, and later removed, when its ``ttl`` is
    over. A get sees what others wrote up to ``staleness`` before.
    """

    key_type: KeyType | str = KeyType.BYTES
    primary_key_length: int | None = None
    secondary_key_length: int = 0
    partitions: int = 1
    scaling: ScalingPolicy | None = None
    ttl: str | float | None = None
    max_value_bytes: str | int = TABLE_VALUE_BYTES
    staleness: str | float = TABLE_STALENESS
    tags: frozenset[str] = field(default=frozenset(), compare=False)

    def __post_init__(self) -> None:
        """Check and normalise the values; raise InvalidConfiguration."""
        try:
            key_type = KeyType(self.key_type)
        except ValueError:
            kinds = ", ".join(kind.value for kind in KeyType)
            raise InvalidConfiguration(
                f"the key type of a table is one of {kinds}, got {shown(self.key_type)}."
            ) from None
        self._set("key_type", key_type)
        self._check_lengths(key_type)
        if self.scaling is None:
            self._set("scaling", ScalingPolicy.fixed(self.partitions))
        elif not isinstance(self.scaling, ScalingPolicy):
            raise InvalidConfiguration(
                f"the scaling of a table is a ScalingPolicy, got {shown(self.scaling)}."
            )
        else:
            self._set("partitions", self.scaling.minimum)
        if self.ttl is not None:
            ttl_ms = parse_duration_ms("the ttl of a table", self.ttl)
            if ttl_ms <= 0:
                raise InvalidConfiguration(f"a ttl must be above 0, got {shown(self.ttl)}.")
            self._set("ttl", duration_text(ttl_ms))
        size = parse_size_bytes("max_value_bytes of a table", self.max_value_bytes)
        if not 0 < size <= MAX_TABLE_VALUE_BYTES:
            raise InvalidConfiguration(
                f"max_value_bytes of a table must be 1 to {MAX_TABLE_VALUE_BYTES}, got "
                f"{shown(self.max_value_bytes)}; store larger values elsewhere and put a reference."
            )
        self._set("max_value_bytes", size)
        self._set(
            "staleness",
            duration_text(parse_duration_ms("the staleness of a table", self.staleness)),
        )
        self._set("tags", check_tags(self.tags, title="a table"))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _check_lengths(self, key_type: KeyType) -> None:
        first, second = self.primary_key_length, self.secondary_key_length
        if first is not None and (not is_whole(first) or first <= 0):
            raise InvalidConfiguration(
                f"primary_key_length must be a whole number above 0 or None, got {shown(first)}."
            )
        if first is not None and key_type is not KeyType.BYTES:
            raise InvalidConfiguration(
                f"primary_key_length is for keys of bytes; keys of type {key_type.value} have none."
            )
        if not is_whole(second) or second < 0:
            raise InvalidConfiguration(
                f"secondary_key_length must be a whole number of at least 0, got {shown(second)}."
            )
        if (first or 1) + second > MAX_TABLE_KEY_BYTES:
            raise InvalidConfiguration(
                f"a key has at most {MAX_TABLE_KEY_BYTES} bytes, got lengths of {first} and "
                f"{second}."
            )

    @property
    def ttl_ms(self) -> int | None:
        """The time to live of an entry in ms, or None if entries stay."""
        return None if self.ttl is None else parse_duration_ms("ttl", self.ttl)

    @property
    def value_limit(self) -> int:
        """The largest value in bytes."""
        return parse_size_bytes("max_value_bytes", self.max_value_bytes)

    @property
    def staleness_ms(self) -> int:
        """How old the changes of others that a get may miss can be, in ms."""
        return parse_duration_ms("staleness", self.staleness)

    def of_log(self) -> StreamConfiguration:
        """Return the configuration of the change log, which is kept until it is folded."""
        assert self.scaling is not None
        return StreamConfiguration(self.scaling, RetentionPolicy.by_consumption(), self.tags)

    def to_json(self) -> dict[str, Any]:
        """Encode as JSON values."""
        assert self.scaling is not None
        return {
            "keyType": KeyType(self.key_type).value,
            "primaryKeyLength": self.primary_key_length,
            "secondaryKeyLength": self.secondary_key_length,
            "scaling": self.scaling.to_json(),
            "ttl": self.ttl,
            "maxValueBytes": self.max_value_bytes,
            "staleness": self.staleness,
            "tags": sorted(self.tags),
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> KeyValueTableConfiguration:
        """Decode what :meth:`to_json` wrote."""
        return cls(
            record["keyType"],
            record["primaryKeyLength"],
            record["secondaryKeyLength"],
            scaling=ScalingPolicy.from_json(record["scaling"]),
            ttl=record["ttl"],
            max_value_bytes=record["maxValueBytes"],
            staleness=record["staleness"],
            tags=frozenset(record["tags"]),
        )
