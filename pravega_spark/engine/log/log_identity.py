"""Notices that a log was removed or replaced in its folder, by one free call.

Without that, a lost folder looks like a log in which nothing changes. If another process creates
the table again and it reaches the version that this process knows, a commit that rests on the lost
log would be accepted. Object stores need a request to notice it, so there nothing is checked.
"""

from __future__ import annotations

from pravega_spark.engine.log.log_follower import LogFollower
from pravega_spark.errors import RootChanged, StoreError


class LogIdentity:
    """The stored file of the newest commit that a follower knows; its Log locks it."""

    def __init__(self, follower: LogFollower) -> None:
        """Begin without a commit; nothing is checked unless a call asks for it."""
        self._follower = follower
        self.is_watched = False
        """Whether each call checks."""
        self._known: tuple[str, object] | None = None
        """The token of the commit, and the stamp of its file."""

    def _stamp(self, version: int) -> object:
        return self._follower.store.stamp(self._follower.reader.key(version))

    def remember(self, *, always: bool = False) -> None:
        """Remember the file of the snapshot's commit, which was just read or written."""
        if not (always or self.is_watched):
            return
        snapshot = self._follower.snapshot
        if snapshot is not None and (self._known is None or self._known[0] != snapshot.token):
            self._known = snapshot.token, self._stamp(snapshot.version)

    def is_same(self) -> bool:
        """Return whether the known commit is still in its file; False also if that is not clear."""
        known, snapshot = self._known, self._follower.snapshot
        if known is None or snapshot is None or known[0] != snapshot.token or known[1] is None:
            return False
        return self._stamp(snapshot.version) == known[1]

    def check(self, *, always: bool = False) -> None:
        """Raise RootChanged if the log was replaced, and StoreError if it is missing.

        A folder that was moved away and back is the same. A commit that cleanup deleted, long after
        it was read, is no loss: the log is opened again.
        """
        known, follower = self._follower.snapshot, self._follower
        if known is None or not (always or self.is_watched):
            return
        stamp = self._stamp(known.version)
        if self._known == (known.token, stamp) and stamp is not None:
            return
        if stamp is not None:
            if not follower.has_commit_of(known):
                raise RootChanged(
                    f"{follower.reader.where} is not the table that this process opened: its "
                    f"version {known.version} is another one, so its folder was removed and "
                    "created again. Nothing was written. Open the object through a new "
                    "StreamManager, or restore the former folder."
                )
            self._known = known.token, stamp
            return
        follower.catch_up()
        if follower.snapshot is known:
            raise StoreError(
                f"{follower.reader.where}: version {known.version} of the log, which this process "
                "has read, does not exist: the folder was removed, moved or unmounted. Restore it.",
                url=follower.reader.where,
            )
