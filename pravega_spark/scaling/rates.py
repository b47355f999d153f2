"""The rates of a stream's segments: moving averages folded from its commits, stored, and shown.

One object, ``<stream>/events/_pravega/rates.json``, holds the rates of the last run:

| line | holds |
| --- | --- |
| 1 | format and the digest of line 2 |
| 2 | version with its commit's token and time, life, epoch, policy, pace; statistics by segment |

It is overwritten, and only saves time: an object that is torn, or of another log, pace or format,
is ignored.

The rates of one segment: moving averages of events and bytes, and the scale events they cause.
Rules and numbers are Pravega's (docs/policies.md). The averages differ in two ways, since a log
shows events in commits, not one by one:

* The events of a commit are spread evenly over the ticks since the commit before. Pravega counts
  silent ticks as 0, and all events in the last tick.
* An average is over the time since the statistics began. Pravega's begins with the first rate,
  which at one commit a minute would be twelve times the true rate, and still five times after the
  cool-down of 10 minutes.

For a continuously written segment both equal Pravega's averages.

The rates of all segments of a stream, folded from the commits of its log. Pure, no clock. Pravega
measures next to the data and posts scale events to its controller. Here both are one fold over the
log, which has the traffic and time of each commit, and the stream's policy and layout. The same
commits give the same averages and events, however often a scheduled job stopped in between.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, astuple, dataclass, field, replace
from functools import lru_cache
from typing import Any, Final

import xxhash

from pravega_spark.config.policies import ScalingPace, ScalingPolicy, ScalingType
from pravega_spark.engine.log.actions import Commit
from pravega_spark.engine.log.retained import VersionAges
from pravega_spark.engine.runtime.json_codec import to_json
from pravega_spark.engine.stream.records import (
    EPOCH_PREFIX,
    SEGMENT_PREFIX,
    STREAM_DOMAIN,
    StreamRecord,
    StreamState,
    decode_epoch,
    decode_stream,
)
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import PravegaSparkError
from pravega_spark.values.limits import CLOCK_SKEW_MS, RATES_COMMITS
from pravega_spark.values.segments import Epoch, parse_segment, segment_number


@dataclass(frozen=True, slots=True)
class Traffic:
    """Events and their bytes."""

    events: int = 0
    size_bytes: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.events + other.events, self.size_bytes + other.size_bytes)


NO_TRAFFIC: Final = Traffic()


@dataclass(frozen=True, slots=True)
class TransactionTraffic:
    """The events that a committed transaction added to one segment, and when it began."""

    created_ms: int
    traffic: Traffic


@dataclass(frozen=True, slots=True)
class SegmentTraffic:
    """The events that a commit added to one segment: all appends, and each transaction."""

    appends: Traffic = NO_TRAFFIC
    transactions: tuple[TransactionTraffic, ...] = ()


_NOTHING: Final = SegmentTraffic()


def traffic_by_segment(commit: Commit) -> dict[int, SegmentTraffic]:
    """Return the traffic of a commit by segment number.

    Only segments whose record the commit changes count, so that a rewrite of files does not. The
    parameter ``transactions`` has the traffic of each transaction.
    """
    parameters = commit.info.get("operationParameters") or {}
    found: dict[int, SegmentTraffic] = {}
    if "transactions" in parameters:
        for transaction in json.loads(parameters["transactions"]):
            rows = _by_id(transaction["rowsBySegment"])
            sizes = _by_id(transaction["bytesBySegment"])
            for number, traffic in _traffic(commit, rows, sizes):
                added = TransactionTraffic(transaction["created"], traffic)
                before = found.get(number, _NOTHING)
                found[number] = SegmentTraffic(before.appends, (*before.transactions, added))
        return found
    metrics = commit.info.get("operationMetrics") or {}
    rows = _by_id(_parse_cells(metrics.get("rowsBySegment", "")))
    sizes = _by_id(_parse_cells(metrics.get("bytesBySegment", "")))
    for number, traffic in _traffic(commit, rows, sizes):
        found[number] = SegmentTraffic(found.get(number, _NOTHING).appends + traffic)
    return found


def _traffic(
    commit: Commit, rows: Mapping[int, int], sizes: Mapping[int, int]
) -> Iterator[tuple[int, Traffic]]:
    """Yield the number and the traffic of each segment whose record the commit changes."""
    for segment_id, events in rows.items():
        if f"{SEGMENT_PREFIX}{segment_id}" in commit.domains:
            yield segment_number(segment_id), Traffic(events, sizes.get(segment_id, 0))


def _parse_cells(text: str) -> dict[str, str]:
    """Read ``0#0=12,1#0=3``."""
    return dict(cell.split("=") for cell in text.split(",") if cell)


def _by_id(cells: Mapping[str, int | str]) -> dict[int, int]:
    return {_segment_id(segment): int(number) for segment, number in cells.items()}


_segment_id = lru_cache(maxsize=8192)(parse_segment)
"""Cached, since all commits of a stream name the same few segments."""


FOREVER: Final = (1 << 63) - 1
"""The end of a cold mark that lasts until the segment is sealed."""
UP_FACTORS: Final = (5.0, 2.0, 1.0)
"""A segment is too fast if its average over 2, 5 or 10 minutes exceeds this times the target."""
DOWN_FACTORS: Final = (1.0, 1.0, 1.0, 0.5)
"""A segment is slow if all four averages are below these factors of the target."""

Averages = tuple[float, float, float, float]
"""Rates over about 2, 5, 10 and 20 minutes, in events or in bytes a second."""
ZERO: Final[Averages] = (0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class ScaleUpEvent:
    """The average with index ``rule`` in UP_FACTORS was ``rate``, too fast for ``target``."""

    time_ms: int
    splits: int
    rule: int
    rate: float
    target: int


@dataclass(slots=True, kw_only=True)
class SegmentRates:
    """The statistics of one active segment; times are commit times in ms.

    ``since_ms`` is when the statistics began: with the segment, or with its first write after a
    long silence. ``pending`` is the traffic since the last tick. ``events`` and ``size_bytes`` are
    weighted sums of rates; divided by the weight of the whole time since the beginning they are the
    averages.
    """

    since_ms: int
    ticked_ms: int
    written_ms: int
    reported_ms: int
    up_ms: int
    """When the last scale-up event was, which mutes further ones; at first the creation."""
    down_ms: int
    """The same for scale-down events, which an up event also mutes."""
    pending: Traffic = NO_TRAFFIC
    events: Averages = ZERO
    size_bytes: Averages = ZERO
    up: ScaleUpEvent | None = None
    cold_until_ms: int = 0
    """The end of the cold mark, 0 without one."""
    cold_since_ms: int = 0
    """When that cold mark was set."""

    @classmethod
    def begin(cls, time_ms: int) -> SegmentRates:
        """Return the statistics of a segment that is created at a time: muted, as in Pravega."""
        return cls(
            since_ms=time_ms,
            ticked_ms=time_ms,
            written_ms=time_ms,
            reported_ms=time_ms,
            up_ms=time_ms,
            down_ms=time_ms,
        )

    def restart(self, time_ms: int) -> None:
        """Begin the statistics again after a long silence; mutes and the cold mark stay."""
        self.since_ms = self.ticked_ms = self.reported_ms = time_ms
        self.pending, self.events, self.size_bytes = NO_TRAFFIC, ZERO, ZERO

    def forget_events(self, time_ms: float) -> None:
        """Drop what was judged by another target; from that time on nothing mutes a new event."""
        self.up, self.cold_until_ms, self.cold_since_ms = None, 0, 0
        self.up_ms = self.down_ms = min(self.up_ms, self.down_ms, int(time_ms) - 1)

    def mark_cold(self, time_ms: int, until_ms: int) -> None:
        """Mark the segment cold from one time until another, unless it is cold for longer."""
        if until_ms > self.cold_until_ms:
            self.cold_since_ms, self.cold_until_ms = time_ms, until_ms

    def averages(self, kind: ScalingType, pace: ScalingPace) -> Averages:
        """Return the averages in the unit of a policy: events a second, or KiB a second."""
        if kind is ScalingType.DATA_RATE:
            return self.rates(self.size_bytes, pace, 1_024)
        return self.rates(self.events, pace)

    def rates(self, sums: Averages, pace: ScalingPace, unit: int = 1) -> Averages:
        """Return the averages of ``events`` or of ``size_bytes``, a second, in a unit."""
        passed_ms = self.ticked_ms - self.since_ms
        if passed_ms <= 0:
            return ZERO
        weights = window_weights(passed_ms, pace)
        a, b, c, d = (total / weight / unit for total, weight in zip(sums, weights, strict=True))
        return a, b, c, d

    def tick(self, now_ms: int, pace: ScalingPace) -> None:
        """Advance the averages to a time; pending traffic counts evenly since the last tick."""
        passed_ms = now_ms - self.ticked_ms
        if passed_ms <= 0:
            return
        weights, pending = window_weights(passed_ms, pace), self.pending
        self.ticked_ms, self.pending = now_ms, NO_TRAFFIC
        self.events = _moved(self.events, pending.events * 1_000 / passed_ms, weights)
        self.size_bytes = _moved(self.size_bytes, pending.size_bytes * 1_000 / passed_ms, weights)

    def credit(self, transactions: Iterable[TransactionTraffic], pace: ScalingPace) -> None:
        """Count transactions that lived longer than a tick as if their events had come evenly.

        For a transaction that lived L ms each tick gets count x tick / L: the rate count / L over
        its life. The part before the statistics began does not count. The transactions' commit is
        at the time of the last tick.
        """
        for transaction in transactions:
            lived_ms = self.ticked_ms - transaction.created_ms
            if lived_ms >= pace.tick_ms:
                weights = window_weights(min(lived_ms, self.ticked_ms - self.since_ms), pace)
                traffic = transaction.traffic
                self.events = _added(self.events, traffic.events * 1_000 / lived_ms, weights)
                self.size_bytes = _added(
                    self.size_bytes, traffic.size_bytes * 1_000 / lived_ms, weights
                )


def rule_exceeded(averages: Averages, target: int, age_ms: float, pace: ScalingPace) -> int | None:
    """Return the index of the first average that requires a split at an age, or None."""
    for rule, factor in enumerate(UP_FACTORS):
        if averages[rule] > factor * target and age_ms > pace.windows_ms[rule]:
            return rule
    return None


def is_slow(averages: Averages, target: int) -> bool:
    """Return whether all averages are so low that a segment of sufficient age is cold."""
    return all(r < factor * target for r, factor in zip(averages, DOWN_FACTORS, strict=True))


def window_weights(time_ms: float, pace: ScalingPace) -> Averages:
    """Return the weight of a time span in each average: 1 - exp(-time / window).

    For a tick of 5 s that is Pravega's 1 - exp(-(5/60) / W), W in minutes.
    """
    a, b, c, d = (-math.expm1(-time_ms / window_ms) for window_ms in pace.windows_ms)
    return a, b, c, d


def _moved(sums: Averages, rate: float, weights: Averages) -> Averages:
    a, b, c, d = (old + part * (rate - old) for old, part in zip(sums, weights, strict=True))
    return a, b, c, d


def _added(sums: Averages, rate: float, weights: Averages) -> Averages:
    a, b, c, d = (old + part * rate for old, part in zip(sums, weights, strict=True))
    return a, b, c, d


@dataclass(slots=True)
class StreamRates:
    """The statistics of all active segments, by number, as of one version of the log.

    By number, not id: a segment that a rolling transaction duplicates under a newer epoch keeps its
    statistics. ``token`` is that of the version's commit, ``time_ms`` its time.
    """

    pace: ScalingPace
    version: int
    token: str
    time_ms: int
    life: int
    epoch: int
    policy: ScalingPolicy
    segments: dict[int, SegmentRates] = field(default_factory=dict)

    @classmethod
    def begin(cls, view: StreamView, pace: ScalingPace, time_ms: int | None = None) -> StreamRates:
        """Begin at a version of a stream, by default at the version's time."""
        record = view.record
        time_ms = view.timestamp_ms if time_ms is None else time_ms
        made = cls(
            pace=pace,
            version=view.version,
            token=view.snapshot.token,
            time_ms=time_ms,
            life=record.life,
            epoch=record.active_epoch,
            policy=record.configuration.scaling,
        )
        if record.state is not StreamState.DELETED:
            made._follow_layout(view.active)
        return made

    @property
    def may_shrink(self) -> bool:
        """Whether the policy allows merges, and the stream has more than its minimum."""
        is_fixed = self.policy.type is ScalingType.FIXED
        return not is_fixed and len(self.segments) > self.policy.minimum

    def apply(self, commit: Commit, latest_ms: float = math.inf) -> None:
        """Apply the commit of the next version.

        The time does not advance for a commit of a host whose clock was after ``latest_ms``, or
        before the commits before it: the commit's events count, its time does not.
        """
        assert commit.version == self.version + 1, (commit.version, self.version)
        self.version, self.token = commit.version, commit.token
        if self.time_ms < commit.clock_ms <= latest_ms:
            self.time_ms = commit.clock_ms
        text = commit.domains.get(STREAM_DOMAIN)
        if text is not None:
            self._follow_record(commit, decode_stream(text))
        for number, traffic in traffic_by_segment(commit).items():
            segment = self.segments.get(number)
            if segment is not None:
                self._add_traffic(segment, traffic)

    def _follow_record(self, commit: Commit, record: StreamRecord) -> None:
        """Follow a change of the stream's record: its policy, life and layout."""
        for segment in self.segments.values():
            self._mark_if_idle(segment)
        policy = record.configuration.scaling
        if (policy.type, policy.target) != (self.policy.type, self.policy.target):
            for segment in self.segments.values():
                segment.forget_events(self.time_ms - self.pace.mute_ms)
        self.policy = policy
        if record.state is StreamState.DELETED:
            self.segments = {}
        elif record.active_epoch != self.epoch:
            text = commit.domains[f"{EPOCH_PREFIX}{record.active_epoch}"]
            assert text is not None, f"version {commit.version} switches to an epoch it removes"
            self._follow_layout(decode_epoch(record.active_epoch, text))
        self.life, self.epoch = record.life, record.active_epoch

    def _follow_layout(self, epoch: Epoch) -> None:
        """Keep segments of the epoch that are known, begin new ones, forget all others."""
        known = self.segments
        self.segments = {
            s.number: known.get(s.number) or SegmentRates.begin(self.time_ms)
            for s in epoch.segments
        }

    def is_idle(self, segment: SegmentRates, time_ms: float) -> bool:
        """Return whether the segment is cold at a time because it had no write for long.

        Never while the stream is at its minimum: a cold mark from then could pair up much later.
        """
        return self.may_shrink and time_ms - segment.written_ms > self.pace.idle_ms

    def is_cold(self, segment: SegmentRates, time_ms: float) -> bool:
        """Return whether the segment has a cold mark at a time, or is idle."""
        return segment.cold_until_ms > time_ms or self.is_idle(segment, time_ms)

    def cold_since(self, segment: SegmentRates, time_ms: float) -> int:
        """Return since when a segment has been cold that is cold at a time."""
        if segment.cold_until_ms > time_ms:
            return segment.cold_since_ms
        return segment.written_ms + math.ceil(self.pace.idle_ms)

    def _mark_if_idle(self, segment: SegmentRates) -> None:
        if self.is_idle(segment, self.time_ms):
            segment.mark_cold(segment.written_ms + math.ceil(self.pace.idle_ms), FOREVER)

    def _add_traffic(self, segment: SegmentRates, traffic: SegmentTraffic) -> None:
        now_ms = self.time_ms
        self._mark_if_idle(segment)
        if now_ms - segment.written_ms > self.pace.idle_ms:
            segment.restart(now_ms)
        segment.written_ms = now_ms
        short = [
            transaction.traffic
            for transaction in traffic.transactions
            if now_ms - transaction.created_ms < self.pace.tick_ms
        ]
        segment.pending = sum(short, segment.pending + traffic.appends)
        if len(short) < len(traffic.transactions):
            segment.tick(now_ms, self.pace)
            segment.credit(traffic.transactions, self.pace)
        elif now_ms - segment.ticked_ms > self.pace.tick_ms:
            segment.tick(now_ms, self.pace)
        if now_ms - segment.reported_ms > self.pace.report_ms:
            segment.reported_ms = now_ms
            self._judge(segment)

    def _judge(self, segment: SegmentRates) -> None:
        """Record a scale event, if any, as Pravega's segment store does when it reports."""
        now_ms, pace, policy = self.time_ms, self.pace, self.policy
        age_ms = now_ms - segment.since_ms
        if policy.type is ScalingType.FIXED or age_ms <= pace.cooldown_ms:
            return
        averages = segment.averages(policy.type, pace)
        rule = rule_exceeded(averages, policy.target, age_ms, pace)
        if rule is not None:
            if now_ms - segment.up_ms > pace.mute_ms:
                splits = max(2, int(max(averages[:3]) / policy.target))
                segment.up = ScaleUpEvent(
                    time_ms=now_ms,
                    splits=splits,
                    rule=rule,
                    rate=averages[rule],
                    target=policy.target,
                )
                segment.up_ms = segment.down_ms = now_ms
        elif is_slow(averages, policy.target) and age_ms > pace.windows_ms[3]:
            if now_ms - segment.down_ms <= pace.mute_ms:
                return
            segment.down_ms = now_ms
            if self.may_shrink:
                segment.mark_cold(now_ms, now_ms + math.ceil(pace.cold_ms))

    def current(self, number: int, time_ms: int) -> SegmentRates:
        """Return a segment's statistics advanced to a time, as an empty write would leave them."""
        copy = replace(self.segments[number])
        copy.tick(time_ms, self.pace)
        return copy

    def averages(self, segment: SegmentRates) -> Averages:
        """Return a segment's averages in the unit of the policy."""
        return segment.averages(self.policy.type, self.pace)


FORMAT = 1


def read_rates(
    stream: StreamLog, view: StreamView, pace: ScalingPace, clocks_ms: int
) -> tuple[StreamRates, bool]:
    """Return the rates of a stream at the view's version, and whether storing them saves time.

    ``clocks_ms`` is the latest of the clocks, of this host and of the storage: a commit of a later
    time was made by a host whose clock was ahead. Reads the commits since the stored rates, or else
    those of the last ``pace.history_ms``; in both cases not many more than RATES_COMMITS.
    """
    latest_ms = clocks_ms + CLOCK_SKEW_MS
    rates = _stored(stream, view, pace, latest_ms)
    if rates is not None and rates.version == view.version:
        return rates, False
    if rates is None or view.version - rates.version > RATES_COMMITS:
        rates = _begun(stream, view, pace, latest_ms)
    reader = stream.log.reader
    for commit in reader.span(rates.version, view.version, light=True):
        rates.apply(commit, latest_ms)
    return rates, True


def last_rates(stream: StreamLog, view: StreamView) -> StreamRates | None:
    """Return the rates that the scaling job stored for the view's life, or None; for display.

    One storage call, and none for a stream that the job does not judge: of a fixed number of
    segments, sealed, or being sealed.
    """
    is_fixed = view.record.configuration.scaling.type is ScalingType.FIXED
    if is_fixed or view.record.state is not StreamState.ACTIVE:
        return None
    stored = _read(stream)
    if stored is None or stored.life != view.life or stored.version > view.version:
        return None
    return stored


def store_rates(stream: StreamLog, rates: StreamRates) -> None:
    """Store the rates for the next run; of concurrent runs the last one wins."""
    # No fsync: the digest of an object that a power cut tears does not match.
    stream.store.put(rates_key(stream.path), encode_rates(rates), durable=False)


def _stored(
    stream: StreamLog, view: StreamView, pace: ScalingPace, latest_ms: int
) -> StreamRates | None:
    """Return the stored rates if they are of this log, life and pace, and can be continued.

    Rates later than ``latest_ms`` were stored by a host whose clock was ahead, and are ignored.
    """
    stored = _read(stream)
    if stored is None or (stored.pace, stored.life) != (pace, view.life):
        return None
    if stored.time_ms > latest_ms:
        return None
    if stored.version == view.version:
        return stored if stored.token == view.snapshot.token else None
    if not view.snapshot.commit_deletion_mark <= stored.version < view.version:
        return None
    commit = stream.log.reader.commit(stored.version, light=True)
    return stored if commit is not None and commit.token == stored.token else None


def _read(stream: StreamLog) -> StreamRates | None:
    try:
        return decode_rates(stream.store.get(rates_key(stream.path)))
    except FileNotFoundError:
        return None


def _begun(stream: StreamLog, view: StreamView, pace: ScalingPace, latest_ms: int) -> StreamRates:
    """Begin at a version before the history that counts, or at the oldest stored one."""
    ages = VersionAges.read(stream.log, now_ms=latest_ms)
    wanted = ages.version_at(int(latest_ms - pace.history_ms))
    wanted = max(wanted, view.version - RATES_COMMITS)
    snapshot, _ = stream.log.reader.open_known(below=min(wanted, view.version) + 1)
    is_in_future = snapshot.timestamp_ms > latest_ms
    time_ms = ages.written_ms(snapshot.version) if is_in_future else snapshot.timestamp_ms
    return StreamRates.begin(StreamView(snapshot), pace, time_ms)


def rates_key(path: str) -> str:
    """Return the key of the object for the table at ``path``."""
    return f"{path}/_pravega/rates.json"


def encode_rates(rates: StreamRates) -> bytes:
    """Return the bytes of the object."""
    record = {
        "version": rates.version,
        "token": rates.token,
        "time": rates.time_ms,
        "life": rates.life,
        "epoch": rates.epoch,
        "policy": rates.policy.to_json(),
        "pace": asdict(rates.pace),
        "segments": {number: _encode_segment(s) for number, s in rates.segments.items()},
    }
    body = to_json(record).encode()
    header = to_json({"format": FORMAT, "digest": xxhash.xxh3_128_hexdigest(body)}).encode()
    return header + b"\n" + body + b"\n"


def decode_rates(data: bytes) -> StreamRates | None:
    """Read the bytes of :func:`encode_rates`; return None if they are torn or of another format."""
    first, _, rest = data.partition(b"\n")
    body = rest.removesuffix(b"\n")
    try:
        header = json.loads(first)
        if header != {"format": FORMAT, "digest": xxhash.xxh3_128_hexdigest(body)}:
            return None
        record = json.loads(body)
        pace = record["pace"]
        return StreamRates(
            pace=ScalingPace(**{**pace, "windows_ms": tuple(pace["windows_ms"])}),
            version=record["version"],
            token=record["token"],
            time_ms=record["time"],
            life=record["life"],
            epoch=record["epoch"],
            policy=ScalingPolicy.from_json(record["policy"]),
            segments={
                int(number): _decode_segment(cells) for number, cells in record["segments"].items()
            },
        )
    except (ValueError, KeyError, TypeError, AttributeError, PravegaSparkError):
        return None


def _encode_segment(segment: SegmentRates) -> list[Any]:
    return [
        *(segment.since_ms, segment.ticked_ms, segment.written_ms, segment.reported_ms),
        *(segment.up_ms, segment.down_ms),
        *astuple(segment.pending),
        *segment.events,
        *segment.size_bytes,
        None if segment.up is None else astuple(segment.up),
        segment.cold_until_ms,
        segment.cold_since_ms,
    ]


def _decode_segment(cells: list[Any]) -> SegmentRates:
    since_ms, ticked_ms, written_ms, reported_ms, up_ms, down_ms, *rest = cells
    events, size_bytes, *rates, up, cold_until_ms, cold_since_ms = rest
    return SegmentRates(
        since_ms=since_ms,
        ticked_ms=ticked_ms,
        written_ms=written_ms,
        reported_ms=reported_ms,
        up_ms=up_ms,
        down_ms=down_ms,
        pending=Traffic(events, size_bytes),
        events=_decode_averages(rates[:4]),
        size_bytes=_decode_averages(rates[4:]),
        up=None if up is None else ScaleUpEvent(*up),
        cold_until_ms=cold_until_ms,
        cold_since_ms=cold_since_ms,
    )


def _decode_averages(cells: list[float]) -> Averages:
    a, b, c, d = cells
    return a, b, c, d


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentLoad:
    """Averages over 2, 5, 10 and 20 minutes a second, and the marks; times in ms since 1970.

    ``hot``: faster than the policy's target allows, or marked for a split. ``cold``: marked for a
    merge, or idle. ``cooldown_until_ms``: too young to be judged before then. ``muted_until_ms``:
    no split before then, because one was due or the segment was created. Both are None when that
    time is over.
    """

    time_ms: int
    events: Averages
    size_bytes: Averages
    hot: bool
    cold: bool
    muted_until_ms: int | None
    cooldown_until_ms: int | None


def known_load(
    stream: StreamLog, view: StreamView, rates: StreamRates | None, segment_id: int
) -> SegmentLoad | None:
    """Return the load of a segment as of stored rates, or as of now: None if they do not say it.

    While the rates are of the newest version, silence since then counts.
    """
    if rates is None:
        return None
    is_newest = rates.version == view.version
    time_ms = stream.now_ms() if is_newest else rates.time_ms
    return segment_load(rates, segment_number(segment_id), time_ms)


def segment_load(rates: StreamRates, number: int, time_ms: int) -> SegmentLoad | None:
    """Return the load of a segment at a time, or None if the rates do not have the segment.

    The time is that of the rates, or a later one if no commit came since.
    """
    if number not in rates.segments or rates.policy.type is ScalingType.FIXED:
        return None
    now_ms = max(time_ms, rates.time_ms)
    pace, segment = rates.pace, rates.current(number, now_ms)
    rule = rule_exceeded(rates.averages(segment), rates.policy.target, pace.windows_ms[3] + 1, pace)
    is_marked = segment.up is not None and now_ms - segment.up.time_ms < pace.cold_ms
    muted_until_ms = segment.up_ms + math.ceil(pace.mute_ms)
    cooldown_until_ms = segment.since_ms + math.ceil(pace.cooldown_ms)
    return SegmentLoad(
        time_ms=now_ms,
        events=segment.rates(segment.events, pace),
        size_bytes=segment.rates(segment.size_bytes, pace),
        hot=rule is not None or is_marked,
        cold=rates.is_cold(segment, now_ms),
        muted_until_ms=muted_until_ms if now_ms <= muted_until_ms else None,
        cooldown_until_ms=cooldown_until_ms if now_ms <= cooldown_until_ms else None,
    )
