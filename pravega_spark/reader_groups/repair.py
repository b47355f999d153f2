"""What maintenance does with reader groups: it ends what killed processes have left.

Half-made changes are finished, and groups that the root no longer has are unsubscribed. Of a group
with retention 'automatic', whose streams keep what follows its last checkpoint, dead readers are
expired. If no reader is left, a checkpoint of what was acknowledged is completed; and a checkpoint
that is not published is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from weakref import WeakKeyDictionary

from pravega_spark.engine.layout.located_cut import LocatedCut, locate
from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.runtime.system import Runtime
from pravega_spark.engine.store import Store
from pravega_spark.engine.stream.records import SubscriberRecord
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.subscribers import listed, unsubscribe
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import InvalidStreamCut, PravegaSparkError
from pravega_spark.reader_groups import transitions
from pravega_spark.reader_groups.configuration import ReaderGroupConfiguration
from pravega_spark.reader_groups.leases import expire_readers
from pravega_spark.reader_groups.lifecycle import ChangeAnnouncements, GroupLifecycle
from pravega_spark.reader_groups.state import GroupState, Phase
from pravega_spark.reader_groups.table import Streams
from pravega_spark.values.names import is_group

logger = own_logger(__name__)

_SILENT_MS = 86_400_000
"""Only the groups of subscribers that published nothing for this long are looked up."""


def repair_group(store: Store, group: str, streams: Streams, runtime: Runtime) -> str | None:
    """Finish a half-made change of a group, and release what it has read; return an error."""
    errors = dict[str, str]()
    with _noting(errors, group):
        lifecycle = GroupLifecycle(store, group, streams, runtime)
        state = lifecycle.repair()
        if state is not None and _releases(state):
            lifecycle.subscriptions.publish_last_checkpoint(_completed(lifecycle, state))
    return errors.get(group)


@contextlib.contextmanager
def _noting(errors: dict[str, str], group: str) -> Iterator[None]:
    """Log the error of a group that cannot be repaired, and note it."""
    try:
        yield
    except PravegaSparkError as error:
        errors[group] = f"{type(error).__name__}: {error}"
        logger.warning(
            "failed to repair reader group %s: %s",
            group,
            " ".join(errors[group].split()),
            extra=log_fields("repair reader group", group=group),
        )
        logger.debug(
            "failed to repair reader group %s",
            group,
            exc_info=True,
            extra=log_fields("repair reader group", group=group),
        )


def repair_changing_groups(store: Store, streams: Streams, runtime: Runtime) -> dict[str, str]:
    """Finish the announced changes of all groups under a root; return the error of each failure."""
    announcements = ChangeAnnouncements(store, runtime)
    return announcements.repair(lambda group: repair_group(store, group, streams, runtime))


def release_absent_groups(stream: StreamLog, streams: Streams) -> None:
    """Unsubscribe groups that the root no longer has, so that their data can be truncated.

    These were removed by other means than ``delete_reader_group``: the root has neither a row of
    the group in its scope nor a log of it. The group is recorded as deleted before the stream
    unsubscribes it. A concurrent creation of the name then begins in a later generation.
    Plain subscribers are of no group and stay.
    """
    view = stream.view()
    silent_since_ms = stream.now_ms() - _SILENT_MS
    for found in listed(view):
        if not is_group(found.name):
            continue
        if max(found.since_ms, found.published_ms or 0) > silent_since_ms:
            continue
        group = GroupLifecycle(stream.store, found.name, streams, stream.runtime)
        ended = group.end_absent(found.generation + 1, ReaderGroupConfiguration([stream.name]))
        if ended is not None:
            unsubscribe(stream, found.name, ended.generation, life=view.life)
            logger.warning(
                "unsubscribed reader group %s from %s: the root no longer has the group",
                found.name,
                stream.name,
                extra=log_fields("unsubscribe", stream.name, view.version, group=found.name),
            )


# ------------------------------------------------------------------ what automatic groups have read


def _releases(state: GroupState) -> bool:
    """Return whether the streams of an active group release what its last checkpoint has passed."""
    return state.phase is Phase.ACTIVE and state.configuration.releases_at_checkpoints


def _completed(group: GroupLifecycle, state: GroupState) -> GroupState:
    """Return the state of such a group without dead readers.

    If no reader is left, its last checkpoint has all that was acknowledged: the last reader of
    version 0.1.0 left none.
    """

    def generator(newest: GroupState) -> tuple[GroupState | None, None]:
        return (transitions.without_readers(newest) if _releases(newest) else None), None

    if state.readers:
        expire_readers(group.sync, group.leases, records=True)
        state = group.sync.local.state
    if generator(state)[0] not in (None, state):
        group.sync.update("CHECKPOINT", generator)
        state = group.sync.local.state
    return state


_others: WeakKeyDictionary[Store, dict[str, int]] = WeakKeyDictionary()
"""By store: the groups of other retentions that this process has opened, with their generations."""


def release_read(stream: StreamLog, streams: Streams) -> tuple[int, dict[str, str]]:
    """Release what automatic groups have read of a stream, where no reader of theirs does.

    Opens only groups that are subscribed to the stream and hold events of it, and one of another
    retention once in its generation; none if the policy waits for no subscriber. Returns how many
    automatic groups held events, and the error of each group that failed.
    """
    view = stream.view(refresh=False)
    policy = view.record.configuration.retention
    if policy is None or not policy.waits_for_subscribers:
        return 0, {}
    count, errors, others = 0, dict[str, str](), _others.setdefault(stream.store, {})
    for record in _holders(view):
        if others.get(record.name) == record.generation:
            continue
        with _noting(errors, record.name):
            group = GroupLifecycle(stream.store, record.name, streams, stream.runtime)
            state = group.repair()
            if state is not None and _releases(state):
                count += 1
                _publish_to(stream, view, record, group, _completed(group, state))
            elif state is not None and state.phase is Phase.ACTIVE:
                others[record.name] = record.generation
    return count, errors


def _holders(view: StreamView) -> Iterator[SubscriberRecord]:
    """Yield the groups that hold events of a stream."""
    for record in view.subscribers:
        held = _held_from(view, record)
        if is_group(record.name) and held and not held.is_at_or_after(view.located_tail):
            yield record


def _held_from(view: StreamView, record: SubscriberRecord) -> LocatedCut | None:
    if record.bound is None:
        return None
    return locate(view, record.bound.cut(view.stream, view.life)).raised_to_head()


def _publish_to(
    stream: StreamLog,
    view: StreamView,
    record: SubscriberRecord,
    group: GroupLifecycle,
    state: GroupState,
) -> None:
    """Publish a group's last checkpoint to one stream, unless the view shows that it is."""
    if state.last_checkpoint is None or state.generation != record.generation:
        return
    cuts, held = state.cuts_of(state.last_checkpoint.positions), _held_from(view, record)
    with contextlib.suppress(InvalidStreamCut):  # the group has read events newer than the view
        if held and held.is_at_or_after(locate(view, cuts[stream.name]).raised_to_head()):
            return
    group.subscriptions.publish_to(stream, state, cuts)
