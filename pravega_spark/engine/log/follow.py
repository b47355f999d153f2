"""The newest version of one table's log that this process knows, and the notice that it is lost.

Other processes commit to the log, and their cleanup deletes old commits. A follower that read its
snapshot long ago therefore checks that the commit of that snapshot is still stored: if it is not,
the versions after it may be deleted as well, and the log must be opened again.

Open a log on an object store in three round trips: what can be asked at the same time is.

| round trip | requests |
| --- | --- |
| 1 | the root marker, unless the process has read it, and the hint |
| 2 | the hinted state file and its parts, the commit after them, and a listing of all after that |
| 3 | the other commits that are listed, and last the commit of the last part or state file |

A log that is hinted to begin at version 0, or has no hint, is opened from that commit, which round
trip 2 reads instead of a state file; it needs no third one if it has at most one commit more.

The listing begins after the hint was read, so it has every version that was committed before the
opening began. If that last commit is still stored when the versions after it have been read, and
none of those is missing, then no cleanup came between. Anything else is in doubt here, and the
caller opens the log step by step.

A copy of the state within the hint would save one of these requests, and a round trip only for a
log without a commit since its state file, one in 256: the commits since, and the proof that must
follow them, stay. Without the listing, stale or not, nothing shows a commit that was deleted.

Notices that a log was removed or replaced in its folder, by one free call. Without that, a lost
folder looks like a log in which nothing changes. If another process creates the table again and it
reaches the version that this process knows, a commit that rests on the lost log would be accepted.
Object stores need a request to notice it, so there nothing is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from pravega_spark.engine.log.actions import REQUEST, Commit, parse_commit, request_seconds
from pravega_spark.engine.log.files import FileIndex, RecentLayer
from pravega_spark.engine.log.reader import Hint, KeptCommits, LogReader, parse_hint
from pravega_spark.engine.log.snapshot import Snapshot, check_supported, first_snapshot
from pravega_spark.engine.log.stored_state import part_key, state_key
from pravega_spark.engine.runtime.system import Runtime
from pravega_spark.engine.store import Store
from pravega_spark.engine.store.root_marker import Root, check_same, read_root, read_root_beside
from pravega_spark.errors import CorruptLog, RootChanged, StoreError
from pravega_spark.values.limits import (
    CLOCK_STEP_MS,
    FAR_COMMITS,
    OPENED_COMMITS,
    RECENT_FILES,
    REQUEST_LOCAL_SECONDS,
    REQUEST_MOST_SECONDS,
    REQUEST_REMOTE_SECONDS,
    STALE_SNAPSHOT_SECONDS,
)


@dataclass(frozen=True, slots=True)
class OpenedLog:
    """A log that was opened: a stored snapshot, and the commits after it up to the newest."""

    base: Snapshot | None
    """None if there is no log."""
    files: RecentLayer
    """The files since the last state file, at ``base``."""
    commits: tuple[Commit, ...]


_NO_LOG = OpenedLog(None, RecentLayer(-1), ())


def open_at_once(
    reader: LogReader, runtime: Runtime, hint: bytes | None, *, light: bool
) -> OpenedLog | None:
    """Return the log, whose hint the caller has read; None if its objects leave a doubt.

    Raises CorruptLog for a commit that cannot be read.
    """
    hinted = parse_hint(hint)
    base = max(0, hinted.newest)
    stored = _stored(reader, hinted) if base > 0 else [reader.key(0)]
    (*data, following), last = _read_base(reader, runtime, base, stored)
    if data[0] is None:
        return _NO_LOG if base == 0 and last == 0 and following is None else None
    if last - base > OPENED_COMMITS:
        return None
    found = _read_commits(reader, base, last, following)
    if found is None:
        return None
    if base > 0:
        state = reader.checked_state(hinted, data, found.pop(base))
        if state is None:
            return None
        snapshot, files = state, RecentLayer(base)
    else:
        first = parse_commit(0, data[0], reader.where, light=light)
        snapshot, files = first_snapshot(first, reader.where), RecentLayer(-1)
        if not light:
            files.apply(first)
    commits = tuple(
        parse_commit(version, found[version], reader.where, light=light)
        for version in range(base + 1, last + 1)
    )
    if any(c.restored_to is not None and c.restored_to < base for c in commits):
        return None
    return OpenedLog(snapshot, files, commits)


def _stored(reader: LogReader, hint: Hint) -> list[str]:
    """Return the keys of a state file and its parts."""
    parts = [part_key(reader.path, span) for span in hint.spans]
    return [state_key(reader.path, hint.state), *parts]


def _read_base(
    reader: LogReader, runtime: Runtime, base: int, stored: Sequence[str]
) -> tuple[list[bytes | None], int]:
    """Return the objects of the base, the commit after it, and the newest version that is known."""
    read: list[Any] = [
        partial(reader.store.get_many, [*stored, reader.key(base + 1)]),
        partial(reader.last_listed, base),
    ]
    found, last = runtime.each(lambda call: call(), read)
    return found, max(last, base + 1) if found[-1] is not None else last


def _read_commits(
    reader: LogReader, base: int, last: int, following: bytes | None
) -> dict[int, bytes] | None:
    """Return the commits of (base, last], and that of a stored state; None if one is missing.

    The state's commit is read after the others were, or at least after the one that follows.
    """
    found = {} if following is None else {base + 1: following}
    wanted = [version for version in range(base + 1, last + 1) if version not in found]
    if base > 0:
        wanted.append(base)
    data = reader.store.get_many([reader.key(version) for version in wanted]) if wanted else []
    read = dict(zip(wanted, data, strict=True))
    found.update((version, data) for version, data in read.items() if data is not None)
    return found if len(found) == last - base + (base > 0) else None


_AHEAD = 4
"""So many commits can be made while a lost race is answered and its winner is read."""
_LONGEST_AHEAD_SECONDS = 0.25
_IDLE_BYTES = 10 << 10
"""The memory of a log beside its domains and files, by measurement."""


class ClockReadings(NamedTuple):
    """The readings of all available clocks at one moment; any one of them may jump or stop."""

    elapsed: float
    wall_ms: int
    storage_ms: int | None

    def is_long_after(self, earlier: ClockReadings) -> bool:
        """Return whether, by any clock, a long time passed, or that clock went back."""
        limit_ms = STALE_SNAPSHOT_SECONDS * 1_000
        passed_ms = self.wall_ms - earlier.wall_ms
        if self.elapsed - earlier.elapsed > STALE_SNAPSHOT_SECONDS:
            return True
        if not -CLOCK_STEP_MS <= passed_ms <= limit_ms:
            return True
        if self.storage_ms is None or earlier.storage_ms is None:
            return False
        return self.storage_ms - earlier.storage_ms > limit_ms


class Request(NamedTuple):
    """The newest commit is a request for the next version.

    Its token, when it was read, and for how long its author asks: 0 in the usual case.
    """

    token: str
    seen_at: float
    seconds: float = 0.0


class LogFollower:
    """The newest known snapshot of a log and the index of its live files; its Log locks it."""

    def __init__(self, store: Store, path: str, runtime: Runtime) -> None:
        """Name the table at ``path``; nothing is read yet."""
        self.store = store
        self.runtime = runtime
        self.reader = LogReader(store, path)
        self.snapshot: Snapshot | None = None
        self.root: Root | None = None
        """The root as it was when the log was opened."""
        self.expects_files = False
        """Whether an opening reads the files, too, because the caller needs them next."""
        self.request: Request | None = None
        self.operation = ""
        """What the newest known commit did."""
        self.on_change: tuple[Callable[[], object], ...] = ()
        """Called after the snapshot changed."""
        self.on_commit: tuple[Callable[[Commit], object], ...] = ()
        """Called with each commit that is applied: with some again, if the log is opened again."""
        self._files: FileIndex | None = None
        self._files_limit = RECENT_FILES
        self._ahead_seconds = 0.0
        """How long the calls of the last :meth:`read_ahead` took."""
        self._newest_at: ClockReadings | None = None
        """A time at or before which the snapshot was last known to be the newest."""
        self._dated: tuple[float, int] | None = None
        """The date of our last commit and when it was read, where answers bear no dates."""

    @property
    def is_undated(self) -> bool:
        """Whether no answer tells the storage's time, so a process cannot tell that it stood still.

        The clocks of a machine that was paused stand still with it.
        """
        return not self.store.is_local and self.store.has_clock and self.store.response_date is None

    def clock_readings(self) -> ClockReadings:
        """Return the present readings of all clocks, without a storage call."""
        dated, elapsed = self.store.response_date, self.runtime.monotonic()
        storage_ms = None if dated is None else dated.storage_ms
        if dated is None and self._dated is not None:
            storage_ms = self._dated[1] + int((elapsed - self._dated[0]) * 1_000)
        return ClockReadings(elapsed, self.runtime.now_ms(), storage_ms)

    def is_stale(self) -> bool:
        """Return whether, by any clock, the snapshot was last known to be the newest long ago."""
        return self._newest_at is None or self.clock_readings().is_long_after(self._newest_at)

    @property
    def held_bytes(self) -> int:
        """About how much memory the log takes in this process; needs no lock."""
        snapshot, files = self.snapshot, self._files
        held = 0 if snapshot is None else snapshot.held_bytes
        return _IDLE_BYTES + held + (0 if files is None else files.held_bytes)

    def was_newest_since(self, elapsed: float) -> bool:
        """Return whether the snapshot was known to be the newest at a time of the boot clock."""
        at = self._newest_at
        return self.snapshot is not None and at is not None and at.elapsed >= elapsed

    def forget(self) -> None:
        """Drop the snapshot, the files and kept commits; the next use opens the log again."""
        self.snapshot, self._files = None, None
        self.reader.kept = KeptCommits()  # a restore may have replaced some
        self.request, self.operation = None, ""

    def catch_up(self) -> None:
        """Apply the commits after the snapshot, or open the log; open it again if it was cleaned.

        Cleanup is checked after reading, because the process may stall at any point before. A gap
        may be the work of a cleanup in progress, so a log with a gap is opened twice.
        """
        check_same(self.store)
        known, gaps = self.snapshot, 0
        damage: CorruptLog | None = None
        if known is None and not self.store.is_local and self._open_at_once():
            return
        while True:
            readings = self.clock_readings()
            base, is_opened = self.snapshot, False
            if base is None:
                base, is_opened = self._open(), True
                if base is None:
                    return
            try:
                is_valid = self._read_on(base, may_open=not is_opened)
            except CorruptLog as error:
                if is_opened and not self._was_cleaned(base, is_opened):
                    raise damage or error from None
                damage = damage or error  # or this process stood still, which no clock has to show
            else:
                if is_valid and not self._was_cleaned(base, is_opened):
                    newest = self.snapshot
                    if damage and known and newest and newest.version < known.version:
                        raise damage  # an older copy
                    if not is_opened or self._is_complete(refuse=gaps > 0):
                        if is_opened or not self.is_undated or self.is_stale():
                            self._newest_at = readings
                        if self.snapshot is not known:
                            self._changed()
                        return
                    gaps += 1
            self.forget()

    def _open_at_once(self) -> bool:
        """Open the log of an object store by requests in parallel; return False in any doubt."""
        readings = self.clock_readings()
        self.root, hint = read_root_beside(self.store, self.reader.hint_key)
        light = not self.expects_files
        opened = open_at_once(self.reader, self.runtime, hint, light=light)
        if opened is None:
            return False
        if opened.base is not None:
            self.snapshot = check_supported(opened.base)
            self._files = None if light else self.reader.files(opened.files, self._recent_files)
            for commit in opened.commits:
                self._apply(commit)
            self._newest_at = readings
            self._changed()
        return True

    def _open(self) -> Snapshot | None:
        """Start from a stored snapshot, which may be old; None if there is no log."""
        self.root = read_root(self.store)
        opened = self.reader.open()
        self.store.expect(self.reader.path, is_there=opened is not None)
        if opened is not None:
            self.snapshot, self._files = opened[0], None
            if self.expects_files:
                recent = self.reader.replay(opened[1], opened[0].version)
                self._files = self.reader.files(recent, self._recent_files)
        return self.snapshot

    def _read_on(self, base: Snapshot, *, may_open: bool) -> bool:
        """Apply the commits after ``base``; return False if the log is to be opened instead.

        That is so if a restore dropped ``base`` itself; and with ``may_open``, if a stored state
        passed so many of the commits that to open it costs less than to read them.
        """
        light = self._files is None  # who only follows the state decodes no file action
        for commit in self.reader.forward(base.version, light=light):
            if commit.restored_to is not None and commit.restored_to < base.version:
                return False
            self._apply(commit)
            passed = commit.version - base.version
            if may_open and passed == FAR_COMMITS and self._is_passed(commit.version):
                return False
        return True

    def _is_passed(self, version: int) -> bool:
        """Return whether the newest stored state is of a version far behind this one."""
        return self.reader.hint().newest >= version + FAR_COMMITS

    def read_next(self) -> bytes | None:
        """Apply the next commit and return its bytes; None if there is none. One storage call."""
        base = self.snapshot
        if base is None or self.is_stale():
            self.catch_up()
            return None
        check_same(self.store)
        readings = self.clock_readings()
        data = self.reader.commit_bytes(base.version + 1)
        if data is None:
            self._note_absent(readings)
            return None
        return data if self.accept(data) else None

    def read_ahead(self) -> int:
        """Apply the next few commits, which are read in parallel; return how many there were.

        For the loser of a race to a process that commits as fast as calls allow. Reading one after
        another it would never come to the newest commit. And in step with the winner it would be
        late by the same time each time, so it waits before, for up to twice as long as a call.
        """
        base = self.snapshot
        if base is None or self.is_stale():
            self.catch_up()
            return 0
        check_same(self.store)
        self.runtime.sleep(self.runtime.random() * 2 * self._ahead_seconds)
        readings = self.clock_readings()
        found = self.reader.next_commits(base.version + 1, _AHEAD)
        seconds = self.runtime.monotonic() - readings.elapsed
        self._ahead_seconds = min(seconds, _LONGEST_AHEAD_SECONDS)
        for applied, data in enumerate(found):
            if data is None:
                self._note_absent(readings)
                return applied
            if not self.accept(data):
                return applied + 1
        return len(found)

    def _note_absent(self, readings: ClockReadings) -> None:
        """Note that the next version is absent: the snapshot is the newest, or others deleted it.

        Where answers bear no dates only :meth:`catch_up` tells these apart, once the snapshot is
        stale: a poll makes no call more for it.
        """
        if not self.is_undated:
            self._newest_at = readings

    def left_to_requester(self, own: str | None) -> float:
        """Return how long to wait before the next look, in seconds; 0 if nothing is left to others.

        A request that is not the caller's ``own`` one leaves the next version to its author until
        that is committed, or for a bounded time since the request was read.
        """
        request = self.request
        if request is None or request.token == own:
            return 0.0
        usual = self.request_seconds
        longest = max(usual, min(request.seconds, REQUEST_MOST_SECONDS))
        return min(request.seen_at + longest - self.runtime.monotonic(), usual / 32)

    @property
    def request_seconds(self) -> float:
        """How long others leave the next version to a request that asks for no longer time."""
        return REQUEST_LOCAL_SECONDS if self.store.is_local else REQUEST_REMOTE_SECONDS

    def accept(self, data: bytes) -> bool:
        """Apply the next commit, which the caller has read; return False if it was a restore."""
        base = self.snapshot
        assert base is not None
        version, where = base.version + 1, self.reader.where
        commit = parse_commit(version, data, where, light=self._files is None)
        if commit.restored_to is not None:
            self.forget()
            self.catch_up()
            return False
        self._apply(commit)
        self._changed()
        return True

    def _apply(self, commit: Commit) -> None:
        if self.snapshot is None:
            after = first_snapshot(commit, self.reader.where)
            self.store.expect(self.reader.path, is_there=True)
        else:
            after = self.snapshot.apply(commit)
            if commit.protocol is not None:
                check_supported(after)
        self.request, self.operation = None, commit.operation
        if commit.operation == REQUEST:
            self.request = Request(commit.token, self.runtime.monotonic(), request_seconds(commit))
        files, self._files = self._files, None  # an interrupt here costs only a new index
        self.snapshot = after
        for call in self.on_commit:
            call(commit)
        if files is not None and files.recent <= self._files_limit:
            files.apply(commit)
            self._files = files  # else nobody asks for it, and a writer's own commits would fill it

    def _changed(self) -> None:
        for call in self.on_change:
            call()

    def advance(self, commit: Commit, sent_at: ClockReadings) -> None:
        """Apply a commit of this process, which was sent at that time and is the newest."""
        self._apply(commit)
        # Not the time of the answer: versions after ours may exist by then, and be deleted again.
        self._newest_at = sent_at
        if self._dated is not None:
            self._newest_at = sent_at._replace(storage_ms=self._dated[1])
        self._changed()

    def _is_complete(self, *, refuse: bool) -> bool:
        """Return whether no commit is stored after a gap; with ``refuse`` raise CorruptLog then."""
        newest, self.snapshot = self.snapshot, None  # stays so if this raises
        assert newest is not None
        has_gap = self.reader.has_gap(newest.version)
        if has_gap and refuse:
            raise self.reader.missing(newest.version + 1, newest.version + 2)
        self.snapshot = newest
        return not has_gap

    def _was_cleaned(self, base: Snapshot, is_opened: bool) -> bool:
        """Return whether cleanup may have deleted versions after ``base``, from which we read on.

        Cleanup deletes upward and keeps version 0. A log that was opened at version 0 was never
        cleaned.
        """
        if base.version == 0:
            return not is_opened and self.is_stale()
        if not is_opened and not self.is_stale():
            return False
        if not self.has_commit_of(base):
            return True
        newest = self.snapshot
        assert newest is not None
        return not (is_opened or self.store.is_local) and self.reader.has_gap(newest.version)

    def has_commit_of(self, snapshot: Snapshot) -> bool:
        """Return whether the log still holds the very commit that made a snapshot.

        On a local store it then holds all later commits as well, because cleanup deletes upward.
        An object store deletes the objects of one page in any order, and cleanup keeps all at or
        above the commit-deletion mark. So there a listing behind the gap shows a deletion.
        """
        commit = self.reader.commit(snapshot.version, light=True)
        return commit is not None and commit.token == snapshot.token

    def landed_late(self, known: Snapshot) -> bool:
        """Return whether our commit after ``known`` was stored after cleanup had passed it.

        Costs no call, unless a clock says that a long time passed since ``known`` was the newest
        version. Where answers bear no dates, the date of the commit itself is one of these clocks.
        """
        is_first = self.is_undated and self._dated is None
        if self.is_undated:
            written_ms = self.reader.written_ms(known.version + 1)
            if written_ms < 0:
                return True
            if written_ms == 0:  # this storage dates nothing, so nothing is deleted by age
                is_first = False
            else:
                self._dated = self.runtime.monotonic(), written_ms
        return (is_first or self.is_stale()) and self.was_cleaned_past(known)

    def was_cleaned_past(self, known: Snapshot) -> bool:
        """Return whether cleanup may have deleted the version on which our commit was based.

        An object store deletes in any order. So there all commits after ours must follow it without
        a gap, and none may be older: what cleanup leaves of a deleted version's successors is.
        """
        ours = known.version + 1
        if not self.store.is_local and not self.reader.is_followed_by_newer(ours):
            return True
        if known.version > 0:
            return not self.has_commit_of(known)
        opened = self.reader.open()  # version 0 is never deleted, so it proves nothing
        if opened is None or opened[0].version <= 1:
            return False
        return opened[0].commit_deletion_mark > 0 or not self.store.exists(self.reader.key(2))

    def files(self) -> FileIndex:
        """Return the index of live files as of the snapshot; needs a log."""
        if self.is_stale():
            self.catch_up()
        if self._files is None or self._files.recent > self._files_limit:
            try:
                recent = self._recent_files()
            except CorruptLog:  # or this process stood still, which no clock has to show
                self.forget()
                self.catch_up()
                recent = self._recent_files()
            self._files = self.reader.files(recent, self._recent_files)
            self._files_limit = max(RECENT_FILES, 2 * self._files.recent)
        return self._files

    def _recent_files(self) -> RecentLayer:
        """Return the files of the commits since the newest state file or checkpoint."""
        snapshot = self.snapshot
        if snapshot is None:  # it had one when the caller read it
            raise CorruptLog(
                f"{self.reader.where}: the table has lost its log while this process used it. "
                "Restore the table from a copy.",
                path=self.reader.where,
                version=0,
            )
        opened = self.reader.open(below=snapshot.version + 1)
        return self.reader.replay(-1 if opened is None else opened[1], snapshot.version)


class LogIdentity:
    """The stored file of the newest commit that a follower knows; its Log locks it."""

    def __init__(self, follower: LogFollower) -> None:
        """Begin without a commit; nothing is checked unless a call asks for it."""
        self._follower = follower
        self.is_watched = False
        """Whether each call checks."""
        self._known: tuple[str, object] | None = None
        """The token of the commit, and the change token of its file."""

    def _change_token(self, version: int) -> object:
        return self._follower.store.change_token(self._follower.reader.key(version))

    def remember(self, *, always: bool = False) -> None:
        """Remember the file of the snapshot's commit, which was just read or written."""
        if not (always or self.is_watched):
            return
        snapshot = self._follower.snapshot
        if snapshot is not None and (self._known is None or self._known[0] != snapshot.token):
            self._known = snapshot.token, self._change_token(snapshot.version)

    def is_same(self) -> bool:
        """Return whether the known commit is still in its file; False also if that is not clear."""
        known, snapshot = self._known, self._follower.snapshot
        if known is None or snapshot is None or known[0] != snapshot.token or known[1] is None:
            return False
        return self._change_token(snapshot.version) == known[1]

    def check(self, *, always: bool = False) -> None:
        """Raise RootChanged if the log was replaced, and StoreError if it is missing.

        A folder that was moved away and back is the same. A commit that cleanup deleted, long after
        it was read, is not a loss: the log is opened again.
        """
        known, follower = self._follower.snapshot, self._follower
        if known is None or not (always or self.is_watched):
            return
        change_token = self._change_token(known.version)
        if self._known == (known.token, change_token) and change_token is not None:
            return
        if change_token is not None:
            if not follower.has_commit_of(known):
                raise RootChanged(
                    f"{follower.reader.where} is not the table that this process opened: its "
                    f"version {known.version} is another one, so its folder was removed and "
                    "created again. Nothing was written. Open the object through a new "
                    "StreamManager, or restore the former folder."
                )
            self._known = known.token, change_token
            return
        follower.catch_up()
        if follower.snapshot is known:
            raise StoreError(
                f"{follower.reader.where}: version {known.version} of the log, which this process "
                "has read, does not exist: the folder was removed, moved or unmounted. Restore it.",
                url=follower.reader.where,
            )
