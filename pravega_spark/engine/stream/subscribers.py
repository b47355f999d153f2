"""Subscribers of a stream: reader groups that its retention waits for. Each call is one commit.

A subscriber's record lives in the stream's own log, so that what it published and what a
truncation may drop are decided in one order. Calls carry the group's generation, which rises
with every change of the group: what comes late, of an older one, does nothing.
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
"""Why a subscriber is gone."""

BytesAt = Callable[[int, int], "int | None"]
Change = Callable[[StreamView, BytesAt], "SubscriberRecord | None"]
"""Given a view, and what tells the bytes of segments before offsets, the record to commit."""


def subscribe(
    stream: StreamLog,
    group: str,
    generation: int,
    *,
    protect: bool = False,
    start: StreamCut | str | None = None,
) -> bool:
    """Make the group a subscriber, or renew it; False if its generation is not newer.

    As in Pravega, a new subscriber holds nothing until it publishes. With ``protect`` it holds
    all from the head as it is now, with ``start`` all from there, until it publishes. A renewed
    one keeps what it published; with ``start`` it begins there, which may be further back. Where
    the head has moved past ``start``, it begins at the head: nothing before that can be held.
    Raises InvalidStreamCut, InvalidName, NoSuchStream, StaleIdentity.
    """
    name = _checked(group)
    place = StreamCut.EARLIEST if start is None else StreamCut.of(start)
    _check_generation(generation)

    def change(view: StreamView, bytes_at: BytesAt) -> SubscriberRecord | None:
        known = archived_records.find_subscriber(stream, view, name)
        if known is not None and known.generation >= generation:
            return None
        hold = None
        published: tuple[Any, ...] = (None, None, "", None)
        if start is not None or protect:
            hold = view.sized(locate(view, place).raised_to_head().cut, bytes_at)
        if known is not None and not known.removed and start is None:
            published = known.published, known.published_ms, "", known.published_version
            hold = known.hold or hold
        since = stream.now_ms(), view.version + 1
        return SubscriberRecord(name, generation, *since, hold, *published)

    life = place.life if place.is_bound else None
    return _commit(stream, "SUBSCRIBE", name, change, life)


def unsubscribe(stream: StreamLog, group: str, generation: int, *, life: int | None = None) -> bool:
    """Remove the subscriber, which holds nothing from then on; False if not newer.

    Its generation stays, also of one that was never there: a late ``subscribe`` does nothing.
    ``life`` is the one that the call was made for, by default the present one.
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
    """Say that the group needs nothing before a cut any more; False if it has said so before.

    Nothing is truncated by it; the next run of retention may. Raises NoSuchSubscriber,
    GenerationMismatch, and InvalidStreamCut for a cut that is no place of the stream or is behind
    what was published before. ``life`` is the one that the call was made for, by default the
    present one.
    """
    name = _checked(group)

    def change(view: StreamView, bytes_at: BytesAt) -> SubscriberRecord | None:
        known = _published_by(view, name, generation)
        place = locate(view, cut).canonical()
        if known.bound is not None:
            before = locate(view, known.bound.cut(view.stream, view.life))
            if not place.is_at_or_after(before):
                raise InvalidStreamCut(
                    f"subscriber {name} of {view.stream} cannot publish {place}: that is behind "
                    f"{before}, at least in part, and subscribers do not go back; reset the group "
                    "to begin anew."
                )
        if known.published is not None and known.published.positions == place.cut.positions:
            return None
        return replace(
            known,
            published=view.sized(place.cut, bytes_at),
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
        told = cut, record.published_ms, record.since_ms
        found.append(SubscriberInfo(record.group, record.generation, *told))
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
            why = ": it published nothing for so long that it expired"
        raise NoSuchSubscriber(
            f"group {name} is no subscriber of stream {view.stream}{why}; subscribe it first.",
            stream=view.stream,
            group=name,
        )
    if known.generation != generation:
        bound = known.bound
        raise GenerationMismatch(
            f"subscriber {name} of {view.stream} is in generation {known.generation}, and what "
            f"publishes here is of generation {generation}; open the group anew.",
            group=name,
            generation=generation,
            current_generation=known.generation,
            cut=None if bound is None else bound.cut(view.stream, view.life),
        )
    return known


def _commit(stream: StreamLog, operation: str, name: str, change: Change, life: int | None) -> bool:
    """Commit the record that ``change`` gives, if any, in this life or else the present one.

    Return whether there was one. Chunks are read before, and not while the log is held: what the
    winner of a race has changed may leave the bytes of a segment out of the record, which a run of
    retention then looks up.
    """
    known = stream.view(life=life)
    sizes = _bytes_asked(stream, known, change)

    def decide(view: StreamView) -> Proposal[bool]:
        record = change(view, lambda segment_id, offset: sizes.get((segment_id, offset)))
        if record is None:
            return None, False
        told: dict[str, object] = {"subscriber": name, "generation": record.generation}
        if record.bound is not None:
            told["cut"] = str(record.bound.cut(view.stream, view.life))
        body = Body(operation, told, domains={f"{SUBSCRIBER_PREFIX}{name}": record.encode()})
        return body, True

    return stream.commit(decide, life=known.life).value


def _bytes_asked(stream: StreamLog, view: StreamView, change: Change) -> Sizes:
    """Return the bytes that a change asks for on a view."""
    asked = list[tuple[int, int]]()

    def ask(segment_id: int, offset: int) -> None:
        asked.append((segment_id, offset))

    change(view, ask)
    return stream.bytes_of(asked, view)
