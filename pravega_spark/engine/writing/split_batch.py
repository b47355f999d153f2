"""The one object of a root that says which streams the last batch of several is for.

The commits of such a batch are independent. If the write dies between two of them and is started
again with other options, the new target may know nothing of the batch; and if its rows then go to
other streams, they are in two streams, or in none. So before the first commit the batch's number,
its streams, their numbers of rows and the options that decide where a row goes are put here; the
first batch of each run looks, and so does a batch that some of its streams have.

A later number may be written while streams lack an earlier one. Once they have the later number,
they would skip the earlier one, so the record keeps which of them it was left out of.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import xxhash

from pravega_spark.engine.runtime.json_codec import DECODE_ERRORS, digested_record, to_digested_line
from pravega_spark.engine.store import Store
from pravega_spark.errors import CorruptLog

FOLDER = "_batches"

LEFT_KEPT = 16
"""How many numbers that streams were left without a record keeps: the highest."""


@dataclass(frozen=True, slots=True)
class StreamPart:
    """What a batch has for one of its streams: the stream's life, and a number of rows.

    A stream that had the batch before an accepted replay without rows for it has 0.
    """

    life: int
    rows: int


@dataclass(frozen=True, slots=True)
class SplitBatch:
    """A batch of several streams: who wrote it, its number, its parts by stream, the options."""

    writer_id: str
    number: int
    parts: Mapping[str, StreamPart]
    options: Mapping[str, str]
    left: Mapping[int, Mapping[str, StreamPart]] = field(default_factory=dict)
    """Other numbers that were stopped, with the parts of the streams that lacked them."""

    @property
    def rows(self) -> dict[str, int]:
        """The number of rows for each stream that has any."""
        return {name: part.rows for name, part in self.parts.items() if part.rows}

    def put(self, store: Store) -> None:
        """Record it, instead of the writer's batch before."""
        record = {
            "writer": self.writer_id,
            "number": self.number,
            "streams": _written(self.parts),
            "options": dict(self.options),
        }
        if self.left:
            kept = sorted(self.left.items())[-LEFT_KEPT:]
            record["left"] = {str(number): _written(parts) for number, parts in kept}
        store.put(split_batch_key(self.writer_id), to_digested_line(record))


def _written(parts: Mapping[str, StreamPart]) -> dict[str, object]:
    return {name: {"life": p.life, "rows": p.rows} for name, p in sorted(parts.items())}


def _parts(found: Mapping[str, Mapping[str, int]]) -> dict[str, StreamPart]:
    return {name: StreamPart(part["life"], part["rows"]) for name, part in found.items()}


def split_batch_key(writer_id: str) -> str:
    """Return the object's key: a digest, since an application's name may not be a valid key."""
    return f"{FOLDER}/{xxhash.xxh3_128_hexdigest(writer_id.encode())}.json"


def read_split_batch(store: Store, writer_id: str) -> SplitBatch | None:
    """Return a writer's last batch of several streams, or None; raise CorruptLog for damage."""
    key = split_batch_key(writer_id)
    try:
        record = digested_record(store.get(key))
    except FileNotFoundError:
        return None
    path = f"{store.url.rstrip('/')}/{key}"
    try:
        if record is None:
            raise ValueError("its digest does not match")
        parts, writer, number = _parts(record["streams"]), record["writer"], record["number"]
        left = {int(n): _parts(found) for n, found in record.get("left", {}).items()}
        return SplitBatch(writer, number, parts, record["options"], left)
    except DECODE_ERRORS as error:
        raise CorruptLog(
            f"{path} is damaged ({error}): it says which streams the last batch of "
            f"{writer_id!r} is for. Restore it from a copy; or delete it, if the query or the "
            "application has the options that it had.",
            path=path,
        ) from error
