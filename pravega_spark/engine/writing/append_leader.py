"""What the thread that leads the appends of a process does: one commit or one look at a time.

Without other writers, all batches that wait go into the next commit.

With other writers, batches are **offered**: their chunks get names that say all that a commit needs
(``offer_name``). The leader then follows the log until a commit of some process holds its batches.
If none comes in time, it **takes**: one commit of its own batches and of all offers that pass the
checks of an append.
"""

from __future__ import annotations

from collections.abc import Sequence

from pravega_spark.engine.failpoints import failpoint
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.commit_log import Proposal
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.writing.append_draft import (
    APPEND,
    AppendDraft,
    AppendResult,
    StagedBatch,
    is_new,
)
from pravega_spark.engine.writing.contention import (
    MISSED_COMMITS,
    STAND_BACK_COMMITS,
    VERB_COMMITS,
    Contention,
)
from pravega_spark.engine.writing.landed_batch import landed, offers_in
from pravega_spark.engine.writing.offer_listing import Offer, OfferListing
from pravega_spark.engine.writing.open_append import OfferFirst, OpenAppend, oldest_offer
from pravega_spark.errors import OutOfOrder, PravegaSparkError, StoreError
from pravega_spark.limits import COMMIT_DEADLINE_SECONDS, OFFERS_PER_COMMIT, REQUEST_AFTER

_OWNER_COMMITS = 64
"""A process whose own writers were idle for so many commits stops to commit for others."""
_BEHIND = 3
"""After so many commits of others in a row, the log is read on at once."""
_RETRY_SECONDS = 0.1
"""The pause after a look that failed."""
_CHASES = 4
"""How often a loser of a race looks for the next commit before it lists again."""
_OFFER_REQUEST_AFTER = 4 * REQUEST_AFTER
"""On an object store an offer needs so many lost races for a request, which holds all others up."""


class AppendLeader:
    """The steps of one process on the way to the next commits of a stream; one thread a time."""

    def __init__(self, stream: StreamLog) -> None:
        """Begin without knowing other writers."""
        self._stream = stream
        self._runtime = stream.runtime
        self._contention = Contention(is_local=stream.store.is_local)
        self._offers = OfferListing(stream)
        self.takes = False
        """Whether this process committed for others the last time, and goes on."""
        self.has_offers = False
        """Whether others offer batches, as of the last listings."""
        self._listed: list[Offer] = []
        """The offers of the last listing."""
        self._lost_takes = 0
        """Commits for others that lost a race, since the last one that was won."""
        self._is_outpaced = False
        """Whether the last race was lost, on an object store, to a process that takes no offers."""
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
        """Whether to commit for others once more, without batches of one's own."""
        others = self.has_offers and self._foreign_commits < _OWNER_COMMITS
        return self.takes and self.is_contended and others

    @property
    def linger(self) -> float:
        """How long to wait between two commits for others, in seconds."""
        return self._contention.linger

    def step(self, waiting: list[OpenAppend]) -> None:
        """Try one commit, or look once for a commit of another process."""
        now = self._runtime.monotonic()
        if not self._contention.is_contended(now):
            self._try(waiting, ())
        elif self.takes or self._must_take(waiting, now):
            self.take(waiting)
        else:
            self._follow(waiting, now)

    def _must_take(self, waiting: Sequence[OpenAppend], now: float) -> bool:
        """Return whether the patience of an owner is over, or nobody else can commit its batch."""
        return any(
            not one.batch.is_offered
            or self._contention.is_patience_over(now, one.waits_from, one.missed, one.random)
            for one in waiting
        )

    # ------------------------------------------------------------------------------ to commit

    def take(self, waiting: list[OpenAppend]) -> None:
        """Commit what waits in this process, with all offers that pass."""
        if self._lost_takes % 2:
            self._chase()
            self._review(waiting)
            waiting = [one for one in waiting if not one.is_done]
        else:
            self._list(waiting)
        failpoint("append.listed")
        own = {one.batch.identity for one in waiting}
        others = [offer for offer in self._listed if offer.batch.identity not in own]
        if not waiting and not others:
            self._note_taken(None)
            self._look()
            return
        self._foreign_commits = 0 if waiting else self._foreign_commits + 1
        self._lost_takes += 1
        self.takes = self._try(waiting, others)
        if self.takes:
            self._lost_takes = 0
        failpoint("append.taken")

    def _list(self, waiting: Sequence[OpenAppend]) -> None:
        began = self._runtime.monotonic()
        try:
            self._listed = self._offers.read(self._stream.known_view(), oldest_offer(waiting))
        except PravegaSparkError as error:
            self._fail(waiting, error)
            raise
        self._contention.listing_seconds = self._runtime.monotonic() - began
        self._contention.saw(len(self._listed))

    def _chase(self) -> None:
        """Wait for the commit of the process that won the last race, so that this one is next.

        Otherwise a process that commits at a steady pace wins every race: the round of a loser,
        which reads the winner's commit and lists, takes longer than the winner's own. One that
        takes no offers may even commit as fast as calls allow, and only luck wins a race against
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

    def _try(self, waiting: list[OpenAppend], offers: Sequence[Offer]) -> bool:
        """Try one commit of the batches and offers; complete the batches if it is won."""
        placed: dict[OpenAppend, AppendResult | PravegaSparkError] = {}
        done: set[str] = set()

        def decide(snapshot: Snapshot | None) -> Proposal[int | None]:
            if snapshot is None:
                raise self._stream.absent()
            draft = AppendDraft(self._stream.view_of(snapshot), self._stream.now_ms())
            placed.clear()
            done.clear()
            for one in waiting:
                placed[one] = draft.tried(one.batch, snapshot.version + 1)
            before = draft.batches
            for offer in offers:
                if draft.chunks >= OFFERS_PER_COMMIT:
                    break
                if not isinstance(draft.tried(offer.batch, 0), OutOfOrder):
                    done.add(offer.token)
            body: Body | None = draft.body() if draft.batches else None
            return body, draft.batches - before if draft.batches else None

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
        self._note_taken(committed.value)
        for one, outcome in placed.items():
            if isinstance(outcome, AppendResult):
                is_old = outcome.duplicate
                one.complete(self._landed(one.batch) if is_old else outcome)
            elif committed.value is None:
                self._review([one])
            else:  # the commit proves that its snapshot was the newest
                one.refuse(outcome)
        return True

    def _note_taken(self, taken: int | None) -> None:
        now = self._runtime.monotonic()
        self.has_offers = self._contention.listed(now, found=bool(taken))

    def _after_lost_race(self, waiting: Sequence[OpenAppend]) -> None:
        """Have batches offered, so that the winner takes them the next time.

        The owners of offers stand back for the winner, which takes from now on: if all of them went
        on, each commit would hold a few batches only. What lost some races, or cannot be offered,
        asks for the next version.
        """
        now, requests = self._runtime.monotonic(), list[OpenAppend]()
        is_remote = not self._stream.store.is_local
        self._is_outpaced = is_remote and not offers_in(self._stream.log.winner)
        for one in waiting:
            if one.is_done:
                continue
            if self.is_contended and one.batch.can_be_offered and not one.batch.is_offered:
                one.refuse(OfferFirst())
                continue
            if self._stream.log.operation == APPEND and not self._is_outpaced:
                one.wait(MISSED_COMMITS - STAND_BACK_COMMITS, now, self._runtime.random())
            one.lost += 1
            is_patient = is_remote and one.batch.is_offered
            if one.lost % (_OFFER_REQUEST_AFTER if is_patient else REQUEST_AFTER) == 0:
                requests.append(one)
        if self._is_outpaced:
            self._lost_takes = 1
        if requests:
            self._request, self._lost_takes = self._stream.log.request(), 0
            for one in requests:
                one.missed = MISSED_COMMITS

    # ------------------------------------------------------------------------------ to follow

    def _follow(self, waiting: list[OpenAppend], now: float) -> None:
        """Look once for the next commit of another process.

        A batch that is offered can land whatever this process sees of the storage, so an error of a
        read is tried again, as long as a commit without an answer would be.
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
        self._contention.saw(offers_in(data))
        self._newest = None if data is None or snapshot is None else (snapshot.version, data)
        self._behind += 1
        if self._behind > _BEHIND:
            self._behind = 0
            log.refresh()
        return True

    def _review(self, waiting: Sequence[OpenAppend]) -> None:
        """Complete the batches that a commit of another process holds, or that none can hold.

        Each refusal is final, at whatever version it is found; the newest one has the best cause.
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
                one.refuse(error)
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

    def _fail(self, waiting: Sequence[OpenAppend], error: BaseException) -> None:
        """Fail batches because of an error that says nothing about any of them."""
        for one in waiting:
            one.fail(error, self._stream.name)
