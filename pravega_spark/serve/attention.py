"""What needs attention in a root: the looks of each poll at streams and groups, and their findings.

A poll makes a bounded number of looks, and of storage calls: first at what has an open page, then
at what was not looked at for longest. So the looks of one poll may leave out most of a large root;
what they found of each object, and when, is kept until its next turn. Answers cost no call.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from pravega_spark.config.descriptions import MaintenanceInfo, MaintenanceKind
from pravega_spark.config.root_settings import decide_settings
from pravega_spark.engine.runtime.eviction import ChanceCache
from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.engine.state.maintenance_table import describe, intervals_ms, open_maintenance
from pravega_spark.engine.state.settings_table import open_settings
from pravega_spark.engine.store.parallel_calls import in_rounds
from pravega_spark.errors import (
    CorruptLog,
    Damaged,
    ForeignTable,
    NotFound,
    PravegaSparkError,
    RootChanged,
    StoreUnavailable,
)
from pravega_spark.primitives.process_locks import new_lock
from pravega_spark.serve.answer_texts import said
from pravega_spark.serve.attention_models import AttentionAnswer, Finding, Looked
from pravega_spark.serve.call_budget import Allowance, BudgetSpent
from pravega_spark.serve.findings import (
    CRITICAL,
    NOTE,
    WARNING,
    damage_findings,
    group_findings,
    maintenance_findings,
    overdue,
    scope_findings,
    sort_findings,
    stream_findings,
    unreadable_group,
)
from pravega_spark.serve.found_damage import STREAM
from pravega_spark.serve.found_damage import Subject as DamagedSubject
from pravega_spark.serve.group_watch import GroupSeen, GroupWatch, SeenView
from pravega_spark.serve.lags import LOOKS_MS
from pravega_spark.serve.names import KnownNames
from pravega_spark.serve.stream_facts import StreamFacts, facts_of
from pravega_spark.serve.watch import RootWatch

logger = own_logger(__name__)

LOOKS: Final = 200
"""The most streams and groups that one poll looks at, beside those with an open page."""
AT_ONCE: Final = 16
"""So many looks are begun at a time; between, the poll sees what is left of its budget."""
MAX_GROUPS: Final = 1_024
"""The most groups whose logs and curves are kept."""
SHOWN_FINDINGS: Final = 200
UPKEEP_SECONDS: Final = 10.0
"""The record of maintenance is read as often."""


class Subject(NamedTuple):
    """A stream or a group of the root."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class GroupProblem:
    """A group whose state could not be read."""

    text: str
    looked_ms: int
    is_damaged: bool


GroupFound = GroupSeen | GroupProblem


@dataclass(frozen=True, slots=True)
class Upkeep:
    """The record of maintenance as it was read; with a ``problem`` it could not be."""

    infos: tuple[MaintenanceInfo, ...]
    read_at: float
    looked_ms: int
    problem: str = ""


class Attention:
    """The findings of one root; thread-safe. Polls follow one another."""

    def __init__(self, watch: RootWatch) -> None:
        """Take the names and streams of the root; nothing is read yet."""
        self.root, self._watch, self._budget = watch.root, watch, watch.budget
        self._runtime = watch.root.runtime
        self._looks_ms = max(LOOKS_MS, round(3_000 * watch.poll_seconds))
        self._polling = new_lock()
        self._lock = new_lock()
        self._polled_at: float | None = None
        self._streams: dict[str, StreamFacts] = {}
        self._groups: dict[str, GroupFound] = {}
        self._looked: dict[Subject, float] = {}
        """When each was looked at last, by the boot clock; less than 0 if that was interrupted."""
        self._watches = ChanceCache[str, GroupWatch](MAX_GROUPS, SYSTEM.random)
        self._upkeep: Upkeep | None = None
        self._record = open_maintenance(self.root.store, self._runtime)
        self._settings = open_settings(self.root.store, self._runtime)
        self._names: KnownNames | None = None
        self._names_ms: int | None = None

    # -------------------------------------------------------------------------------- the poll

    def poll(
        self, streams: Collection[str] = (), groups: Collection[str] = ()
    ) -> tuple[Allowance, list[str]]:
        """Look at what has open pages, then at others in turn; return what is left, and at whom.

        Raises StoreUnavailable, and what the listing of the root raises.
        """
        with self._polling:
            allowance = self._budget.of_poll()
            with allowance.applied():
                names = self._watch.names()
                self._names, self._names_ms = names, self._runtime.now_ms()
                self._forget(names)
                self._read_upkeep()
            begun = self._runtime.monotonic()
            looked = self._look_at(self._turn(names, streams, groups), groups, allowance)
            self._polled_at = begun  # not of a poll that failed: what it knows is older
            return allowance, [subject.name for subject in looked if subject.kind == "stream"]

    def refresh(self, groups: Collection[str] = ()) -> None:
        """Poll if no poll was made in its time, as where no page is live."""
        now, last = self._runtime.monotonic(), self._polled_at
        is_old = last is None or now - last >= self._watch.poll_seconds
        if is_old or any(name not in self._groups for name in groups):
            self.poll(groups=groups)

    def open_group(self, name: str) -> GroupSeen | None:
        """Return a group whose page is open, as of this poll's time; None if it does not exist.

        Unless a poll has just looked at it, it is looked at now. Raises Damaged, StoreError.
        """
        found, at = self._groups.get(name), self._looked.get(Subject("group", name), 0.0)
        is_new = self._runtime.monotonic() - at < 2 * self._watch.poll_seconds
        if isinstance(found, GroupSeen) and found.is_open and is_new:
            return found
        seen = self.watch_of(name).look(is_open=True)
        if seen is None:
            self._groups.pop(name, None)
        else:
            self._groups[name] = seen
            self._looked[Subject("group", name)] = self._runtime.monotonic()
        return seen

    def look_at_new(self, groups: Collection[str], allowance: Allowance) -> int:
        """Look at those of the groups that no look has found yet; return how many are left."""
        new = [name for name in groups if name not in self._groups]
        turn = [Subject("group", name) for name in new]
        return len(new) - len(self._look_at(turn, (), allowance))

    def _turn(
        self, names: KnownNames, streams: Collection[str], groups: Collection[str]
    ) -> list[Subject]:
        """Return whom to look at, in this order: open pages, interrupted, never, longest ago."""
        known = {*names.streams}
        first = [Subject("group", name) for name in groups if name in {*names.groups}]
        first += [Subject("stream", name) for name in streams if name in known]
        every = [Subject("stream", name) for name in names.streams]
        every += [Subject("group", name) for name in names.groups]
        opened = {*first}
        rest = (subject for subject in every if subject not in opened)
        turn = heapq.nsmallest(LOOKS, rest, key=lambda s: (self._looked.get(s, 0.0), s.name, s))
        return first + turn

    def _look_at(
        self, turn: list[Subject], opened: Collection[str], allowance: Allowance
    ) -> list[Subject]:
        """Look as long as the budget allows; return at whom."""
        looked: list[Subject] = []
        for start in range(0, len(turn), AT_ONCE):
            some = turn[start : start + AT_ONCE]
            look = partial(self._look, opened=opened, allowance=allowance)
            done = in_rounds(self.root.store, look, some)
            looked += [subject for subject, was_made in zip(some, done, strict=True) if was_made]
            if not all(done):
                break
        return looked

    def _look(self, subject: Subject, *, opened: Collection[str], allowance: Allowance) -> bool:
        """Look at one; return False if the budget is spent: it comes first in the next turn."""
        try:
            with allowance.applied():
                if subject.kind == "stream":
                    self._look_at_stream(subject.name)
                else:
                    self._look_at_group(subject.name, is_open=subject.name in opened)
        except BudgetSpent:
            self._looked[subject] = -1.0
            return False
        self._looked[subject] = self._runtime.monotonic()
        return True

    def _look_at_stream(self, name: str) -> None:
        now_ms = self._runtime.now_ms()
        try:
            watch = self._watch.stream(name)
            view = watch.look(
                self._watch.poll_seconds / 2, reads=0
            )  # a group may have looked at it
            self._watch.damage.follow(DamagedSubject(STREAM, name), view)
            self._streams[name] = facts_of(
                self.root.log(name), view, now_ms, self._streams.get(name), watch.behind_ms()
            )
        except NotFound:  # deleted since it was listed
            self._streams.pop(name, None)
        except (BudgetSpent, StoreUnavailable, RootChanged):
            raise
        except Exception as error:
            text, is_damaged = _problem(f"stream {name}", error, self.root.store.url)
            self._streams[name] = StreamFacts(
                name=name, looked_ms=now_ms, problem=text, is_damaged=is_damaged
            )

    def _look_at_group(self, name: str, *, is_open: bool) -> None:
        now_ms = self._runtime.now_ms()
        try:
            found = self.watch_of(name).look(is_open=is_open)
        except (BudgetSpent, StoreUnavailable, RootChanged):
            raise
        except Exception as error:
            text, is_damaged = _problem(f"reader group {name}", error, self.root.store.url)
            self._groups[name] = GroupProblem(text, now_ms, is_damaged)
            return
        if found is None:  # deleted since it was listed
            self._groups.pop(name, None)
        else:
            self._groups[name] = found

    def watch_of(self, name: str) -> GroupWatch:
        """Return the watch of a group, which need not exist."""
        with self._lock:
            watch = self._watches.get(name)
            if watch is None:
                watch = GroupWatch(self.root, name, self._see, self._looks_ms)
                self._watches.put(name, watch)
            return watch

    def _see(self, name: str, is_fresh: bool) -> SeenView:
        """Return a view of a group's stream: of this poll's time, or else any that is known."""
        watch = self._watch.stream(name)
        if is_fresh or watch.seen is None:
            watch.look(self._watch.poll_seconds, reads=0)
            if name in self._streams:  # else it is a table's, or its own turn comes first
                self._note(name)
                self._looked[Subject("stream", name)] = self._runtime.monotonic()
        assert watch.seen is not None, "the watch has looked at the stream"
        return SeenView(*watch.seen)

    def _note(self, name: str) -> None:
        """Keep what the last look at a stream says, unless that is known."""
        watch, known = self._watch.stream(name), self._streams.get(name)
        seen = watch.seen
        if seen is not None and (known is None or known.problem or known.looked_ms < seen[1]):
            self._streams[name] = facts_of(self.root.log(name), *seen, known, watch.behind_ms())

    def _forget(self, names: KnownNames) -> None:
        """Drop what is not listed any more."""
        streams, groups = {*names.streams}, {*names.groups}
        self._watch.damage.keep(streams, names.tables)
        self._streams = {name: found for name, found in self._streams.items() if name in streams}
        self._groups = {name: found for name, found in self._groups.items() if name in groups}
        self._looked = {
            s: at
            for s, at in self._looked.items()
            if s.name in (streams if s.kind == "stream" else groups)
        }

    def _read_upkeep(self) -> None:
        now = self._runtime.monotonic()
        if self._upkeep is not None and now - self._upkeep.read_at < UPKEEP_SECONDS:
            return
        now_ms = self._runtime.now_ms()
        try:
            intervals = intervals_ms(decide_settings(self._settings.read()))
            infos = describe(self._record.entries(), intervals, self._record.about_now_ms())
            self._upkeep = Upkeep(tuple(infos), now, now_ms)
        except BudgetSpent:
            return
        except Damaged as error:
            self._upkeep = Upkeep((), now, now_ms, said(error, self.root.store.url))

    # ------------------------------------------------------------------------------- answers

    @property
    def groups(self) -> dict[str, GroupFound]:
        """The groups that were looked at, by name."""
        return dict(self._groups)

    def upkeep(self) -> Upkeep:
        """Return the record of maintenance, read again if it is old: two calls. Raises Damaged."""
        with self._polling:
            self._read_upkeep()
            assert self._upkeep is not None, "there is no allowance that could be spent"
            if self._upkeep.problem:
                raise CorruptLog(self._upkeep.problem)
            return self._upkeep

    def overdue(self) -> frozenset[MaintenanceKind]:
        """Return the kinds of maintenance that :meth:`answer` says are overdue; costs no call."""
        infos = () if self._upkeep is None else self._upkeep.infos
        needs, since_ms = self._needs(dict(self._streams))
        return frozenset(overdue(infos, needs, since_ms, self._runtime.now_ms()))

    def answer(self) -> AttentionAnswer:
        """Return what needs attention, as far as the looks have come; costs no call."""
        now_ms = self._runtime.now_ms()
        names, streams, groups = self._names, dict(self._streams), dict(self._groups)
        found = sort_findings(self._findings(streams, groups, now_ms))
        looked = Looked(
            total=0 if names is None else len(names.streams),
            looked=len(streams),
            oldest_ms=min((facts.looked_ms for facts in streams.values()), default=None),
        )
        looked_groups = Looked(
            total=0 if names is None else len(names.groups),
            looked=sum(_is_looked(found) for found in groups.values()),
            oldest_ms=min(
                (one.looked_ms for one in groups.values() if one.looked_ms), default=None
            ),
        )
        is_whole = names is not None and names.is_whole and self._upkeep is not None
        is_whole = is_whole and looked.looked >= looked.total
        is_whole = is_whole and looked_groups.looked >= looked_groups.total
        counts = {
            kind: sum(f.severity == kind for f in found) for kind in (CRITICAL, WARNING, NOTE)
        }
        return AttentionAnswer(
            quiet=is_whole and not found,
            findings=found[:SHOWN_FINDINGS],
            total=len(found),
            critical=counts[CRITICAL],
            warnings=counts[WARNING],
            notes=counts[NOTE],
            streams=looked,
            groups=looked_groups,
            maintenance_ms=None if self._upkeep is None else self._upkeep.looked_ms,
            names_ms=self._names_ms,
            now_ms=now_ms,
        )

    def _findings(
        self, streams: dict[str, StreamFacts], groups: dict[str, GroupFound], now_ms: int
    ) -> Iterator[Finding]:
        infos = () if self._upkeep is None else self._upkeep.infos
        for facts in streams.values():
            yield from stream_findings(facts, now_ms, infos)
        for name, found in groups.items():
            if isinstance(found, GroupProblem):
                yield unreadable_group(
                    name, found.text, found.looked_ms, is_damaged=found.is_damaged
                )
            else:
                yield from group_findings(found, now_ms)
        yield from damage_findings(self._watch.damage)
        if self._names is not None:
            yield from scope_findings(self._names.damaged, self._names_ms)
        yield from self._upkeep_findings(streams, now_ms)

    def _upkeep_findings(self, streams: dict[str, StreamFacts], now_ms: int) -> Iterator[Finding]:
        upkeep = self._upkeep
        if upkeep is None:
            return
        if upkeep.problem:
            yield Finding(
                severity=WARNING,
                kind="maintenance_unreadable",
                subject="root",
                name="",
                number=1,
                unit="runs",
                text=upkeep.problem,
                looked_ms=upkeep.looked_ms,
            )
        needs, since_ms = self._needs(streams)
        for found in maintenance_findings(upkeep.infos, needs, since_ms, now_ms, upkeep.looked_ms):
            yield found.model_copy(update={"text": said(found.text, self.root.store.url)})

    def _needs(
        self, streams: dict[str, StreamFacts]
    ) -> tuple[frozenset[MaintenanceKind], int | None]:
        """Return the kinds of maintenance that are needed, and since when streams are there."""
        known = [facts for facts in streams.values() if not facts.problem]
        needs = {kind for facts in known for kind in facts.needs}
        needs |= {MaintenanceKind.SWEEPING} if known else set()
        if self._names is not None and self._names.tables:
            needs.add(MaintenanceKind.FOLDING)
        return frozenset(needs), min((facts.created_ms for facts in known), default=None)


def _is_looked(found: GroupFound) -> bool:
    """Return whether all of a group is known: not if some heartbeats were not read yet."""
    return found.looked_ms > 0


def _problem(what: str, error: Exception, url: str) -> tuple[str, bool]:
    """Return what is shown of an error, and whether it is damage."""
    if isinstance(error, (PravegaSparkError, OSError)):
        return said(error, url), isinstance(error, (Damaged, ForeignTable))
    logger.exception("a look at %s failed", what, extra=log_fields("serve"))
    return "the server failed at it; see its log.", False
