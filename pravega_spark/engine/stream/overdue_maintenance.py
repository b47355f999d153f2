"""Which maintenance that a stream needs has not run for a while, as texts for people."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final
from weakref import WeakKeyDictionary

from pravega_spark.config.descriptions import MaintenanceKind
from pravega_spark.config.policies import ScalingType, StreamConfiguration
from pravega_spark.config.root_settings import AUTO, EffectiveSettings, decide_settings
from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.runtime.system import Runtime
from pravega_spark.engine.state.maintenance_table import (
    describe,
    intervals_ms,
    open_maintenance,
    overdue_text,
)
from pravega_spark.engine.state.settings_table import open_settings
from pravega_spark.engine.store import Store
from pravega_spark.engine.stream.configuration import read_sources
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import Damaged, PravegaSparkError, without_credentials
from pravega_spark.values.names import split_log
from pravega_spark.values.units import time_text

logger = own_logger(__name__)


def overdue_maintenance(stream: StreamLog, view: StreamView) -> dict[MaintenanceKind, str]:
    """Return a text such as ``retention has not run for 2.0 days`` for each overdue kind.

    Retention is needed by a policy, scaling by one that follows the load, the sweep of transactions
    by open ones. Reads the record and the settings of the root; nothing if no kind is needed.
    """
    since_ms = _needed_since_ms(view)
    if not since_ms:
        return {}
    record = open_maintenance(stream.store, stream.runtime)
    try:
        entries, now_ms = record.entries(), record.about_now_ms()
    except Damaged:  # the record decides nothing, so nothing fails without it
        return {}
    intervals = intervals_ms(read_sources(stream).of_root())
    scope, _ = split_log(stream.name)
    texts = {
        kind: overdue_text(
            entries, kind, scope, since_ms=time_ms, now_ms=now_ms, interval_ms=intervals[kind]
        )
        for kind, time_ms in since_ms.items()
    }
    return {kind: text for kind, text in texts.items() if text is not None}


DEFAULT_KINDS: Final = tuple(
    kind for kind in MaintenanceKind if kind is not MaintenanceKind.COMPACTION
)
"""What applications do where nobody has chosen "auto", since the root was set up with it.

Compaction stores merged events again, beside the files that it replaces until ``retain`` has
passed, and takes the most processor time: it needs somebody who wants that.
"""


def overdue_kinds(
    store: Store, runtime: Runtime, settings: EffectiveSettings, kinds: Sequence[MaintenanceKind]
) -> str:
    """Return which kinds no process has done for a while, in any scope; "" if none is overdue.

    A text such as ``scaling, sweeping never ran``. One storage call.
    """
    record = open_maintenance(store, runtime)
    try:
        infos = describe(record.entries(), intervals_ms(settings), record.about_now_ms())
    except Damaged:  # the record decides nothing, so nothing fails without it
        return ""
    late: dict[str, list[str]] = {}
    for kind in kinds:
        found = [info for info in infos if info.kind is kind]
        ages = [info.age_seconds for info in found if info.age_seconds is not None]
        if all(info.is_overdue for info in found):
            when = f"last ran {time_text(min(ages))} ago" if ages else "never ran"
            late.setdefault(when, []).append(kind.value)
    return ", ".join(f"{', '.join(names)} {when}" for when, names in late.items())


def unmaintained(
    store: Store, runtime: Runtime, settings: EffectiveSettings, kinds: Sequence[MaintenanceKind]
) -> str | None:
    """Return that nobody does some kinds of work in the root, with the way on.

    None if the root's setting is "auto", or if jobs keep up.
    """
    late = "" if settings.maintain == AUTO else overdue_kinds(store, runtime, settings, kinds)
    if not late:
        return None
    return (
        f"nothing maintains {without_credentials(store.url)}: {late}, and the applications that "
        "use the root do not do it. Let them, by "
        "update_settings(maintain='auto'), or schedule `pravega-spark maintain`."
    )


_told: WeakKeyDictionary[Store, set[MaintenanceKind]] = WeakKeyDictionary()
"""The kinds of which this process has told that nobody does them."""


def tell_if_unmaintained(
    store: Store, runtime: Runtime, what: str, kinds: Sequence[MaintenanceKind]
) -> None:
    """Log, once for a root and a kind, that nobody does work on which something depends.

    Only advice: what the storage raises is left to the next call.
    """
    told = _told.setdefault(store, set())
    asked = [kind for kind in kinds if kind not in told]
    if not asked:
        return
    with contextlib.suppress(PravegaSparkError, OSError):
        settings = decide_settings(open_settings(store, runtime).read())
        text = unmaintained(store, runtime, settings, asked)
        if text is not None:
            told.update(asked)
            logger.warning(
                "%s has no effect: %s",
                what,
                text,
                extra=log_fields("maintain", root=without_credentials(store.url)),
            )


def needed_kinds(configuration: StreamConfiguration) -> list[MaintenanceKind]:
    """Return the kinds of work without which a policy of a stream takes no effect."""
    found = []
    if configuration.retention is not None:
        found.append(MaintenanceKind.RETENTION)
    if configuration.scaling.type is not ScalingType.FIXED:
        found.append(MaintenanceKind.SCALING)
    return found


def _needed_since_ms(view: StreamView) -> dict[MaintenanceKind, int]:
    """Return the kinds that the stream needs, each with a time since which it does."""
    record = view.record
    found = dict.fromkeys(needed_kinds(record.configuration), record.created_ms)
    if view.transactions:
        begun = (opened.created_ms for opened in view.transactions.values())
        found[MaintenanceKind.TRANSACTIONS] = min(begun)
    return found
