"""A root's marker: that it was probed, on which storage, and which root it is.

It is read once for each store that a process opens, whoever reads or writes there, and binds the
store to the root that it names: in another one, or in none, nothing is done by this store any more.
Whoever opens the same URL then gets another store (``shared``). After that a look costs nothing: a
local disk tells by one system call whether the marker is still the one that was read, an object
store is asked when a scope is created or a clock confirmed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from pravega_spark.engine.store.base import Store
from pravega_spark.errors import RootChanged, StoreRefused

MARKER_KEY = "_pravega_spark.json"
"""Object at the root of a store: its content says that the probe was passed."""
MARKER_FORMAT = 1
COPY_FORMAT = 0
"""Format of the marker of a root that is not whole: a backup is being copied to it."""
PROBE_FOLDER = "_probe"
_STORAGES = 8
"""So many storages a marker names at most: the last ones on which the root was probed."""


@dataclass(slots=True, eq=False)
class Root:
    """What a marker says. ``token`` tells one root from another that has its place later."""

    token: str
    record: dict[str, Any]
    stamp: object
    is_proved: bool = False
    """Whether this process knows that the storage it writes to was probed."""

    def names(self, storage: str) -> bool:
        """Tell whether the root was probed on that storage."""
        return storage in self.record.get("storage", ())

    def marker(self, storage: str) -> bytes:
        """Return the marker of the same root, probed on that storage, too."""
        others = [other for other in self.record.get("storage", ()) if other != storage]
        record = {**self.record, "root": self.token, "storage": [*others, storage][-_STORAGES:]}
        return encode(record)


def encode(record: dict[str, Any]) -> bytes:
    """Return the bytes of a marker."""
    return json.dumps(record, sort_keys=True).encode()


_known: WeakKeyDictionary[Store, Root] = WeakKeyDictionary()
_UNSEEN = object()
"""The stamp of a marker that has to be read again, also where a look costs a request."""


def look(store: Store, *, again: bool = False) -> Root | None:
    """Return the root as its marker says; None without a marker. One read, unless it is known.

    The first root that is found is the only one from then on. Raises RootChanged if that is gone,
    StoreRefused for a marker that is not ours or is of a format that is not known here.
    """
    known = _known.get(store)
    if known is not None and not again and known.stamp is not _UNSEEN:
        return known
    found = _read(store)
    if known is None:
        if found is not None:
            _bind(store, found)
        return found
    if found is None or found.token != known.token:
        known.stamp = _UNSEEN
        raise RootChanged(
            f"{store.url} is not the root any more that was opened here: it was removed, moved, "
            "unmounted, or set up again. Bring it back, or take the new one; then open the object "
            "anew, by a new StreamManager."
        )
    known.record, known.stamp = found.record, found.stamp
    return known


def _bind(store: Store, root: Root) -> None:
    _known[store] = root
    store.hold_to(partial(check_same, store))


def check_same(store: Store) -> None:
    """Raise RootChanged unless the store has still its root, as far as is known at no cost.

    A store of which no root is known may have any.
    """
    known = _known.get(store)
    if known is not None and known.stamp != store.stamp(MARKER_KEY):
        look(store, again=True)


def is_same(store: Store) -> bool:
    """Do what :func:`check_same` does, and tell."""
    try:
        check_same(store)
    except RootChanged:
        return False
    return True


def token_of(store: Store) -> str | None:
    """Return the name of the root that the store is bound to; None before one was opened."""
    known = _known.get(store)
    return None if known is None else known.token


def hold(store: Store, token: str) -> None:
    """Bind a store to the root of that name, which another process opened.

    Raises RootChanged if this process has opened another one there.
    """
    known = _known.get(store)
    if known is None:
        _bind(store, Root(token, {}, _UNSEEN))
    elif known.token != token:
        raise RootChanged(
            f"{store.url} is not the root any more that was opened where this object was pickled: "
            "another one was set up in its place. Open that one by a new StreamManager."
        )


_admitted: WeakSet[Store] = WeakSet()


@contextmanager
def admitted(store: Store) -> Iterator[None]:
    """Open a root that is not whole, in this process and meanwhile: to make it so."""
    _admitted.add(store)
    try:
        yield
    finally:
        _admitted.discard(store)
        known = _known.get(store)
        if known is not None:
            known.stamp = _UNSEEN  # whether it is whole now is told by its marker


def read_record(store: Store) -> dict[str, Any] | None:
    """Return what the marker says, None if there is none; raise StoreRefused if it is not ours."""
    try:
        content = store.get(MARKER_KEY)
    except FileNotFoundError:
        return None
    try:
        record = dict(json.loads(content))
        is_ours = (
            type(record.get("format")) is int
            and isinstance(record.get("storage", []), list)
            and isinstance(record.get("backup", {}), dict)
        )
    except (ValueError, TypeError, RecursionError):
        is_ours = False
    if not is_ours:
        raise StoreRefused(
            f"{store.url}/{MARKER_KEY} is not a marker of pravega_spark: {content[:80]!r}. Restore "
            "it, or delete it to have the root probed again.",
            url=f"{store.url}/{MARKER_KEY}",
        )
    return record


def _read(store: Store) -> Root | None:
    stamp = store.stamp(MARKER_KEY)
    record = read_record(store)
    if record is None:
        return None
    found = record["format"]
    if found == COPY_FORMAT and store not in _admitted:
        source = record.get("backup", {}).get("of")
        raise StoreRefused(
            f"{store.url} is a copy of {source} that is not whole: repeat the backup, or open what "
            "is there by StreamManager.restore().",
            url=store.url,
        )
    if found not in (MARKER_FORMAT, COPY_FORMAT):
        raise StoreRefused(
            f"{store.url} has format {found!r}, this version knows {MARKER_FORMAT}: "
            "use the version of pravega_spark that wrote it, or a newer one.",
            url=store.url,
        )
    # Markers of older versions have no name; the time of their probe tells them apart.
    token = str(record.get("root") or f"probed-{record.get('probed_ms')}")
    return Root(token, record, stamp)
