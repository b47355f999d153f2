"""From a stream's log to its rates: on from where the last run stopped, else a bounded way back."""

from __future__ import annotations

from pravega_spark.engine.log.version_ages import VersionAges
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.limits import CLOCK_SKEW_MS, RATES_COMMITS
from pravega_spark.policies import ScalingPace
from pravega_spark.scaling.rate_file import decode_rates, encode_rates, rates_key
from pravega_spark.scaling.segment_rates import Rates


def read_rates(
    stream: StreamLog, view: StreamView, pace: ScalingPace, now_ms: int
) -> tuple[Rates, bool]:
    """Return the rates of a stream at the view's version, and whether they are worth keeping.

    Reads the commits since what :func:`keep_rates` left; without that, those of the last
    ``pace.history_ms``; in either case not many more than RATES_COMMITS.
    """
    latest_ms = max(now_ms, stream.store.time_ms()) + CLOCK_SKEW_MS
    rates = _kept(stream, view, pace, latest_ms)
    if rates is not None and rates.version == view.version:
        return rates, False
    if rates is None or view.version - rates.version > RATES_COMMITS:
        rates = _begun(stream, view, pace, latest_ms)
    reader = stream.log.reader
    for commit in reader.span(rates.version, view.version, light=True):
        rates.apply(commit, latest_ms)
    return rates, True


def keep_rates(stream: StreamLog, rates: Rates) -> None:
    """Leave the rates for the next run; the last one wins, whichever it is."""
    # No fsync: one that a power cut tears fails its digest and is not used.
    stream.store.put(rates_key(stream.path), encode_rates(rates), durable=False)


def _kept(stream: StreamLog, view: StreamView, pace: ScalingPace, latest_ms: int) -> Rates | None:
    """Return what the last run left if it is sound, of this log, life and pace, and not too old.

    What a host whose clock was ahead left is of the future, and counts for nothing.
    """
    try:
        kept = decode_rates(stream.store.get(rates_key(stream.path)))
    except FileNotFoundError:
        return None
    if kept is None or (kept.pace, kept.life) != (pace, view.life) or kept.time_ms > latest_ms:
        return None
    if kept.version == view.version:
        return kept if kept.token == view.snapshot.token else None
    if not view.snapshot.cleanup <= kept.version < view.version:
        return None
    commit = stream.log.reader.commit(kept.version, light=True)
    return kept if commit is not None and commit.token == kept.token else None


def _begun(stream: StreamLog, view: StreamView, pace: ScalingPace, now_ms: int) -> Rates:
    """Begin at a version before the history that counts, or at the oldest that is retained."""
    ages = VersionAges.read(stream.log, now_ms=now_ms)
    wanted = ages.version_at(int(now_ms - pace.history_ms))
    wanted = max(wanted, view.version - RATES_COMMITS)
    opened = stream.log.reader.open(below=min(wanted, view.version) + 1)
    assert opened is not None, f"stream {stream.name} has a version {view.version} but no log"
    begun = opened[0]
    is_of_future = begun.timestamp_ms > now_ms
    time_ms = ages.written_ms(begun.version) if is_of_future else begun.timestamp_ms
    return Rates.begin(StreamView(begun), pace, time_ms)
