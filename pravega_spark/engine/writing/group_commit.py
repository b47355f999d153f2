"""Group commit: batches that wait share a commit, also those that other processes offer.

Writers append staged batches to the ``AppendGroup`` of their stream. One thread at a time commits,
with the ``GroupCommitter``, for all batches that wait in this process; each writer gets the outcome
of its own. As long as no other process writes, that is all.

Others write, if this process has lost a second race within a short time (``Contention``). From then
on batches are **offered**: their chunks get names that say all that a commit needs (``stage``). The
committer follows the log until a commit of some process holds its batches. If none comes in time,
it makes one itself, of its own batches and of all offers that pass the checks of an append, and
goes on to do so in the background, as long as others offer batches. No process is special: where
the one that commits for all dies, the patience of another ends.

Nothing is decided here but when to act: the log decides who wins, by the checks of the commit. A
listing of offers may be old or lack objects. An offer that it misses is left for the next commit,
and one that cannot be committed any more is refused by the checks.
"""

from __future__ import annotations

import atexit
import json
import math
import re
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from pravega_spark.engine.chunk_paths import offer_version, version_folder
from pravega_spark.engine.chunks.chunk import NO_BOUNDS, ChunkRef
from pravega_spark.engine.log.actions import Add, Body
from pravega_spark.engine.log.commit import Proposal
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.runtime.failpoints import failpoint
from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.stream.stream_log import StreamLog, chunk_ref
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.stream.watermarks import pace_of
from pravega_spark.engine.writing.append import (
    APPEND,
    AppendDraft,
    AppendedRange,
    AppendResult,
    StagedBatch,
    is_new,
)
from pravega_spark.engine.writing.stage import (
    OfferedPart,
    failure_of,
    offer_prefix,
    offered_at,
    parse_offer,
)
from pravega_spark.errors import OutOfOrder, PravegaSparkError, StoreError, WriterFenced
from pravega_spark.primitives.process_locks import new_lock
from pravega_spark.values.limits import (
    COMMIT_DEADLINE_SECONDS,
    OFFER_FOLDER_VERSIONS,
    OFFER_VERSIONS,
    OFFERS_PER_COMMIT,
    OLD_OFFER_VERSIONS,
    REQUEST_AFTER,
)


class MustOffer(Exception):
    """The batch lost races to other processes: stage it again, as an offer."""


class PendingAppend:
    """A batch whose writer waits."""

    __slots__ = ("batch", "error", "lost", "missed", "random", "result", "waits_from", "wake")

    def __init__(self, batch: StagedBatch, now: float, random: float) -> None:
        """Begin to wait; ``random`` is in [0, 1)."""
        self.batch = batch
        self.lost = 0
        """Lost races of commits that hold it."""
        self.result: AppendResult | None = None
        self.error: BaseException | None = None
        self.wake = threading.Event()
        """Set when the outcome is known, or when this writer's thread is the next to commit."""
        self.wait(0, now, random)

    def wait(self, missed: int, now: float, random: float) -> None:
        """Begin to wait for others, as if ``missed`` of their commits had passed already."""
        self.waits_from = now
        self.missed = missed
        """Commits of other processes since, without this batch."""
        self.random = random
        """Drawn once a wait: of a draw at each look, only the least would count."""

    @property
    def is_done(self) -> bool:
        """Whether the outcome is known."""
        return self.result is not None or self.error is not None

    def complete(self, result: AppendResult) -> None:
        """Hand the writer its result, unless the outcome is known."""
        if not self.is_done:
            self.result = result
            self.wake.set()

    def refuse(self, error: BaseException) -> None:
        """Hand the writer an error that says that the batch is in no commit."""
        if not self.is_done:
            self.error = error
            self.wake.set()

    def fail(self, error: BaseException, stream: str) -> None:
        """Hand the writer an error that says nothing about this batch of the stream."""
        self.refuse(failure_of(self.batch, error, stream))

    def outcome(self) -> AppendResult:
        """Return the result, or raise the error."""
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result


def oldest_offer(waiting: Sequence[PendingAppend]) -> int | None:
    """Return the version at which the oldest of the batches was offered; None without offers."""
    offers = [one.batch for one in waiting if one.batch.is_offered]
    return min((offered_at(batch.chunks[0].path) for batch in offers), default=None)


_WEIGHT = 0.2
"""The weight of the newest measurement in an average."""
MISSED_COMMITS = 5
"""Who offers a batch commits it after this many commits of others without it."""
_MOST_SPREAD = 8.0
"""However many processes offer, their patience is spread over this much at most."""
_CROWD_DECAY = 0.9
"""What a listing or commit of fewer offers leaves of the known number of offers."""
STEP_BACK_COMMITS = 2
"""After losing a race, a committer steps back for this many commits."""
VERB_COMMITS = 3
"""A commit of another kind counts as this many: its author commits no offers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The times that fit a storage, in seconds; all grow with the time between commits."""

    interval: float
    """The time between two commits, as long as none was measured."""
    window: float
    """Contention ends this long after the last sign of it, at least."""
    patience: float
    """Who offers a batch waits this long for a commit, at least."""
    pause: tuple[float, float]
    """The shortest and the longest time between two looks for the next commit."""
    looks: int
    """After a look that found nothing an interval divided by this passes, within ``pause``."""
    rest: float
    """This part of the time between two commits, less two looks, passes before the next look."""
    early: float
    """The rest takes at most this time."""
    crowd: float
    """This many offers spread their patience once more; infinite: they never do."""
    linger: tuple[float, float]
    """The same between a commit for others and the next listing of offers."""


LOCAL = Pace(
    interval=0.005,
    window=0.25,
    patience=0.015,
    pause=(0.001, 0.050),
    looks=8,
    rest=0.5,
    early=0.050,
    crowd=math.inf,
    linger=(0.001, 0.010),
)
REMOTE = Pace(
    interval=0.050,
    window=10.0,
    patience=0.2,
    pause=(0.002, 0.250),
    looks=3,
    rest=1.0,
    early=0.250,
    crowd=8.0,
    linger=(0.0, 0.0),
)

LONGEST_SECONDS = 5.0
"""Intervals that are longer say nothing: the storage was idle, or did not answer."""


class Contention:
    """What one process knows of the other writers of a stream; all times are monotonic."""

    def __init__(self, *, is_local: bool) -> None:
        self._pace = LOCAL if is_local else REMOTE
        self.interval = self._pace.interval
        """The average time between two commits, as seen here."""
        self.look_seconds = 0.0
        """How long the last look for the next commit took."""
        self.listing_seconds = 0.0
        """How long the last listing of offers took."""
        self._crowd = 0.0
        """About how many offers other processes had at once, lately."""
        self._until = self._lost_at = self._commit_at = self._offers_at = float("-inf")

    @property
    def window(self) -> float:
        """How long a sign of contention counts."""
        return max(self._pace.window, 16 * self.interval)

    def lost_race(self, now: float) -> None:
        """Another process was first."""
        if now - self._lost_at < self.window:
            self.extend(now)
        self._lost_at = now

    def commit(self, now: float, *, is_foreign: bool) -> None:
        """A commit has just been made; a foreign one is that of another process."""
        passed = now - self._commit_at
        if passed < min(self.window, LONGEST_SECONDS):
            self.interval += _WEIGHT * (passed - self.interval)
        self._commit_at = now
        if is_foreign:
            self.extend(now)

    def extend(self, now: float) -> None:
        """Others write now."""
        self._until = now + self.window

    def is_contended(self, now: float) -> bool:
        """Return whether other processes wrote a short time ago."""
        return now < self._until

    def is_patience_over(self, now: float, waits_from: float, missed: int, random: float) -> bool:
        """Return whether to commit an offered batch instead of waiting for others.

        It does if no commit arrives for some intervals, or if several passed without its offer.
        ``random``, in [0, 1), spreads the patience of many processes over a time that grows with
        their number: otherwise all would commit at once, and all but one would lose.
        """
        spread = max(1.0, min(self._crowd / self._pace.crowd, _MOST_SPREAD))
        if missed >= MISSED_COMMITS + int(random * (spread - 1.0)):
            return True
        patience = max(4 * self.interval, self._pace.patience) * (1 + random * spread)
        return now - max(waits_from, self._commit_at) > patience

    def record_offers(self, offers: int) -> None:
        """Note the number of offers in a listing or a commit."""
        self._crowd = max(_CROWD_DECAY * self._crowd, offers)

    def listed(self, now: float, *, found: bool) -> bool:
        """Return whether to go on, after a listing that found offers or none."""
        if found:
            self._offers_at = now
            return True
        return now - self._offers_at < max(2 * self.interval, self._pace.patience / 2)

    @property
    def pause(self) -> float:
        """The time between two looks for the next commit."""
        shortest, longest = self._pace.pause
        return max(shortest, min(self.interval / self._pace.looks, longest))

    def early(self, now: float) -> float:
        """Return for how long a look for the next commit would be too early; 0 if it is not.

        Where commits take longer than calls, looks that find nothing would cost more processor time
        than commits do. So a look arrives a little before the next commit is due: it is under way
        for a time, and the last commit was made up to a look before it was seen.
        """
        wait = self._pace.rest * (self.interval - 2 * self.look_seconds)
        wait = min(wait, self._pace.early)
        return max(0.0, self._commit_at + wait - now)

    @property
    def linger(self) -> float:
        """The time between a commit for others and the next listing.

        On a local disk it is as long as a listing takes, so that less is spent on looking for
        offers than on commits. Elsewhere a listing itself takes long enough.
        """
        shortest, longest = self._pace.linger
        return max(shortest, min(self.listing_seconds, longest))


_OFFERED = re.compile(rb'\n\{"add":\{"path":"[^"]*/o\d{20}-')


def landed(stream: StreamLog, batch: StagedBatch, newest: tuple[int, bytes] | None) -> AppendResult:
    """Return the offsets of a batch that an earlier commit holds.

    Without offsets if that commit does not name its chunks, or is not stored any more. ``newest``
    is a version that the caller has read, with its commit, which saves a call.
    """
    view = stream.known_view()
    record = view.writer(batch.identity.writer_id)
    if record is None or record.last != batch.identity.last:
        return AppendResult(view.version, duplicate=True)
    version, paths = record.version, [chunk.path for chunk in batch.chunks]
    adds = _newest_adds(newest, version, paths) or _adds(stream, version)
    found = {add.path: chunk_ref(add, stream.log.reader.where) for add in adds}
    if not all(path in found for path in paths):
        return AppendResult(version, duplicate=True)
    return _result(version, [found[path] for path in paths])


def _result(version: int, refs: Sequence[ChunkRef]) -> AppendResult:
    ranges = (
        AppendedRange(
            segment_id=ref.segment_id,
            base_offset=ref.base_offset,
            rows=ref.rows,
            end_bytes=ref.base_bytes + ref.event_bytes,
        )
        for ref in refs
    )
    return AppendResult(version, False, tuple(ranges))


def offers_in(commit: bytes | None) -> int:
    """Return how many offered chunks a commit holds, without decoding it.

    A process that commits any is contended, so it lists and commits the offers of others.
    """
    return 0 if commit is None else len(_OFFERED.findall(commit))


def _newest_adds(
    newest: tuple[int, bytes] | None, version: int, paths: Sequence[str]
) -> Sequence[Add] | None:
    """Return the adds of the files, from their lines alone; None if not all are there.

    The commit was decoded before, and it may hold the batches of very many writers.
    """
    if newest is None or newest[0] != version:
        return None
    found: list[Add] = []
    for path in paths:
        at = newest[1].find(b'\n{"add":{"path":"%b"' % path.encode()) + 1
        if not at:
            return None
        line = newest[1][at : newest[1].index(b"\n", at)]
        found.append(Add.from_action(json.loads(line.decode())["add"]))
    return found


def _adds(stream: StreamLog, version: int) -> Sequence[Add]:
    found = stream.log.reader.commit(version, light=False)
    return () if found is None else found.adds


class Offer(NamedTuple):
    """A complete batch that some process offers."""

    token: str
    batch: StagedBatch


class OfferListing:
    """The recent offers of one stream, as one process has seen them; used by one thread a time."""

    def __init__(self, stream: StreamLog) -> None:
        self._stream = stream
        self._parts: dict[str, OfferedPart | None] = {}
        """The parts by key, as long as a listing shows them; None for those that are done."""

    def read(self, view: StreamView, oldest: int | None = None) -> list[Offer]:
        """Return the complete offers of the last versions, those of one writer in its order.

        ``oldest`` is the version of an offer that nobody took in time, if the caller has one: as a
        rule others were not taken either, so all that are not much older are listed.

        On a local disk the offers that were not seen before are made durable first: their writers
        may be about to do that.
        """
        stream, known = self._stream, self._parts
        keys = self._keys(view, oldest)
        new = [key for key in keys if key not in known]
        below = len(stream.path) + 1
        if new and stream.store.is_local:
            for folder in {key[: key.rindex("/")] for key in new}:
                stream.store.make_durable(folder)
        self._parts = {
            key: known[key] if key in known else _parsed(key[below:], view) for key in keys
        }
        return complete_offers(part for part in self._parts.values() if part is not None)

    def forget(self, tokens: set[str]) -> None:
        """Drop offers that are in the log, or can never be."""
        for key, part in self._parts.items():
            if part is not None and part.token in tokens:
                self._parts[key] = None

    def _keys(self, view: StreamView, oldest: int | None) -> list[str]:
        """List the offers that were made at the newest versions, with one call if it is remote."""
        stream, horizon = self._stream, view.snapshot.horizon
        first = max(0, view.version - OFFER_VERSIONS)
        if oldest is not None:
            first = min(first, max(oldest, view.version - OLD_OFFER_VERSIONS))
        data = f"{stream.path}/data"
        after = f"{version_folder(offer_version(first, horizon))}/{offer_prefix(first)}"
        if not stream.store.is_local:
            entries = stream.store.list(data, after=f"{data}/{after}")
            return [entry.key for entry in entries]
        versions = {*range(first, view.version + 1, OFFER_FOLDER_VERSIONS), view.version}
        keys: list[str] = []
        for version in sorted({offer_version(seen, horizon) for seen in versions}):
            folder = f"{data}/{version_folder(version)}"
            listed = stream.store.list(folder, after=f"{folder}/{offer_prefix(first)}")
            keys += [entry.key for entry in listed]
        return keys


def complete_offers(parts: Iterable[OfferedPart]) -> list[Offer]:
    """Return the batches of which all parts exist and agree, those of one writer in its order."""
    offers: dict[str, list[OfferedPart]] = {}
    for part in parts:
        offers.setdefault(part.token, []).append(part)
    found = [Offer(token, batch) for token, of in offers.items() if (batch := _batch(of))]
    return sorted(found, key=_writers_order)


def _batch(parts: list[OfferedPart]) -> StagedBatch | None:
    parts.sort(key=lambda part: part.part)
    first = parts[0]
    if [part.part for part in parts] != [*range(first.parts)]:
        return None
    shared = {(part.parts, part.life, part.identity, part.staging_version) for part in parts}
    rows = sum(part.chunk.rows for part in parts)
    if len(shared) != 1 or rows != first.identity.last - first.identity.previous:
        return None
    chunks = tuple(part.chunk for part in parts)
    return StagedBatch(
        life=first.life,
        staging_version=first.staging_version,
        chunks=chunks,
        identity=first.identity,
        is_offered=True,
    )


def _writers_order(offer: Offer) -> tuple[str, int, int]:
    identity = offer.batch.identity
    return identity.writer_id, identity.session, identity.previous


def _parsed(path: str, view: StreamView) -> OfferedPart | None:
    """Return an offer by its path; its name has no bounds of columns."""
    part, encryption = parse_offer(path), view.record.configuration.encryption
    if part is None or view.event_format.is_raw or encryption is not None:
        return part
    return replace(part, chunk=replace(part.chunk, columns=NO_BOUNDS))


_COMMITS_FOR_OTHERS = 64
"""After this many commits without own batches a process stops committing for others."""
_BEHIND = 3
"""After this many commits of others in a row, the log is read on at once."""
_RETRY_SECONDS = 0.1
"""The pause after a look that failed."""
_CHASES = 4
"""How often a loser of a race looks for the next commit before it lists again."""
_COMMITS_PER_CALL = 16
"""Commits that are read at once where it is unknown which of them holds a batch."""
_OFFER_REQUEST_AFTER = 4 * REQUEST_AFTER
"""Lost races after which an offer on an object store makes a request, which holds up all others."""


class GroupCommitter:
    """The steps of one process on the way to the next commits of a stream; one thread a time."""

    def __init__(self, stream: StreamLog) -> None:
        self._stream = stream
        self._runtime = stream.runtime
        self._contention = Contention(is_local=stream.store.is_local)
        self._offers = OfferListing(stream)
        self.serves_others = False
        """Whether this process committed for others the last time, and goes on."""
        self.has_offers = False
        """Whether others offer batches, as of the last listings."""
        self._listed: list[Offer] = []
        """The offers of the last listing."""
        self._lost_races = 0
        """How many commits for others lost a race since the last one that was won."""
        self._is_outpaced = False
        """Whether the last race was lost, on an object store, to a process without offers."""
        self._foreign_commits = 0
        self._behind = 0  # how many looks in a row have found a commit
        self._failed_since: float | None = None  # the first failed look, if all since then failed
        self._request: str | None = None
        """The token of this process's last request."""
        self._newest: tuple[int, bytes] | None = None
        """The newest version read alone, and its commit."""

    @property
    def is_contended(self) -> bool:
        """Whether other processes wrote a short time ago."""
        return self._contention.is_contended(self._runtime.monotonic())

    @property
    def goes_on(self) -> bool:
        """Whether to commit for others once more, without own batches."""
        others = self.has_offers and self._foreign_commits < _COMMITS_FOR_OTHERS
        return self.serves_others and self.is_contended and others

    @property
    def linger(self) -> float:
        """How long to wait between two commits for others, in seconds."""
        return self._contention.linger

    def step(self, waiting: list[PendingAppend]) -> None:
        """Try one commit, or look once for a commit of another process."""
        now = self._runtime.monotonic()
        if not self._contention.is_contended(now):
            self._try(waiting, ())
        elif self.serves_others or self._must_commit(waiting, now):
            self.commit_with_offers(waiting)
        else:
            self._follow(waiting, now)

    def _must_commit(self, waiting: Sequence[PendingAppend], now: float) -> bool:
        """Return whether the patience for a batch is over, or nobody else can commit it."""
        return any(
            not one.batch.is_offered
            or self._contention.is_patience_over(now, one.waits_from, one.missed, one.random)
            for one in waiting
        )

    # ------------------------------------------------------------------------------ to commit

    def commit_with_offers(self, waiting: list[PendingAppend]) -> None:
        """Commit what waits in this process, with all offers that pass."""
        # A chase is sooner than a new listing, but commits what the old one shows: that helped to
        # bring 64 writers to a state where most committed at once and lost (ADR 33). So each second
        # try lists again.
        if self._lost_races % 2:
            self._chase()
            self._review(waiting)
            waiting = [one for one in waiting if not one.is_done]
        else:
            self._list(waiting)
        failpoint("append.listed")
        own = {one.batch.identity for one in waiting}
        others = [offer for offer in self._listed if offer.batch.identity not in own]
        if not waiting and not others:
            self._note_offers_found(None)
            self._look()
            return
        self._foreign_commits = 0 if waiting else self._foreign_commits + 1
        self._lost_races += 1
        self.serves_others = self._try(waiting, others)
        if self.serves_others:
            self._lost_races = 0
        failpoint("append.taken")

    def _list(self, waiting: Sequence[PendingAppend]) -> None:
        began = self._runtime.monotonic()
        try:
            self._listed = self._offers.read(self._stream.known_view(), oldest_offer(waiting))
        except PravegaSparkError as error:
            self._fail(waiting, error)
            raise
        self._contention.listing_seconds = self._runtime.monotonic() - began
        self._contention.record_offers(len(self._listed))

    def _chase(self) -> None:
        """Wait for the commit of the process that won the last race, so that this one is next.

        Otherwise a process that commits at a steady pace wins every race: the round of a loser,
        which reads the winner's commit and lists, takes longer than the winner's own. One that
        commits no offers may even commit as fast as calls allow, and only luck wins a race against
        that: so it is tried at once, again and again, until the winner knows of the contention.
        """
        for _ in range(_CHASES):
            if self._look_ahead() if self._is_outpaced else self._look():
                return
            if self._stream.store.is_local:
                self._runtime.sleep(self._contention.pause)

    def _look_ahead(self) -> bool:
        if not self._stream.log.read_ahead():
            return False
        self._contention.commit(self._runtime.monotonic(), is_foreign=True)
        return True

    def _try(self, waiting: list[PendingAppend], offers: Sequence[Offer]) -> bool:
        """Try one commit of the batches and offers; complete the batches if it is won."""
        placed: dict[PendingAppend, AppendResult | PravegaSparkError] = {}
        done: set[str] = set()

        def decide(snapshot: Snapshot | None) -> Proposal[int | None]:
            if snapshot is None:
                raise self._stream.absent()
            view, now_ms = self._stream.view_of(snapshot), self._stream.now_ms()
            draft = AppendDraft(view, now_ms, pace_of(self._stream))
            placed.clear()
            done.clear()
            for one in waiting:
                placed[one] = draft.add_or_error(one.batch, snapshot.version + 1)
            before = draft.batches
            for offer in offers:
                if draft.chunks >= OFFERS_PER_COMMIT:
                    break
                if not isinstance(draft.add_or_error(offer.batch, 0), OutOfOrder):
                    done.add(offer.token)
            body: Body | None = draft.body() if draft.batches else None
            return body, draft.batches - before if draft.batches else None

        # Each refusal of a batch is final, at whatever version: so nothing has to be read to prove
        # that this snapshot is the newest.
        try:
            committed = self._stream.log.attempt(decide, request=self._request, needs_newest=False)
        except BaseException as error:
            self._fail(waiting, error)
            raise
        now = self._runtime.monotonic()
        if committed is None:
            self._contention.lost_race(now)
            self._review(waiting)
            self._after_lost_race(waiting)
            return False
        self._offers.forget(done)
        if committed.value is not None:
            self._contention.commit(now, is_foreign=committed.value > 0)
        self._note_offers_found(committed.value)
        for one, outcome in placed.items():
            if isinstance(outcome, AppendResult):
                is_old = outcome.duplicate
                one.complete(self._landed(one.batch) if is_old else outcome)
            elif committed.value is None:
                self._review([one])
            else:  # the commit proves that its snapshot was the newest
                self._refuse(one, outcome)
        return True

    def _note_offers_found(self, offers: int | None) -> None:
        now = self._runtime.monotonic()
        self.has_offers = self._contention.listed(now, found=bool(offers))

    def _after_lost_race(self, waiting: Sequence[PendingAppend]) -> None:
        """Have batches offered, so that the winner commits them the next time.

        Those who offer step back for the winner, which commits for all from now on: if all went on,
        each commit would hold a few batches only. A batch that lost some races, or cannot be
        offered, asks for the next version.
        """
        now, requests = self._runtime.monotonic(), list[PendingAppend]()
        is_remote = not self._stream.store.is_local
        self._is_outpaced = is_remote and not offers_in(self._stream.log.winner)
        for one in waiting:
            if one.is_done:
                continue
            if self.is_contended and one.batch.can_be_offered and not one.batch.is_offered:
                one.refuse(MustOffer())
                continue
            if self._stream.log.operation == APPEND and not self._is_outpaced:
                one.wait(MISSED_COMMITS - STEP_BACK_COMMITS, now, self._runtime.random())
            one.lost += 1
            is_patient = is_remote and one.batch.is_offered
            if one.lost % (_OFFER_REQUEST_AFTER if is_patient else REQUEST_AFTER) == 0:
                requests.append(one)
        if self._is_outpaced:
            self._lost_races = 1
        if requests:
            self._request, self._lost_races = self._stream.log.request(), 0
            for one in requests:
                one.missed = MISSED_COMMITS

    # ------------------------------------------------------------------------------ to follow

    def _follow(self, waiting: list[PendingAppend], now: float) -> None:
        """Look once for the next commit of another process.

        A batch that is offered can land even if this process sees errors of the storage, so an
        error of a read is tried again, as long as a commit without an answer would be.
        """
        if self._behind == 1:  # only then the last look shows when that commit was made
            self._runtime.sleep(self._contention.early(now))
        try:
            is_new_version = self._look()
            self._failed_since = None
        except StoreError as error:
            self._failed_since = now if self._failed_since is None else self._failed_since
            is_lasting = now - self._failed_since > COMMIT_DEADLINE_SECONDS
            if type(error) is not StoreError or is_lasting:
                raise
            is_new_version = False
            self._runtime.sleep(_RETRY_SECONDS)
        if is_new_version:
            self._review(waiting)
        else:
            self._runtime.sleep(self._contention.pause)

    def _look(self) -> bool:
        """Read the next version; return whether there is one."""
        log = self._stream.log
        before, began = log.snapshot, self._runtime.monotonic()
        data = log.read_next()
        now, snapshot = self._runtime.monotonic(), log.snapshot
        self._contention.look_seconds = now - began
        if snapshot is before:
            self._behind = 0
            return False
        self._contention.commit(now, is_foreign=True)
        self._contention.record_offers(offers_in(data))
        self._newest = None if data is None or snapshot is None else (snapshot.version, data)
        self._behind += 1
        if self._behind > _BEHIND:
            self._behind = 0
            log.refresh()
        return True

    def _review(self, waiting: Sequence[PendingAppend]) -> None:
        """Complete the batches that a commit of another process holds, or that none can hold.

        Each refusal is final, at any version where it is found; the newest one has the best cause.
        """
        for one in waiting:
            try:
                try:
                    found = self._found(one.batch)
                except PravegaSparkError:
                    self._stream.log.refresh()
                    found = self._found(one.batch)
            except StoreError as error:
                one.fail(error, self._stream.name)
            except PravegaSparkError as error:
                self._refuse(one, error)
            else:
                if found is None:
                    one.missed += 1 if self._stream.log.operation == APPEND else VERB_COMMITS
                else:
                    one.complete(found)

    def _found(self, batch: StagedBatch) -> AppendResult | None:
        """Return where the log holds a batch, durably; None if the next version may take it."""
        view = self._stream.known_view()
        if is_new(view, view.writer(batch.identity.writer_id), batch):
            return None
        self._stream.log.make_durable()
        return self._landed(batch)

    def _landed(self, batch: StagedBatch) -> AppendResult:
        return landed(self._stream, batch, self._newest)

    def _refuse(self, one: PendingAppend, error: PravegaSparkError) -> None:
        """Refuse a batch for good, unless it landed before its writer was fenced.

        All other refusals are of batches that the log does not hold. But the record of a newer
        session says nothing of the older one's batches, and who reads several commits at once sees
        that record alone.
        """
        if isinstance(error, WriterFenced) and one.batch.is_offered:
            try:
                found = self._taken(one.batch)
            except StoreError as failure:
                one.fail(failure, self._stream.name)
                return
            if found is not None:
                one.complete(found)
                return
        one.refuse(error)

    def _taken(self, batch: StagedBatch) -> AppendResult | None:
        """Return where one of the commits since its offer holds a batch, durably.

        Raises StoreError if one of them is not stored any more.
        """
        view, log = self._stream.known_view(), self._stream.log
        record = view.writer(batch.identity.writer_id)
        if record is None or record.last < batch.identity.last:
            return None  # the newer session began behind an earlier event
        paths = [chunk.path for chunk in batch.chunks]
        for first in range(offered_at(paths[0]) + 1, view.version + 1, _COMMITS_PER_CALL):
            count = min(_COMMITS_PER_CALL, view.version + 1 - first)
            for version, data in enumerate(log.reader.next_commits(first, count), first):
                if data is None:
                    raise StoreError(f"commit {version} of stream {self._stream.name} is gone.")
                adds = _newest_adds((version, data), version, paths)
                if adds is not None:
                    log.make_durable()
                    return _result(version, [chunk_ref(add, log.reader.where) for add in adds])
        return None

    def _fail(self, waiting: Sequence[PendingAppend], error: BaseException) -> None:
        """Fail batches because of an error that says nothing about any of them."""
        for one in waiting:
            one.fail(error, self._stream.name)


logger = own_logger(__name__)

_exiting = threading.Event()
atexit.register(_exiting.set)


class AppendGroup:
    """The batches of one process that wait for a commit of one stream; thread-safe."""

    def __init__(self, stream: StreamLog) -> None:
        self._stream = stream
        self._runtime = stream.runtime
        self._lock = new_lock()
        self._waiting: list[PendingAppend] = []
        self.is_committing = False
        """Whether a commit is under way, which a batch that is staged now waits for."""
        self.committer = GroupCommitter(stream)
        """Used by the one thread that commits."""

    @property
    def offers(self) -> bool:
        """Whether batches should be offered now."""
        return self.committer.is_contended

    def append(self, batch: StagedBatch) -> AppendResult:
        """Wait until the batch is in the log, with all or none of its chunks.

        Raises what :meth:`AppendDraft.add` raises, MustOffer, CommitUnknown and StoreError. For a
        batch that was offered, an error of the storage is CommitUnknown: another process may commit
        it later.
        """
        failpoint("append.staged")
        waiting = PendingAppend(batch, self._runtime.monotonic(), self._runtime.random())
        # The group has no own thread: the thread that finds no commit under way commits for all
        # that wait, so a lone append changes no thread.
        with self._lock:
            self._waiting.append(waiting)
            commits, self.is_committing = not self.is_committing, True
        if not commits:
            waiting.wake.wait()
        if not waiting.is_done:
            self._commit_until_done(waiting)
        return waiting.outcome()

    def _commit_until_done(self, own: PendingAppend) -> None:
        try:
            while not own.is_done:
                self._step()
        except BaseException as error:
            own.fail(error, self._stream.name)
        finally:
            self._hand_over()

    def _step(self) -> None:
        with self._lock:
            waiting = list(self._waiting)
        try:
            self.committer.step(waiting)
        finally:
            self._drop_done()

    def _drop_done(self) -> None:
        with self._lock:
            self._waiting = [one for one in self._waiting if not one.is_done]

    def _hand_over(self, *, goes_on: bool = True) -> None:
        """Let the writer of the next batch commit, or the background if others need it."""
        self._drop_done()
        with self._lock:
            if self._waiting:
                self._waiting[0].wake.set()
                return
            goes_on = goes_on and self.committer.serves_others and self.offers
            self.is_committing = goes_on
        if goes_on:
            self.committer.has_offers = True
            self._runtime.start(self._serve_others)

    def _serve_others(self) -> None:
        """Commit for others as long as there are offers, then hand over."""
        try:
            while self.committer.goes_on and not _exiting.is_set():
                self._step()
                if self.committer.linger:
                    self._runtime.sleep(self.committer.linger)
        except Exception as error:
            name, fields = self._stream.name, log_fields("append", self._stream.name)
            logger.debug(
                "stopped committing for other writers of %s: %r", name, error, extra=fields
            )
        finally:
            self.committer.serves_others = False
            self._hand_over(goes_on=False)


def group_of(stream: StreamLog) -> AppendGroup:
    """Return the group of an open stream, which all of its writers in this process share."""
    return stream.kept(AppendGroup, partial(AppendGroup, stream))
