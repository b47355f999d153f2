"""What retention truncates, what it keeps and why, as text and as a row."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pravega_spark.config.policies import LimitUnit, RetentionPolicy, RetentionType
from pravega_spark.retention.decision import RetentionRule
from pravega_spark.values.segments import StreamCut
from pravega_spark.values.units import count_text, size_text, time_text


@dataclass(frozen=True, slots=True)
class DataAmount:
    """The size of a part of a stream; ``seconds`` is the age of its oldest event, 0 without events.

    The age counts from the event's commit. Where only samples of the log remain, it is the least
    possible age.
    """

    events: int = 0
    size_bytes: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        """Return a text such as ``48,000 events, 4.6 MiB, 9.5 hours``."""
        if not self.events:
            return "nothing"
        events, size = count_text(self.events, "event"), size_text(self.size_bytes)
        return f"{events}, {size}, {time_text(self.seconds)}"


@dataclass(frozen=True, slots=True)
class RetentionClaim:
    """A holder that keeps data from truncation, the cut from which on, and the amount."""

    holder: str
    """``minimum``, ``subscriber scope/group``, or the rule that allows no truncation."""
    cut: StreamCut
    holds: DataAmount


@dataclass(frozen=True, slots=True)
class PassedSubscriber:
    """A subscriber that loses data which it has not consumed: from ``cut`` to the new head."""

    subscriber: str
    cut: StreamCut
    loses: DataAmount

    def __str__(self) -> str:
        """Return a text such as ``nyc/archive: 5 events, 50 B, 9.0 minutes``."""
        return f"{self.subscriber}: {self.loses}"


@dataclass(frozen=True, slots=True)
class RetentionExplanation:
    """A decision on a stream at one version: which data goes, which stays, and who holds it."""

    stream: str
    version: int
    policy: RetentionPolicy | None
    rule: RetentionRule
    head: StreamCut
    cut: StreamCut | None
    """The new head, or None if the head does not move."""
    goes: DataAmount
    stays: DataAmount
    claims: tuple[RetentionClaim, ...] = ()
    """All holders of data that stays, the largest first."""
    passed: tuple[PassedSubscriber, ...] = ()
    """Subscribers that lose unconsumed data: to a policy by time or size, which does not wait for
    them, or to the maximum of one by consumption."""
    idle: tuple[str, ...] = ()
    """Subscribers that expire and are removed."""

    overdue: str = field(default="", compare=False)
    """Of ``explain``: that retention has not run for a while, or an empty text."""
    awaited: tuple[str, ...] = field(default=(), compare=False)
    """Of ``explain``: the checkpoints of the holders that wait for a reader, as texts."""

    @property
    def held_by(self) -> str:
        """The holder of the oldest event that stays, or an empty text without one."""
        return self.claims[0].holder if self.claims else ""

    def __str__(self) -> str:
        lines = [
            f"{self.stream} at version {self.version}: {policy_text(self.policy)}",
            f"  goes:  {self.goes} ({self.rule.value})",
            f"  stays: {self.stays}",
        ]
        lines += [f"  held by {claim.holder}: {claim.holds}" for claim in self.claims]
        waits = self.policy is None or self.policy.waits_for_subscribers
        why = " because of the maximum" if waits else ""
        lines += [f"  loses unread data{why}: subscriber {passed}" for passed in self.passed]
        if self.passed and not waits:
            lines.append("  only a policy by consumption waits for subscribers")
        lines += [f"  expires: subscriber {name}" for name in self.idle]
        lines += [f"  {text}" for text in self.awaited]
        lines += [f"  {self.overdue}"] if self.overdue else []
        return "\n".join(lines)

    def row(self) -> dict[str, Any]:
        """Return the decision as a record."""
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
            "passed": "; ".join(map(str, self.passed)),
            "expired": ", ".join(self.idle),
        }


def policy_text(policy: RetentionPolicy | None) -> str:
    """Return a policy as text: ``by time, 1.0 hours to 7.0 days``."""
    if policy is None:
        return "no policy"
    name = f"by {policy.type.value}"
    if policy.unit is LimitUnit.NONE:
        return name

    def text(limit: int) -> str:
        is_time = policy.unit is LimitUnit.TIME_MS
        return time_text(limit / 1_000) if is_time else size_text(limit)

    if policy.maximum is not None and policy.type is RetentionType.TIME:
        limits = f"at least {text(policy.minimum)}"
        return f"{name}, {limits} (the maximum of {text(policy.maximum)} has no effect)"
    if policy.maximum is not None:
        least = f"{text(policy.minimum)} to" if policy.minimum else "at most"
        return f"{name}, {least} {text(policy.maximum)}"
    if policy.type is RetentionType.CONSUMPTION and not policy.minimum:
        return name
    return f"{name}, at least {text(policy.minimum)}"
