"""The probe of a root: proves, once, that its storage creates objects exclusively."""

from __future__ import annotations

import contextlib
import os
import threading
from functools import partial

from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.runtime.system import SYSTEM, Runtime
from pravega_spark.engine.store.base import PutOutcome, Store
from pravega_spark.engine.store.reserve import set_aside
from pravega_spark.engine.store.retries import pause_seconds
from pravega_spark.engine.store.root_marker import (
    MARKER_FORMAT,
    MARKER_KEY,
    PROBE_FOLDER,
    encode,
    read_root,
)
from pravega_spark.errors import StoreError, StoreRefused, StoreUnavailable

logger = own_logger(__name__)

_RACERS = 8
_RACES = 2
_START_SECONDS = 60.0
_WAY_ON = "Use a local POSIX disk, S3, or another store whose conditional writes are exclusive."


def ensure_probed(store: Store, runtime: Runtime = SYSTEM, *, refresh: bool = True) -> None:
    """Probe the root unless its marker names this storage; then write such a marker.

    Costs one read if the marker does; none without ``refresh`` if this process has read it already.
    A new marker records the runtime's time. On return there is a marker. Raises StoreRefused for a
    root that fails the probe, or whose marker has an unknown format, StoreUnavailable if a new
    marker could not be proved to be there, and what the store raises.
    """
    storage = store.storage
    root = read_root(store, refresh=refresh)
    if not refresh and (root is None or not root.names(storage)):
        root = read_root(store, refresh=True)  # another process may have probed it since
    if root is None or not root.names(storage):
        probe(store, runtime=runtime)
        logger.info(
            "probed %s: its creates are exclusive",
            store.url,
            extra=log_fields("probe", root=store.url),
        )
        if root is None:
            record = {
                "format": MARKER_FORMAT,
                "probed_ms": runtime.now_ms(),
                "racers": _RACERS,
                "races": _RACES,
                "root": os.urandom(12).hex(),
                "storage": [storage],
            }
            _mark(store, runtime, encode(record))
            set_aside(store, at_first=True)
        else:
            with contextlib.suppress(StoreError):  # the next writer probes again
                store.put(MARKER_KEY, root.marker(storage))
        root = read_root(store, refresh=True)  # after a lost race, the winner's marker
        if root is None:
            raise _unanswered(store, MARKER_KEY)
    root.is_proved = True


def _mark(store: Store, runtime: Runtime, marker: bytes) -> None:
    """Create the marker, unless there is one; send it again while it got no answer.

    Whoever opens the root looks for it, so nothing else may be stored before it is.
    """
    if store.put_if_absent(MARKER_KEY, marker) is PutOutcome.CREATED:
        return
    if not store.exists(MARKER_KEY):
        outage_key = _outage_key(f"{PROBE_FOLDER}/{os.urandom(8).hex()}/")
        try:
            answer = _create(store, runtime, MARKER_KEY, marker, outage_key)
        finally:
            with contextlib.suppress(StoreError):  # a sweep reports that
                store.delete([outage_key])
        if answer is PutOutcome.CREATED:
            return
    store.make_durable("")  # a lost answer did not confirm that, nor has a winner waited for it


def probe(store: Store, *, token: str | None = None, runtime: Runtime = SYSTEM) -> None:
    """Prove exclusive creates: every race has one winner, whose bytes are kept and visible.

    ``token`` names the folder of this probe; by default it is random. Raises StoreRefused if the
    store fails the probe, and StoreReadOnly or another StoreError if it cannot be written. A create
    without answer and effect is repeated for as long as the store repeats its calls, and is then
    StoreUnavailable: it proves nothing.
    """
    folder = f"{PROBE_FOLDER}/{token or os.urandom(8).hex()}"
    keys = [f"{folder}/{number:02d}" for number in range(_RACES + 1)]
    try:
        _check_second_create(store, runtime, keys[0])
        _check_races(store, runtime, keys[1:])
        entries = store.list(folder)
        listed = [entry.key for entry in entries]
        if listed != keys:
            raise _failed(store, f"after {keys} were created a listing shows {listed}")
        if not all(entry.modified_ms for entry in entries):
            raise _failed(store, "a listing has no dates, by which leases and old files are judged")
    finally:
        # A user without the right to delete can still have streams; a sweep reports that.
        with contextlib.suppress(StoreError):
            store.delete([*keys, _outage_key(keys[0])])


def _create(store: Store, runtime: Runtime, key: str, data: bytes, outage_key: str) -> PutOutcome:
    """Create an object; UNKNOWN if it exists, or if the store gave no answer to any attempt.

    Between two attempts ``outage_key`` is put, which the store repeats, reports and, at last,
    refuses as every call in an outage.
    """
    deadline, failures = runtime.monotonic() + store.retry_seconds, 0
    while True:
        answer = store.put_if_absent(key, data)
        if answer is not PutOutcome.UNKNOWN or runtime.monotonic() >= deadline or store.exists(key):
            return answer
        store.put(outage_key, b"")
        failures += 1
        runtime.sleep(pause_seconds(runtime, failures))


def _outage_key(key: str) -> str:
    """Return the object that is put after a create without answer; the probe does not list it."""
    return f"{key.rpartition('/')[0]}-outage/0"


def _check_second_create(store: Store, runtime: Runtime, key: str) -> None:
    first, second = b"first", b"second, which must not replace it"
    if _create(
        store, runtime, key, first, _outage_key(key)
    ) is PutOutcome.UNKNOWN and not store.exists(key):
        raise _unanswered(store, key)
    answer = _create(store, runtime, key, second, _outage_key(key))
    if answer is PutOutcome.CREATED:
        raise _failed(store, f"{key} could be created twice")
    content = _read(store, key)
    if content != first:
        raise _failed(store, f"{key} was created as {first!r} and then held {content!r}")


def _check_races(store: Store, runtime: Runtime, keys: list[str]) -> None:
    creators = [(key, number) for number in range(_RACERS) for key in keys]
    start = threading.Barrier(len(creators), timeout=_START_SECONDS)

    def create(creator: tuple[str, int]) -> PutOutcome:
        key, number = creator
        start.wait()
        return _create(store, runtime, key, _content(number), _outage_key(key))

    racing = {creator: SYSTEM.start(partial(create, creator)) for creator in creators}
    answers = {creator: answer.result() for creator, answer in racing.items()}
    for key in keys:
        winners = [n for n in range(_RACERS) if answers[key, n] is PutOutcome.CREATED]
        if len(winners) > 1:
            raise _failed(
                store, f"{len(winners)} of {_RACERS} concurrent creates of {key} succeeded"
            )
        if all(answers[key, n] is PutOutcome.UNKNOWN for n in range(_RACERS)) and not store.exists(
            key
        ):
            raise _unanswered(store, key)
        content = _read(store, key)
        # Without a CREATED, the winner's answer was lost, which is not a fault of the store.
        if content not in [_content(number) for number in winners or range(_RACERS)]:
            raise _failed(store, f"{key} does not hold the bytes of its creator: {content[:80]!r}")


def _content(number: int) -> bytes:
    return b"%04d" % number * 1_024


def _read(store: Store, key: str) -> bytes:
    try:
        return store.get(key)
    except FileNotFoundError:
        raise _failed(store, f"{key} was created and then could not be read") from None


def _unanswered(store: Store, key: str) -> StoreUnavailable:
    """Return the error of a create that proves nothing about the store."""
    message = f"{store.url}/{key}: create got no answer, and had no effect. Try again."
    return StoreUnavailable(message, url=store.url)


def _failed(store: Store, what: str) -> StoreRefused:
    return StoreRefused(f"{store.url} cannot hold streams: {what}. {_WAY_ON}", url=store.url)
