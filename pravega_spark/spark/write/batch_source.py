"""Where a numbered write comes from: its query, run and batch, and the ends of its sources.

Spark writes ``offsets/N`` before batch N and repeats it unchanged after a crash. Spark's file
source counts its ends, so the files between two of them are in ``sources/<i>/``, one object an end,
of which every tenth has all earlier ones, too. Each read is one attempt: an endpoint that Hadoop
alone reaches must not hold up a batch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import xxhash

from pravega_spark.engine.runtime.json_codec import to_json
from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.store import Store, open_store
from pravega_spark.engine.store.opening import has_timeouts, is_s3
from pravega_spark.engine.store.root_url import RootUrl
from pravega_spark.engine.writing.identity import BatchOrigin, BatchSource, NumberedBatch
from pravega_spark.engine.writing.split_batch import SplitBatch, read_split_batch
from pravega_spark.errors import PravegaSparkError
from pravega_spark.spark.settings import WriteSettings
from pravega_spark.spark.write.task_run import TaskRun
from pravega_spark.values.names import is_number

_TIMEOUT_SECONDS = 3.0
UNREADABLE = (PravegaSparkError, OSError, ValueError, KeyError, TypeError)
"""What a read raises if the folder is away, is not a checkpoint, or only Hadoop can reach it."""


@dataclass(frozen=True, slots=True)
class BatchEnds:
    """The ends of a batch's sources: the lines of ``offsets/N``, and a digest."""

    lines: tuple[str, ...]
    digest: str


@dataclass(frozen=True, slots=True)
class QueryCheckpoint:
    """The folder of a query's checkpoint; every method raises one of UNREADABLE."""

    location: str

    def query_id(self) -> str:
        """Return the id of the query whose folder it is."""
        return str(json.loads(_open(self.location).get("metadata"))["id"])

    def check_is_of(self, query_id: str | None) -> None:
        """Raise ValueError if it is the folder of another query; what it is, is read once."""
        _check_is_of(self, query_id)

    def created_ms(self) -> int:
        """Return when the query was started for the first time."""
        entries = _open(self.location).list("", after="metadat", before="metadata/")
        return {entry.key: entry.modified_ms for entry in entries}["metadata"]

    def last_batch(self) -> int:
        """Return the number of the batch that was planned last."""
        names = (entry.key.rpartition("/")[2] for entry in _open(self.location).list("offsets"))
        return max(int(name) for name in names if is_number(name))

    def ends(self, batch: int) -> BatchEnds:
        """Return where the sources of a batch end."""
        store = _open(self.location)
        lines = _lines(store, batch)
        sources = [_source(n, line) for n, line in enumerate(lines)]
        listed: list[Any] = []
        for number, (name, text) in enumerate(sources):
            end = _counted(text)
            if end is not None:
                first = _end_before(store, batch, number) + 1
                listed.append([name, [_files(store, number, at) for at in range(first, end + 1)]])
        text = to_json([sources, listed] if listed else [sources])
        return BatchEnds(tuple(lines), xxhash.xxh3_128_hexdigest(text.encode()))


def query_id_of(location: str | None) -> str | None:
    """Return the id of the query whose checkpoint is named; None if nothing tells it."""
    if location is None:
        return None
    try:
        return QueryCheckpoint(location).query_id()
    except UNREADABLE:
        return None


@lru_cache(maxsize=64)
def _check_is_of(checkpoint: QueryCheckpoint, query_id: str | None) -> None:
    """Raise ValueError for another query, which is not remembered.

    People delete the folder, and the next query has it: what a path was says nothing about now.
    """
    if checkpoint.query_id() != query_id:
        raise ValueError("it is the checkpoint of another query")


def _open(location: str) -> Store:
    if not has_timeouts(location):
        return open_store(location)
    timeouts = {"retry_timeout": 0.0}
    if is_s3(location):
        timeouts |= dict.fromkeys(("connect_timeout", "read_timeout"), _TIMEOUT_SECONDS)
    return open_store(RootUrl(location, timeouts))


def _lines(store: Store, batch: int) -> list[str]:
    """Return the lines of the sources, behind those of the format and of the query."""
    version, _, *lines = store.get(f"offsets/{batch}").decode().splitlines()
    if version not in ("v1", "v2"):
        raise ValueError(f"offsets/{batch} has format {version!r}")
    return lines


def _source(number: int, line: str) -> tuple[str, str]:
    """Return a source's name and its end: format v2 names it, v1 counts the lines."""
    if not line.startswith(("{", "-")) and ":" in line:
        name, _, text = line.partition(":")
        return name, text
    return str(number), line


def _counted(text: str) -> int | None:
    """Return the end of a source of files; None for other sources."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    is_counted = isinstance(found, dict) and set(found) == {"logOffset"}
    return int(found["logOffset"]) if is_counted else None


def _end_before(store: Store, batch: int, number: int) -> int:
    """Return where a source of files ended before a batch; -1 at its first files."""
    if batch == 0:
        return -1
    end = _counted(_source(number, _lines(store, batch - 1)[number])[1])
    return -1 if end is None else end


def _files(store: Store, source: int, at: int) -> Sequence[str]:
    """Return the entries of the files that one end of a source added."""
    folder = f"sources/{source}"
    try:
        return _entries(store, f"{folder}/{at}")
    except FileNotFoundError:
        names = (entry.key.rpartition("/")[2] for entry in store.list(folder))
        joined = (n.removesuffix(".compact") for n in names if n.endswith(".compact"))
        later = sorted(int(n) for n in joined if is_number(n) and int(n) >= at)
        found = _entries(store, f"{folder}/{later[0]}.compact") if later else ()
        return [entry for entry in found if json.loads(entry).get("batchId") == at]


def _entries(store: Store, key: str) -> Sequence[str]:
    return sorted(store.get(key).decode().splitlines()[1:])


logger = own_logger(__name__)

_TRIED_AGAIN = 16
"""A checkpoint that could not be read is tried again at each batch that this divides."""

_stopped: set[tuple[str, str]] = set()
"""The roots and writers whose record, as this process knows it, has a batch without an end."""


def query_writer(query_id: str | None) -> str:
    """Return the writer id of a query's own sink."""
    return f"spark.{query_id}"


@dataclass
class WriteSource(BatchSource):
    """Where one write comes from, and what it reads of that and keeps."""

    settings: WriteSettings
    task: TaskRun
    writer_id: str
    _origin: BatchOrigin | None = None
    _ends: BatchEnds | None = None
    _split: list[SplitBatch | None] = field(default_factory=list)
    """The last batch of several streams, once it was read."""
    _warned: set[str] = field(default_factory=set)

    def numbered(self, number: int) -> NumberedBatch:
        """Return the identity of a batch from here."""
        return NumberedBatch(self.writer_id, number, self, self.settings.restored_lives)

    @property
    def parameters(self) -> Mapping[str, object]:
        """The ends of the batch's sources, with which ``offsets/N`` can be written again."""
        return {} if self._ends is None else {"offsets": list(self._ends.lines)}

    def origin(self, known: BatchOrigin | None) -> BatchOrigin:
        """Return the query, run, batch, attempt, and the ends of its sources, read once."""
        if self._origin is None:
            task = self.task
            found = BatchOrigin(task.query_id, task.run, task.batch, attempt=task.attempt)
            self._ends = self._read_ends(found, known)
            digest = None if self._ends is None else self._ends.digest
            self._origin = replace(found, ends=digest)
        return self._origin

    def _read_ends(self, found: BatchOrigin, known: BatchOrigin | None) -> BatchEnds | None:
        """Return where the batch's sources end; None, with one warning a run, if unreadable."""
        if found.query is None or found.batch is None:
            return None
        is_later = found.is_same_run(known)
        was_read = is_later and known is not None and known.ends is not None
        if is_later and not was_read and found.batch % _TRIED_AGAIN:
            return None
        checkpoint = self.checkpoint
        try:
            if checkpoint is None:
                raise ValueError("the write does not know it")
            if not was_read:
                checkpoint.check_is_of(found.query)
            return checkpoint.ends(found.batch)
        except UNREADABLE as error:
            if not is_later:
                self.warn(
                    "cannot read where the sources of batch %d of query %s end (checkpoint %s: "
                    "%s), so a batch is known by its number alone; set the option "
                    "checkpointLocation on the write to a path or URL that this package can read",
                    found.batch,
                    found.query,
                    None if checkpoint is None else checkpoint.location,
                    error,
                )
            return None

    @property
    def checkpoint(self) -> QueryCheckpoint | None:
        """The checkpoint of the query that writes, if the write knows it."""
        location = self.settings.checkpoint or self.task.checkpoint
        return None if location is None else QueryCheckpoint(location)

    def split_batch(self) -> SplitBatch | None:
        """Return the writer's last batch of several streams, which is read once."""
        if not self._split:
            found = read_split_batch(open_store(self.settings.root), self.writer_id)
            self._split.append(found)
            if found is not None and found.left:
                _stopped.add(self._writer)
        return self._split[0]

    def record(self, batch: SplitBatch) -> None:
        """Record a batch of several streams before its first commit."""
        _stopped.add(self._writer)
        batch.put(open_store(self.settings.root))

    def end(self, batch: SplitBatch) -> None:
        """Note that all of its streams have a batch that was recorded."""
        if not batch.left:
            _stopped.discard(self._writer)

    @property
    def knows_stopped(self) -> bool:
        """Whether this process knows that a batch of the writer may not be in all its streams."""
        return self._writer in _stopped

    @property
    def _writer(self) -> tuple[str, str]:
        return self.settings.root, self.writer_id

    @property
    def is_of_query(self) -> bool:
        """Whether a query's own sink writes, so that no other write has the number."""
        return self.writer_id == query_writer(self.task.query_id)

    def warn(self, text: str, *values: object) -> None:
        """Log a warning of this write once."""
        if text not in self._warned:
            self._warned.add(text)
            logger.warning(text, *values, extra=log_fields("append", self.settings.stream))
