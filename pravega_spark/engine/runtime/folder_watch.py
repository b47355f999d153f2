"""Reports new files in folders of this machine: inotify, on Linux. A hint, never a proof.

File systems of other machines (NFS) report nothing that happens there, a queue may overflow, and
the system limits the watches of a user. So the watcher of a folder polls it as well.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from pravega_spark.primitives.process_locks import new_lock

if TYPE_CHECKING:
    from inotify_simple import Event, INotify

from pravega_spark.engine.runtime.log_fields import log_fields, own_logger

logger = own_logger(__name__)

_IDLE_MS = 5_000
"""A watch that is not used is removed after one to two times this, and without any the thread ends.

A reader at the tail waits again and again, so its watch stays.
"""


class FolderWatch:
    """A watched folder; the watch ends when nobody holds this object, and after a long idle time.

    ``is_live`` turns False, and ``changed`` is called, when the folder is removed or moved.
    """

    def __init__(self, changed: Callable[[], object], is_used: Callable[[], object]) -> None:
        """Take what is called, in a thread of the watch, after files were added."""
        self.changed, self.is_used = changed, is_used
        self.is_live, self.was_used = True, True
        self.names: list[str] = []
        """The files that the present call of ``changed`` reports; empty if they are unknown."""


class _FolderWatches:
    """The watches of this process, and the thread that waits for their reports."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self.renew()

    def renew(self) -> None:
        """Begin without watches; a forked child, which shares the parent's queue, leaves it."""
        self._inotify: INotify | None = None
        self._watches: dict[int, list[weakref.ref[FolderWatch]]] = {}
        self._is_refused = False

    def leave(self) -> None:
        """Close this process's end of the parent's queue."""
        inherited = self._inotify
        self.renew()
        if inherited is not None:
            inherited.close()

    def watch(
        self, folder: str, changed: Callable[[], object], is_used: Callable[[], object]
    ) -> FolderWatch | None:
        """Watch a folder; None if this system cannot."""
        try:
            from inotify_simple import flags
        except ImportError:
            return None
        mask = flags.CREATE | flags.MOVED_TO | flags.DELETE_SELF | flags.MOVE_SELF | flags.ONLYDIR
        with self._lock:
            try:
                inotify = self._inotify or self._start()
                number = inotify.add_watch(folder, mask)
            except (FileNotFoundError, NotADirectoryError):
                return None
            except (OSError, RuntimeError) as error:  # a limit of the system, or its exit
                if not self._is_refused:
                    logger.info(
                        "polling instead of watching %s: %s",
                        folder,
                        error,
                        extra=log_fields("follow"),
                    )
                self._is_refused = True
                return None
            made = FolderWatch(changed, is_used)
            self._watches.setdefault(number, []).append(weakref.ref(made))
            return made

    def _start(self) -> INotify:
        from inotify_simple import INotify

        inotify = INotify(nonblocking=True)
        thread = threading.Thread(
            target=self._run, args=(inotify,), name="pravega-watch", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:
            inotify.close()
            raise
        self._inotify = inotify
        return inotify

    def _run(self, inotify: INotify) -> None:
        while True:
            events = inotify.read(_IDLE_MS)
            with self._lock:
                changed = self._changed(events)
                if not events and not self._drop_unused(inotify):
                    self._inotify = None
                    inotify.close()
                    return
            while changed:
                changed.pop().changed()  # holds no watch while it waits

    def _changed(self, events: Iterable[Event]) -> list[FolderWatch]:
        """Return the watches of folders in which something happened; end those that are gone."""
        from inotify_simple import flags

        found: dict[FolderWatch, list[str]] = {}
        for event in events:
            numbers = list(self._watches) if event.mask & flags.Q_OVERFLOW else [event.wd]
            is_gone = event.mask & (flags.IGNORED | flags.DELETE_SELF | flags.MOVE_SELF)
            for number in numbers:
                watches = [watch for one in self._watches.get(number, ()) if (watch := one())]
                for watch in watches:
                    found.setdefault(watch, []).append(event.name)
                if is_gone:
                    self._end(number)
        for watch, names in found.items():
            watch.names = names
        return list(found)

    def _drop_unused(self, inotify: INotify) -> bool:
        """Remove watches that were not used for a while; return whether any is left."""
        for number, found in list(self._watches.items()):
            if [one for one in found if (watch := one()) is not None and _is_used(watch)]:
                continue
            self._end(number)
            try:
                inotify.rm_watch(number)
            except OSError:  # the folder is gone
                continue
        return bool(self._watches)

    def _end(self, number: int) -> None:
        for one in self._watches.pop(number, ()):
            watch = one()
            if watch is not None:
                watch.is_live = False


def _is_used(watch: FolderWatch) -> bool:
    """Return whether a watch is used, or was at the last look."""
    was_used, watch.was_used = watch.was_used, bool(watch.is_used())
    return was_used or watch.was_used


_watches = _FolderWatches()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_watches.leave)


def watch_folder(
    folder: str, changed: Callable[[], object], is_used: Callable[[], object]
) -> FolderWatch | None:
    """Call ``changed`` after files were added to a folder; None if this system cannot report that.

    The watch ends (``is_live``) when ``is_used`` returned False for some seconds.
    """
    return _watches.watch(folder, changed, is_used)
