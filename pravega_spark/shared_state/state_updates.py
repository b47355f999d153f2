"""The values of a state synchronizer's stream: an initial state, or a list of updates.

``I`` and the bytes of a state; or ``U`` and, for each update, its length (4 bytes, big-endian) and
its bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from pravega_spark.errors import IllegalState

_INITIAL, _UPDATES = b"I", b"U"
_LENGTH = struct.Struct(">I")


def encode_initial(state: bytes) -> bytes:
    """Return the value that starts over with a state."""
    return _INITIAL + state


def encode_updates(updates: Sequence[bytes]) -> bytes:
    """Return the value of updates that are applied together."""
    return _UPDATES + b"".join(_LENGTH.pack(len(update)) + update for update in updates)


def is_initial(value: bytes) -> bool:
    """Return whether a value starts over; raise IllegalState if no synchronizer wrote it."""
    if value[:1] not in (_INITIAL, _UPDATES):
        raise IllegalState(
            f"the stream holds an event that no state synchronizer wrote: {value[:32]!r}; use a "
            "stream of its own for shared state."
        )
    return value[:1] == _INITIAL


def decode_initial(value: bytes) -> bytes:
    """Return the state of an initial value."""
    return value[1:]


def decode_updates(value: bytes) -> Iterator[bytes]:
    """Yield the updates of a value."""
    at = 1
    while at < len(value):
        (size,) = _LENGTH.unpack_from(value, at)
        at += _LENGTH.size + size
        yield value[at - size : at]
