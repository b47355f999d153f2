"""What retention would do with a stream and why: for people, and as rows for tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pravega_spark.model import StreamCut
from pravega_spark.policies import LimitUnit, RetentionPolicy, RetentionType
from pravega_spark.retention.truncation_decision import RetentionRule


@dataclass(frozen=True, slots=True)
class DataAmount:
    """A part of a stream; ``seconds`` is the age of its oldest event by its commit, 0 if none.

    Where only samples are left of the past, the age is the least that it can be.
    """

    events: int = 0
    size_bytes: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        """Return it as people read it."""
        if not self.events:
            return "nothing"
        return f"{self.events:,} events, {size_text(self.size_bytes)}, {time_text(self.seconds)}"


@dataclass(frozen=True, slots=True)
class RetentionClaim:
    """Who or what holds data back, from which cut on, and how much of what stays that is."""

    holder: str
    """``minimum``, ``subscriber scope/group``, or the rule that lets nothing go."""
    cut: StreamCut
    holds: DataAmount


@dataclass(frozen=True, slots=True)
class RetentionExplanation:
    """A decision on a stream at one version, with what goes, what stays, and who holds it."""

    stream: str
    version: int
    policy: RetentionPolicy | None
    rule: RetentionRule
    head: StreamCut
    cut: StreamCut | None
    """The head that is wanted; None if it is to stay where it is."""
    goes: DataAmount
    stays: DataAmount
    claims: tuple[RetentionClaim, ...] = ()
    """The largest first."""
    passed: tuple[str, ...] = ()
    """Subscribers that lose data which they have not consumed, to the maximum."""
    idle: tuple[str, ...] = ()
    """Subscribers that expire."""

    @property
    def held_by(self) -> str:
        """Who holds the oldest of what stays; empty if nobody does."""
        return self.claims[0].holder if self.claims else ""

    def __str__(self) -> str:
        """Return it as lines for people."""
        lines = [
            f"{self.stream} at version {self.version}: {policy_text(self.policy)}",
            f"  goes:  {self.goes}" + (f" ({self.rule.value})" if self.cut else ""),
        ]
        if self.cut is None:
            lines[-1] += f" ({self.rule.value})"
        lines.append(f"  stays: {self.stays}")
        lines += [f"  held by {claim.holder}: {claim.holds}" for claim in self.claims]
        lines += [f"  loses data to the maximum: subscriber {name}" for name in self.passed]
        lines += [f"  expires: subscriber {name}" for name in self.idle]
        return "\n".join(lines)

    def row(self) -> dict[str, Any]:
        """Return it as a row of ``run.ROW_SCHEMA``, but for what was done."""
        claims = (f"{claim.holder}: {claim.holds}" for claim in self.claims)
        return {
            "policy": policy_text(self.policy),
            "decision": self.rule.value,
            "cut": None if self.cut is None else str(self.cut),
            "goes_events": self.goes.events,
            "goes_bytes": self.goes.size_bytes,
            "stays_events": self.stays.events,
            "stays_bytes": self.stays.size_bytes,
            "stays_seconds": self.stays.seconds,
            "held_by": "; ".join(claims),
            "passed": ", ".join(self.passed),
            "expired": ", ".join(self.idle),
        }


def policy_text(policy: RetentionPolicy | None) -> str:
    """Return a policy as people say it: ``by time, 1.0 hours to 7.0 days``."""
    if policy is None:
        return "no policy"
    name = f"by {policy.type.value}"
    if policy.unit is LimitUnit.NONE:
        return name

    def text(limit: int) -> str:
        is_time = policy.unit is LimitUnit.TIME_MS
        return time_text(limit / 1_000) if is_time else size_text(limit)

    if policy.maximum is not None:
        least = f"{text(policy.minimum)} to" if policy.minimum else "at most"
        return f"{name}, {least} {text(policy.maximum)}"
    if policy.type is RetentionType.CONSUMPTION and not policy.minimum:
        return name
    return f"{name}, at least {text(policy.minimum)}"


def size_text(size_bytes: int) -> str:
    """Return a size as people read it: ``1.5 MiB``."""
    number, unit = float(size_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if number < 1_024:
            break
        number, unit = number / 1_024, larger
    return f"{number:,.0f} {unit}" if unit == "B" else f"{number:,.1f} {unit}"


def time_text(seconds: float) -> str:
    """Return a time as people read it: ``2.5 hours``."""
    for length, unit in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:,.1f} s"
