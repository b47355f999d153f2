"""Streaming queries over random lives of their streams, with one thing changed between runs.

A run follows what Spark does with a checkpoint: it writes an offset before a batch, repeats the
last batch that was not committed, and asks for the next one. Some runs are of Spark 4.0 or 4.1,
which call the source in another order and tell it less. Between runs streams grow, scale, are
truncated, sealed, deleted and created again; the checkpoint is rolled back or copied; and the
options change. A query delivers each event once and in the order of its key. A run that raises
nothing has passed no event that its options cover, but for what a run with failOnDataLoss=false or
other routing keys has left out before.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.engine.chunks.routing import position
from pravega_spark.engine.layout.located_cut import locate
from pravega_spark.engine.stream.records import StreamState
from pravega_spark.engine.stream.stream_log import StreamLog, open_stream
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import HeldBySubscriber, InvalidInput, InvalidStreamCut, PravegaSparkError
from pravega_spark.manager import StreamManager
from pravega_spark.spark.read.columns import schema_of
from pravega_spark.spark.read.micro_batch import PravegaStreamReader
from pravega_spark.spark.read.offsets import OffsetPlanner
from pravega_spark.spark.settings import ReadSettings, read_settings
from pravega_spark.spark.source_offsets import StreamOffset, decode
from pravega_spark.spark.versions import ReadAllAvailable
from pravega_spark.values.segments import END, StreamCut, segment_epoch, segment_text
from tests.harness.sequences import Step, drawn_steps, play_shortest
from tests.harness.small_streams import scale, write
from tests.harness.tiers import sized

SEEDS = sized(50, 10_000, "QUERY_SEEDS")
NAMES = ("s/a", "s/b")
KEYS = tuple(f"k{n}" for n in range(6))
STEPS = 16
_NEVER = 7
"""A segment that no stream ever has."""
_roots = itertools.count()

VERBS = (
    *("write",) * 5,
    *("run",) * 6,
    *("scale", "truncate", "recreate", "seal", "rollback", "fork", "away", "back", "save"),
)


@dataclass(frozen=True)
class Event:
    number: int
    stream: str
    life: int
    segment_id: int
    offset: int
    key: str


@dataclass(frozen=True)
class Options:
    """The options of one run, and what they mean to the model."""

    given: dict[str, str]
    streams: tuple[str, ...]
    segments: tuple[int, ...] | None = None
    keys: tuple[str, ...] = ()
    is_strict: bool = True
    is_available_now: bool = True
    has_end: bool = False
    is_untold: bool = False
    """Whether the run's Spark tells the source neither trigger nor limits."""
    batches: int = 100
    crash_at: int | None = None
    """The batch of the run that is planned and not done."""

    def cover(self, event: Event) -> bool:
        in_segments = self.segments is None or event.segment_id in self.segments
        return event.stream in self.streams and in_segments


@dataclass
class Query:
    """A checkpoint: offsets as texts, what each committed batch delivered, and by which options."""

    offsets: list[str] = field(default_factory=list)
    delivered: list[list[int]] = field(default_factory=list)
    options: list[list[Options]] = field(default_factory=list)
    excused: set[int] = field(default_factory=set)

    @property
    def committed(self) -> int:
        return len(self.delivered)

    def flat(self) -> list[int]:
        return [number for batch in self.delivered for number in batch]


class World:
    """Two streams, some queries, and what must be true of them."""

    def __init__(self) -> None:
        self.root = f"memory://queries-{next(_roots)}"
        self.manager = StreamManager(self.root)
        self.manager.create_scope("s")
        self.events: list[Event] = []
        self.queries = [Query()]
        self.errors: list[str] = []
        self.cuts: dict[str, list[StreamCut]] = {name: [] for name in NAMES}
        for name in NAMES:
            self.create(name, 2)

    def stream(self, name: str) -> StreamLog:
        return open_stream(self.root, name)

    def create(self, name: str, segments: int) -> None:
        policy = ScalingPolicy.fixed(segments)
        self.manager.create_stream(name, StreamConfiguration(policy))

    def view(self, name: str) -> StreamView | None:
        found = self.stream(name).current_view()
        return found if found is not None and self.manager.stream_exists(name) else None

    def act(self, step: Step) -> None:
        verb, seed = step
        getattr(self, verb)(random.Random(seed))

    def open_view(self, dice: random.Random) -> StreamView | None:
        view = self.view(dice.choice(NAMES))
        return view if view is not None and view.record.state is StreamState.ACTIVE else None

    # What happens to the streams

    def write(self, dice: random.Random) -> None:
        view = self.open_view(dice)
        if view is None:
            return
        ends = {s: view.segment(s).next_offset for s in view.active.segment_ids}
        rows = []
        for _ in range(dice.randint(1, 6)):
            key, number = dice.choice(KEYS), len(self.events)
            place = position(key)
            (segment,) = (
                s for s in view.active.segments if s.key_range.low <= place < s.key_range.high
            )
            at = ends[segment.segment_id]
            ends[segment.segment_id] += 1
            self.events.append(Event(number, view.stream, view.life, segment.segment_id, at, key))
            rows.append((key, b"%d" % number))
        write(self.stream(view.stream), rows)

    def scale(self, dice: random.Random) -> None:
        view = self.open_view(dice)
        if view is None:
            return
        segments = view.active.segments
        if len(segments) > 1 and dice.random() < 0.4:
            at = dice.randrange(len(segments) - 1)
            left, right = segments[at : at + 2]
            ranges = [(left.key_range.low, right.key_range.high)]
            scale(self.stream(view.stream), [left.segment_id, right.segment_id], ranges)
        else:
            one = dice.choice(segments)
            low, high = one.key_range.low, one.key_range.high
            middle = (low + high) / 2
            scale(self.stream(view.stream), [one.segment_id], [(low, middle), (middle, high)])

    def save(self, dice: random.Random) -> None:
        name = dice.choice(NAMES)
        view = self.view(name)
        if view is not None:
            self.cuts[name].append(view.tail)

    def truncate(self, dice: random.Random) -> None:
        name = dice.choice(NAMES)
        view = self.view(name)
        if view is None:
            return
        cuts = [cut for cut in self.cuts[name] if cut.life == view.life]
        # A cut may be below the head, and a query may be a subscriber.
        with contextlib.suppress(InvalidStreamCut, HeldBySubscriber):
            self.manager.truncate_stream(name, dice.choice([*cuts, view.tail]))

    def seal(self, dice: random.Random) -> None:
        view = self.open_view(dice)
        if view is not None and dice.random() < 0.4:
            self.manager.seal_stream(view.stream)

    def recreate(self, dice: random.Random) -> None:
        name = dice.choice(NAMES)
        if self.view(name) is not None:
            self.manager.seal_stream(name)
            self.manager.delete_stream(name)
        if dice.random() < 0.7:
            self.create(name, dice.randint(1, 2))

    def away(self, dice: random.Random) -> None:
        """Let a deleted stream stay away, or not."""
        name = dice.choice(NAMES)
        if self.view(name) is None:
            self.create(name, 1)

    back = away

    # What happens to the queries

    def rollback(self, dice: random.Random) -> None:
        query = dice.choice(self.queries)
        if query.committed and query.committed == len(query.offsets):
            del query.offsets[-1], query.delivered[-1], query.options[-1]

    def fork(self, dice: random.Random) -> None:
        if len(self.queries) < 3:
            self.queries.append(copy.deepcopy(dice.choice(self.queries)))

    def choose(self, dice: random.Random) -> Options:
        """Return the options of a run."""
        given: dict[str, str] = {}
        streams: tuple[str, ...] = NAMES
        segments = None
        way = dice.choice(("stream", "subscribe", "subscribe", "pattern", "assign", "assign"))
        if way == "stream":
            streams = (dice.choice(NAMES),)
            given["stream"] = streams[0]
        elif way == "subscribe":
            given["subscribe"] = ",".join(streams)
        elif way == "pattern":
            given["subscribePattern"] = "s/.*"
        else:
            streams = ("s/a",)
            view = self.view("s/a")
            known = {e.segment_id for e in self.events if e.stream == "s/a"} | {0}
            known |= set() if view is None else set(view.active.segment_ids)
            known |= {_NEVER} if dice.random() < 0.1 else set()
            some = dice.sample(sorted(known), dice.randint(1, min(4, len(known))))
            segments = tuple(sorted(some))
            given["assign"] = json.dumps({"s/a": [segment_text(s) for s in segments]})
        starts: tuple[dict[str, str], ...] = (
            {},
            {"startingOffsets": "latest"},
            {"startingOffsets": "earliest"},
            {"startingOffsets": "earliest"},
            {"startingTimestamp": "1970-01-02"},
            {"startingTimestamp": "2999-01-01"} if dice.random() < 0.2 else {},
        )
        given |= dice.choice(starts)
        cuts = self.cuts["s/a"]
        has_end = False
        if streams == ("s/a",) and cuts and dice.random() < 0.15:
            has_end = dice.random() < 0.5
            given["endingStreamCut" if has_end else "startingStreamCut"] = str(dice.choice(cuts))
        keys: tuple[str, ...] = ()
        if dice.random() < 0.1:
            keys = tuple(sorted(dice.sample(KEYS, 2)))
            given["routingKeys"] = ",".join(keys)
        for option, value, chance in (
            ("maxOffsetsPerTrigger", str(dice.randint(1, 5)), 0.4),
            ("maxBytesPerTrigger", str(dice.randint(1, 9)), 0.1),
            ("minOffsetsPerTrigger", str(dice.randint(1, 5)), 0.1),
            ("minPartitions", str(dice.randint(1, 5)), 0.2),
            ("includeWatermark", "true", 0.1),
            ("includeHeaders", "true", 0.1),
            ("columnNames", "kafka", 0.1),
            ("maxEventBytes", "1k", 0.1),
            ("startingOffsetsByTimestampStrategy", "latest", 0.3),
        ):
            if dice.random() < chance:
                given[option] = value
        if way in ("stream", "subscribe") and dice.random() < 0.15:
            given["readerGroup"] = "s/" + "".join(streams).replace("s/", "g")
            given["readerGroupMode"] = dice.choice(("observer", "subscriber"))
            given["readerGroupInterval"] = "0s"
        is_strict = dice.random() < 0.7
        if not is_strict:
            given["failOnDataLoss"] = "false"
        return Options(
            given,
            streams,
            segments,
            keys,
            is_strict,
            is_available_now=dice.random() < 0.6,
            has_end=has_end,
            is_untold=dice.random() < 0.4,
            batches=dice.choice((1, 2, 100)),
            crash_at=dice.choice((0, 1)) if dice.random() < 0.3 else None,
        )

    def run(self, dice: random.Random) -> None:
        query, options = dice.choice(self.queries), self.choose(dice)
        if dice.random() < 0.05 and query.offsets:
            self.run_unmounted(query, options)
        self.run_query(query, options)

    def run_unmounted(self, query: Query, options: Options) -> None:
        """Run a query while its root is an empty folder: nothing may come of it."""
        before, root = (list(query.offsets), query.flat()), self.root
        self.root = f"memory://unmounted-{next(_roots)}"
        try:
            self._run(query, options)
        except PravegaSparkError:
            assert (query.offsets, query.flat()) == before, "only an empty batch may end"
        else:
            raise AssertionError("a run over no root at all ended well")
        finally:
            self.root = root

    def run_query(self, query: Query, options: Options) -> None:
        here, is_new = len(self.events), not query.offsets
        try:
            ended = self._run(query, options)
        except PravegaSparkError as error:
            text = f"{type(error).__name__}: {error}"
            assert is_new or ("option starting" not in text and "after starting" not in text), text
            self.errors.append(text)
            return
        self.check(query, options, here if ended else None)

    def _run(self, query: Query, options: Options) -> bool:
        """Run a query as Spark does; return whether it read all that there is."""
        settings = replace(read_settings({"root": "/x", **options.given}), root=self.root)
        reader = _reader(settings)
        read_on = self._read_on_untold if options.is_untold else self._read_on
        try:
            return read_on(query, options, reader)
        finally:
            reader.stop()

    def _read_on(self, query: Query, options: Options, reader: PravegaStreamReader) -> bool:
        if len(query.offsets) > query.committed:  # a batch is repeated
            last = query.offsets[-1]
            before = query.offsets[-2] if len(query.offsets) > 1 else None
            start = json.loads(before) if before else reader.initialOffset()
            self._batch(query, options, reader, start, json.loads(last))
        at = json.loads(query.offsets[-1]) if query.offsets else reader.initialOffset()
        if options.is_available_now:
            reader.prepareForTriggerAvailableNow()
            limit: Any = reader.getDefaultReadLimit()
        else:
            limit = reader.getDefaultReadLimit() if options.batches > 1 else ReadAllAvailable()
        for number in itertools.count():
            if number >= options.batches and not options.is_available_now:
                return False
            end = reader.latestOffset(at, limit)
            if end == at:
                return options.is_available_now and not options.has_end
            assert number < 200, "a run must end"
            query.offsets.append(json.dumps(end))
            if options.crash_at == number:
                query.options.append([options])
                return False
            self._batch(query, options, reader, at, json.loads(query.offsets[-1]))
            at = end
        raise AssertionError

    def _read_on_untold(self, query: Query, options: Options, reader: PravegaStreamReader) -> bool:
        if query.offsets:
            at = query.offsets[-1]
            assert reader.partitions(json.loads(at), json.loads(at)) == []
        batches = 1 if options.is_available_now else options.batches
        if len(query.offsets) > query.committed:  # a batch is repeated
            self._batch_at_end(query, options, reader)
            batches -= options.is_available_now
        for number in range(batches):
            end = json.dumps(reader.latestOffset())
            if query.offsets and end == query.offsets[-1]:
                return options.is_available_now and not options.has_end
            query.offsets.append(end)
            if options.crash_at == number:
                query.options.append([options])
                return False
            self._batch_at_end(query, options, reader)
        return batches > 0 and options.is_available_now and not options.has_end

    def _batch_at_end(self, query: Query, options: Options, reader: PravegaStreamReader) -> None:
        before = query.offsets[-2:-1]
        start = json.loads(before[0]) if before else reader.initialOffset()
        self._batch(query, options, reader, start, json.loads(query.offsets[-1]))

    def _batch(
        self, query: Query, options: Options, reader: PravegaStreamReader, start: Any, end: Any
    ) -> None:
        """Deliver a batch and commit it; its offset is written already."""
        if len(query.options) < len(query.offsets):
            query.options.append([])
        query.options[-1].append(options)
        name = "value" if reader.settings.column_names == "kafka" else "event"
        found = [
            int(event)
            for partition in reader.partitions(start, end)
            for batch in reader.read(partition)
            for event in batch.column(name).to_pylist()
        ]
        query.delivered.append(found)

    # What must be true

    def check(self, query: Query, options: Options, there: int | None) -> None:
        """Check a query after a run that raised nothing.

        ``there`` is the number of the events that the run must have reached, if it read everything.
        """
        is_refused = _NEVER in (options.segments or ()) and not options.is_untold
        assert not is_refused, "a segment that never was"
        flat = query.flat()
        assert len(flat) == len(set(flat)), f"delivered twice: {_twice(flat)}"
        self._check_order(flat)
        known, delivered = self._offsets(query), set(flat)
        for event in self.events:
            if not options.cover(event) or event.number in delivered | query.excused:
                continue
            is_wanted = not options.keys or event.key in options.keys
            batch = self._passed_in(event, known)
            if batch is None:
                must_be_read = is_wanted and there is not None and event.number < there
                assert not (must_be_read and self._is_unread(event, known)), f"unread: {event}"
                continue
            ways = query.options[batch]
            last = known[-1].get(event.stream)
            is_over = last is None or last.life != event.life
            if is_over and not all(way.cover(event) for way in ways):
                continue  # nobody can add a segment of a life that is over
            others = any(way.keys and event.key not in way.keys for way in ways)
            is_lax = any(not way.is_strict for way in (*ways, options))
            assert not is_wanted or others or is_lax, (
                f"passed in batch {batch} and not delivered: {event}"
            )
            query.excused.add(event.number)

    def _check_order(self, flat: Iterable[int]) -> None:
        last: dict[tuple[str, int, str], int] = {}
        for number in flat:
            event = self.events[number]
            place = event.stream, event.life, event.key
            assert last.get(place, -1) < number, f"out of order: {event}"
            last[place] = number

    def _offsets(self, query: Query) -> list[dict[str, StreamOffset]]:
        return [decode(json.loads(text)) for text in query.offsets[: query.committed]]

    def _passed_in(self, event: Event, known: Sequence[dict[str, StreamOffset]]) -> int | None:
        """Return the first batch whose end lies behind an event, of a start that is not."""
        for number, offsets in enumerate(known):
            offset = offsets.get(event.stream)
            if offset is None or offset.life != event.life:
                continue
            if self._is_before(event, offset.cut) and not self._is_before(event, offset.origin):
                return number
        return None

    def _is_unread(self, event: Event, known: Sequence[dict[str, StreamOffset]]) -> bool:
        """Return whether an event lies ahead of a query that reads its stream, in this life."""
        view = self.view(event.stream)
        offset = known[-1].get(event.stream) if known else None
        if view is None or view.life != event.life or offset is None or offset.is_away:
            return False
        return offset.life == event.life and not self._is_before(event, offset.cut)

    def _is_before(self, event: Event, cut: StreamCut) -> bool:
        """Return whether an event lies before a cut; what nobody can tell any more does not."""
        view = self.stream(event.stream).current_view()
        if view is None or view.life != event.life:
            return cut.positions.get(event.segment_id, -2) > event.offset
        try:
            located = locate(view, cut)
        except InvalidInput:
            return False
        if not view.has_segment(event.segment_id):
            if event.segment_id in cut.positions:
                at = cut.positions[event.segment_id]
                return at == END or at > event.offset
            return all(segment_epoch(s) > segment_epoch(event.segment_id) for s, _ in cut)
        offset = located.offset_in(view.lineage.find(event.segment_id))
        return offset == END or offset > event.offset


def _reader(settings: ReadSettings) -> PravegaStreamReader:
    schema = schema_of(
        settings.column_names,
        settings.columns,
        include_watermark=settings.include_watermark,
        include_headers=settings.include_headers,
    )
    reader = PravegaStreamReader(settings, schema)
    reader._planner = OffsetPlanner(settings, itertools.count(0.0, 20.0).__next__)
    return reader


def _twice(flat: Sequence[int]) -> list[int]:
    return sorted({number for number in flat if flat.count(number) > 1})


def play(steps: Iterable[Step]) -> None:
    world = World()
    for step in steps:
        world.act(step)
    for query in world.queries:
        whole = Options({"subscribe": ",".join(NAMES), "startingOffsets": "earliest"}, NAMES)
        world.run_query(query, whole)


@pytest.mark.long
def test_queries_deliver_each_event_once_whatever_changes_between_runs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("CRITICAL")
    for seed in range(SEEDS):
        play_shortest(seed, drawn_steps(seed, VERBS, STEPS), play)
