"""Subscribers of a stream: reader groups that its retention waits for. Each call is one commit.

A subscriber's record is in the stream's log, so publishes and truncations are decided in one
order. Calls carry the group's generation, which rises with every change of the group: late calls
of an older generation do nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pravega_spark.engine.layout.located_cut import locate
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.commit_log import Proposal
from pravega_spark.engine.stream import archived_records
from pravega_spark.engine.stream.records import SUBSCRIBER_PREFIX, SubscriberRecord
from pravega_spark.engine.stream.stream_log import Sizes, StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import GenerationMismatch, InvalidStreamCut, NoSuchSubscriber
from pravega_spark.model import StreamCut, SubscriberInfo
from pravega_spark.names import split_group

UNSUBSCRIBED, IDLE = "unsubscribed", "idle"
"""Reasons for the removal of a subscriber."""

BytesAt = Callable[[int, int], "int | None"]
Change = Callable[[StreamView, BytesAt], "SubscriberRecord | None"]
"""Returns the record to commit, for a view and a function for the bytes before offsets."""


def subscribe(
    stream: StreamLog,
    group: str,
    generation: int,
    *,
    protect: bool = False,
    start: StreamCut | str | None = None,
) -> bool:
    """Make the group a subscriber, or renew it; return False if its generation is not newer.

    As in Pravega, a new subscriber holds nothing until it publishes. Until then ``protect`` holds
    everything from the present head, and ``start`` everything from that cut. A renewed subscriber
    keeps the cut that it published; with ``start`` it begins there, which may be further back.
    Where the head has passed ``start``, it begins at the head. Raises InvalidStreamCut,
    InvalidName, NoSuchStream, StaleIdentity.
    """
    name = _checked(group)
    begin = StreamCut.EARLIEST if start is None else StreamCut.of(start)
    _check_generation(generation)

    def change(view: StreamView, bytes_at: BytesAt) -> SubscriberRecord | None:
        known = archived_records.find_subscriber(stream, view, name)
        if known is not None and known.generation >= generation:
            return None
        hold = None
        published: tuple[Any, ...] = (None, None, "", None)
        if start is not None or protect:
            hold = view.sized(locate(view, begin).raised_to_head().cut, bytes_at)
        if known is not None and not known.removed and start is None:
            published = known.published, known.published_ms, "", known.published_version
            hold = known.hold or hold
        since = stream.now_ms(), view.version + 1
        return SubscriberRecord(name, generation, *since, hold, *published)

    life = begin.life if begin.is_bound else None
    return _commit(stream, "SUBSCRIBE", name, change, life)


def unsubscribe(stream: StreamLog, group: str, generation: int, *, life: int | None = None) -> bool:
    """Remove the subscriber, so that it holds nothing; return False if it is not newer.

    The generation is kept, even if the group never subscribed: a late ``subscribe`` does nothing.
    ``life`` is the life that the call is made for, by default the present one.
    """
    name = _checked(group)
    _check_generation(generation)

    def change(view: StreamView, _: BytesAt) -> SubscriberRecord | None:
        known = archived_records.find_subscriber(stream, view, name)
        if known is not None and known.generation >= generation:
            return None
        since = stream.now_ms(), view.version + 1
        return SubscriberRecord(name, generation, *since, removed=UNSUBSCRIBED)

    return _commit(stream, "UNSUBSCRIBE", name, change, life)


def publish(
    stream: StreamLog,
    group: str,
    generation: int,
    cut: StreamCut | str,
    *,
    life: int | None = None,
) -> bool:
    """Publish that the group needs nothing before a cut; return False if that is recorded already.

    A publish truncates nothing; the next run of retention may. ``life`` is the life that the call
    is made for, by default the present one. Raises NoSuchSubscriber, GenerationMismatch, and
    InvalidStreamCut for a cut of another stream or behind the last published one.
    """
    name = _checked(group)

    def change(view: StreamView, bytes_at: BytesAt) -> SubscriberRecord | None:
        known = _published_by(view, name, generation)
        wanted = locate(view, cut).canonical()
        if known.bound is not None:
            before = locate(view, known.bound.cut(view.stream, view.life))
            if not wanted.is_at_or_after(before):
                raise InvalidStreamCut(
                    f"subscriber {name} of {view.stream} cannot publish {wanted}: that is behind "
                    f"{before}, at least in part, and subscribers do not go back. Reset the group "
                    "to start again."
                )
        if known.published is not None and known.published.positions == wanted.cut.positions:
            return None
        return replace(
            known,
            published=view.sized(wanted.cut, bytes_at),
            published_ms=stream.now_ms(),
            published_version=view.version + 1,
        )

    return _commit(stream, "PUBLISH", name, change, life)


def listed(view: StreamView) -> list[SubscriberInfo]:
    """Return the subscribers, by name."""
    found = []
    for record in view.subscribers:
        bound = record.bound
        cut = None if bound is None else bound.cut(view.stream, view.life)
        times = record.published_ms, record.since_ms
        found.append(SubscriberInfo(record.group, record.generation, cut, *times))
    return found


def _checked(group: str) -> str:
    return "/".join(split_group(group))


def _check_generation(generation: int) -> None:
    assert generation >= 0, f"generation {generation} of a group"


def _published_by(view: StreamView, name: str, generation: int) -> SubscriberRecord:
    known = view.subscriber(name)
    if known is None or known.removed:
        why = ""
        if known is not None and known.removed == IDLE:
            why = ": it expired, since it published nothing for too long"
        raise NoSuchSubscriber(
            f"group {name} does not subscribe to stream {view.stream}{why}. Subscribe it first.",
            stream=view.stream,
            group=name,
        )
    if known.generation != generation:
        bound = known.bound
        raise GenerationMismatch(
            f"subscriber {name} of {view.stream} is in generation {known.generation}, and this "
            f"publish is of generation {generation}. Open the group again.",
            group=name,
            generation=generation,
            current_generation=known.generation,
            cut=None if bound is None else bound.cut(view.stream, view.life),
        )
    return known


def _commit(stream: StreamLog, operation: str, name: str, change: Change, life: int | None) -> bool:
    """Commit the record that ``change`` returns; return False if it returns none.

    Chunks are read before the commit, not while the log is locked. So after a lost race the record
    may lack the bytes of a segment; a run of retention then looks them up.
    """
    known = stream.view(life=life)
    sizes = _bytes_needed(stream, known, change)

    def decide(view: StreamView) -> Proposal[bool]:
        record = change(view, lambda segment_id, offset: sizes.get((segment_id, offset)))
        if record is None:
            return None, False
        parameters: dict[str, object] = {"subscriber": name, "generation": record.generation}
        if record.bound is not None:
            parameters["cut"] = str(record.bound.cut(view.stream, view.life))
        body = Body(operation, parameters, domains={f"{SUBSCRIBER_PREFIX}{name}": record.encode()})
        return body, True

    return stream.commit(decide, life=known.life).value


def _bytes_needed(stream: StreamLog, view: StreamView, change: Change) -> Sizes:
    """Return the bytes that a change needs on a view."""
    needed = list[tuple[int, int]]()

    def record(segment_id: int, offset: int) -> None:
        needed.append((segment_id, offset))

    change(view, record)
    return stream.bytes_of(needed, view)
