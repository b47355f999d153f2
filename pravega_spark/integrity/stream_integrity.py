"""Checks that all retained commits of a stream, and all chunks of its newest version, are intact.

Nothing is changed. The rules are those of the readers: each commit has its digest, each segment's
chunks follow one another from the head to its next offset, and each file has the size that the log
records. Archived records and the manifests of open transactions have their digests. A deep check
also reads every event, and so verifies every page.
"""

from __future__ import annotations

from collections.abc import Iterator

from pravega_spark.engine.chunks.chunk import ChunkRef, first_gap
from pravega_spark.engine.stream.archived_records import archive_folder, read_archived
from pravega_spark.engine.stream.read import reading_error
from pravega_spark.engine.stream.records import SEGMENT_PREFIX
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import Damaged, KmsUnavailable
from pravega_spark.integrity.log_integrity import (
    DamagedObject,
    Integrity,
    check_beside_log,
    damaged_commits,
    damaged_object,
    file_damage,
)
from pravega_spark.integrity.notes_integrity import check_notes, check_transaction_lease
from pravega_spark.txn.manifests import ManifestKind, Manifests, read_new, transaction_folder
from pravega_spark.values.segments import SegmentRange


def check_stream(stream: StreamLog, name: str = "", *, deep: bool = False) -> Integrity:
    """Check a stream; ``deep`` reads every event. Raises NoSuchStream, and what the store raises.

    Commits and chunks that are deleted meanwhile, by a sweep or a truncation, are not damage.
    """
    found = Integrity(name or stream.name, is_deep=deep)
    try:
        view = stream.view()
        found.version = view.version
        found.damage += damaged_commits(
            stream.log.reader,
            found,
            view.snapshot.commit_deletion_mark,
            lambda: stream.view().snapshot.commit_deletion_mark,
        )
        found.damage += _damaged_chunks(stream, view, found)
        found.damage += _damaged_archives(stream)
        found.damage += _damaged_transactions(stream, view)
        for transaction_id in view.transactions:
            folder = transaction_folder(stream, transaction_id)
            check_transaction_lease(stream.store, folder, found)
    except Damaged as error:
        found.add_damage(error, stream.path)
    check_beside_log(stream.log.reader, found)
    check_notes(stream.store, stream.path, found)
    return found


def _damaged_chunks(
    stream: StreamLog, view: StreamView, found: Integrity
) -> Iterator[DamagedObject]:
    sizes = {entry.key: entry.size for entry in stream.store.list(f"{stream.path}/data")}
    for record in view.snapshot.names(SEGMENT_PREFIX):
        segment_id = int(record.removeprefix(SEGMENT_PREFIX))
        start, end = view.head_offset(segment_id), view.segment(segment_id).next_offset
        if start >= end:
            continue
        rng = SegmentRange(view.stream, life=view.life, segment_id=segment_id, start=start, end=end)
        refs = stream.known_chunks(rng)
        gap = first_gap(rng, refs)
        if gap is not None and _is_needed(stream, segment_id, gap.start):
            yield DamagedObject(stream.path, f"no chunk has the events of {gap}")
        for ref in refs:
            key = f"{stream.path}/{ref.path}"
            found.files += 1
            found.size_bytes += ref.size
            found.events += min(ref.end, end) - max(ref.base_offset, start)
            reason = file_damage(stream.store, key, ref.size, sizes.get(key))
            if not reason and found.is_deep:
                try:
                    reason = _unreadable(stream, ref)
                except KmsUnavailable as error:
                    found.unchecked.append(DamagedObject(key, f"not checked: {error}"))
            if reason and _is_named(stream, segment_id, ref):
                yield DamagedObject(key, reason)


def _damaged_archives(stream: StreamLog) -> Iterator[DamagedObject]:
    """Yield the damaged archives of records that left the state, of all lives.

    A restore may go back to a version of an earlier life, whose archives count then.
    """
    for entry in stream.store.list(archive_folder(stream.path)):
        try:
            read_archived(stream.store, entry.key)
        except Damaged as error:
            yield damaged_object(error, entry.key)
        except FileNotFoundError:  # a newer one took its place
            continue


def _damaged_transactions(stream: StreamLog, view: StreamView) -> Iterator[DamagedObject]:
    """Yield what is wrong with the manifests of open transactions, and the chunks they name.

    The chunks of an aborted transaction may be gone before its outcome is in the log.
    """
    for transaction_id in view.transactions:
        manifests = Manifests(stream, transaction_id)
        try:
            read_new([manifests])
            manifests.check_whole()
        except Damaged as error:
            if transaction_id in stream.view().transactions:
                yield damaged_object(error, stream.name)
            continue
        for chunk in manifests.chunks:
            key = f"{stream.path}/{chunk.path}"
            if not stream.store.exists(key) and _needs_chunks(stream, manifests):
                yield DamagedObject(key, f"the file of open {manifests.name} is missing")


def _needs_chunks(stream: StreamLog, manifests: Manifests) -> bool:
    """Return True if the transaction is still open and not aborted."""
    read_new([manifests])
    is_open = manifests.transaction_id in stream.view().transactions
    return is_open and manifests.last is not ManifestKind.ABORTING


def _unreadable(stream: StreamLog, ref: ChunkRef) -> str:
    """Return why the events of a chunk cannot be read; empty if they can."""
    error = reading_error(stream, ref)
    if isinstance(error, KmsUnavailable):  # it says nothing about the chunk
        raise error
    return "the file is missing" if isinstance(error, FileNotFoundError) else str(error or "")


def _is_needed(stream: StreamLog, segment_id: int, offset: int) -> bool:
    return not stream.view().is_truncated(segment_id, offset)


def _is_named(stream: StreamLog, segment_id: int, ref: ChunkRef) -> bool:
    """Return True if the newest version still has the chunk: no merge or truncation removed it."""
    view = stream.view()
    rng = SegmentRange(
        view.stream, life=view.life, segment_id=segment_id, start=ref.base_offset, end=ref.end
    )
    return any(other.path == ref.path for other in stream.known_chunks(rng))
