"""The checkpoint of a loop over ranges: which were planned, and which are done.

The folder has the form of a streaming query's, ``metadata``, ``offsets/N`` and ``commits/N``, with
the offsets of the source. So the rules of numbered writes read it as they read Spark's own, and a
streaming query of ``format("pravega")`` with one source can go on in it. A range is recorded before
it runs, and a loop that starts again repeats it unchanged.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pravega_spark.engine.runtime.json_codec import to_json
from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.engine.store import PutOutcome, open_store
from pravega_spark.errors import IllegalState, InvalidInput
from pravega_spark.spark.source_offsets import find_record
from pravega_spark.values.checks import shown
from pravega_spark.values.names import is_number

Offset = Mapping[str, Any]
"""Where a range begins or ends, as the source writes it (``source_offsets``)."""
_KEPT: Final = 100
"""How many ranges stay in the folder, as of a query of Spark's."""
_HEAD: Final = "v1"


def _checked(location: str | os.PathLike[str]) -> str:
    """Return a folder or URL that another process finds again; raise InvalidInput."""
    if not isinstance(location, (str, os.PathLike)) or not (text := os.fspath(location)).strip():
        raise InvalidInput(
            "checkpoint must be a folder or a URL, where the loop keeps what it has done and goes "
            f"on after a restart; got {shown(location)}."
        )
    if text.lower().startswith("memory:"):
        raise InvalidInput(
            f"checkpoint {text} is in the memory of one process, and a loop that is started again "
            "would begin anew; use a folder or an object store."
        )
    return text


def _is_within(url: str, root: str) -> bool:
    """Return whether a store's URL is that of a root, or of a folder in it."""
    return f"{_real(url)}/".startswith(f"{_real(root)}/")


def _real(url: str) -> str:
    """Return a URL as it is, and a folder of a disk without links."""
    path = url.removeprefix("file://").rstrip("/")
    return os.path.realpath(path) if path.startswith("/") else path


class PlannedStep(NamedTuple):
    """A range by its number and its end."""

    number: int
    end: Offset


def check_outside(checkpoint: str, url: str, root: str) -> None:
    """Raise InvalidInput if a checkpoint, which has this URL, is in the root."""
    if _is_within(url, open_store(root).url):
        raise InvalidInput(
            f"checkpoint {checkpoint} is in the root {root}, where all folders are those of "
            "scopes and streams. Name a folder outside of it, and move what is there already."
        )


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a loop is: the number of its next range, and where that begins.

    ``planned`` is a range that was begun and has not ended. Without it the next one is new.
    """

    number: int = 0
    start: Offset | None = None
    planned: PlannedStep | None = None


class RangeLog:
    """The checkpoint folder of one loop at a time."""

    def __init__(self, location: str | os.PathLike[str], root: str) -> None:
        """Take a folder or a URL outside of the root that the loop reads; nothing is read yet.

        Raises InvalidInput for any other, and for one that ends with this process.
        """
        self.location = _checked(location)
        self._store = open_store(self.location)
        check_outside(self.location, self._store.url, root)
        self.run = str(uuid.uuid4())
        """Tells this run of the loop from others; what it writes here has it."""

    def query_id(self) -> str:
        """Return what identifies the loop over all its runs; written when it first runs."""
        text = to_json({"id": str(uuid.uuid4())})
        self._store.put_if_absent("metadata", text.encode())
        try:
            return str(json.loads(self._store.get("metadata"))["id"])
        except (ValueError, KeyError, TypeError) as error:
            raise self._foreign("metadata", error) from None

    def progress(self) -> Progress:
        """Return where the loop is; raise InvalidInput for a folder of something else."""
        planned, done = self._numbers("offsets"), self._numbers("commits")
        if not planned:
            return Progress()
        last = planned[-1]
        end = self._end(last)
        if last in done:
            return Progress(last + 1, end)
        start = self._end(last - 1) if last - 1 in planned else None
        if start is None and last:
            raise InvalidInput(
                f"checkpoint {self.location} has the plan of range {last}, and not that of range "
                f"{last - 1}, where it begins: files were removed from it. Put them back, or start "
                "with another checkpoint and startingStreamCut."
            )
        return Progress(last, start, PlannedStep(last, end))

    def plan(self, step: PlannedStep) -> None:
        """Record a range before it runs; raise IllegalState if another loop has done that."""
        about = {
            "batchWatermarkMs": 0,
            "batchTimestampMs": SYSTEM.now_ms(),
            "conf": {"pravega_spark.run": self.run},
        }
        lines = (_HEAD, to_json(about), to_json(step.end))
        self._create(f"offsets/{step.number}", "\n".join(lines).encode())

    def finish(self, step: PlannedStep) -> None:
        """Record that a range is done; raise IllegalState if another loop has done that."""
        text = f"{_HEAD}\n{to_json({'nextBatchWatermarkMs': 0, 'run': self.run})}"
        self._create(f"commits/{step.number}", text.encode())
        old = step.number - _KEPT
        if old >= 0:
            self._store.delete([f"{name}/{old}" for name in ("offsets", "commits")])

    def _create(self, key: str, data: bytes) -> None:
        if self._store.put_if_absent(key, data) is PutOutcome.CREATED:
            return
        if self._store.get(key) == data:  # after a lost answer
            self._store.make_durable(key.partition("/")[0])
            return
        raise IllegalState(
            f"checkpoint {self.location}: another loop has written {key} meanwhile. One loop at a "
            "time has a checkpoint: stop the other one, or give each a separate folder."
        )

    def _numbers(self, folder: str) -> list[int]:
        names = (entry.key.rpartition("/")[2] for entry in self._store.list(folder))
        return sorted(int(name) for name in names if is_number(name))

    def _end(self, number: int) -> Offset:
        key = f"offsets/{number}"
        try:
            head, _, text = self._store.get(key).decode().splitlines()
            record = find_record(text)
            if head != _HEAD or record is None:
                raise ValueError("it is not of one source 'pravega'")
        except ValueError as error:
            raise self._foreign(key, error) from None
        return record

    def _foreign(self, key: str, error: Exception) -> InvalidInput:
        return InvalidInput(
            f"checkpoint {self.location}: {key} cannot be read ({error}). A loop goes on in its "
            "own folder, and in that of a streaming query whose only source is format('pravega'); "
            "name such a folder, or a new one."
        )
