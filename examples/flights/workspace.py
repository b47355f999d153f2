"""Where a run of the demo leaves what: the stream in its root, all else in one folder."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from flights.dataset import InputError
from flights.scaling import policy
from pravega_spark import RetentionPolicy, StreamConfiguration, StreamManager
from pravega_spark.names import split_stream

WORK = Path("out", "demo")
"""Below the current folder; emptied by every run."""
MARK = ".made-by-the-demo"
GROUP = "dashboards"
"""The reader group's name, in the stream's scope."""


@dataclass(frozen=True)
class Place:
    """The stream of one run and its folder; both are there, and empty."""

    root: str
    stream: str
    group: str
    """The reader group of the query that reads the stream."""
    segments: int
    target: int
    """Events a second in a segment above which it is split."""
    work: Path

    def path(self, name: str) -> str:
        """Return the path of a file or folder in the demo's own folder."""
        return str(self.work / name)


def prepare(root: str | None, stream: str, segments: int, events: int) -> Place:
    """Empty the demo's folder and create the stream; a root of the user's own is kept as it is.

    It scales by a target that so many ``events`` will be above, and keeps what its subscribers
    have not consumed.

    Raises InputError if that would remove or change something that is not the demo's own, and
    what StreamManager raises for a root, name or number that it cannot use.
    """
    scope, _ = split_stream(stream)
    scaling = policy(events, segments)
    configuration = StreamConfiguration(
        scaling=scaling, retention=RetentionPolicy.by_consumption(), tags=frozenset({"demo"})
    )
    group = f"{scope}/{GROUP}"
    work = WORK.resolve()
    if work.exists() and any(work.iterdir()) and not (work / MARK).exists():
        raise InputError(f"{work} was not made by the demo, so it is not emptied: move it away.")
    if root is None:
        _empty(work)
        manager = StreamManager(work / "streams")
    else:
        _check_root(root, work)
        manager = StreamManager(root)
    manager.create_scope(scope)
    if group in manager.list_reader_groups(scope):
        raise InputError(
            f"reader group {group} exists in {root} already, and the demo leaves it alone: name "
            "another scope with --stream, or another --root."
        )
    if not manager.create_stream(stream, configuration):
        raise InputError(
            f"stream {stream} exists in {root} already, and the demo leaves it alone: name another "
            "with --stream, or another --root."
        )
    if root is not None:
        _empty(work)
    return Place(manager.root, stream, group, segments, scaling.target, work)


def _check_root(root: str, work: Path) -> None:
    if root.startswith("memory:"):
        raise InputError(f"--root {root} is seen by one process alone, and the demo has several.")
    if "://" not in root and Path(root).resolve().is_relative_to(work):
        raise InputError(f"--root {root} lies in {work}, which the demo empties: name another.")


def _empty(work: Path) -> None:
    if work.exists():
        shutil.rmtree(work)
    work.mkdir(parents=True)
    (work / MARK).touch()
