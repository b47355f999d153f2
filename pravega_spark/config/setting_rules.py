"""The rules of single settings: allowed values, and how they are stored and shown. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pravega_spark.errors import InvalidConfiguration
from pravega_spark.values.checks import shown
from pravega_spark.values.units import (
    duration_text,
    exact_size_text,
    parse_duration_ms,
    parse_size_bytes,
)

SettingValue = int | str | None
"""A parsed value: of a duration in ms, or None for ``never``; of a size in bytes; of a choice its
word."""
NEVER: Final = "never"
LONGEST: Final = "3650 days"


@dataclass(frozen=True, slots=True)
class DurationRule:
    """A duration from ``least`` to ten years; ``never`` is allowed if that is the default."""

    default: str
    least: str
    of_streams: bool
    """Whether a stream's configuration may override it."""
    meaning: str

    def parse(self, name: str, given: object, *, is_bounded: bool = True) -> SettingValue:
        """Return a given value in ms; raise InvalidConfiguration for anything else.

        Without ``is_bounded``, any duration is allowed: the caller chose it for one run.
        """
        is_never = isinstance(given, str) and given.strip().lower() == NEVER
        if is_never and self.default == NEVER:
            return None
        value = parse_duration_ms(f"the setting {name}", given)  # type: ignore[arg-type]
        low, high = (parse_duration_ms(name, limit) for limit in (self.least, LONGEST))
        if is_bounded and not low <= value <= high:
            raise InvalidConfiguration(
                f"the setting {name} must be {self.limits}, got {shown(given)}; nothing was "
                "changed."
            )
        return value

    def decode(self, value: object) -> SettingValue:
        """Return a stored value; raise ValueError if it is none, or beyond the limits."""
        if value is None and self.default == NEVER:
            return None
        low, high = (parse_duration_ms("a limit", limit) for limit in (self.least, LONGEST))
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise ValueError(f"{value!r} is not a duration in ms of {self.limits}")
        return value

    def text(self, value: SettingValue) -> str:
        """Return a value as users write it; the default as it is written in the limits."""
        if value is None or self.default == NEVER:
            return NEVER if value is None else duration_text(int(value))
        is_default = value == parse_duration_ms("a default", self.default)
        return self.default if is_default else duration_text(int(value))

    @property
    def limits(self) -> str:
        """The allowed values, for people."""
        limits = f"{self.least} to {LONGEST}"
        return f"{limits}, or '{NEVER}'" if self.default == NEVER else limits


@dataclass(frozen=True, slots=True)
class SizeRule:
    """A size in bytes within two limits."""

    default: str
    least: str
    most: str
    of_streams: bool
    """Whether a stream's configuration may override it."""
    meaning: str

    def parse(self, name: str, given: object, *, is_bounded: bool = True) -> SettingValue:
        """Return a given value in bytes; raise InvalidConfiguration beyond the limits."""
        value = parse_size_bytes(f"the setting {name}", given)  # type: ignore[arg-type]
        if not self._allows(value):
            raise InvalidConfiguration(
                f"the setting {name} must be {self.limits}, got {shown(given)}; nothing was "
                "changed."
            )
        return value

    def decode(self, value: object) -> SettingValue:
        """Return a stored value; raise ValueError if it is none, or beyond the limits."""
        if not isinstance(value, int) or isinstance(value, bool) or not self._allows(value):
            raise ValueError(f"{value!r} is not a size in bytes of {self.limits}")
        return value

    def text(self, value: SettingValue) -> str:
        """Return a value as users write it."""
        return exact_size_text(int(value or 0))

    @property
    def limits(self) -> str:
        """The allowed values, for people."""
        return f"{self.least} to {self.most}"

    def _allows(self, value: int) -> bool:
        low, high = (parse_size_bytes("a limit", limit) for limit in (self.least, self.most))
        return low <= value <= high


@dataclass(frozen=True, slots=True)
class ChoiceRule:
    """One of a few words."""

    default: str
    choices: tuple[str, ...]
    stream_choices: tuple[str, ...]
    """Those that a stream's configuration may give; none if it may not override the setting."""
    meaning: str

    @property
    def of_streams(self) -> bool:
        """Whether a stream's configuration may override it."""
        return bool(self.stream_choices)

    def parse(self, name: str, given: object, *, is_bounded: bool = True) -> SettingValue:
        """Return a given word; raise InvalidConfiguration for anything else."""
        if given not in self.choices:
            raise InvalidConfiguration(
                f"the setting {name} must be {self.limits}, got {shown(given)}; nothing was "
                "changed."
            )
        return str(given)

    def decode(self, value: object) -> SettingValue:
        """Return a stored value; raise ValueError if it is none."""
        if value not in self.choices:
            raise ValueError(f"{value!r} is not one of {self.choices}")
        return str(value)

    def text(self, value: SettingValue) -> str:
        """Return a value as users write it."""
        return str(value)

    @property
    def limits(self) -> str:
        """The allowed values, for people."""
        return " or ".join(map(repr, self.choices))


SettingRule = DurationRule | SizeRule | ChoiceRule
