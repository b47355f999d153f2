"""Subscribers of a stream: those that retention by consumption waits for. Each call is one commit.

A subscriber's record is in the stream's log, so publishes and truncations are decided in one order.
Calls carry a generation: late calls of an older generation do nothing. A subscriber whose
generation rises with every change is removed by a newer one than that which subscribed; the
processes of a plain one, of a batch job or a Delta reader, subscribe, publish and unsubscribe with
one generation. A call without a generation is of the present one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from pravega_spark.config.descriptions import SubscriberInfo
from pravega_spark.engine.kinds import KEEPERS, subscriber_kind
from pravega_spark.engine.layout.located_cut import locate
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.commit import Proposal
from pravega_spark.engine.stream import archived_records
from pravega_spark.engine.stream.records import SUBSCRIBER_PREFIX, SubscriberRecord
from pravega_spark.engine.stream.stream_log import Sizes, StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import GenerationMismatch, InvalidStreamCut, NoSuchSubscriber
from pravega_spark.values.names import check_subscriber
from pravega_spark.values.segments import StreamCut

UNSUBSCRIBED, IDLE = "unsubscribed", "idle"
"""Reasons for the removal of a subscriber."""

BytesAt = Callable[[int, int], "int | None"]
Change = Callable[[StreamView, BytesAt, "SubscriberRecord | None"], "SubscriberRecord | None"]
"""Returns the record to commit, for a view, a function for the bytes before offsets, and the
subscriber's present record."""


def subscribe(
    stream: StreamLog,
    subscriber: str,
    generation: int | None = None,
    *,
    protect: bool = False,
    start: StreamCut | str | None = None,
    renew: bool = False,
    life: int | None = None,
) -> int:
    """Make or renew a subscriber; return the generation that the stream has for it afterwards.

    Nothing is committed if the given generation is not newer. Without one, a present subscriber
    stays as it is, and one that is new, was removed or expired gets the next generation.

    As in Pravega, a new subscriber holds nothing until it publishes. Until then ``protect`` holds
    everything from the present head, and ``start`` everything from that cut. A renewed subscriber
    keeps the cut that it published; with ``start`` it begins there, which may be further back,
    unless ``renew`` asks to keep what it held. Where the head has passed its ``start``, it
    begins at the head or is refused, by its kind. ``life`` is the life that the call is
    made for, by default that of ``start`` or the present one. Raises InvalidStreamCut also if
    nothing is to be done, TruncatedData, InvalidName, NoSuchStream, StaleIdentity.
    """
    name = check_subscriber(subscriber)
    begin = StreamCut.EARLIEST if start is None else StreamCut.of(start)

    def change(
        view: StreamView, bytes_at: BytesAt, known: SubscriberRecord | None
    ) -> SubscriberRecord | None:
        wanted = locate(view, begin)
        if generation is None:
            if known is not None and not known.removed:
                return None
        elif known is not None and known.generation >= generation:
            return None
        hold = None
        published = published_ms = published_version = None
        if start is not None or protect:
            if not subscriber_kind(name).starts_at_head:
                wanted = wanted.readable()
            hold = view.sized(wanted.raised_to_head().cut, bytes_at)
        if known is not None and not known.removed and (renew or start is None):
            published, published_ms = known.published, known.published_ms
            published_version = known.published_version
            hold = known.hold or hold
        return SubscriberRecord(
            name,
            generation=_next(generation, known),
            since_ms=stream.now_ms(),
            since_version=view.version + 1,
            hold=hold,
            published=published,
            published_ms=published_ms,
            published_version=published_version,
        )

    if life is None and begin.is_bound:
        life = begin.life
    done = _commit(stream, "SUBSCRIBE", name, change, life)
    assert done.generation is not None, f"subscribing {name} left no record"
    return done.generation


def unsubscribe(
    stream: StreamLog, subscriber: str, generation: int | None = None, *, life: int | None = None
) -> bool:
    """Remove the subscriber, so that it holds nothing; return False if nothing was committed.

    That is so if the given generation is not newer (for a plain subscriber: is older) or if it is
    removed already. A given generation is kept, even if the name never subscribed: a late
    ``subscribe`` does nothing. ``life`` is the life that the call is made for, by default the
    present one.
    """
    name = check_subscriber(subscriber)

    def change(
        view: StreamView, _: BytesAt, known: SubscriberRecord | None
    ) -> SubscriberRecord | None:
        if generation is None:
            if known is None or known.removed:
                return None
        elif known is not None and known.generation >= generation:
            of_present = known.generation == generation and not known.removed
            if subscriber_kind(name).rises or not of_present:
                return None
        since = stream.now_ms(), view.version + 1
        return SubscriberRecord(name, _next(generation, known), *since, removed=UNSUBSCRIBED)

    return _commit(stream, "UNSUBSCRIBE", name, change, life).changed


def publish(
    stream: StreamLog,
    subscriber: str,
    generation: int | None,
    cut: StreamCut | str,
    *,
    life: int | None = None,
) -> bool:
    """Publish that a subscriber needs nothing before a cut; return False if that is recorded.

    A publish truncates nothing; the next run of retention may. ``life`` is the life that the call
    is made for, by default the present one. Raises NoSuchSubscriber, GenerationMismatch if a
    generation is given and is not the present one, and InvalidStreamCut for a cut of another stream
    or behind the last published one.
    """
    name = check_subscriber(subscriber)

    def change(
        view: StreamView, bytes_at: BytesAt, _: SubscriberRecord | None
    ) -> SubscriberRecord | None:
        known = _published_by(view, name, generation)
        wanted = locate(view, cut)
        if name not in KEEPERS or wanted.forgotten:  # a truncation keeps what a keeper names
            wanted = wanted.canonical()
        if known.bound is not None:
            before = locate(view, known.bound.cut(view.stream, view.life))
            if not wanted.is_at_or_after(before):
                next_step = subscriber_kind(name).go_back
                raise InvalidStreamCut(
                    f"subscriber {name} of {view.stream} cannot publish {wanted}: that is behind "
                    f"{before}, at least in part, and subscribers do not go back. {next_step} "
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

    return _commit(stream, "PUBLISH", name, change, life).changed


def listed(view: StreamView) -> list[SubscriberInfo]:
    """Return the subscribers, by name."""
    found = []
    for record in view.subscribers:
        bound = record.bound
        cut = None if bound is None else bound.cut(view.stream, view.life)
        times = record.published_ms, record.since_ms
        found.append(SubscriberInfo(record.name, record.generation, cut, *times))
    return found


def _next(generation: int | None, known: SubscriberRecord | None) -> int:
    """Return the given generation, or without one the generation after the known record's."""
    if generation is not None:
        return generation
    return 0 if known is None else known.generation + 1


def _published_by(view: StreamView, name: str, generation: int | None) -> SubscriberRecord:
    known = view.subscriber(name)
    if known is None or known.removed:
        why = ""
        if known is not None and known.removed == IDLE:
            why = ": it expired, since it published nothing for too long"
        raise NoSuchSubscriber(
            f"{name} is not a subscriber of stream {view.stream}{why}. Subscribe it first.",
            stream=view.stream,
            subscriber=name,
        )
    if generation is not None and known.generation != generation:
        bound = known.bound
        next_step = subscriber_kind(name).go_on
        raise GenerationMismatch(
            f"subscriber {name} of {view.stream} is in generation {known.generation}, and this "
            f"publish is of generation {generation}. {next_step}.",
            subscriber=name,
            generation=generation,
            current_generation=known.generation,
            cut=None if bound is None else bound.cut(view.stream, view.life),
        )
    return known


class _Outcome(NamedTuple):
    """Whether a call changed the subscriber, and the generation that the stream has for it."""

    changed: bool
    generation: int | None


def _commit(
    stream: StreamLog, operation: str, name: str, change: Change, life: int | None
) -> _Outcome:
    """Commit the record that ``change`` returns, if any.

    Chunks are read before the commit, not while the log is locked. So after a lost race the record
    may lack the bytes of a segment; a run of retention then looks them up.
    """
    known, sizes = stream.on_newest(partial(_bytes_needed, stream, name, change), life=life)

    def decide(view: StreamView) -> Proposal[_Outcome]:
        before = archived_records.find_subscriber(stream, view, name)
        record = change(view, lambda segment_id, offset: sizes.get((segment_id, offset)), before)
        if record is None:
            return None, _Outcome(False, None if before is None else before.generation)
        parameters: dict[str, object] = {"subscriber": name, "generation": record.generation}
        if record.bound is not None:
            parameters["cut"] = str(record.bound.cut(view.stream, view.life))
        body = Body(operation, parameters, domains={f"{SUBSCRIBER_PREFIX}{name}": record.encode()})
        return body, _Outcome(True, record.generation)

    return stream.commit(decide, life=known.life).value


def _bytes_needed(
    stream: StreamLog, name: str, change: Change, view: StreamView
) -> tuple[StreamView, Sizes]:
    """Return a view, and the bytes that a change needs on it."""
    needed = list[tuple[int, int]]()

    def record(segment_id: int, offset: int) -> None:
        needed.append((segment_id, offset))

    change(view, record, archived_records.find_subscriber(stream, view, name))
    return view, stream.bytes_of(needed, view)
