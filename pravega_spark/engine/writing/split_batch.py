"""The one object of a root that says which streams the last batch of several is for.

The commits of such a batch are independent. If the write dies between two of them and is started
again with other options, the new target may know nothing of the batch; and if its rows then go to
other streams, they are in two streams, or in none. So before the first commit the batch's number,
its streams, their numbers of rows and the options that decide where a row goes are put here; the
first batch of each run looks, and so does a batch that some of its streams have.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import xxhash

from pravega_spark.engine.json_codec import DECODE_ERRORS, digested_line, to_digested_line
from pravega_spark.engine.store import Store
from pravega_spark.errors import CorruptLog

FOLDER = "_batches"


@dataclass(frozen=True, slots=True)
class StreamPart:
    """What a batch has for one of its streams: the stream's life, and a number of rows."""

    life: int
    rows: int


@dataclass(frozen=True, slots=True)
class SplitBatch:
    """A batch of several streams: who wrote it, its number, its parts by stream, the options."""

    writer_id: str
    number: int
    parts: Mapping[str, StreamPart]
    options: Mapping[str, str]

    @property
    def rows(self) -> dict[str, int]:
        """The number of rows for each stream."""
        return {name: part.rows for name, part in self.parts.items()}

    def put(self, store: Store) -> None:
        """Record it, in place of the writer's batch before."""
        parts = sorted(self.parts.items())
        record = {
            "writer": self.writer_id,
            "number": self.number,
            "streams": {name: {"life": part.life, "rows": part.rows} for name, part in parts},
            "options": dict(self.options),
        }
        store.put(split_batch_key(self.writer_id), to_digested_line(record))


def split_batch_key(writer_id: str) -> str:
    """Return the object's key: a digest, since an application's name may be no key."""
    return f"{FOLDER}/{xxhash.xxh3_128_hexdigest(writer_id.encode())}.json"


def read_split_batch(store: Store, writer_id: str) -> SplitBatch | None:
    """Return a writer's last batch of several streams, or None; raise CorruptLog for damage."""
    key = split_batch_key(writer_id)
    try:
        line = digested_line(store.get(key))
    except FileNotFoundError:
        return None
    path = f"{store.url.rstrip('/')}/{key}"
    try:
        if line is None:
            raise ValueError("its digest does not match")
        record = json.loads(line)
        found = record["streams"].items()
        parts = {name: StreamPart(part["life"], part["rows"]) for name, part in found}
        return SplitBatch(record["writer"], record["number"], parts, record["options"])
    except DECODE_ERRORS as error:
        raise CorruptLog(
            f"{path} is damaged ({error}): it says which streams the last batch of "
            f"{writer_id!r} is for. Restore it from a copy; or delete it, if the query or the "
            "application has the options that it had.",
            path=path,
        ) from error
