"""Truncation at a byte: the head of a stream's bytes, which may lie inside an event.

The head of the stream is always the beginning of an event. The first byte that readers of bytes may
read is a record of its own, ``pravega.byte_head``, that counts if it lies behind that event's first
byte. Both move in one commit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pravega_spark.engine.json_codec import DECODE_ERRORS, to_json, typed
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.commit_log import Proposal
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.truncation import move_head, refuse_held
from pravega_spark.engine.stream.view import StreamView, ViewCheck
from pravega_spark.errors import CorruptLog, InvalidStreamCut, TooBusy
from pravega_spark.model import StreamCut

BYTE_HEAD_DOMAIN: Final = "pravega.byte_head"
_ATTEMPTS: Final = 32


@dataclass(frozen=True, slots=True)
class ByteHead:
    """The first byte of a segment that may be read, counted from the segment's creation."""

    segment_id: int
    position: int

    def encode(self) -> str:
        """Return the JSON text."""
        return to_json([self.segment_id, self.position])

    def changes(self, view: StreamView, *, inside: bool) -> Mapping[str, str | None]:
        """Return the domain to set: this record if it lies inside an event, otherwise none."""
        if inside:
            return {BYTE_HEAD_DOMAIN: self.encode()}
        return {BYTE_HEAD_DOMAIN: None} if BYTE_HEAD_DOMAIN in view.snapshot.domains else {}

    @classmethod
    def of(cls, view: StreamView) -> ByteHead | None:
        """Return the record of a view; None without one."""
        text = view.snapshot.domains.get(BYTE_HEAD_DOMAIN)
        if text is None:
            return None
        try:
            segment_id, position = json.loads(text)
            return cls(typed(segment_id, int), typed(position, int))
        except DECODE_ERRORS as error:
            raise CorruptLog(
                f"{view.snapshot.where}: {BYTE_HEAD_DOMAIN} is {text!r}, which is no position: "
                f"{error!r}. Restore the log from a copy.",
                path=view.snapshot.where,
                version=view.version,
            ) from error


def head_position(stream: StreamLog, view: StreamView, segment_id: int) -> int:
    """Return the first byte of a segment that may be read."""
    events = stream.bytes_at(segment_id, view.head_offset(segment_id), view)
    recorded = ByteHead.of(view)
    if recorded is None or recorded.segment_id != segment_id:
        return events
    return max(events, recorded.position)


def truncate_at_byte(
    stream: StreamLog,
    head: ByteHead,
    offset: int,
    offset_bytes: int,
    *,
    life: int,
    check: ViewCheck,
    past_subscribers: bool = False,
) -> None:
    """Move the head of the only active segment to a byte; nothing happens if it is there already.

    ``offset`` is that of the event that holds the byte, or begins with it; ``offset_bytes`` are the
    bytes before it. ``check`` raises for a view that the commit may not follow. Raises
    HeldBySubscriber, IllegalState while the stream is being sealed.
    """
    cut = StreamCut(stream.name, life, {head.segment_id: offset})
    allowed = None if past_subscribers else frozenset[str]()
    inside = head.position > offset_bytes

    def change(view: StreamView) -> Mapping[str, str | None]:
        check(view)
        return head.changes(view, inside=inside)

    def decide(view: StreamView) -> Proposal[bool]:
        if head_position(stream, view, head.segment_id) >= head.position:
            return None, True
        if view.head != cut:
            return None, False
        view.check_not_sealing("truncated")
        refuse_held(view, view.located_head, allowed, ())
        parameters = {"head": str(view.head), "by": "user", "byteHead": head.position}
        return Body("TRUNCATE STREAM", parameters, domains=change(view)), True

    for _ in range(_ATTEMPTS):
        view = stream.view(life=life)
        if head_position(stream, view, head.segment_id) >= head.position:
            return
        if view.head == cut:
            if stream.commit(decide, life=life).value:
                return
            continue
        try:
            move_head(
                stream,
                view,
                cut,
                by="user",
                allowed=allowed,
                bytes_at=lambda segment_id, at: offset_bytes,
                extra_domains=change,
            )
        except InvalidStreamCut:  # another truncation has passed it, or it is beyond the tail
            view = stream.view(life=life)
            if head_position(stream, view, head.segment_id) < head.position:
                raise
    raise TooBusy(
        f"stream {stream.name} was not truncated before byte {head.position}: other truncations "
        f"came first {_ATTEMPTS} times. Call again later."
    )
