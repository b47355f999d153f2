"""Finish the creation or the deletion of a stream that a killed process left half made.

A creation writes the row of the scope's index first, then the stream's log; a deletion ends the
life first, then drops the row. In between, the row decides: the stream is about to exist, or is
about to leave the index. A half-made creation has left no object of the stream. So a stream without
a log, but with other objects, is damaged and is not created again. One without any object may have
been lost: who uses it creates it in a new life, and who only looks, or maintains it, does not.

A stream that exists needs none of what repairs it: that is imported when it is needed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from pravega_spark.engine.kinds import log_title, put_back_advice
from pravega_spark.engine.stream.records import StreamState
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import CorruptLog, NoSuchScope, NoSuchStream, StoreReadOnly
from pravega_spark.values.names import split_log

if TYPE_CHECKING:
    from pravega_spark.engine.state.scopes import Scope

_Value = TypeVar("_Value")


def repaired(stream: StreamLog, work: Callable[[], _Value]) -> _Value:
    """Return what ``work`` returns; if it finds no stream, repair the stream and work again.

    A stream that exists costs nothing. Raises what ``work`` raises: NoSuchStream if there is
    nothing to repair, or no right to write.
    """
    try:
        return work()
    except NoSuchStream:
        with contextlib.suppress(NoSuchScope, StoreReadOnly):
            if repair(stream):
                return work()
        raise


def existing_view(stream: StreamLog) -> StreamView:
    """Return the newest view of a stream, which is repaired first if it was left half made.

    For those who write to it: others call :func:`begun_view`. Raises NoSuchStream.
    """
    return repaired(stream, stream.view)


def begun_view(stream: StreamLog, since: float | None = None) -> StreamView:
    """Return the newest view of a stream as :func:`existing_view` does, but begin no stream.

    A view that was the newest at ``since``, by the boot clock, is new enough: it costs no call.
    Raises NoSuchStream, and CorruptLog if the stream is listed and has no object.
    """
    if since is not None and stream.log.was_newest_since(since):
        return looked(stream, stream.view_after_wait)
    return looked(stream, stream.view)


def looked(stream: StreamLog, work: Callable[[], _Value]) -> _Value:
    """Return what ``work`` returns, as :func:`repaired` does, but begin no stream.

    Raises CorruptLog if the stream is listed and has no object.
    """
    try:
        return work()
    except NoSuchStream:
        check_begun(stream)
        return repaired(stream, work)


def check_begun(stream: StreamLog) -> None:
    """Raise CorruptLog if a stream is listed and has no object: it was lost, or never began.

    For those who only look, and for maintenance: the next call would begin the stream, empty.
    """
    if stream.newest() is not None:
        return
    from pravega_spark.engine.state.scopes import open_scope
    from pravega_spark.engine.stream.lifecycle import has_log

    scope, path = split_log(stream.name)
    with contextlib.suppress(NoSuchScope):
        index = open_scope(stream.store, scope, stream.runtime)
        if index.log_row(path) is None or has_log(stream):
            return
        title, where = log_title(stream.name), stream.log.reader.where
        raise CorruptLog(
            f"{where}: {title} has lost its log, or its creation was killed: the index of its "
            "scope lists it, and no object of it exists. Nothing was created. "
            f"{put_back_advice(stream.name, 'its folder')}; if it had no events, or there is no "
            f"copy, create {title} again, which begins it, empty.",
            stream=stream.name,
            path=where,
            version=0,
        )


def repair(stream: StreamLog, index: Scope | None = None) -> bool:
    """Finish a half-made creation or deletion; return True if the stream exists afterwards.

    ``index`` is the scope of the stream if the caller has opened it. Raises NoSuchScope, and
    CorruptLog if the stream has lost its log.
    """
    from pravega_spark.engine.state.scopes import (
        open_scope,
        row_configuration,
        row_domains,
        row_name,
    )
    from pravega_spark.engine.stream import lifecycle
    from pravega_spark.engine.stream.lifecycle import take_over

    scope, path = split_log(stream.name)
    index = index or open_scope(stream.store, scope, stream.runtime)
    while True:
        view = stream.current_view()
        if view is not None and view.record.state is not StreamState.DELETED:
            return True
        row = index.log_row(path)
        if row is None:
            return False
        if view is None or (row["life"] <= view.life and not view.record.has_lived):
            row = take_over(stream, index, row)
            if row is None:
                continue  # its creator, or somebody else, has ended the creation
        elif row["life"] <= view.life:
            index.drop_row(row_name(row), view.life, row["kind"])
            return False
        elif row["life"] > view.life + 1:
            return False
        lifecycle.create(stream, row["life"], row_configuration(row), row_domains(row))
        return True
