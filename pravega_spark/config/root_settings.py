"""The settings of a root: their rules, and the one function that decides which value holds.

A setting is given in up to three places: by the argument of a call or the flag of a job, in the
configuration of a stream, and in the root's table of settings. The first of these decides, and
without any the default does. Each setting is one field of :class:`EffectiveSettings`. Pure.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Final

from pravega_spark.config.setting_rules import (
    NEVER,
    ChoiceRule,
    DurationRule,
    SettingRule,
    SettingValue,
    SizeRule,
)
from pravega_spark.errors import InvalidConfiguration
from pravega_spark.values.checks import shown
from pravega_spark.values.limits import (
    COMPACT_HEAD_AFTER,
    COMPACT_TARGET,
    COMPACTION_INTERVAL,
    FOLDING_INTERVAL,
    KEEP_COMPLETED,
    PREPARED_LIMIT,
    RETENTION_INTERVAL,
    SAMPLE_FREQUENCY,
    SCALING_INTERVAL,
    SWEEP_GRACE,
    SWEEP_RETAIN,
    SWEEPING_INTERVAL,
    TIMESTAMP_AGGREGATION_TIMEOUT,
    TRANSACTIONS_INTERVAL,
    WATERMARKS_INTERVAL,
)
from pravega_spark.values.units import parse_duration_ms, parse_size_bytes

GivenSettings = Mapping[str, SettingValue]
"""The parsed values that one place gives, by name; a setting that is not in it is not given."""
NOTHING_GIVEN: Final[GivenSettings] = MappingProxyType({})


class SettingOrigin(enum.Enum):
    """The place that decides a setting."""

    DEFAULT = "default"
    SET_UP = "set-up"
    """The root, since it was set up: nobody has chosen the value."""
    ROOT = "root"
    STREAM = "stream"
    FLAG = "flag"


def _duration(default: str, least: str, meaning: str, *, of_streams: bool = True) -> Any:
    rule = DurationRule(default, least, of_streams, meaning)
    value = None if default == NEVER else parse_duration_ms("a default", default)
    return field(default=value, metadata={"rule": rule})


def _size(default: str, least: str, most: str, meaning: str) -> Any:
    rule = SizeRule(default, least, most, True, meaning)
    return field(default=parse_size_bytes("a default", default), metadata={"rule": rule})


def _interval(default: str, kind: str) -> Any:
    meaning = f"pause between the starts of two rounds of {kind}"
    return _duration(default, "1 s", meaning, of_streams=False)


OFF: Final = "off"
AUTO: Final = "auto"
"""The setting ``maintain`` by which processes that use the root do its maintenance."""
MAINTAIN: Final = ChoiceRule(
    OFF, (OFF, AUTO), (OFF,), "whether processes that use the root do its maintenance, too"
)
SET_UP: Final = "set_up"
"""The name, beside those of settings, under which a root keeps the name of the setting that was
given when the root was set up, and not changed since."""


@dataclass(frozen=True, slots=True, repr=False)
class EffectiveSettings:
    """The settings that hold for a root, a stream or a run, and where each was given.

    To add a setting, add a field with its rule. A name that ends in ``_ms`` is of a duration, and
    one in ``_bytes`` of a size; the setting is named without it.
    """

    grace_ms: int = _duration(SWEEP_GRACE, "1 minute", "age of a staged file that a sweep deletes")
    retain_ms: int = _duration(SWEEP_RETAIN, "0 s", "age up to which versions stay readable")
    sample_every_ms: int = _duration(
        SAMPLE_FREQUENCY, "1 s", "age of the newest sample of the tail at which a run adds one"
    )
    expire_ms: int | None = _duration(
        NEVER, "1 minute", "silence after which a subscriber is removed"
    )
    keep_completed_ms: int = _duration(
        KEEP_COMPLETED, "1 minute", "time that the outcome of a transaction is kept"
    )
    keep_records_ms: int | None = _duration(
        NEVER,
        "1 minute",
        "time without a change after which records of named writers and removed subscribers leave "
        "the state; at most `retain`",
    )
    prepared_limit_ms: int = _duration(
        PREPARED_LIMIT, "1 minute", "time after which an undecided prepared transaction is aborted"
    )
    compact_target_bytes: int = _size(
        COMPACT_TARGET, "16 KiB", "4 GiB", "size of the files to which compaction merges chunks"
    )
    compact_head_after_ms: int = _duration(
        COMPACT_HEAD_AFTER,
        "1 minute",
        "time without a truncation after which truncated events leave the files",
    )
    timestamp_aggregation_timeout_ms: int = _duration(
        TIMESTAMP_AGGREGATION_TIMEOUT,
        "0 s",
        "silence after which a writer no longer holds the watermark back",
    )
    retention_interval_ms: int = _interval(RETENTION_INTERVAL, "retention")
    scaling_interval_ms: int = _interval(SCALING_INTERVAL, "scaling")
    transactions_interval_ms: int = _interval(TRANSACTIONS_INTERVAL, "transactions")
    compaction_interval_ms: int = _interval(COMPACTION_INTERVAL, "compaction")
    folding_interval_ms: int = _interval(FOLDING_INTERVAL, "folding")
    sweeping_interval_ms: int = _interval(SWEEPING_INTERVAL, "sweeping")
    watermarks_interval_ms: int = _interval(WATERMARKS_INTERVAL, "watermarks")
    maintain: str = field(default=MAINTAIN.default, metadata={"rule": MAINTAIN})
    origins: tuple[tuple[str, SettingOrigin], ...] = ()
    """Where each setting that is not the default was given, by name."""

    def origin(self, name: str) -> SettingOrigin:
        """Return where a setting was given. Raises InvalidConfiguration for an unknown name."""
        rule_of(name)
        return dict(self.origins).get(name, SettingOrigin.DEFAULT)

    def value(self, name: str) -> SettingValue:
        """Return a setting by its name. Raises InvalidConfiguration for an unknown name."""
        rule_of(name)
        return getattr(self, _FIELDS[name].name)  # type: ignore[no-any-return]

    def text(self, name: str) -> str:
        """Return a setting as users write it, such as ``2 hours``."""
        return rule_of(name).text(self.value(name))

    def summary(self, names: Iterable[str] | None = None) -> str:
        """Return what somebody gave, as ``grace=2 hours (root), retain=1 day (flag)``."""
        given = {n: origin for n, origin in self.origins if origin is not SettingOrigin.SET_UP}
        wanted = [name for name in SETTING_NAMES if names is None or name in names]
        return ", ".join(f"{n}={self.text(n)} ({given[n].value})" for n in wanted if n in given)

    def records_ms(self) -> int | None:
        """Return ``keep_records_ms``; raise InvalidConfiguration if it exceeds ``retain_ms``."""
        if self.keep_records_ms is not None and self.keep_records_ms > self.retain_ms:
            keep, retain = (
                f"{name} {self.text(name)!r} ({self.origin(name).value})"
                for name in ("keep_records", "retain")
            )
            raise InvalidConfiguration(
                f"{keep} is longer than {retain}: the log does not know the age of a record whose "
                "version is not retained. Make keep_records shorter, or retain longer."
            )
        return self.keep_records_ms

    def given_by(self, origin: SettingOrigin) -> str:
        """Return the settings of one origin as a text for people, such as ``grace=2 hours``."""
        return ", ".join(
            f"{name}={self.text(name)}" for name, found in self.origins if found is origin
        )

    def __repr__(self) -> str:
        """Show each setting as users write it, with its origin."""
        shown = (f"{n}={self.text(n)!r} ({self.origin(n).value})" for n in SETTING_NAMES)
        return f"EffectiveSettings({', '.join(shown)})"


_FIELDS: Final[Mapping[str, Field[Any]]] = {
    found.name.removesuffix("_ms").removesuffix("_bytes"): found
    for found in fields(EffectiveSettings)
    if "rule" in found.metadata
}
SETTING_NAMES: Final = tuple(_FIELDS)


def decide_settings(
    root: GivenSettings,
    stream: GivenSettings = NOTHING_GIVEN,
    flags: GivenSettings = NOTHING_GIVEN,
) -> EffectiveSettings:
    """Return the settings that hold: a flag before the stream, the root, and the default."""
    places = (
        (SettingOrigin.ROOT, root),
        (SettingOrigin.STREAM, stream),
        (SettingOrigin.FLAG, flags),
    )
    values: dict[str, Any] = {}
    origins: dict[str, SettingOrigin] = {}
    for origin, given in places:
        for name in SETTING_NAMES:
            if name in given:
                values[_FIELDS[name].name] = given[name]
                is_set_up = origin is SettingOrigin.ROOT and root.get(SET_UP) == name
                origins[name] = SettingOrigin.SET_UP if is_set_up else origin
    return EffectiveSettings(**values, origins=tuple(sorted(origins.items())))


def rule_of(name: str, *, of_streams: bool = False) -> SettingRule:
    """Return the rule of a setting; raise InvalidConfiguration for an unknown name.

    With ``of_streams`` the setting must be one that a stream may override.
    """
    known = STREAM_SETTING_NAMES if of_streams else SETTING_NAMES
    if name not in known:
        what = "setting of a stream" if of_streams else "setting"
        raise InvalidConfiguration(
            f"there is no {what} {shown(name)}. Use one of {', '.join(known)}."
        )
    return _rule(name)


def _rule(name: str) -> SettingRule:
    rule: SettingRule = _FIELDS[name].metadata["rule"]
    return rule


STREAM_SETTING_NAMES: Final = tuple(name for name in SETTING_NAMES if _rule(name).of_streams)
"""The settings that a stream may override."""


@dataclass(frozen=True, slots=True)
class SettingSources:
    """What the root and a run's flags give; a stream's configuration completes it."""

    root: GivenSettings = field(default_factory=dict)
    flags: GivenSettings = field(default_factory=dict)

    def of_stream(self, given: GivenSettings) -> EffectiveSettings:
        """Return the settings of a stream that overrides these."""
        return decide_settings(self.root, given, self.flags)

    def of_root(self) -> EffectiveSettings:
        """Return the settings that hold where no stream overrides them."""
        return decide_settings(self.root, flags=self.flags)


@dataclass(frozen=True, slots=True)
class SettingChanges:
    """Checked changes of some settings; the others stay as they are."""

    values: GivenSettings = field(default_factory=dict)
    cleared: tuple[str, ...] = ()
    """The settings that are no longer given."""

    @property
    def names(self) -> frozenset[str]:
        """The settings that are given or no longer given."""
        return frozenset({*self.values, *self.cleared})

    def apply(self, given: GivenSettings) -> dict[str, SettingValue]:
        """Return what is given after the changes."""
        kept = {name: value for name, value in given.items() if name not in self.cleared}
        return dict(sorted({**kept, **self.values}.items()))


class StreamSettings(Mapping[str, SettingValue]):
    """The settings in a stream's configuration, by name; they hold instead of the root's."""

    __slots__ = ("_given",)

    def __init__(self, given: GivenSettings = NOTHING_GIVEN) -> None:
        self._given = dict(sorted(given.items()))

    @classmethod
    def of(cls, given: object) -> StreamSettings:
        """Return a mapping as users write it, such as ``{"grace": "2 hours"}``, parsed.

        Raises InvalidConfiguration.
        """
        if isinstance(given, StreamSettings):
            return given
        return cls(check_stream_settings(given).values)

    def __getitem__(self, name: str) -> SettingValue:
        """Return the value of a setting that is given."""
        return self._given[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)

    def __hash__(self) -> int:
        return hash(tuple(self._given.items()))

    def __repr__(self) -> str:
        """Show the settings as users write them."""
        return repr({name: _rule(name).text(value) for name, value in self._given.items()})


def parse_changes(changes: Mapping[str, object], *, of_streams: bool = False) -> SettingChanges:
    """Check changes as users write them: a value sets, None clears.

    Raises InvalidConfiguration for an unknown name, and for a value out of its limits.
    """
    rules = {name: rule_of(name, of_streams=of_streams) for name in changes}
    for name, rule in rules.items():
        if of_streams and isinstance(rule, ChoiceRule):
            rules[name] = replace(rule, choices=rule.stream_choices)
    values = {
        name: rules[name].parse(name, value) for name, value in changes.items() if value is not None
    }
    return SettingChanges(values, tuple(sorted(set(changes) - set(values))))


def check_stream_settings(changes: object) -> SettingChanges:
    """Return checked changes of a stream's settings. Raises InvalidConfiguration."""
    if not isinstance(changes, Mapping):
        raise InvalidConfiguration(
            f"the settings of a stream map names to values, got {shown(changes)}; write "
            "{'grace': '2 hours'}."
        )
    return parse_changes(changes, of_streams=True)


def parse_flags(flags: Mapping[str, object]) -> dict[str, SettingValue]:
    """Return what the arguments of a call give; None does not give a setting.

    Raises InvalidConfiguration for a value that cannot be read. Limits do not apply.
    """
    return {
        name: rule_of(name).parse(name, value, is_bounded=False)
        for name, value in flags.items()
        if value is not None
    }


def decode_given(stored: Iterable[tuple[str, object]]) -> dict[str, SettingValue]:
    """Return stored settings, and SET_UP, by name, without those that only a newer version knows.

    Raises ValueError for a value that breaks the rule of its type.
    """
    found: dict[str, SettingValue] = {}
    for name, value in stored:
        if name == SET_UP:
            found[name] = str(value)
        elif name in _FIELDS:
            try:
                found[name] = _rule(name).decode(value)
            except ValueError as error:
                raise ValueError(f"the setting {name}: {error}") from None
    return found
