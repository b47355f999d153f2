"""The root marker: an object that names the root and the storages on which it was probed.

A process reads it once for each store that it opens, and binds the store to that root: if the root
is replaced or removed, this store rejects every operation, and opening the same URL makes another
store (``shared``). Later checks are cheap: on a local disk one system call shows whether the marker
was replaced; on an object store the marker is read again only when a scope is created or a clock is
confirmed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from pravega_spark.engine.store.base import Store
from pravega_spark.errors import InvalidInput, RootChanged, StoreRefused
from pravega_spark.values.names import MAX_SCOPE_LENGTH, is_name

MARKER_KEY = "_pravega_spark.json"
"""The key of the root marker: it exists once the probe was passed."""
MARKER_FORMAT = 1
COPY_FORMAT = 0
"""Format of the marker of an incomplete root: a backup is being copied to it."""
RESTORED = "restored_ms"
"""The field of the marker that says when the root was restored from a copy."""
PROBE_FOLDER = "_probe"
_SCOPE_TABLE = "_scope"
"""The folder that each scope has."""
_STORAGES = 8
"""A marker names at most this many storages: the last ones on which the root was probed."""


@dataclass(slots=True, eq=False)
class Root:
    """The content of a marker. ``token`` distinguishes a root from a later one at the same URL."""

    token: str
    record: dict[str, Any]
    change_token: object
    is_proved: bool = False
    """Whether this process knows that the storage it writes to was probed."""

    def names(self, storage: str) -> bool:
        """Return True if the root was probed on that storage."""
        return storage in self.record.get("storage", ())

    @property
    def began_ms(self) -> int:
        """When the root was first probed, in ms since 1970; 0 if its marker does not say it."""
        found = self.record.get("probed_ms")
        return found if type(found) is int else 0

    def marker(self, storage: str) -> bytes:
        """Return the marker of this root with one more probed storage."""
        others = [other for other in self.record.get("storage", ()) if other != storage]
        record = {**self.record, "root": self.token, "storage": [*others, storage][-_STORAGES:]}
        return encode(record)


def encode(record: dict[str, Any]) -> bytes:
    """Return the bytes of a marker."""
    return json.dumps(record, sort_keys=True).encode()


_known: WeakKeyDictionary[Store, Root] = WeakKeyDictionary()
_UNSEEN = object()
"""The change token of a marker that must be read again, even if that costs a request."""


def read_root(store: Store, *, refresh: bool = False) -> Root | None:
    """Return the root by its marker; None without a marker. One read, unless it is known.

    The first root that is found binds the store. Raises RootChanged if that root was replaced or
    removed, and StoreRefused for a marker that is not ours or has an unknown format.
    """
    known = _known.get(store)
    if known is not None and not refresh and known.change_token is not _UNSEEN:
        return known
    return _held(store, _read(store))


def read_root_beside(store: Store, key: str) -> tuple[Root | None, bytes | None]:
    """Return the root as :func:`read_root` does, and an object that is read at the same time."""
    known = _known.get(store)
    if known is not None and known.change_token is not _UNSEEN:
        return known, store.get_many([key])[0]
    token = store.change_token(MARKER_KEY)
    marker, data = store.get_many([MARKER_KEY, key])
    record = None if marker is None else _decode(store, marker)
    return _held(store, _root(store, record, token)), data


def _held(store: Store, found: Root | None) -> Root | None:
    """Return the root that the store is bound to, as its marker shows it now; bind a first one."""
    known = _known.get(store)
    if known is None:
        if found is not None:
            _bind(store, found)
        return found
    if found is None or found.token != known.token:
        known.change_token = _UNSEEN
        raise RootChanged(
            f"{store.url} is no longer the root that this process opened there: that one was "
            "removed, moved, unmounted or replaced. A manager that was made before keeps to that "
            "root, even if it was never used. Restore or mount it, or use the present root "
            "through a new StreamManager."
        )
    known.record, known.change_token = found.record, found.change_token
    return known


def _bind(store: Store, root: Root) -> None:
    _known[store] = root
    store.set_root_check(partial(check_same, store))


def check_same(store: Store) -> None:
    """Raise RootChanged if the store's root has changed, as far as a free check can see.

    A store that is not bound to a root passes.
    """
    known, change_token = _known.get(store), store.change_token(MARKER_KEY)
    if known is not None and known.change_token != change_token:
        read_root(store, refresh=True)


def is_same(store: Store) -> bool:
    """Return False where :func:`check_same` raises RootChanged."""
    try:
        check_same(store)
    except RootChanged:
        return False
    return True


def is_away(store: Store) -> bool:
    """Return whether no root is at the store's URL now: its root may come back there."""
    try:
        return read_record(store) is None
    except StoreRefused:
        return False


def way_on(store: Store, otherwise: str) -> str:
    """Return how an error of a missing object ends: ``otherwise``, unless its root is missing.

    A creation in a place where the root is not mounted would hide that the root is away.
    """
    if not is_away(store):
        return otherwise
    return (
        f": {store.url} is not a root now. If it was one, mount or restore it, and create nothing "
        "there before; else check the URL. A new root begins with create_scope."
    )


def is_copy(store: Store) -> bool:
    """Return whether the root is known to be a copy: of a backup, or one that was restored.

    One read of the marker, unless it is known.
    """
    root = read_root(store)
    return root is not None and not {"backup", RESTORED}.isdisjoint(root.record)


def root_restored_ms(store: Store) -> int | None:
    """Return when the root was restored from a copy, or None; one read, unless it is known."""
    root = read_root(store)
    return None if root is None else root.record.get(RESTORED)


def token_of(store: Store) -> str | None:
    """Return the token of the root that the store is bound to; None if it is not bound."""
    known = _known.get(store)
    return None if known is None else known.token


def bind_root(store: Store, token: str) -> None:
    """Bind a store to the root of that token, which another process opened.

    Raises RootChanged if this process has opened another root at the same URL.
    """
    known = _known.get(store)
    if known is None:
        _bind(store, Root(token, {}, _UNSEEN))
    elif known.token != token:
        raise RootChanged(
            f"{store.url} is no longer the root that was open when this object was pickled: it was "
            "replaced. Open the present root through a new StreamManager."
        )


_incomplete_allowed: WeakSet[Store] = WeakSet()


@contextmanager
def allow_incomplete(store: Store) -> Iterator[None]:
    """Allow this process to open an incomplete root, in order to complete it."""
    _incomplete_allowed.add(store)
    try:
        yield
    finally:
        _incomplete_allowed.discard(store)
        known = _known.get(store)
        if known is not None:
            known.change_token = _UNSEEN  # its marker shows whether it is complete now


def scope_folders(store: Store) -> list[str]:
    """Return the folders of a root that may be scopes, by their names."""
    return [name for name in store.folders("") if is_name(name, MAX_SCOPE_LENGTH)]


def some_scopes(store: Store) -> list[str]:
    """Return up to three scopes of a root, whether it has a marker or not, by their folders."""
    found = (name for name in scope_folders(store) if _SCOPE_TABLE in store.folders(name))
    return list(islice(found, 3))


def missing_marker(store: Store) -> InvalidInput:
    """Return the error of a root without a marker, which is not written to; it names its scopes."""
    scopes = some_scopes(store)
    if not scopes:
        return InvalidInput(
            f"root {store.url} has no marker, so it holds no scope. If it was a root, mount or "
            "restore it, and create nothing there before; else check the URL. A new root begins "
            "with create_scope."
        )
    return InvalidInput(
        f"root {store.url} has no marker, but holds scopes: {', '.join(scopes)}. Its marker "
        f"{MARKER_KEY} was lost, or this is a part of a copy. Put the marker back from a copy of "
        f"the root. If there is none and the data is complete, create_scope({scopes[0]!r}) of a "
        "new StreamManager probes the storage and writes another marker; every process that had "
        "opened the root must then open it again."
    )


def read_record(store: Store) -> dict[str, Any] | None:
    """Return the content of the marker, None if there is none; raise StoreRefused if not ours."""
    try:
        content = store.get(MARKER_KEY)
    except FileNotFoundError:
        return None
    return _decode(store, content)


def _decode(store: Store, content: bytes) -> dict[str, Any]:
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
            "it, or delete it so that the root is probed again.",
            url=f"{store.url}/{MARKER_KEY}",
        )
    return record


def _read(store: Store) -> Root | None:
    token = store.change_token(MARKER_KEY)
    return _root(store, read_record(store), token)


def _root(store: Store, record: dict[str, Any] | None, change_token: object) -> Root | None:
    if record is None:
        return None
    found = record["format"]
    if found == COPY_FORMAT and store not in _incomplete_allowed:
        source = record.get("backup", {}).get("of")
        raise StoreRefused(
            f"{store.url} is an incomplete copy of {source}: repeat the backup, or open the intact "
            "part with StreamManager.restore().",
            url=store.url,
        )
    if found not in (MARKER_FORMAT, COPY_FORMAT):
        raise StoreRefused(
            f"{store.url} has format {found!r}, this version knows {MARKER_FORMAT}: "
            "use the version of pravega_spark that wrote it, or a newer one.",
            url=store.url,
        )
    # Markers of older versions have no token; the time of their probe distinguishes them.
    token = str(record.get("root") or f"probed-{record.get('probed_ms')}")
    return Root(token, record, change_token)
