"""Whether a root's setting ``maintain`` is "auto".

Imports none of the maintenance: each streaming query asks this in a new process.
"""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from pravega_spark.config.root_settings import AUTO, decide_settings
from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.engine.state.settings_table import open_settings
from pravega_spark.engine.store import Store
from pravega_spark.errors import PravegaSparkError
from pravega_spark.values.limits import AUTO_SETTINGS_SECONDS

_settings: weakref.WeakKeyDictionary[Store, tuple[float, bool]] = weakref.WeakKeyDictionary()
"""When the setting of a root was read last, and whether it was "auto"."""


def is_auto(store: Store) -> bool:
    """Return whether the root's setting ``maintain`` is "auto"; reads it every few minutes.

    One storage call if no setting was ever given. A setting that cannot be read begins no
    maintenance.
    """
    known = _known(store)
    if known is None:
        read_at, known = time.monotonic(), False
        with contextlib.suppress(PravegaSparkError, OSError):
            table = open_settings(store)
            known = table.exists() and decide_settings(table.read()).maintain == AUTO
        _settings[store] = read_at, known
    return known


def _known(store: Store) -> bool | None:
    """Return the setting if it was read in the last minutes, else None."""
    found = _settings.get(store)
    is_fresh = found is not None and time.monotonic() - found[0] < AUTO_SETTINGS_SECONDS
    return found[1] if found is not None and is_fresh else None


_asked: weakref.WeakKeyDictionary[Store, Future[bool]] = weakref.WeakKeyDictionary()
"""The setting that is being read in the background."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_asked.clear)


def when_auto(store: Store, begin: Callable[[], object]) -> None:
    """Call ``begin`` if the root's setting ``maintain`` is "auto", perhaps a little later.

    Nobody waits for the setting of a root on an object store: it is read in the background.
    """
    if store.is_local or _known(store) is not None:
        if is_auto(store):
            begin()
        return
    asked = _asked.get(store)
    if asked is None or asked.done():
        asked = _asked[store] = SYSTEM.start(partial(_ask, store))
    asked.add_done_callback(lambda found: begin() if found.result() else None)
    if asked.done():
        _asked.pop(store, None)


def _ask(store: Store) -> bool:
    try:
        return is_auto(store)
    finally:
        _asked.pop(store, None)
