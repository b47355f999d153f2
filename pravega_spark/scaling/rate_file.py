"""What a scheduled job keeps of a stream's rates, so that its next run reads only new commits.

One object, ``<stream>/events/_pravega/rates.json``, overwritten and never relied on:

| line | holds |
| --- | --- |
| 1 | format and the digest of line 2 |
| 2 | version with its commit's token and time, life, epoch, policy, pace; statistics by segment |

One that is torn, of another log, pace or format costs time, never a wrong decision.
"""

from __future__ import annotations

import json
from dataclasses import asdict, astuple
from typing import Any

import xxhash

from pravega_spark.engine.json_codec import to_json
from pravega_spark.errors import PravegaSparkError
from pravega_spark.policies import ScalingPace, ScalingPolicy
from pravega_spark.scaling.commit_traffic import SegmentTraffic
from pravega_spark.scaling.segment_rates import Averages, Rates, ScaleUp, SegmentRates

FORMAT = 1


def rates_key(path: str) -> str:
    """Return the key of the object for the table at ``path``."""
    return f"{path}/_pravega/rates.json"


def encode_rates(rates: Rates) -> bytes:
    """Return the bytes of the object."""
    record = {
        "version": rates.version,
        "token": rates.token,
        "time": rates.time_ms,
        "life": rates.life,
        "epoch": rates.epoch,
        "policy": rates.policy.to_json(),
        "pace": asdict(rates.pace),
        "segments": {number: _cells(s) for number, s in rates.segments.items()},
    }
    body = to_json(record).encode()
    header = to_json({"format": FORMAT, "digest": xxhash.xxh3_128_hexdigest(body)}).encode()
    return header + b"\n" + body + b"\n"


def decode_rates(data: bytes) -> Rates | None:
    """Return what :func:`encode_rates` wrote, or None if it is not whole or not of this format."""
    first, _, rest = data.partition(b"\n")
    body = rest.removesuffix(b"\n")
    try:
        header = json.loads(first)
        if header != {"format": FORMAT, "digest": xxhash.xxh3_128_hexdigest(body)}:
            return None
        record = json.loads(body)
        pace = record["pace"]
        return Rates(
            ScalingPace(**{**pace, "windows_ms": tuple(pace["windows_ms"])}),
            record["version"],
            record["token"],
            record["time"],
            record["life"],
            record["epoch"],
            ScalingPolicy.from_json(record["policy"]),
            {int(number): _segment(cells) for number, cells in record["segments"].items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError, PravegaSparkError):
        return None


def _cells(segment: SegmentRates) -> list[Any]:
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


def _segment(cells: list[Any]) -> SegmentRates:
    since_ms, ticked_ms, written_ms, reported_ms, up_ms, down_ms, *rest = cells
    events, size_bytes, *rates, up, cold_until_ms, cold_since_ms = rest
    return SegmentRates(
        since_ms,
        ticked_ms,
        written_ms,
        reported_ms,
        up_ms,
        down_ms,
        SegmentTraffic(events, size_bytes),
        _averages(rates[:4]),
        _averages(rates[4:]),
        None if up is None else ScaleUp(*up),
        cold_until_ms,
        cold_since_ms,
    )


def _averages(cells: list[float]) -> Averages:
    a, b, c, d = cells
    return a, b, c, d
