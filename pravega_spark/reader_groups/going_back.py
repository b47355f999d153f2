"""A reader leaves at a position that it returned before: the group goes back to it, or refuses.

Everything after the position that the reader was handed is read again. That is not only what lies
after the offsets that the position names. The reader has acquired other segments since, and it has
finished segments, whose successors are given up again. Where another reader has had any of this,
nobody can say which events the application has lost, since some of them were processed twice or in
another order. So the call changes nothing and names the ranges. It does so, too, where the record
of owners is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from pravega_spark.engine.layout.epochs import Layout
from pravega_spark.engine.layout.frontier import Frontier
from pravega_spark.engine.layout.located_cut import locate, lost_text, ranges_text
from pravega_spark.errors import InvalidInput, PositionOvertaken, TruncatedData
from pravega_spark.reader_groups import segments, transitions
from pravega_spark.reader_groups.owners import Owners
from pravega_spark.reader_groups.position import Position
from pravega_spark.reader_groups.state import Checkpoint, GroupState, SegmentKey
from pravega_spark.values.segments import (
    END,
    NOT_REACHED,
    Segment,
    SegmentRange,
    segment_epoch,
    segment_text,
)


def leave_at(
    state: GroupState,
    reader: str,
    position: Position,
    layout_of: Callable[[str], Layout | None],
    handed_out: Mapping[SegmentKey, int] | None = None,
) -> GroupState:
    """Remove a reader, if it is still in the group, and go back to a position of it.

    ``layout_of`` returns the newest layout of a stream, or None if it was deleted; its part of the
    position does not count. ``handed_out`` says how far the reader is, if that is known.

    Raises PositionOvertaken if others have had events after the position, or if no record says who
    has; TruncatedData where the head has passed it; InvalidInput for a position of other streams,
    and for an offset or a segment that its stream never had.
    """
    strange = sorted({key.stream for key in position.offsets} - state.lives.keys())
    if strange:
        raise InvalidInput(
            f"reader group {state.group} does not read {', '.join(strange)}, which the position "
            f"names; its streams are {', '.join(sorted(state.lives))}."
        )
    returns = list[_Return]()
    for stream in sorted(_concerned(state, reader, position)):
        layout = layout_of(stream)
        if layout is not None:
            returns.append(_Return(state, reader, position, layout, handed_out or {}))
            returns[-1].look()
    lost = [rng for found in returns for rng in found.lost]
    if any(found.is_overtaken for found in returns):
        raise PositionOvertaken(
            f"reader {reader} cannot leave reader group {state.group} at this position. Other "
            "readers have had its segments since, or no record says that none has: one of release "
            "0.1.0 did not write it, a reset began anew, or the position is too old. Nothing was "
            f"changed. If you need these events again, {ranges_text(lost)}, read them by "
            "`read_range` of a reader of their stream; then leave without a position.",
            group=state.group,
            reader=reader,
            ranges=tuple(lost),
        )
    return _with_returns(state, reader, returns)


def _concerned(state: GroupState, reader: str, position: Position) -> set[str]:
    """Return the streams that a position names, or of which the reader may have had more since."""
    since = position.number
    found = {key.stream for key in position.offsets}
    for key, record in state.owners.items():
        is_unknown = since is not None and record.since > since
        if is_unknown or any(owner.reader == reader for owner in record.last):
            found.add(key.stream)
    if since is not None:
        found |= {s for s, number in state.finished_since.items() if number > since}
        in_reach = (*state.assigned, *state.unassigned, *state.completed)
        found |= {key.stream for key in in_reach if key not in state.owners}
    return found


@dataclass
class _Return:
    """The way back in one stream.

    ``moves`` are the offsets of segments in reach, ``revived`` those of finished ones, each with
    the segments that are given up for it. ``lost`` are the events after the position that the group
    would not read again if the reader left without it.
    """

    state: GroupState
    reader: str
    position: Position
    layout: Layout
    handed_out: Mapping[SegmentKey, int]
    moves: dict[SegmentKey, int] = field(default_factory=dict)
    revived: dict[SegmentKey, tuple[int, frozenset[SegmentKey]]] = field(default_factory=dict)
    lost: list[SegmentRange] = field(default_factory=list)
    is_overtaken: bool = False

    def look(self) -> None:
        """Find the way back; raises as :func:`leave_at` does."""
        stream, state = self.layout.stream, self.state
        here = locate(self.layout, state.cut(stream))
        self.frontier = Frontier(here.above_head())
        named = {k: o for k, o in self.position.offsets.items() if k.stream == stream}
        for key, offset in named.items():
            self._check(key, offset)
        wanted = {**named, **self._acquired_since(named)}
        given_up = set[SegmentKey]()
        for key, offset in sorted(wanted.items()):  # predecessors first
            if key not in given_up and self.layout.has_segment(key.segment_id):
                self._consider(key, offset)
                given_up |= self.revived.get(key, (0, frozenset()))[1]
        if self.position.number is not None:
            self._check_records(named.keys() | given_up, self.position.number)
        if here.forgotten and self.revived:
            raise self._truncated(())

    def _key(self, segment: Segment) -> SegmentKey:
        return SegmentKey(self.layout.stream, segment.segment_id)

    def _range(self, key: SegmentKey, start: int, end: int) -> SegmentRange:
        life = self.layout.life
        return SegmentRange(key.stream, life=life, segment_id=key.segment_id, start=start, end=end)

    def _check(self, key: SegmentKey, offset: int) -> None:
        """Raise InvalidInput if the stream never had this, TruncatedData if it is all gone."""
        layout: Layout | None = self.layout
        epoch, segment_id = segment_epoch(key.segment_id), key.segment_id
        is_forgotten = epoch < self.layout.oldest_epoch and not self.layout.has_segment(segment_id)
        if is_forgotten:
            layout = self.layout.since(epoch)
        if layout is None:
            raise self._truncated((self._range(key, offset, offset),))
        if epoch > layout.active.number or not layout.has_segment(segment_id):
            raise InvalidInput(
                f"{key.stream} never had the segment {segment_text(segment_id)}, which the "
                "position names. Pass a position that the reader returned."
            )
        end = layout.segment(segment_id).next_offset
        if offset > end:
            raise InvalidInput(
                f"{key} has {end} events; the position names {offset}. Pass a position that the "
                "reader returned."
            )
        if is_forgotten and offset < end:
            raise self._truncated((self._range(key, offset, end),))

    def _truncated(self, lost: tuple[SegmentRange, ...]) -> TruncatedData:
        what = lost_text(self.layout, lost) if lost else f"a part{self.layout.truncated_by}"
        return TruncatedData(
            f"reader {self.reader} cannot leave reader group {self.state.group} at this position: "
            f"of {self.layout.stream}, {what} after it. Nothing was changed; leave without a "
            "position, or at a later one.",
            head=self.layout.head,
            lost=lost,
        )

    def _acquired_since(self, named: Mapping[SegmentKey, int]) -> dict[SegmentKey, int]:
        """Return where the reader began in segments that the position does not name.

        Without a number a position does not say when it was made, so only what the reader has had
        to itself up to the present counts.
        """
        found, number = dict[SegmentKey, int](), self.position.number
        for key, record in self.state.owners.items():
            if key.stream == self.layout.stream and key not in named:
                begun = record.run_of(self.reader)
                if number is not None:
                    begun = record.begun(self.reader, number)
                if begun is not None:
                    found[key] = begun
        return found

    def _consider(self, key: SegmentKey, wanted: int) -> None:
        """Go back to an offset of a segment, or find that this cannot be."""
        state, lineage = self.state, self.layout.lineage
        segment = lineage.find(key.segment_id)
        at = self.frontier.offset_in(segment)
        if at == NOT_REACHED:
            return  # the group went back already
        record, owned = state.owners.get(key), state.assigned.get(key)
        reached = lineage.end(segment) if at == END else at
        if owned is not None and owned.reader == self.reader:
            reached = max(reached, self.handed_out.get(key, 0))
        had = (Owners() if record is None else record).had_by(self.reader, wanted, reached)
        if not had:
            if wanted > at >= 0 and self._is_newest(key):
                self.moves[key] = wanted
            return
        found = [self._range(key, start, end) for start, end in had]
        self.lost += found
        head = locate(self.layout, self.layout.head).offset_in(segment)
        if head == END or head > found[0].start:
            gone = [replace(r, end=r.end if head == END else min(r.end, head)) for r in found]
            raise self._truncated(tuple(r for r in gone if r.start < r.end))
        wanted = found[0].start
        run = None if record is None else record.run_of(self.reader)
        if run is None or wanted < run:
            self.is_overtaken = True
        elif key in state.assigned or key in state.unassigned:
            self.moves[key] = self.frontier.offsets[key.segment_id] = wanted
        elif all(map(self._is_only, self.frontier.following(segment))):
            for given_up in self.frontier.following(segment):
                at = self.frontier.offset_in(given_up)
                if end := lineage.end(given_up) if at == END else at:
                    self.lost.append(self._range(self._key(given_up), 0, end))
            self.revived[key] = (
                wanted,
                frozenset(map(self._key, self.frontier.go_back(segment, wanted))),
            )
        else:
            self.is_overtaken = True

    def _is_newest(self, key: SegmentKey) -> bool:
        """Return whether the reader has, or had last, the segment in which a position is ahead.

        One that is older than this ownership does not count: the group was taken back behind it.
        """
        owned, record = self.state.assigned.get(key), self.state.owners.get(key)
        if owned is not None:
            reader, number = owned.reader, owned.number
        elif record is not None and record.last:
            reader, number, _ = record.last[-1]
        else:
            return False
        since = self.position.number
        return reader == self.reader and (since is None or since > number)

    def _is_only(self, segment: Segment) -> bool:
        """Return whether nobody else has had anything of a segment."""
        key = self._key(segment)
        record, owned = self.state.owners.get(key), self.state.assigned.get(key)
        if record is None:
            return self.layout.segment(key.segment_id).next_offset == 0
        return record.is_only(self.reader) and (owned is None or owned.reader == self.reader)

    def _check_records(self, known: set[SegmentKey], number: int) -> None:
        """Find segments of which the reader may have had a part since, by an unknown owner."""
        state, stream, lineage = self.state, self.layout.stream, self.layout.lineage
        for key, at in state.positions():
            if key.stream != stream or key in known or at in (NOT_REACHED, 0):
                continue
            if number < self._complete_since(key):
                record = state.owners.get(key)
                end = record.last[0].offset if record is not None and record.last else at
                end = lineage.end(lineage.find(key.segment_id)) if end == END else end
                if end:  # nobody ever had a segment that ended without events, nor needed to
                    self.lost.append(self._range(key, 0, end))
                    self.is_overtaken = True
        if number >= state.finished_since.get(stream, 0):
            return
        earlier = {key.segment_id for key in self.position.offsets if key.stream == stream}
        todo = [lineage.find(s) for s in earlier if self.layout.has_segment(s)]
        while todo:
            new = [s for s in lineage.predecessors(todo.pop()) if s.segment_id not in earlier]
            earlier |= {segment.segment_id for segment in new}
            todo += new
        for segment in self._passed():
            key, end = self._key(segment), lineage.end(segment)
            if end and key not in state.owners and segment.segment_id not in earlier:
                self.lost.append(self._range(key, 0, end))
                self.is_overtaken = True

    def _complete_since(self, key: SegmentKey) -> int:
        """Return the number from which on all owners of a segment in reach are known."""
        record, owned = self.state.owners.get(key), self.state.assigned.get(key)
        if record is not None:
            return record.since
        if owned is not None:
            return owned.number + (owned.reader == self.reader)
        return self.state.next_number

    def _passed(self) -> list[Segment]:
        """Return the segments that the group has finished and left."""
        layout = self.layout
        numbers = range(layout.oldest_epoch, layout.active.number + 1)
        found = {s.segment_id: s for n in numbers for s in layout.epoch(n).segments}
        in_reach = {k.segment_id for k, _ in self.state.positions() if k.stream == layout.stream}
        return [
            segment
            for segment_id, segment in sorted(found.items())
            if segment_id not in in_reach and self.frontier.offset_in(segment) == END
        ]


def _with_returns(state: GroupState, reader: str, returns: list[_Return]) -> GroupState:
    """Return the state without the reader, and at where it goes back to."""
    moves = {key: offset for found in returns for key, offset in found.moves.items()}
    revived = {key: back for found in returns for key, back in found.revived.items()}
    given_up = {key for _, gone in revived.values() for key in gone}
    back = {**moves, **{key: offset for key, (offset, _) in revived.items()}}
    before = dict(state.positions())
    has_left = reader in state.readers
    if has_left:
        state = transitions.hand_over(state, reader, moves)
    owners = {k: record for k, record in state.owners.items() if k not in given_up}
    owners |= {k: owners[k].back_at(offset) for k, offset in back.items() if k in owners}
    unassigned = {k: moves.get(k, offset) for k, offset in state.unassigned.items()}
    state = replace(state, owners=owners, unassigned=unassigned)
    for found in returns:
        if found.revived:
            state = segments.with_frontier(state, found.layout.stream, found.frontier)
    new = {k: at for k, at in state.positions() if k not in before and at < 0}
    checkpoints = tuple(
        c if c.is_complete else _checkpoint_back(c, back, revived, new) for c in state.checkpoints
    )
    state = transitions.drop_reader(replace(state, checkpoints=checkpoints), reader)
    return transitions.without_readers(state, was_lost=False) if has_left or back else state


def _checkpoint_back(
    checkpoint: Checkpoint,
    back: Mapping[SegmentKey, int],
    revived: Mapping[SegmentKey, tuple[int, frozenset[SegmentKey]]],
    new: Mapping[SegmentKey, int],
) -> Checkpoint:
    """Return a pending checkpoint that is nowhere ahead of where the group went back to."""
    positions = dict(checkpoint.positions)
    for key, offset in back.items():
        given_up = revived[key][1] if key in revived else frozenset()
        at = positions.get(key, NOT_REACHED)
        if at == END or at > offset or any(positions.get(k, NOT_REACHED) >= END for k in given_up):
            positions = {k: o for k, o in positions.items() if k not in given_up}
            positions[key] = offset
            if given_up:
                positions = {**new, **positions}
    return replace(checkpoint, positions=positions)
