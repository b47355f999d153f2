"""What a read does about events that are gone: fail with advice, or log and skip them."""

from __future__ import annotations

from collections.abc import Collection

from pravega_spark.engine.layout.located_cut import LocatedCut, lost_text
from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.store import Store
from pravega_spark.engine.store.root_marker import is_away
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import RootChanged, TruncatedData
from pravega_spark.values.segments import SegmentRange

logger = own_logger(__name__)


def recovery_advice(group: str | None) -> str:
    """Return how to continue a query of this reader group (None: of no group) after a loss."""
    reset = "" if group is None else f"reset reader group {group} to StreamCut.EARLIEST and "
    return (
        "Events that the query has not read yet were truncated. Set failOnDataLoss to false to "
        f"continue at the head, or {reset}start again with a new checkpoint folder."
    )


def truncated_error(
    view: StreamView, head: LocatedCut, lost: tuple[SegmentRange, ...], group: str | None
) -> TruncatedData:
    """Return the error of a query that would have to skip the lost ranges to reach ``head``."""
    return TruncatedData(
        f"{_described(view, lost)}. {recovery_advice(group)}", head=head.cut, lost=lost
    )


def log_skipped(view: StreamView, lost: tuple[SegmentRange, ...]) -> None:
    """Log the ranges that a read with failOnDataLoss=false skips."""
    count = sum(map(len, lost))
    logger.warning(
        "failOnDataLoss=false: skipped at least %d events: %s",
        count,
        _described(view, lost),
        extra=log_fields("read", view.stream, view.version, lost=count),
    )


def check_root(store: Store) -> None:
    """Raise RootChanged if no root is at a store's URL, where a query has read streams before."""
    if is_away(store):
        raise RootChanged(
            f"{store.url} is no longer a root, and the query has read streams there: the root was "
            "removed, moved or unmounted. Mount or restore it, and start the query again: it "
            "continues where it is. failOnDataLoss does not cover a root that is gone."
        )


def other_root(store: Store, streams: Collection[str]) -> RootChanged:
    """Return the error of a query that finds another root at the URL of the one it has read."""
    return RootChanged(
        f"{store.url} is another root than the one where the query has read {', '.join(streams)}: "
        "that one was removed, moved or unmounted, and this one was made in its place. Mount or "
        "restore the root of the query, and start it again: it continues where it is. To read this "
        "root, use a new checkpoint folder. failOnDataLoss does not cover another root."
    )


def _described(view: StreamView, lost: tuple[SegmentRange, ...]) -> str:
    return f"stream {view.stream}: {lost_text(view, lost)} up to the head {view.head}"
