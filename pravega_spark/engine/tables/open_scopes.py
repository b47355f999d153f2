"""The open scopes of this process: whoever needs a row finds the others read already."""

from __future__ import annotations

from pravega_spark.engine.open_objects import OpenObjects
from pravega_spark.engine.runtime import SYSTEM, Runtime
from pravega_spark.engine.store import Store
from pravega_spark.engine.tables.scopes import Scope
from pravega_spark.limits import OPEN_SCOPE_BYTES
from pravega_spark.names import check_scope

_open = OpenObjects(Scope, lambda scope: scope.held_bytes, OPEN_SCOPE_BYTES)


def open_scope(store: Store, name: str, runtime: Runtime = SYSTEM) -> Scope:
    """Return this process's scope of that root and name; it need not exist yet.

    A handle asks for it when it needs it, and holds none. Scopes with another runtime than the
    system's are not kept. Raises InvalidName.
    """
    check_scope(name)
    return _open.get(store, name) if runtime is SYSTEM else Scope(store, name, runtime)
