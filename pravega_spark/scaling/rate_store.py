"""Reads a stream's rates from its log, and stores them, so that the next run reads less of it.

One object, ``<stream>/events/_pravega/rates.json``, holds the rates of the last run:

| line | holds |
| --- | --- |
| 1 | format and the digest of line 2 |
| 2 | version with its commit's token and time, life, epoch, policy, pace; statistics by segment |

It is overwritten, and only saves time: an object that is torn, or of another log, pace or format,
is ignored.
"""

from __future__ import annotations

import json
from dataclasses import asdict, astuple
from typing import Any

import xxhash

from pravega_spark.engine.json_codec import to_json
from pravega_spark.engine.log.version_ages import VersionAges
from pravega_spark.engine.stream.records import StreamState
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import PravegaSparkError
from pravega_spark.limits import CLOCK_SKEW_MS, RATES_COMMITS
from pravega_spark.policies import ScalingPace, ScalingPolicy, ScalingType
from pravega_spark.scaling.commit_traffic import Traffic
from pravega_spark.scaling.moving_averages import Averages, ScaleUpEvent, SegmentRates
from pravega_spark.scaling.scale_events import StreamRates

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
            ScalingPace(**{**pace, "windows_ms": tuple(pace["windows_ms"])}),
            record["version"],
            record["token"],
            record["time"],
            record["life"],
            record["epoch"],
            ScalingPolicy.from_json(record["policy"]),
            {int(number): _decode_segment(cells) for number, cells in record["segments"].items()},
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
        since_ms,
        ticked_ms,
        written_ms,
        reported_ms,
        up_ms,
        down_ms,
        Traffic(events, size_bytes),
        _decode_averages(rates[:4]),
        _decode_averages(rates[4:]),
        None if up is None else ScaleUpEvent(*up),
        cold_until_ms,
        cold_since_ms,
    )


def _decode_averages(cells: list[float]) -> Averages:
    a, b, c, d = cells
    return a, b, c, d
