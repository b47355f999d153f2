"""Plans the compaction of one stream: which chunks to merge, and which heads to rewrite.

Decides which neighbouring chunks of one segment are merged. Pure and stateless. A small chunk is
one below half the target size; all others are *full* and never written again. Small chunks between
two full ones, and those of a sealed segment, are merged once, to about the target. Behind the last
full chunk the segment grows, and there two costs oppose each other: merging late leaves many files,
and merging early writes the same bytes often. The chunks lie in tiers, each about ``fan-in`` times
as large as the next: the youngest ones are merged as soon as together they have that many times the
size of their largest, or the target. Each event is then written about once in each tier, and a tier
has fewer chunks than the fan-in. So the number of tiers is the least one whose chunks stay below
``WAITING_CHUNKS``, given how much smaller than the target the chunks are.

The record of the last plan of a stream lets the next one look only at newer chunks. The record is
one object, ``_pravega/compaction.json``: for each segment the chunks that a later run may still
merge, and the offset up to which it knows the segment. Full chunks before the last one are not in
it, so its size follows the small chunks and not the retained ones. It is a hint: a missing, damaged
or stale record costs work alone, because a merge checks its chunks when it reads them and again
when it is committed. About once a day a plan looks at all chunks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, field, replace
from itertools import pairwise
from math import ceil
from typing import Final

from pravega_spark.compaction.result import MergeRange, SkippedRange
from pravega_spark.config.root_settings import (
    EffectiveSettings,
    GivenSettings,
    SettingSources,
    parse_flags,
)
from pravega_spark.engine.attached_objects import attached_object
from pravega_spark.engine.log.actions import Add
from pravega_spark.engine.log.files import position_of, rows_of
from pravega_spark.engine.runtime.json_codec import DECODE_ERRORS, digested_record, to_digested_line
from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.stream.configuration import read_sources
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import InvalidConfiguration, StoreError
from pravega_spark.values.limits import COMPACT_SETTLE_MS
from pravega_spark.values.segments import SegmentRange


@dataclass(frozen=True, slots=True)
class CompactionOptions:
    """The options of a compaction. A setting that no flag gives is the stream's or the root's."""

    flags: GivenSettings = field(default_factory=dict)
    root: GivenSettings | None = None
    """The settings of the root, if the caller has read them for many streams."""
    include_newest: bool = False
    """Whether to merge chunks, too, that readers at the tail may be about to read."""

    @classmethod
    def parse(
        cls, *, include_newest: bool = False, **flags: str | float | None
    ) -> CompactionOptions:
        """Return the options of a call from its flags, by the names of the settings.

        These are ``compact_target`` and ``compact_head_after``; None leaves a setting as it is.
        ``include_newest`` also merges chunks that have just been written.
        Raises InvalidConfiguration.
        """
        try:
            return cls(parse_flags(flags), include_newest=include_newest)
        except InvalidConfiguration as error:
            text = str(error)
            for name in flags:
                argument = name.removeprefix("compact_")
                text = text.replace(f"the setting {name}", f"the argument {argument}")
            raise InvalidConfiguration(text) from None

    def settings(self, stream: StreamLog, view: StreamView) -> EffectiveSettings:
        """Return the settings that hold for a compaction on a view."""
        if self.root is None:
            sources = read_sources(stream, self.flags)
        else:
            sources = SettingSources(self.root, self.flags)
        return sources.of_stream(view.record.configuration.settings)


DEFAULTS: Final = CompactionOptions()


WAITING_CHUNKS: Final = 90
"""About this many small chunks of a growing segment wait for others at most."""
FULL_FRACTION: Final = 0.5
"""A chunk of at least this fraction of the target is not merged."""
MAX_INPUTS: Final = 8_192
"""Most chunks in one merge: its commit names each of them."""
CHUNK_OVERHEAD_BYTES: Final = 480
"""What the file of a single event has besides its data; a merge saves it."""

_QUARTER: Final = 4
_MOST_TIERS: Final = 8


@dataclass(frozen=True, slots=True)
class LiveChunk:
    """What a plan needs to know of a live chunk."""

    base_offset: int
    rows: int
    size: int
    modified_ms: int = 0
    """When its commit was made, by the clock of the committer."""

    @property
    def end(self) -> int:
        """The offset after its last event."""
        return self.base_offset + self.rows

    @property
    def weight(self) -> int:
        """About how many bytes it adds to a merged file."""
        return max(self.rows, self.size - CHUNK_OVERHEAD_BYTES)


def settled_count(chunks: Sequence[LiveChunk], since_ms: int, now_ms: int) -> int:
    """Return how many of the first chunks tail readers no longer read.

    These are all except the youngest ones, committed between ``since_ms`` and ``now_ms``. A date
    in the future is from a wrong clock and holds nothing back.
    """
    count = len(chunks)
    while count and since_ms < chunks[count - 1].modified_ms <= now_ms:
        count -= 1
    return count


def plan_merges(
    chunks: Sequence[LiveChunk], target_bytes: int, *, is_sealed: bool, settled: int
) -> list[Sequence[LiveChunk]]:
    """Return the runs of neighbours to merge into one chunk each, in offset order.

    ``chunks`` are the segment's live chunks in offset order, without the one that the head divides.
    Only the first ``settled`` may be merged.
    """
    found: list[Sequence[LiveChunk]] = []
    for first, last in _small_runs(chunks, target_bytes):
        grows = last == len(chunks) and not is_sealed
        if grows:
            found += _merges_of_growing(chunks[first : min(last, settled)], target_bytes)
        elif last <= settled:
            found += _merges_of_final(chunks[first:last], target_bytes)
    return [part for run in found for part in _parts(run)]


def waiting(
    chunks: Sequence[LiveChunk], target_bytes: int, *, is_sealed: bool, divided: bool
) -> tuple[LiveChunk, ...]:
    """Return the chunks that a later plan of the segment may merge, and the last one.

    With them and the chunks that the segment gets, a later plan decides as with all chunks: a run
    ends at a gap, whether or not the plan knows the full chunk that fills it. ``divided``: the head
    divides the chunk before the first one, which its rewrite may make small.
    """
    found: list[LiveChunk] = []
    for first, last in _small_runs(chunks, target_bytes):
        if last - first > 1 or last == len(chunks) or (divided and first == 0):
            found += chunks[first:last]
    if chunks and not is_sealed and (not found or found[-1] != chunks[-1]):
        found.append(chunks[-1])
    return tuple(found)


def _small_runs(chunks: Sequence[LiveChunk], target_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield [first, last) of each longest run of small neighbours."""
    first = None
    for at, chunk in enumerate(chunks):
        is_small = chunk.size < target_bytes * FULL_FRACTION
        follows = at > 0 and chunks[at - 1].end == chunk.base_offset
        if first is not None and not (is_small and follows):
            yield first, at
            first = None
        if is_small and first is None:
            first = at
    if first is not None:
        yield first, len(chunks)


def _merges_of_final(run: Sequence[LiveChunk], target_bytes: int) -> list[Sequence[LiveChunk]]:
    """Return a run that gets no more chunks in about equal parts of about the target."""
    total = sum(chunk.weight for chunk in run)
    count = max(1, round(total / target_bytes))
    found: list[Sequence[LiveChunk]] = []
    first, reached = 0, 0
    for at, chunk in enumerate(run):
        reached += chunk.weight
        if reached * count >= total * (len(found) + 1):
            found.append(run[first : at + 1])
            first = at + 1
    return [part for part in found if len(part) > 1]


def _merges_of_growing(run: Sequence[LiveChunk], target_bytes: int) -> list[Sequence[LiveChunk]]:
    """Return what to merge of a run to which younger chunks will be added."""
    found: list[Sequence[LiveChunk]] = []
    first, reached = 0, 0
    for at, chunk in enumerate(run):
        reached += chunk.weight
        if reached >= target_bytes:
            found.append(run[first : at + 1])
            first, reached = at + 1, 0
    rest = run[first:]
    young = _young_part([chunk.weight for chunk in rest], target_bytes)
    if young is not None:
        found.append(rest[young:])
    return found


def _young_part(weights: Sequence[int], target_bytes: int) -> int | None:
    """Return the first of the young chunks that are merged into one, or None."""
    if len(weights) < 2:
        return None
    typical = sorted(weights)[len(weights) // _QUARTER]
    wanted = _fan_in(target_bytes / typical)
    total = largest = 0
    best, found, best_at = 0.0, None, 0
    for at in reversed(range(len(weights))):
        total += weights[at]
        largest = max(largest, weights[at])
        if total >= wanted * largest:
            found = at
        if total >= best * largest:
            best, best_at = total / largest, at
    if found is None and len(weights) > WAITING_CHUNKS:  # of sizes too different for the tiers
        return best_at
    return found


def _fan_in(ratio: float) -> int:
    """Return how many chunks become one, where the target is ``ratio`` times a typical chunk."""
    tiers = 1
    while tiers * ratio ** (1 / tiers) > WAITING_CHUNKS and tiers < _MOST_TIERS:
        tiers += 1
    fan_in: int = ceil(ratio ** (1 / tiers))
    return max(2, fan_in)


def _parts(run: Sequence[LiveChunk]) -> Iterator[Sequence[LiveChunk]]:
    """Yield a run in parts that one commit can take."""
    for first in range(0, len(run), MAX_INPUTS):
        part = run[first : first + MAX_INPUTS]
        if len(part) > 1:
            yield part


APPENDED_TAG, WRITTEN_TAG = "appendedBytes", "writtenBytes"
"""Tags of a merged chunk's file: bytes of the files in which its events were appended, and of all
files that were written for them, the file itself included."""


@dataclass(frozen=True, slots=True)
class FileBytes:
    """Bytes of the files that were written for some events: by appends, and in all."""

    appended: int = 0
    written: int = 0

    def __add__(self, other: FileBytes) -> FileBytes:
        return FileBytes(self.appended + other.appended, self.written + other.written)

    @property
    def amplification(self) -> float:
        """All bytes over those of the appends; 1 if nothing was rewritten."""
        return self.written / self.appended if self.appended else 1.0

    @classmethod
    def of(cls, adds: Iterable[Add]) -> FileBytes:
        """Return what was written for the events of live files."""
        total = cls()
        for add in adds:
            tags = add.tags or {}
            appended, written = tags.get(APPENDED_TAG), tags.get(WRITTEN_TAG)
            total += cls(int(appended or add.size), int(written or add.size))
        return total


def live_chunk(add: Add) -> LiveChunk:
    """Return what a plan needs to know of a live file."""
    return LiveChunk(
        base_offset=position_of(add)[1],
        rows=rows_of(add),
        size=add.size,
        modified_ms=add.modified_ms,
    )


def live_count(stream: StreamLog) -> int:
    """Return the number of live files of the newest known version, by the log's own count."""
    with stream.log.files() as files:
        return files.totals().files


logger = own_logger(__name__)

FORMAT: Final = 1
FULL_LOOK_MS: Final = 86_400_000
"""A record that began longer ago is not used: the next plan looks at all chunks."""
MOST_CHUNKS: Final = 4_096
"""A record of more chunks is not stored: a first run has them, and merges nearly all."""
NEW_CHUNKS: Final = 64
"""A plan without work stores its record once this number of its chunks are not in it."""


@dataclass(frozen=True, slots=True)
class KnownSegment:
    """What a plan found in a segment from the head ``start`` up to ``end``."""

    start: int
    end: int
    chunks: tuple[LiveChunk, ...] = ()
    """Those that a later run may merge or rewrite, in offset order, and the last one."""

    def merged(self, chunk: LiveChunk) -> KnownSegment:
        """Return the segment after a chunk has taken the place of those that it holds."""
        first = bisect_left(self.chunks, chunk.base_offset, key=_base)
        last = bisect_left(self.chunks, chunk.end, key=_base)
        head = self.chunks[:first]
        if head and head[-1].end > chunk.base_offset:  # the chunk at the head was rewritten
            head = head[:-1]
        return replace(
            self, end=max(self.end, chunk.end), chunks=(*head, chunk, *self.chunks[last:])
        )

    def without(self, events: SegmentRange) -> KnownSegment:
        """Return the segment without the chunks of a range, which a later plan is not to merge."""
        left = [c for c in self.chunks if c.end <= events.start or c.base_offset >= events.end]
        return replace(self, chunks=tuple(left))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRecord:
    """The segments that a plan knows, of one life of a stream, by one target size."""

    life: int
    target_bytes: int
    version: int
    """A version at or above that of every fact in it: a log that ends before is another state."""
    began_ms: int
    """When a plan last looked at all chunks."""
    segments: dict[int, KnownSegment] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """The number of its chunks."""
        return sum(len(known.chunks) for known in self.segments.values())

    def encode(self) -> bytes:
        """Return the record as it is stored: a line of JSON, and its digest."""
        segments = {
            str(segment_id): [known.start, known.end, [astuple(chunk) for chunk in known.chunks]]
            for segment_id, known in self.segments.items()
        }
        record = {
            "format": FORMAT,
            "life": self.life,
            "target": self.target_bytes,
            "version": self.version,
            "began": self.began_ms,
            "segments": segments,
        }
        return to_digested_line(record)


def decode_record(data: bytes) -> PlanRecord | None:
    """Return a stored record, or None if it is damaged or of another format."""
    found = digested_record(data)
    try:
        if found is None or found["format"] != FORMAT:
            return None
        segments = {
            int(name): KnownSegment(
                int(start), int(end), tuple(LiveChunk(*map(int, cells)) for cells in chunks)
            )
            for name, (start, end, chunks) in found["segments"].items()
        }
        life, target, version, began = (
            int(found[name]) for name in ("life", "target", "version", "began")
        )
        return PlanRecord(
            life=life, target_bytes=target, version=version, began_ms=began, segments=segments
        )
    except DECODE_ERRORS:
        return None


def record_key(path: str) -> str:
    """Return the key of the record of the events table at ``path``."""
    return f"{path}/_pravega/compaction.json"


def read_record(stream: StreamLog, view: StreamView) -> PlanRecord | None:
    """Return the stored record if it is intact and of a state that the view's log has had.

    One storage call.
    """
    record = _stored_record(stream, view.life)
    return None if record is None or record.version > view.version else record


def _stored_record(stream: StreamLog, life: int) -> PlanRecord | None:
    try:
        record = decode_record(stream.store.get(record_key(stream.path)))
    except FileNotFoundError:
        return None
    return None if record is None or record.life != life else record


def store_record(stream: StreamLog, record: PlanRecord) -> None:
    """Store a record for the next plan; of concurrent runs the last one wins."""
    if record.size > MOST_CHUNKS:
        return
    try:
        # No fsync: the digest of an object that a power cut tears does not match.
        stream.store.put(record_key(stream.path), record.encode(), durable=False)
    except StoreError as error:
        logger.debug(
            "left the record of the compaction of %s as it is: %s",
            stream.name,
            error,
            extra=log_fields("compact", stream.name),
        )


def note_commit(
    stream: StreamLog,
    view: StreamView,
    merged: Sequence[tuple[int, LiveChunk]],
    skipped: Sequence[SkippedRange],
) -> None:
    """Put committed chunks, by segment, into the stored record, and take damaged ones out of it.

    So damaged chunks are read again by the next plan that looks at all chunks, and by none before.
    A segment in which others have changed a range is dropped: the record is wrong about it.
    """
    record = _stored_record(stream, view.life) if merged or skipped else None
    if record is None:
        return
    segments = dict(record.segments)
    for segment_id, chunk in merged:
        known = segments.get(segment_id)
        if known is not None and known.end >= chunk.base_offset:
            segments[segment_id] = known.merged(chunk)
        else:
            segments.pop(segment_id, None)
    for left in skipped:
        segment_id = left.range.segment_id
        if not left.is_damaged:
            segments.pop(segment_id, None)
        elif segment_id in segments:
            segments[segment_id] = segments[segment_id].without(left.range.events)
    version = max(record.version, view.version)
    store_record(stream, replace(record, version=version, segments=segments))


def _base(chunk: LiveChunk) -> int:
    return chunk.base_offset


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """The ranges to merge, the number of live chunks, and what the next plan need not look at."""

    ranges: list[MergeRange]
    files: int
    record: PlanRecord
    new_chunks: int
    """How many chunks were found in the log, because the stored record does not know them."""

    def store_record(self, stream: StreamLog) -> None:
        """Store the record for the next plan, if it saves that plan more than it costs."""
        if self.ranges or self.new_chunks >= NEW_CHUNKS:
            store_record(stream, self.record)


def plan_compaction(
    stream: StreamLog, options: CompactionOptions = DEFAULTS, *, life: int | None = None
) -> list[MergeRange]:
    """Return the ranges of a stream whose chunks are to be merged, each into one chunk.

    Any processes merge them, in any order, by :func:`merge_range`. Changes nothing but a hint.
    ``life`` is the life that the call is made for, by default the present one. Raises NoSuchStream,
    StaleIdentity.
    """
    stream.log.expect_files()
    view = stream.view(life=life)
    plan = plan_stream(
        stream, view, options.settings(stream, view), include_newest=options.include_newest
    )
    plan.store_record(stream)
    return plan.ranges


def plan_stream(
    stream: StreamLog,
    view: StreamView,
    settings: EffectiveSettings,
    *,
    include_newest: bool = False,
) -> CompactionPlan:
    """Plan on a view and the newest known files; the commit decides again whether they fit.

    Looks at the chunks that were committed since the stored record, and at the small ones in it.
    """
    now_ms, target = stream.now_ms(), settings.compact_target_bytes
    merges = view.kind.merges(view.snapshot.domains)
    record = _usable(read_record(stream, view), target, now_ms)
    began_ms = now_ms if record is None else record.began_ms
    known = record.segments if record is not None else {}
    ranges: list[MergeRange] = []
    segments: dict[int, KnownSegment] = {}
    found = 0
    for rng in view.located_head.ranges_to(view.located_tail):
        chunks, new = _chunks(stream, rng, known.get(rng.segment_id))
        found += new
        if merges:
            settled = len(chunks)
            if not include_newest:
                settled = settled_count(chunks, now_ms - COMPACT_SETTLE_MS, now_ms)
            ranges += _of_segment(
                view, rng, chunks=chunks, settings=settings, now_ms=now_ms, settled=settled
            )
        divided = bool(chunks) and chunks[0].base_offset < rng.start
        is_sealed = view.segment(rng.segment_id).is_sealed
        kept = waiting(chunks[divided:], target, is_sealed=is_sealed, divided=divided)
        segments[rng.segment_id] = KnownSegment(rng.start, rng.end, (*chunks[:divided], *kept))
    left = PlanRecord(
        life=view.life,
        target_bytes=target,
        version=view.version,
        began_ms=began_ms,
        segments=segments,
    )
    return CompactionPlan(ranges, live_count(stream), left, found)


def _usable(record: PlanRecord | None, target_bytes: int, now_ms: int) -> PlanRecord | None:
    """Return the record if it is of this target and not old; a date in the future is invalid."""
    if record is None or record.target_bytes != target_bytes:
        return None
    return record if 0 <= now_ms - record.began_ms < FULL_LOOK_MS else None


def _chunks(
    stream: StreamLog, rng: SegmentRange, known: KnownSegment | None
) -> tuple[list[LiveChunk], int]:
    """Return the chunks of a segment's readable range that may be merged, in offset order.

    With them comes the number of those that were looked up.
    """
    if known is not None and known.start <= rng.start and known.end <= rng.end:
        new = _look_up(stream, rng, max(known.end, rng.start), rng.end)
        old = [chunk for chunk in known.chunks if chunk.end > rng.start]
        if rng.start < known.end and rng.start > known.start:
            old = [*_head(stream, rng, old), *old]
        found = [*old, *new]
        if all(one.end <= other.base_offset for one, other in pairwise(found)) and (
            not new or new[0].base_offset >= min(known.end, rng.start)
        ):
            return found, len(new)
    found = _look_up(stream, rng, rng.start, rng.end)
    return found, len(found)


def _head(stream: StreamLog, rng: SegmentRange, known: Sequence[LiveChunk]) -> list[LiveChunk]:
    """Return the chunk that the head divides, unless it is known or the head divides none.

    The chunk behind it comes with it: if that is small, the rewritten head is its neighbour.
    """
    if known and known[0].base_offset <= rng.start:
        return []
    found = _look_up(stream, rng, rng.start, rng.start + 1)
    if not found or found[0].base_offset == rng.start:
        return []
    end = known[0].base_offset if known else rng.end
    return [*found, *_look_up(stream, rng, found[-1].end, min(found[-1].end + 1, end))]


def _look_up(stream: StreamLog, rng: SegmentRange, start: int, end: int) -> list[LiveChunk]:
    if start >= end:
        return []
    with stream.log.files() as files:
        adds = files.find(rng.segment_id, start, end)
    # A large event is never merged: its chunk is a gap, at which a run of chunks ends.
    return [live_chunk(add) for add in adds if attached_object(add.path) is None]


def _of_segment(
    view: StreamView,
    rng: SegmentRange,
    chunks: Sequence[LiveChunk],
    settings: EffectiveSettings,
    now_ms: int,
    settled: int,
) -> Iterator[MergeRange]:
    """Yield the ranges of one segment: its head, and merges of the first ``settled`` chunks."""
    divided = bool(chunks) and chunks[0].base_offset < rng.start
    if divided and settled and _must_rewrite(view, chunks[0], rng.start, settings, now_ms):
        yield _range(rng, rng.start, chunks[:1], is_head=True)
    merges = plan_merges(
        chunks[divided:],
        settings.compact_target_bytes,
        is_sealed=view.segment(rng.segment_id).is_sealed,
        settled=max(0, settled - divided),
    )
    for merge in merges:
        yield _range(rng, merge[0].base_offset, merge)


def _must_rewrite(
    view: StreamView, chunk: LiveChunk, head: int, settings: EffectiveSettings, now_ms: int
) -> bool:
    """Return whether a chunk's truncated part is worth a rewrite of the rest.

    That is at least half of it, or the head has not moved for a while. A head that keeps moving
    truncates the chunk soon enough.
    """
    if 2 * (head - chunk.base_offset) >= chunk.rows:
        return True
    truncation = view.record.truncation
    return truncation is not None and now_ms - truncation.time_ms >= settings.compact_head_after_ms


def _range(
    rng: SegmentRange, start: int, chunks: Sequence[LiveChunk], *, is_head: bool = False
) -> MergeRange:
    size = sum(chunk.size for chunk in chunks)
    return MergeRange(
        stream=rng.stream,
        life=rng.life,
        segment_id=rng.segment_id,
        start=start,
        end=chunks[-1].end,
        files=len(chunks),
        size_bytes=size,
        is_head=is_head,
    )
