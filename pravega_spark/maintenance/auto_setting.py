"""Whether a root's setting ``maintain`` is "auto".

Imports none of the maintenance: each streaming query asks this in a new process.
"""

from __future__ import annotations

import contextlib
import time
import weakref

from pravega_spark.engine.store import Store
from pravega_spark.engine.tables.maintenance_table import AUTO
from pravega_spark.engine.tables.settings_table import open_settings
from pravega_spark.errors import PravegaSparkError
from pravega_spark.limits import AUTO_SETTINGS_SECONDS
from pravega_spark.root_settings import decide_settings

_settings: weakref.WeakKeyDictionary[Store, tuple[float, bool]] = weakref.WeakKeyDictionary()
"""When the setting of a root was read last, and whether it was "auto"."""


def is_auto(store: Store) -> bool:
    """Return whether the root's setting ``maintain`` is "auto"; reads it every few minutes.

    A setting that cannot be read begins no maintenance.
    """
    known = _settings.get(store)
    now = time.monotonic()
    if known is None or now - known[0] >= AUTO_SETTINGS_SECONDS:
        known = now, False
        with contextlib.suppress(PravegaSparkError, OSError):
            known = now, decide_settings(open_settings(store).read()).maintain == AUTO
        _settings[store] = known
    return known[1]
