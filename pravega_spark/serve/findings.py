"""What an operator must know of a root, from what the looks found. Pure: no storage call.

Critical is what loses events or stops an application; a warning will, if nobody acts; a note may
be as it should be.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from pravega_spark.config.descriptions import MaintenanceInfo, MaintenanceKind
from pravega_spark.serve.attention_models import Finding
from pravega_spark.serve.found_damage import (
    KEPT_RANGES,
    TABLE,
    FoundDamage,
    entries_address,
    events_address,
)
from pravega_spark.serve.group_watch import GroupSeen
from pravega_spark.serve.stream_facts import MAXIMUM_PART, LeaseFact, StreamFacts
from pravega_spark.values.limits import CLOCK_SKEW_MS, OVERDUE_INTERVALS, OVERDUE_MS
from pravega_spark.values.units import time_text

CRITICAL, WARNING, NOTE = "critical", "warning", "note"
_ORDER: Final = {CRITICAL: 0, WARNING: 1, NOTE: 2}

READERLESS_SECONDS: Final = 60.0
"""A group may be without readers for so long, as when they are started again."""
WAITING_SECONDS: Final = 60.0
"""A checkpoint may wait for readers for so long."""
LEASE_PART: Final = 0.25
"""A transaction is near its end when less of its lease is left; writers extend it before."""
LIMIT_LEFT_MS: Final = 60_000
"""The same of its maximum execution time."""
CHANGING_SECONDS: Final = 120.0
"""The creation or a reset of a group may take so long."""


def sort_findings(found: Iterable[Finding]) -> list[Finding]:
    """Return findings, the worst first."""
    return sorted(found, key=lambda f: (_ORDER[f.severity], f.kind, f.name, f.text))


# ------------------------------------------------------------------------------------- streams


def stream_findings(
    facts: StreamFacts, now_ms: int, infos: Sequence[MaintenanceInfo] = ()
) -> Iterator[Finding]:
    """Yield what needs attention of a stream; ``infos`` are the last runs of maintenance."""
    if facts.problem:
        what = "stream_damaged" if facts.is_damaged else "stream_unreadable"
        severity = CRITICAL if facts.is_damaged else WARNING
        yield _finding(facts, severity, what, 1, "streams", f"cannot be read: {facts.problem}")
        return
    ahead_ms = facts.committed_ms - now_ms
    if ahead_ms > CLOCK_SKEW_MS:
        yield _finding(
            facts,
            WARNING,
            "clock_ahead",
            ahead_ms / 1_000,
            "seconds",
            "ahead of now is the newest commit: the clock of a host that wrote was wrong",
        )
    if facts.behind_ms:
        text = "older than what was there before it was a commit: a clock that writes is behind"
        yield _finding(facts, WARNING, "clock_behind", facts.behind_ms / 1_000, "seconds", text)
    yield from _lease_findings(facts, now_ms, infos)
    for subscriber, oldest in facts.oldest.items():
        if oldest.damage:
            text = f"that {subscriber} reads next cannot be read: {oldest.damage}"
            yield _finding(facts, CRITICAL, "stream_events_damaged", 1, "events", text)
    maximum = facts.maximum
    if maximum is not None and maximum.at(now_ms) >= MAXIMUM_PART:
        part = maximum.at(now_ms)
        more = "" if maximum.is_exact else ", or more,"
        text = f"of the retention's maximum{more} is unread by {maximum.subscriber}"
        if part >= 1:
            text += ": the next run of retention deletes what it has not read"
        severity = CRITICAL if part >= 1 else WARNING
        yield _finding(facts, severity, "retention_maximum", part, "part", text)


def _lease_findings(
    facts: StreamFacts, now_ms: int, infos: Sequence[MaintenanceInfo]
) -> Iterator[Finding]:
    """Yield one finding for the transactions that end soon, and one for those that have ended."""
    ended = [lease for lease in facts.leases if lease.ends_ms <= now_ms]
    near = [
        lease
        for lease in facts.leases
        if 0
        < lease.ends_ms - now_ms
        <= (LIMIT_LEFT_MS if lease.is_limit else LEASE_PART * lease.lease_ms)
    ]
    why = _why_open(ended[0], facts.name, now_ms, infos) if ended else None
    if why is not None:
        first = ended[0]
        yield _finding(
            facts,
            WARNING,
            "transaction_expired",
            (now_ms - first.ends_ms) / 1_000,
            "seconds",
            f"since {_leased(first.writer, len(ended))} should have ended: {why}",
        )
    if near:
        first = near[0]
        limit = "maximum execution time" if first.is_limit else "lease"
        yield _finding(
            facts,
            WARNING,
            "transaction_lease",
            (first.ends_ms - now_ms) / 1_000,
            "seconds",
            f"left of the {limit} of {_leased(first.writer, len(near))}",
        )


def _why_open(
    lease: LeaseFact, stream: str, now_ms: int, infos: Sequence[MaintenanceInfo]
) -> str | None:
    """Return why a transaction is open after its end; None if the next run is not overdue."""
    scopes = (None, stream.partition("/")[0])
    runs = [i for i in infos if i.kind is MaintenanceKind.TRANSACTIONS and i.scope in scopes]
    known = [info for info in runs if info.age_seconds is not None]
    if not known:
        return "nobody maintains it"
    last = min(known, key=lambda info: info.age_seconds or 0.0)
    if (now_ms - (last.finished_ms or 0)) / 1_000 > 2 * last.interval_seconds:
        return f"the next run of {last.kind.value} is overdue"
    if (last.started_ms or 0) > lease.ends_ms + CLOCK_SKEW_MS:
        return f"the last run of {last.kind.value} did not end it"
    return None


def _leased(writer: str | None, count: int) -> str:
    named = "a transaction" if writer is None else f"a transaction of writer {writer}"
    return named if count == 1 else f"{named}, and {count - 1} more"


def _finding(
    about: StreamFacts | GroupSeen, severity: str, kind: str, number: float, unit: str, text: str
) -> Finding:
    subject, name = (
        ("stream", about.name) if isinstance(about, StreamFacts) else ("group", about.state.group)
    )
    return Finding(
        severity=severity,
        kind=kind,
        subject=subject,
        name=name,
        number=round(number, 3),
        unit=unit,
        text=text,
        looked_ms=about.looked_ms,
    )


# -------------------------------------------------------------------------------------- groups


def group_findings(seen: GroupSeen, now_ms: int) -> Iterator[Finding]:
    """Yield what needs attention of a group."""
    events, status = seen.events, seen.status
    if status == "changing" and seen.idle_seconds > CHANGING_SECONDS:
        text = "since its creation or reset began, which nobody has finished: its readers wait"
        yield _finding(seen, WARNING, "group_changing", seen.idle_seconds, "seconds", text)
    for lag in seen.lags.values():
        if lag.problem:
            gone = "was deleted, or made again" if lag.problem == "deleted" else "cannot be read"
            text = f"of the group {gone}: {lag.stream}"
            yield _finding(seen, WARNING, "group_stream_missing", 1, "streams", text)
        if lag.lost:
            more = ", and more that its log no longer counts" if lag.has_lost_more else ""
            text = f"lost in {lag.stream}{more}: deleted at its head before the group read that far"
            yield _finding(seen, WARNING, "group_lost_events", lag.lost, "events", text)
        elif lag.has_lost_more:
            text = f"of the group lost events, which its log no longer counts: {lag.stream}"
            yield _finding(seen, WARNING, "group_lost_events", 1, "streams", text)
    if status != "finished" and not seen.readers_alive and events:
        yield from _readerless(seen, events)
    if status == "falling behind" and seen.progress is not None and events:
        text = (
            f"unread, and more each minute: {seen.progress.read:.3g} events/s are read, "
            f"{seen.progress.written:.3g} written"
        )
        yield _finding(seen, WARNING, "group_falling_behind", events, "events", text)
    if status == "not reading" and events:
        text = "unread, and its readers, which are there, read none"
        yield _finding(seen, CRITICAL, "group_not_reading", events, "events", text)
    yield from _waiting(seen)
    if seen.updated_ms > now_ms + CLOCK_SKEW_MS:
        ahead = (seen.updated_ms - now_ms) / 1_000
        text = "ahead of now is the newest commit: the clock of a reader's host was wrong"
        yield _finding(seen, WARNING, "clock_ahead", ahead, "seconds", text)


def _readerless(seen: GroupSeen, events: int) -> Iterator[Finding]:
    if not seen.silent and seen.idle_seconds < READERLESS_SECONDS:
        return
    text = "unread, and no reader"
    if seen.silent:
        reader, silence = max(seen.silent.items(), key=lambda item: item[1])
        text = f"unread, and no live reader: {reader} is silent for {time_text(silence)}"
    unread = [lag for lag in seen.lags.values() if lag.events]
    kept = [lag.stream for lag in unread if lag.is_kept]
    if len(kept) == len(unread):
        text += "; the streams keep them for it"
    elif kept:
        text += f"; of them {', '.join(kept[:3])} keeps what it has for it"
    severity = CRITICAL if kept else WARNING
    yield _finding(seen, severity, "group_without_reader", events, "events", text)


def _waiting(seen: GroupSeen) -> Iterator[Finding]:
    late = [wait for wait in seen.waits if wait.seconds >= WAITING_SECONDS]
    if not late:
        return
    first = max(late, key=lambda wait: wait.seconds)
    names = ", ".join(first.readers[:3])
    more = len(first.readers) - 3
    text = f"or longer: checkpoint {first.name} waits for {names}"
    text += f" and {more} more" if more > 0 else ""
    silent = [reader for reader in first.readers if reader in seen.silent]
    if silent:
        text += f"; {silent[0]} is silent"
    yield _finding(seen, WARNING, "checkpoint_waits", first.seconds, "seconds", text)


def unreadable_group(name: str, problem: str, looked_ms: int, *, is_damaged: bool) -> Finding:
    """Return the finding of a group whose state could not be read."""
    return Finding(
        severity=CRITICAL if is_damaged else WARNING,
        kind="group_damaged" if is_damaged else "group_unreadable",
        subject="group",
        name=name,
        number=1,
        unit="groups",
        text=problem,
        looked_ms=looked_ms,
    )


# ------------------------------------------------------------------------------------- damage


def damage_findings(damage: FoundDamage) -> Iterator[Finding]:
    """Yield the events and entries that pages could not read, with a link to try it again."""
    for subject, losses in damage.losses.items():
        first = losses[0]
        what = "changes" if subject.kind == TABLE else "events"
        more = ", or more," if len(losses) == KEPT_RANGES else ""
        yield Finding(
            severity=CRITICAL,
            kind=f"{subject.kind}_events_damaged",
            subject=subject.kind,
            name=subject.name,
            number=sum(len(loss.rng) for loss in losses),
            unit="events",
            text=f"that a page of {what} met{more} cannot be read: {first.text}",
            looked_ms=max(loss.found_ms for loss in losses),
            address=events_address(subject, first),
        )
    for subject, pages in damage.pages.items():
        yield Finding(
            severity=CRITICAL,
            kind="table_entries_damaged",
            subject=subject.kind,
            name=subject.name,
            number=len(pages),
            unit="pages",
            text=f"of entries cannot be read: {pages[0].text}",
            looked_ms=max(page.found_ms for page in pages),
            address=entries_address(subject, pages[0]),
        )


# ----------------------------------------------------------------------------------- the root


def overdue(
    infos: Sequence[MaintenanceInfo],
    needs: frozenset[MaintenanceKind],
    since_ms: int | None,
    now_ms: int,
) -> dict[MaintenanceKind, tuple[float, str]]:
    """Return the kinds that are overdue, with seconds, and a text of what these count.

    ``needs`` are the kinds that some stream or table needs. ``since_ms`` is when the oldest stream
    was created: before a root is old enough for a run, none is overdue.
    """
    late: dict[MaintenanceKind, tuple[float, str]] = {}
    for kind in MaintenanceKind:
        found = [info for info in infos if info.kind is kind]
        if kind not in needs or not found or not all(info.is_overdue for info in found):
            continue
        ages = [info.age_seconds for info in found if info.age_seconds is not None]
        waits_ms = max(OVERDUE_INTERVALS * found[0].interval_seconds * 1_000, OVERDUE_MS)
        known_ms = None if since_ms is None else now_ms - since_ms
        if ages:
            late[kind] = min(ages), "since the last run of"
        elif known_ms is not None and known_ms > waits_ms:
            late[kind] = known_ms / 1_000, "that streams are there, and no run of"
    return late


def maintenance_findings(
    infos: Sequence[MaintenanceInfo],
    needs: frozenset[MaintenanceKind],
    since_ms: int | None,
    now_ms: int,
    looked_ms: int,
) -> Iterator[Finding]:
    """Yield the kinds that are overdue, and the runs that failed at some streams."""
    for kind, (seconds, text) in overdue(infos, needs, since_ms, now_ms).items():
        yield _of_root(
            WARNING, "maintenance_overdue", seconds, "seconds", f"{text} {kind.value}", looked_ms
        )
    for kind in MaintenanceKind:
        found = [info for info in infos if info.kind is kind]
        for info in found:
            if info.failed:
                where, error = next(iter(info.failures.items()), ("", ""))
                named = f": {where}: {error}" if where else ""
                scope = "" if info.scope is None else f" of scope {info.scope}"
                yield _of_root(
                    WARNING,
                    "maintenance_failed",
                    info.failed,
                    "streams",
                    f"failed in the last run of {kind.value}{scope}{named}",
                    looked_ms,
                )


def scope_findings(damaged: dict[str, str], looked_ms: int | None) -> Iterator[Finding]:
    """Yield the scopes whose index cannot be read: what is in them is not listed."""
    for scope, problem in damaged.items():
        yield Finding(
            severity=CRITICAL,
            kind="scope_damaged",
            subject="scope",
            name=scope,
            number=1,
            unit="scopes",
            text=problem,
            looked_ms=looked_ms,
        )


def _of_root(
    severity: str, kind: str, number: float, unit: str, text: str, looked_ms: int
) -> Finding:
    return Finding(
        severity=severity,
        kind=kind,
        subject="root",
        name="",
        number=round(number, 3),
        unit=unit,
        text=text,
        looked_ms=looked_ms,
    )
