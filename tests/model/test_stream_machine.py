"""The engine against a model of a stream: all operations, in any order, on faulty storage.

Invariants after every step: acknowledged events exist, and no event exists twice; an offset keeps
its event; a key's events are in order across scales and in its segments; epochs tile the key space
and sealed segments do not grow; a writer's numbers have no gap, and no chunk staged below the
horizon is committed; the horizon and both marks never go back.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.engine.chunks.routing import position
from pravega_spark.engine.log.actions import Add
from pravega_spark.engine.log.checkpoint import maintain
from pravega_spark.engine.log.retained import VersionAges, raise_horizon
from pravega_spark.engine.log.snapshot import LOG_DOMAIN
from pravega_spark.engine.log.sweep import (
    delete_old_commits,
    delete_unreferenced_files,
    mark_has_aged,
)
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.records import StreamState, decode_writer
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.writing.append import AppendResult, StagedBatch, append
from pravega_spark.engine.writing.group_commit import MustOffer, group_of
from pravega_spark.engine.writing.identity import (
    BatchIdentity,
    NumberedBatch,
    SessionBatch,
    open_session,
)
from pravega_spark.engine.writing.stage import parse_offer
from pravega_spark.errors import (
    CommitUnknown,
    NoSuchStream,
    OutOfOrder,
    SegmentSealed,
    StagedTooLate,
    StaleIdentity,
    StoreError,
    StreamNotSealed,
    StreamSealed,
    WriterFenced,
)
from pravega_spark.values.limits import CLEANUP_WAIT_SECONDS
from tests.harness.failpoints import at_failpoint
from tests.harness.fake_runtime import FakeRuntime
from tests.harness.faulty_store import Fault, FaultyStore
from tests.harness.offering import commit_offers, contended, offer
from tests.harness.simulated_kills import Killed, kill
from tests.harness.small_streams import all_events, events_of, scale, staged
from tests.harness.tiers import sized

KEYS = [f"k{n}" for n in range(6)]
FAULTS = st.lists(
    st.tuples(
        st.integers(0, 5),
        st.sampled_from(
            [Fault.LOSE_ANSWER, Fault.LOSE_REQUEST, Fault.RESEND, Fault.DELAY, Fault.REFUSE]
        ),
    ),
    max_size=2,
)
WHO = st.integers(0, 2)
BATCHES = st.lists(st.sampled_from(KEYS), min_size=1, max_size=4)


DEATHS = st.sampled_from([None, None, "append.listed", "commit.before", "commit.applied"])


class OtherHost(FakeRuntime):
    """A host whose time of day is wrong by some days; for the rest a runtime like another one."""

    def __init__(self, runtime: FakeRuntime, days: int) -> None:
        super().__init__()
        self.runtime, self.wrong_ms = runtime, days * 86_400_000

    def now_ms(self) -> int:
        return self.runtime.now_ms() + self.wrong_ms

    def now_us(self) -> int:
        return self.now_ms() * 1_000

    def monotonic(self) -> float:
        return self.runtime.monotonic()

    def sleep(self, seconds: float) -> None:
        self.runtime.sleep(seconds)


@dataclass
class Process:
    """The state of one process: an open stream, a writer session, staged chunks."""

    stream: StreamLog
    life: int = 0
    session: int = 0
    planned: int = 0
    prepared: list[tuple[int, int, Any, list[bytes]]] = field(default_factory=list)
    offered: list[tuple[StagedBatch, list[bytes]]] = field(default_factory=list)


class StreamMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runtime = FakeRuntime()
        self.faults: dict[int, Fault] = {}
        self.listing: Fault | None = None
        self.inner = MemoryStore(clock_ms=self.runtime.now_ms)
        self.store = FaultyStore(self.inner, self._plan)
        self.numbers = itertools.count()
        self.life = 0
        self.state = StreamState.DELETED
        self.acked: set[bytes] = set()
        self.tried: set[bytes] = set()
        self.batches: list[list[bytes]] = []
        self.order: dict[tuple[int, str], list[bytes]] = {}
        self.seen: dict[tuple[int, int, int], bytes] = {}
        self.sealed: dict[int, int] = {}
        self.horizon = self.retained = self.commits = 0
        self.processes = [Process(self._open()) for _ in range(3)]

    def _plan(self, operation: str, key: str) -> Fault | None:
        if operation == "list":
            return self.listing
        if operation != "put_if_absent" or not self.faults:
            return None
        self.faults = {nth - 1: fault for nth, fault in self.faults.items()}
        return self.faults.pop(-1, None)

    def _open(self, store: Any = None, days: int = 0) -> StreamLog:
        runtime = OtherHost(self.runtime, days) if days else self.runtime
        stream = StreamLog(store or self.store, "s/t", runtime)
        stream.log.maintain = None
        return stream

    def _truth(self) -> StreamView:
        view = self._open(self.inner).current_view()
        assert view is not None
        return view

    def _inject(self, faults: list[tuple[int, Fault]]) -> None:
        self.faults = dict(faults)

    @initialize(segments=st.integers(1, 3))
    def begin(self, segments: int) -> None:
        self._create(self.processes[0], 1, segments)

    def _create(self, process: Process, life: int, segments: int) -> None:
        configuration = StreamConfiguration(ScalingPolicy.fixed(segments))
        with contextlib.suppress(CommitUnknown, StoreError):
            lifecycle.create(process.stream, life, configuration)
        self._copy_state()

    def _copy_state(self) -> None:
        """Copy the state of the log after a call whose outcome the model does not predict."""
        self.faults = {}
        view = self._truth()
        assert view.life - self.life in (0, 1)
        self.life, self.state = view.life, view.record.state

    # ------------------------------------------------------------------------------- writing

    @rule(who=WHO, faults=FAULTS)
    def open_writer(self, who: int, faults: list[tuple[int, Fault]]) -> None:
        """A process opens the writer id ``w`` and fences the others."""
        process = self.processes[who]
        self._inject(faults)
        try:
            view = process.stream.view()
            record = open_session(process.stream, view.life, "w")
        except (CommitUnknown, StoreError, StreamSealed, NoSuchStream, StaleIdentity):
            process.session = 0
            return
        finally:
            self.faults = {}
        assert self.state is StreamState.ACTIVE
        assert view.life == self.life
        process.life, process.session, process.planned = view.life, record.session, record.last

    @rule(
        who=WHO, keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=4), plain=st.booleans()
    )
    def stage(self, who: int, keys: list[str], plain: bool) -> None:
        """A process stages a batch, and may commit it much later."""
        process = self.processes[who]
        try:
            view = process.stream.view()
        except (NoSuchStream, StoreError):
            return
        if plain or not process.session:
            life = view.life
            identity: BatchIdentity = NumberedBatch(f"q{who}", next(self.numbers))
        else:
            life, previous = process.life, process.planned
            process.planned += len(keys)
            identity = SessionBatch("w", process.session, previous, process.planned)
        events = [b"%s/%d" % (key.encode(), next(self.numbers)) for key in keys]
        chunks = staged(process.stream, list(zip(keys, events, strict=True)))
        process.prepared.append((life, view.version, (identity, chunks), events))
        self.tried.update(events)
        self.batches.append(events)

    @precondition(lambda self: any(p.prepared for p in self.processes))
    @rule(who=WHO, which=st.integers(0, 9), faults=FAULTS, keep=st.booleans())
    def commit(self, who: int, which: int, faults: list[tuple[int, Fault]], keep: bool) -> None:
        """A process commits a batch that it staged earlier, perhaps again."""
        process = self.processes[who]
        if not process.prepared:
            return
        at = which % len(process.prepared)
        life, version, (identity, chunks), events = process.prepared[at]
        before = self._truth()
        known = before.writer(identity.writer_id) if self.state is not StreamState.DELETED else None
        self._inject(faults)
        try:
            appended = append(process.stream, life, version, chunks, identity)
        except StaleIdentity:
            assert life != self.life
        except NoSuchStream:
            assert self.state is StreamState.DELETED
        except StreamSealed:
            assert self.state is StreamState.SEALED
        except StagedTooLate:
            assert version < self.horizon
        except WriterFenced:
            assert known is not None
            assert known.session > identity.session
        except OutOfOrder:
            assert known is not None
            assert known.last != identity.previous
        except CommitUnknown:
            process.session = 0
        except StoreError:
            pass
        else:
            assert life == self.life
            self._acked(identity, known, appended, before, events, version)
        self.faults = {}
        if not keep:
            process.prepared.pop(at)

    def _acked(
        self, identity: Any, known: Any, appended: Any, before: StreamView,
        events: list[bytes], version: int,
    ) -> None:  # fmt: skip
        if appended.duplicate:
            assert known is not None
            last = identity.last if isinstance(identity, SessionBatch) else identity.number
            assert known.last >= last
            if isinstance(identity, NumberedBatch) and known.last > last:
                return  # skipped: an application's numbers only rise
        self.acked.update(events)
        if appended.duplicate:
            return
        assert self.state is StreamState.ACTIVE
        assert version >= before.snapshot.horizon
        if isinstance(identity, SessionBatch):
            assert known is not None
            assert (known.session, known.last) == (identity.session, identity.previous)

    # -------------------------------------------------------------- offers to other processes

    @rule(who=WHO, keys=BATCHES, anonymous=st.booleans())
    def offer(self, who: int, keys: list[str], anonymous: bool) -> None:
        """A process offers a batch, on a view that may be old, and may die after that."""
        process = self.processes[who]
        try:
            view = process.stream.view(refresh=False)
        except (NoSuchStream, StoreError):
            return
        life, identity = view.life, None
        if not anonymous:
            if not process.session:
                return
            life, previous = process.life, process.planned
            process.planned += len(keys)
            identity = SessionBatch("w", process.session, previous, process.planned)
        events = [b"%s/%d" % (key.encode(), next(self.numbers)) for key in keys]
        pairs: list[tuple[str | None, bytes]] = [*zip(keys, events, strict=True)]
        batch = offer(process.stream, pairs, identity, view=view, life=life)
        process.offered.append((batch, events))
        self.tried.update(events)
        self.batches.append(events)

    @rule(
        who=WHO,
        faults=FAULTS,
        listing=st.sampled_from([None, None, Fault.STALE_LIST, Fault.PARTIAL_LIST]),
        death=DEATHS,
    )
    def take(
        self, who: int, faults: list[tuple[int, Fault]], listing: Fault | None, death: str | None
    ) -> None:
        """A process commits what it finds offered; it may get no answer, or die at any moment."""
        self._inject(faults)
        self.listing = listing
        with contextlib.suppress(CommitUnknown, StoreError, NoSuchStream):
            self._lives(who, death, lambda: commit_offers(self.processes[who].stream))
        self.faults, self.listing = {}, None

    def _lives(self, who: int, death: str | None, call: Callable[[], object]) -> bool:
        """Call as a process that dies where ``death`` says; return whether it did not."""
        if death is None:
            call()
            return True
        try:
            with at_failpoint(death, kill):
                call()
        except Killed:
            self.processes[who] = Process(self._open())
            return False
        return True

    @precondition(lambda self: any(p.offered for p in self.processes))
    @rule(who=WHO, which=st.integers(0, 9), faults=FAULTS, contention=st.booleans(), death=DEATHS)
    def wait_for_offer(
        self,
        who: int,
        which: int,
        faults: list[tuple[int, Fault]],
        contention: bool,
        death: str | None,
    ) -> None:
        """The owner of an offer waits for it: another process took it, or it commits itself."""
        process = self.processes[who]
        if not process.offered:
            return
        batch, events = process.offered.pop(which % len(process.offered))
        before = self._truth()
        group = contended(process.stream) if contention else group_of(process.stream)
        self._inject(faults)
        found: list[AppendResult] = []
        try:
            self._lives(who, death, lambda: found.append(group.append(batch)))
        except StreamSealed:
            assert self.state is StreamState.SEALED
        except StagedTooLate:
            assert batch.staging_version < self.horizon
        except (StaleIdentity, NoSuchStream):
            assert batch.life != self.life or self.state is StreamState.DELETED
        except (WriterFenced, OutOfOrder, SegmentSealed, MustOffer):
            pass
        except CommitUnknown:
            process.session = 0
        for appended in found:
            assert batch.life == self.life
            self.acked.update(events)
            self._check_ranges(appended, before, events)
        self.faults = {}

    def _check_ranges(self, appended: Any, before: StreamView, events: list[bytes]) -> None:
        stream = self._open(self.inner)
        found = [
            events_of(stream, segment_id)[base + row][1]
            for segment_id, base, rows, _ in appended.ranges
            for row in range(rows)
        ]
        if not appended.duplicate and self._truth().head == before.head:
            assert sorted(found) == sorted(events), "the owner got wrong offsets"

    # ------------------------------------------------------------------ layout, states, lives

    @precondition(lambda self: self.state is StreamState.ACTIVE)
    @rule(which=st.integers(0, 9), split=st.booleans())
    def scale(self, which: int, split: bool) -> None:
        stream = self._open(self.inner)
        segments = stream.view().active.segments
        if split and len(segments) < 5:
            old = segments[which % len(segments)]
            low, high = old.key_range.low, old.key_range.high
            scale(stream, [old.segment_id], [(low, (low + high) / 2), ((low + high) / 2, high)])
        elif len(segments) > 1:
            a, b = segments[which % (len(segments) - 1) :][:2]
            scale(stream, [a.segment_id, b.segment_id], [(a.key_range.low, b.key_range.high)])

    @rule(who=WHO, faults=FAULTS)
    def seal(self, who: int, faults: list[tuple[int, Fault]]) -> None:
        self._inject(faults)
        try:
            lifecycle.seal(self.processes[who].stream)
        except (CommitUnknown, StoreError):
            pass
        except NoSuchStream:
            assert self.state is StreamState.DELETED
        self._copy_state()

    @rule(who=WHO, faults=FAULTS)
    def delete(self, who: int, faults: list[tuple[int, Fault]]) -> None:
        self._inject(faults)
        try:
            lifecycle.delete(self.processes[who].stream)
        except (CommitUnknown, StoreError):
            pass
        except StreamNotSealed:
            assert self.state is StreamState.ACTIVE
        self._copy_state()
        if self.state is StreamState.DELETED:
            self.acked.clear()
            self.horizon = self.retained = self.commits = self._truth().version

    @rule(who=WHO, life=st.integers(1, 4), segments=st.integers(1, 3))
    def create(self, who: int, life: int, segments: int) -> None:
        """A process creates the stream; it may have been paused since an earlier life."""
        may = self.state is StreamState.DELETED and life == self.life + 1
        if may or life <= self.life:
            before = self.life
            self._create(self.processes[who], life, segments)
            assert self.life == (life if may else before)

    # -------------------------------------------------------------------------- log maintenance

    @rule(who=WHO, back=st.integers(0, 8), checkpoint=st.booleans())
    def maintain_log(self, who: int, back: int, checkpoint: bool) -> None:
        stream = self._open(self.inner)
        view = stream.current_view()
        assert view is not None
        version = max(view.version - back, view.snapshot.retention_mark)
        maintain(stream.log.reader, version, checkpoint=checkpoint)

    @rule(who=WHO, back=st.integers(0, 6), mark=st.integers(0, 12), aged=st.booleans())
    def sweep(self, who: int, back: int, mark: int, aged: bool) -> None:
        stream = self.processes[who].stream
        version = self._truth().version
        since = self._truth().snapshot.commit_deletion_set_version if aged else None
        raise_horizon(stream.log, version - back, version - mark, aged_since=since)
        delete_unreferenced_files(stream.log)
        snapshot = self._truth().snapshot
        self.horizon, self.retained = snapshot.horizon, snapshot.retention_mark
        self.commits = snapshot.commit_deletion_mark
        assert self.commits <= self.retained <= self.horizon

    @rule(who=WHO)
    def clean(self, who: int) -> None:
        log = self._open(self.inner).log
        mark_has_aged(log, VersionAges.read(log, now_ms=self.runtime.now_ms() + 10**12))
        self.runtime.sleep(CLEANUP_WAIT_SECONDS + 60)
        delete_old_commits(log)

    @rule(seconds=st.sampled_from([-7_200, -1, 1, 3_000]))
    def clock(self, seconds: int) -> None:
        self.runtime.wall_ms += seconds * 1_000

    @rule()
    def arrive(self) -> None:
        """Delayed puts arrive."""
        self.store.deliver()
        self._copy_state()

    @rule(who=WHO, days=st.sampled_from([0, 0, -1, 1]))
    def restart(self, who: int, days: int) -> None:
        """A process ends, and one begins, perhaps on a host whose clock is wrong."""
        self.processes[who] = Process(self._open(days=days))

    # -------------------------------------------------------------------------------- invariants

    @invariant()
    def layout_is_consistent(self) -> None:
        if self.life == 0:
            return
        view = self._truth()
        marks = view.snapshot.retention_mark, view.snapshot.commit_deletion_mark
        assert view.snapshot.horizon >= self.horizon
        assert marks[0] >= self.retained
        assert marks[1] >= self.commits
        if view.record.state is StreamState.DELETED:
            assert sorted(view.snapshot.domains) == ["pravega.log", "pravega.stream"]
            return
        low = 0.0
        for segment in view.active.segments:
            assert segment.key_range.low == low
            low = segment.key_range.high
        assert low == 1.0
        for name in view.snapshot.names("pravega.segment."):
            record = view.segment(int(name.rsplit(".", 1)[1]))
            if record.is_sealed:
                end = self.sealed.setdefault(record.segment_id, record.next_offset)
                assert end == record.next_offset, "a sealed segment grew"
            else:
                assert view.active.segment(record.segment_id) is not None

    @invariant()
    def events_exist_once_in_order_and_forever(self) -> None:
        if self.life == 0 or self.state is StreamState.DELETED:
            return
        for stream in (self._open(self.inner), self.processes[0].stream):
            self.faults = {}
            found = all_events(stream)
            events = [event for _, event in found]
            assert len(set(events)) == len(events), "an event exists twice"
            assert self.acked <= set(events), "an acknowledged event is lost"
            assert set(events) <= self.tried
            view = stream.view()
            for name in view.snapshot.names("pravega.segment."):
                self._check_segment(stream, view, int(name.rsplit(".", 1)[1]))
            self._check_order(found)

    def _check_order(self, found: list[tuple[str | None, bytes]]) -> None:
        """Each key's earlier events are a prefix of its present ones, across all scales."""
        by_key: dict[str, list[bytes]] = {}
        for key, event in found:
            by_key.setdefault(str(key), []).append(event)
        for key, events in by_key.items():
            before = self.order.get((self.life, key), [])
            assert events[: len(before)] == before, f"the order of {key} changed"
            self.order[self.life, key] = events
        for batch in self.batches:
            for first in {event.split(b"/")[0] for event in batch}:
                mine = [event for event in batch if event.split(b"/")[0] == first]
                events = by_key.get(first.decode(), [])
                if mine[0] in events:
                    at = events.index(mine[0])
                    assert events[at : at + len(mine)] == mine, (
                        "the events of a batch are not contiguous"
                    )

    def _check_segment(self, stream: StreamLog, view: StreamView, segment_id: int) -> None:
        found = events_of(stream, segment_id)
        assert len(found) == view.segment(segment_id).next_offset
        for offset, (key, event) in enumerate(found):
            where = (view.life, segment_id, offset)
            assert self.seen.setdefault(where, event) == event, "an offset changed its value"
            assert key is not None
            segment = next(
                s for n in range(view.oldest_epoch, view.active.number + 1)
                for s in view.epoch(n).segments if s.segment_id == segment_id
            )  # fmt: skip
            assert segment.key_range.low <= position(key) < segment.key_range.high

    @invariant()
    def writers_numbers_follow_each_other_in_the_log(self) -> None:
        if self.life == 0:
            return
        reader = self._open(self.inner).log.reader
        last: int | None = None
        horizon = 0
        for commit in reader.span(self.commits, self._truth().version):
            if commit.operation in ("DELETE STREAM", "CREATE STREAM"):
                last = None
            for add in commit.adds:
                assert horizon <= int(add.path.split("/")[1][1:]) < commit.version
            horizon = json.loads(commit.domains.get(LOG_DOMAIN) or "{}").get("horizon", horizon)
            record = commit.domains.get("pravega.writer.w")
            if record and commit.operation == "APPEND":
                number = decode_writer("w", record).last
                rows = sum(int((add.tags or {})["rows"]) for add in commit.adds if _is_of_w(add))
                assert last is None or number == last + rows, "a writer's numbers have a gap"
                last = number


def _is_of_w(add: Add) -> bool:
    """Return whether a chunk of a commit with a record of the writer ``w`` is of that writer."""
    found = parse_offer(add.path)
    return found is None or found.identity.writer_id == "w"


StreamMachine.TestCase.settings = settings(
    max_examples=sized(12, 600, "STREAM_EXAMPLES"), stateful_step_count=40, deadline=None
)
test_stream_machine = pytest.mark.long(StreamMachine.TestCase)
