"""The folder that a run makes under a prefix, works in, and removes; what killed runs have left."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from pravega_spark.benchmark.meter import Meter, MeteredStore
from pravega_spark.engine.store import Store, open_store
from pravega_spark.engine.store.opening import has_timeouts, is_s3
from pravega_spark.engine.store.root_marker import MARKER_KEY
from pravega_spark.errors import InvalidInput, StoreError, StoreUnavailable
from pravega_spark.values.times import utc_text
from pravega_spark.values.units import count_text

NAME: Final = "pravega-spark-bench-"
_NAMED: Final = re.compile(rf"{NAME}[0-9]{{8}}t[0-9]{{6}}-[0-9a-f]{{12}}")
MARK_KEY: Final = "_bench.json"
"""The first object of a run's folder, and the last that is deleted: only a run has one."""
_TRIAL_KEY: Final = "_bench_trial"
SILENT_SECONDS: Final = 10
"""A storage that does not answer for so long ends the run."""
CLEANING_SECONDS: Final = 120
"""A run that has not removed its folder for so long after its time is taken for a killed one."""
_PARTS_OF_ROOTS: Final = frozenset({"_scope", "_delta_log", "_settings", "_transactions"})
"""Folders that only scopes, tables and roots have."""
_SIGNS: Final = {
    MARKER_KEY: "a root of streams",
    "_scope/_delta_log/00000000000000000000.json": "a scope of a root",  # which no clean-up deletes
    "_delta_log/00000000000000000000.json": "a Delta table",
    "_delta_log/_last_checkpoint": "a Delta table",  # whose first commit was cleaned up
}
"""Objects by which a folder is known in one request each, however much it holds."""
_ROUNDS: Final = 5
_LOCAL: Final = "file://"

Warn = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class LeftFolder:
    """What a run has left, or is still writing: its URL, objects and bytes."""

    url: str
    name: str
    objects: int
    size_bytes: int
    has_mark: bool
    ends_ms: int
    """Until then the run may be under way, in ms since 1970; 0 without a mark."""
    is_under_way: bool

    def __str__(self) -> str:
        """Return it as a sentence."""
        if self.is_under_way:
            return f"{self.url}: a run that may be under way until {utc_text(self.ends_ms)}."
        return f"{self.url}: left by a run that was killed, {count_text(self.objects, 'object')}."


class Prefix:
    """A place under which runs make their folders. It is no root or table, and lies in none."""

    def __init__(self, url: str, meter: Meter, warn: Warn) -> None:
        """Look at the place; write nothing.

        ``warn`` is told where it could not be looked. Raises InvalidInput for a file, a root, a
        table or a place in one, and what the storage raises.
        """
        self._given, self._meter = url, meter
        store = open_store(url, **_options(url))
        self.url = store.url
        self.bills_requests = not store.is_local
        signs = {above: self._sign(above, warn) for above in self._places(store)}
        for what in _SIGNS.values():  # of a root and its scope, the root is named
            for above in (url for url, sign in signs.items() if sign == what):
                where = "is" if above == self.url else f"lies in {above}, which is"
                raise InvalidInput(
                    f"{self.url} {where} {what}, and a benchmark writes into none: name a place "
                    "beside it."
                )
        self._folders = MeteredStore(store, meter, is_free=True).folders("")
        parts = sorted(_PARTS_OF_ROOTS.intersection(self._folders))
        if parts:
            raise InvalidInput(
                f"{self.url} has a folder {parts[0]}, so it is a table or a part of a root: name a "
                "place beside it."
            )

    @staticmethod
    def _places(store: Store) -> Iterator[str]:
        """Yield the URL of the prefix, and of all that it lies in; of links both sides."""
        scheme, _, place = store.url.partition("://")
        paths = {place.rstrip("/")}
        if store.is_local and (path := _path(store)) is not None:
            paths.add(os.path.realpath(path))
        for path in sorted(paths):
            parts = path.split("/")
            for count in range(len(parts), 0, -1):
                yield f"{scheme}://{'/'.join(parts[:count])}" + (
                    "/" if parts[:count] == [""] else ""
                )

    def _sign(self, url: str, warn: Warn) -> str | None:
        """Return what a place is, if no benchmark may write there."""
        try:
            store = self._open(url)
            return next((what for key, what in _SIGNS.items() if store.exists(key)), None)
        except StoreUnavailable:
            raise
        except (StoreError, InvalidInput) as error:
            warn(f"could not look whether {url} is a root: {error}")
            return None

    def _open(self, url: str) -> MeteredStore:
        return MeteredStore(open_store(url, **_options(url)), self._meter, is_free=True)

    def left(self) -> list[LeftFolder]:
        """Return the folders of other runs, killed ones and such as are under way.

        One without an object is none: some S3 servers go on listing it, and a run that begins makes
        its folder before its mark.
        """
        found = (self._look(name) for name in self._folders if _NAMED.fullmatch(name))
        return [left for left in found if left.objects]

    def _look(self, name: str) -> LeftFolder:
        url = _below(self.url, name)
        store = self._open(url)
        entries = store.list("")
        marks = [entry for entry in entries if entry.key == MARK_KEY]
        ends_ms = marks[0].modified_ms + _longest_ms(store) if marks else 0
        return LeftFolder(
            url,
            name,
            len(entries),
            sum(entry.size for entry in entries),
            bool(marks),
            ends_ms,
            bool(marks) and store.time_ms() < ends_ms,
        )

    def remove(self, name: str) -> LeftFolder:
        """Delete the objects of a killed run's folder, and return what it held.

        Raises InvalidInput for another folder, and for a run that may be under way.
        """
        if name not in self._folders or not _NAMED.fullmatch(name):
            names = [found for found in self._folders if _NAMED.fullmatch(found)]
            others = f"it has {', '.join(names)}" if names else "no run has left anything there"
            raise InvalidInput(f"{self.url} has no folder {name!r} of a benchmark: {others}.")
        found = self._look(name)
        if found.objects and not found.has_mark:
            raise InvalidInput(
                f"{found.url} has no {MARK_KEY}, so no benchmark has made it: look at it, and "
                "delete it by the storage's own tools."
            )
        if found.is_under_way:
            raise InvalidInput(f"{found} Stop it, or wait until then.")
        _delete_all(self._open(found.url))
        return found

    def folder(self, name: str, seconds: float) -> RunFolder:
        """Return the folder of a new run that takes at most so many seconds; nothing is written."""
        return RunFolder(_below(self.url, name), self._meter, seconds)


def _below(url: str, name: str) -> str:
    return f"{url}{name}" if url.endswith("/") else f"{url}/{name}"


def new_name() -> str:
    """Return the name of a new run's folder: the time, and chance."""
    return f"{NAME}{time.strftime('%Y%m%dt%H%M%S', time.gmtime())}-{os.urandom(6).hex()}"


class RunFolder:
    """The folder of one run: a root of its own, which :meth:`remove` deletes as objects."""

    def __init__(self, url: str, meter: Meter, seconds: float) -> None:
        """Name it; nothing is written."""
        self.url, self._meter, self._seconds = url, meter, seconds
        self._store = open_store(url, **_options(url))
        self._free = MeteredStore(self._store, meter, is_free=True)
        self._made = _missing_folders(self._store)

    def begin(self) -> None:
        """Put the mark, and try whether objects may be deleted. Raises what the storage raises."""
        longest_ms = round((self._seconds + CLEANING_SECONDS) * 1_000)
        mark = json.dumps({"format": 1, "longest_ms": longest_ms}).encode()
        self._free.put(MARK_KEY, mark)
        self._free.put(_TRIAL_KEY, b"")
        self._free.delete([_TRIAL_KEY])
        if self._free.exists(_TRIAL_KEY):
            raise StoreError(
                f"{self.url}: what is deleted stays, so a benchmark could not clean up.",
                url=self.url,
            )

    def store(self, *, is_cached: bool = True) -> MeteredStore:
        """Return the folder as a store of its own, which shares nothing with others in memory."""
        return MeteredStore(self._store, self._meter, is_cached=is_cached)

    def remove(self) -> int:
        """Delete every object, and return how many there were. Raises what the storage raises."""
        self._meter.end()
        self._store.set_root_check(_no_check)
        count = _delete_all(self._free)
        for folder in self._made:
            with contextlib.suppress(OSError):
                os.rmdir(folder)
        return count


def _no_check() -> None:
    """Let a store work on after the marker of its root was deleted."""


def _delete_all(store: MeteredStore) -> int:
    """Delete the objects of a folder, its mark last, until a listing shows none."""
    if (path := _path(store)) is not None:
        _check_links(path)
    count = 0
    for _ in range(_ROUNDS):  # an answer that was lost may have put another one
        keys = [entry.key for entry in store.list("")]
        if not keys:
            break
        others = [key for key in keys if key != MARK_KEY]
        store.delete(others)
        if not others:
            store.delete([MARK_KEY])
        count += len(keys) if not others else len(others)
    else:
        raise StoreError(f"{store.url}: what is deleted is listed again.", url=store.url)
    store.discard_unfinished("", 0)
    if (path := _path(store)) is not None:
        _remove_empty(path)
    return count


def _check_links(path: str) -> None:
    """Raise StoreError for a link to a folder, through which a deletion would reach other files."""
    found = [path, *(f"{at}/{name}" for at, below, _ in os.walk(path) for name in below)]
    links = [place for place in found if os.path.islink(place)]
    if links:
        raise StoreError(
            f"{links[0]} is a symbolic link, which no benchmark has made, so nothing was deleted: "
            "remove the link.",
            url=links[0],
        )


def _remove_empty(path: str) -> None:
    """Remove the folders of a local disk that have no file, the lowest first."""
    for folder, _, _ in os.walk(path, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(folder)


def _longest_ms(store: MeteredStore) -> int:
    try:
        found: Any = json.loads(store.get(MARK_KEY))
        return int(found["longest_ms"])
    except (ValueError, TypeError, KeyError, FileNotFoundError):
        return 0


def _path(store: Store) -> str | None:
    """Return the path of a local folder, None of another store."""
    return store.url.removeprefix(_LOCAL) if store.url.startswith(_LOCAL) else None


def _above(path: str) -> Iterator[str]:
    while path != (path := os.path.dirname(path)):
        yield path


def _missing_folders(store: Store) -> list[str]:
    """Return the folders that the first object will make, the lowest first."""
    if (path := _path(store)) is None:
        return []
    return [place for place in (path, *_above(path)) if not os.path.lexists(place)]


def _options(url: str) -> dict[str, Any]:
    """Return storage options by which a silent storage ends a call soon."""
    if not has_timeouts(url):
        return {}
    soon = {"retry_timeout": SILENT_SECONDS}
    if is_s3(url):
        soon |= {"connect_timeout": SILENT_SECONDS, "read_timeout": SILENT_SECONDS}
    return soon
