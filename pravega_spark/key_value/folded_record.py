"""What a folded table reflects of its change log, as its own log records it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from pravega_spark.engine.kinds import FOLD_SUBSCRIBER
from pravega_spark.engine.layout.located_cut import locate
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.runtime.json_codec import DECODE_ERRORS, to_json, typed
from pravega_spark.engine.stream.truncation import BY_RETENTION
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import CorruptLog
from pravega_spark.values.segments import END, StreamCut

FOLDED_DOMAIN: Final = "pravega.folded"


@dataclass(frozen=True, slots=True)
class FoldedRecord:
    """What a folded table reflects: the domain ``pravega.folded``."""

    life: int
    number: int = 0
    """Counts the folds of the table; 0 before the first one of a life."""
    log_version: int = -1
    """The version of the change log."""
    cut: Mapping[int, int] | None = None
    """The cut of the change log: positions by segment."""
    rows: int = 0
    size_bytes: int = 0
    files: int = 0
    folded_ms: int = 0
    """When it was folded, by the committer's clock."""
    log_bytes: int = 0
    """The bytes of all changes of this life up to the cut."""
    is_ended: bool = False
    """Whether the life has ended, so that no fold of it may commit."""

    def encode(self) -> str:
        """Return the value of the domain."""
        cut = None if self.cut is None else {str(s): o for s, o in sorted(self.cut.items())}
        return to_json(
            {
                "format": 1,
                "life": self.life,
                "number": self.number,
                "logVersion": self.log_version,
                "cut": cut,
                "rows": self.rows,
                "bytes": self.size_bytes,
                "files": self.files,
                "folded": self.folded_ms,
                "logBytes": self.log_bytes,
                "ended": self.is_ended,
            }
        )

    @classmethod
    def of(cls, snapshot: Snapshot) -> FoldedRecord | None:
        """Return the record of a snapshot; None if nothing was ever folded. Raises CorruptLog."""
        try:
            found = snapshot.get(FOLDED_DOMAIN)
            if found is None:
                return None
            if typed(found["format"], int) != 1:
                raise ValueError(f"format {found['format']} is not known")
            cut = found["cut"]
            return cls(
                life=typed(found["life"], int),
                number=typed(found["number"], int),
                log_version=typed(found["logVersion"], int),
                cut=None if cut is None else {int(s): typed(o, int) for s, o in cut.items()},
                rows=typed(found["rows"], int),
                size_bytes=typed(found["bytes"], int),
                files=typed(found["files"], int),
                folded_ms=typed(found["folded"], int),
                log_bytes=typed(found["logBytes"], int),
                is_ended=typed(found["ended"], bool),
            )
        except DECODE_ERRORS as error:
            raise CorruptLog(
                f"{snapshot.where}: the domain {FOLDED_DOMAIN} of version {snapshot.version} is "
                f"damaged: {error!r}. Restore the log from a copy.",
                path=snapshot.where,
                version=snapshot.version,
            ) from error


def completes(record: FoldedRecord | None, view: StreamView) -> bool:
    """Return whether a folded table holds all that its change log was truncated by.

    ``record`` is that of the folded table, None if there is none, and ``view`` a version of the
    change log that is not older than what the record reflects. A record of another life is as
    good as none.
    """
    if record is None or record.life != view.life or record.is_ended or record.cut is None:
        return not has_folds(view)
    cut = StreamCut(view.stream, view.life, record.cut)
    return not locate(view, unfolded_from(view, cut, is_newest=False)).has_lost()


def unfolded_from(view: StreamView, folded: StreamCut, *, is_newest: bool) -> StreamCut:
    """Return the cut from which a version of the change log has what a fold up to a cut has not.

    The cut of a fold names sealed segments at their ends, and releases up to 0.1.0 forgot their
    records when they truncated the log there. Retention waits for the fold, so a truncation of it
    has lost nothing after the cut of the newest fold, read after the view (``is_newest``), or of
    one that has published the same offsets. Otherwise a forgotten segment may have lost changes.
    """
    forgotten = locate(view, folded).forgotten
    truncation = view.record.truncation
    if not forgotten or truncation is None or truncation.by != BY_RETENTION:
        return folded
    if not is_newest:
        known = view.subscriber(FOLD_SUBSCRIBER)
        published = {} if known is None or known.published is None else known.published.positions
        if any(published.get(s) != folded.positions[s] for s in forgotten):
            return folded
    ended = {**folded.positions, **dict.fromkeys(forgotten, END)}
    clipped, lost = locate(view, replace(folded, positions=ended)).clipped_to_head()
    return folded if any(len(rng) for rng in lost) else clipped.cut


def has_folds(view: StreamView) -> bool:
    """Return whether the change log says that a fold of its life was committed."""
    known = view.subscriber(FOLD_SUBSCRIBER)
    return known is not None and known.published is not None


def check_present(view: StreamView, where: str) -> None:
    """Raise CorruptLog if a folded table that was not found is there by its change log."""
    if has_folds(view):
        raise CorruptLog(
            f"{where}: the folded table of the life {view.life} of {view.stream} is missing, and "
            f"version {view.version} of its change log may have been truncated by it. Finish the "
            "restore of the root, or restore the table from a backup.",
            path=where,
        )
