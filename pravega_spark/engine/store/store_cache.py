"""One store for each root and process, also for unpickled ones."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pravega_spark.engine.store.base import Store
from pravega_spark.engine.store.root_marker import is_same
from pravega_spark.engine.store.root_url import RootUrl
from pravega_spark.errors import StoreError

_Store = TypeVar("_Store", bound=Store)
_STORES: dict[Any, Any] = {}
_VARIABLES = ("AWS_", "PRAVEGA_SPARK_")
"""How the names of the variables begin that have defaults of options."""


def shared(make: Callable[..., _Store], *arguments: Any) -> _Store:
    """Return this process's ``make(*arguments)``, made by the first call.

    A connection does not survive a fork, so a child makes its own store. So does a process whose
    variables have changed that have defaults of options. A store is bound to
    the root that it opened: if the URL now holds another root, another store is made.
    """
    environment = sorted(item for item in os.environ.items() if item[0].startswith(_VARIABLES))
    identity = (os.getpid(), make, _frozen(arguments), tuple(environment))
    store: _Store | None = _STORES.get(identity)
    if store is not None and not _is_same(store):
        store = _STORES[identity] = make(*arguments)
    # If two threads make a store at the same time, the first one wins; a store costs little.
    return _STORES.setdefault(identity, make(*arguments)) if store is None else store


def _is_same(store: Store) -> bool:
    with contextlib.suppress(StoreError):  # its first use raises this
        return is_same(store)
    return True


def _frozen(value: Any) -> Any:
    """Return ``value`` with its dicts and lists as tuples, usable in a dict's key."""
    if isinstance(value, RootUrl) and value.filesystem is not None:
        return str(value), value.filesystem  # equal ones are of the same arguments
    if isinstance(value, Mapping):
        return tuple(sorted((str(key), _frozen(item)) for key, item in value.items()))
    if isinstance(value, (list, tuple)):
        return tuple(_frozen(item) for item in value)
    return f"{type(value).__name__} {value!r}"
